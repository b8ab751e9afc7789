"""The ``fedjax-drag arena`` commands."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedjax_drag import stopping
from fedjax_drag.cli import common

# Nothing else is imported here: NumPy and JAX take their time, and --help needs neither.

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Compare defences, tuned against attacks that are tuned too."
)


@app.command()
def run(
    config: Annotated[Path, common.config_argument("an arena")],
    entry: Annotated[
        list[str] | None, typer.Option(metavar="LABEL", help="Play this entry alone; repeatable. Default all.")
    ] = None,
    standing: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Rows that are not played again: arena.json, or a standing of the package."),
    ] = None,
    out: common.OutFolder = None,
    quiet: common.Quiet = False,
    allow_code: Annotated[bool, typer.Option("--allow-code", help="Run code that CONFIG refers to.")] = False,
    debug: common.Debug = False,
) -> None:
    """Play the entries of CONFIG that have not been played, and show the standing.

    CONFIG has under base the configuration of a run, with a validation split (data.validation_fraction), and beside it

    \b
      tasks:                            # each combination is one
        partition.beta: [1.0, 0.1]
        num_byzantine: [4, 8]
      attacks:                          # with the strengths among which the attacker chooses
        sign_flip:
        alie: {strengths: {attack.z: [0.5, 1.0, 2.0]}}
      entries:                          # with the settings among which the defender chooses
        krum:
        br_drag: {settings: {aggregator.c: [0.25, 0.5, 1.0]}}
      tuning_seeds: [100]
      seeds: [0, 1, 2]

    In each task an entry takes the setting with the highest worst case over all attacks and their strengths, by
    validation accuracy; each attack the strength that hurts that setting most. Both then play with fresh seeds, and the
    test accuracy is read once. fedavg, root_only and the federation without an attack are always there.

    What has been played is in the folder, by default runs/NAME, and is not played again, unless the protocol or the
    entry has changed; after Ctrl-C the same command goes on. Entries that are in the standing of --standing are not
    played either; it must have been played by the same protocol.

    \b
    Examples:
      fedjax-drag arena run arena/digits --standing digits --entry krum
      fedjax-drag arena table runs/arena_digits

    \b
    With a rule of your own, among the entries of a copy of the configuration:
      fedjax-drag arena run mine.yaml --standing digits --entry my_rule

    Exit status: 0 done, 1 an arena failed, 2 bad usage or configuration, 130 stopped by Ctrl-C or SIGTERM.
    """
    with common.reported(debug):
        with common.user_errors():
            from fedjax_drag.experiment.arena.protocol import load_arena
            from fedjax_drag.experiment.arena.standing import read

            arena = load_arena(config)
            arena = arena.only(entry) if entry else arena
            given = None if standing is None else read(standing)
        _play(arena, given, out, quiet, allow_code)


@app.command()
def enter(
    code: Annotated[str, typer.Argument(metavar="CODE", help="The defence, as my_rules.py:my_rule.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGUMENT=VALUES]...", help="Values among which it is tuned, as 'radius=[0.3,1.0]'."),
    ] = None,
    arena: Annotated[
        str, typer.Option(metavar="DIR", help="A standing of the package, its file or folder, or an arena's YAML file.")
    ] = "digits",
    label: Annotated[str | None, typer.Option(help="Its name in tables; default that in CODE.")] = None,
    part: Annotated[str, typer.Option(metavar="KIND", help="aggregator, algorithm or client.")] = "aggregator",
    out: common.OutFolder = None,
    quiet: common.Quiet = False,
    allow_code: Annotated[bool, typer.Option("--allow-code", help="Run CODE.")] = False,
    debug: common.Debug = False,
) -> None:
    """Play a defence of your own, and show it beside the entries that have been played.

    Where --arena is a standing, the new entry alone is played. CODE is a function in a file or a module, whose
    arguments can be tuned.

    \b
    Examples:
      fedjax-drag arena enter my_rules.py:my_rule 'radius=[0.3,1.0,3.0]' --allow-code
      fedjax-drag arena enter my_rules.py:my_rule --arena fashion_mnist --out runs/mine --allow-code

    Exit status: 0 done, 1 an arena failed, 2 bad usage or configuration, 130 stopped by Ctrl-C or SIGTERM.
    """
    with common.reported(debug):
        with common.user_errors():
            from fedjax_drag.experiment.arena.play import entered
            from fedjax_drag.experiment.config.config import flatten
            from fedjax_drag.experiment.config.yaml_text import parse

            grid = {key: values for change in parse(settings or ()) for key, values in flatten(change).items()}
            checked, given = entered(code, grid, arena, label, part, None)
        _play(checked, given, out, quiet, allow_code)


def _play(arena: Any, given: Any, out: Path | None, quiet: bool, allow_code: bool) -> None:
    """Plays what is left of an arena, with the rows that are given, and shows the standing."""
    with common.user_errors():
        from fedjax_drag.experiment.arena import play, tables
        from fedjax_drag.experiment.arena.trials import Trials
        from fedjax_drag.experiment.config.config import slug

        common.start_devices()
        trials = Trials(out or Path("runs") / slug(arena.name), quiet or None, allow_code)
        play.begin(arena, trials, given)
    with stopping.saving():
        finished = play.play(arena, trials, given)
    if not quiet:
        typer.echo(f"\n{tables.page(finished)}\nresults in {trials.folder}")


@app.command()
def table(
    standing: Annotated[
        str, typer.Argument(metavar="DIR", help="Results folder, its arena.json, or a standing of the package.")
    ],
    since: Annotated[
        str | None, typer.Option(metavar="OLD", help="An earlier standing: tell what has changed since.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one HTML page that needs no network.")
    ] = None,
    figures: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write the figures as SVG.")] = None,
    debug: common.Debug = False,
) -> None:
    """Show the standing of an arena that has been played.

    What has changed: entries that are new or gone, those whose rank is another among the entries of both standings, and
    those whose intervals of the worst case do not overlap.

    \b
    Examples:
      fedjax-drag arena table runs/arena_digits
      fedjax-drag arena table runs/arena_digits --since digits --html arena.html
    """
    with common.reported(debug):
        with common.user_errors(), common.writes("html", html), common.writes("figures", figures):
            from fedjax_drag.experiment.arena import tables
            from fedjax_drag.experiment.arena.standing import read

            shown, old = read(standing), None if since is None else read(since)
            text, written = tables.page(shown, old), []
            if html is not None:
                from fedjax_drag.experiment.arena import page

                written.append(page.write(shown, html, old))
            if figures is not None:
                from fedjax_drag.experiment.arena.figures import write

                written += write(shown, figures)
        typer.echo("\n".join([text.rstrip(), *(["", *map(str, written)] if written else [])]))
