"""Reproduces the papers' figures and tables, draws them, and decides which of the papers' claims hold.

    python scripts/reproduce.py --list                              # the targets and their times
    python scripts/reproduce.py brdrag003_fig7_alpha                # quick: minutes, to test that it runs
    python scripts/reproduce.py taco004_table6_adult --scale full   # the configuration as it is
    python scripts/reproduce.py brdrag003 --scale medium            # all targets whose names begin with this
    python scripts/reproduce.py paper --scale medium                # all figures and tables, of configs/paper
    python scripts/reproduce.py why --scale medium                  # this project's own questions, of configs/why
    nohup python scripts/reproduce.py all --scale medium --resume > medium.log &

The results folder of a target is OUT/NAME, and its figure is in OUT/figures. OUT/claims.md and OUT/claims.json list
every claim of the papers, judged by all results in OUT. With --resume, finished targets are only judged again and
interrupted ones continue. --record FOLDER also updates the claims.json and claims.md in another folder and keeps their
rows on targets that are not in OUT, which merges the results of several days or machines into one record.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from reproduction.target import Scale, Target
from reproduction.targets import listing, matching

if TYPE_CHECKING:
    from reproduction.claims import Verdict

# All other modules are imported where they are used, so that --list does not wait for JAX and matplotlib.


def main(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME|paper|why|all", help="A target, or the beginning of the names of several."),
    ] = None,
    scale: Annotated[
        Scale, typer.Option(help="quick: minutes; medium: all targets in about seven hours; full: as in the papers.")
    ] = Scale.QUICK,
    out: Annotated[Path | None, typer.Option(help="Results folder; default runs/paper-SCALE.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Skip what is finished, and continue what was interrupted.")
    ] = False,
    record: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also update the claims.json and claims.md in this folder.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bars.")] = False,
    show: Annotated[
        bool, typer.Option("--list", help="List the targets, their times and the changes of the medium scale.")
    ] = False,
) -> None:
    """Reproduces a figure or table of the papers, or all of them, and judges their claims."""
    if show or name is None:
        typer.echo(listing())
        raise typer.Exit
    try:
        targets = matching(name)
        _check_record(record)
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from error

    from fedjax_drag.cli.common import FAILED, INTERRUPTED
    from fedjax_drag.cores import one_device_per_core
    from fedjax_drag.simulation.devices.compilation_cache import keep_compiled
    from reproduction import running, verdicts

    one_device_per_core()
    keep_compiled()
    out = out or Path("runs") / f"paper-{scale}"
    reasons: dict[str, str] = {}
    for target in _announced(targets, scale):
        try:
            reasons[target.name] = running.run(target, scale, out / target.name, resume, quiet or None)
        except KeyboardInterrupt:
            typer.echo("interrupted; --resume continues from here", err=True)
            raise typer.Exit(INTERRUPTED) from None
        if reasons[target.name]:
            typer.echo(f"  not all of it ran: {reasons[target.name]}")
        judged = verdicts.verdicts(out, reasons)
        _show(target, out, judged)
        verdicts.write(out, judged, scale)
        if record:
            verdicts.write(record, verdicts.recorded(record / verdicts.JSON, judged), scale)
    typer.echo(f"claims in {out / verdicts.MARKDOWN}")
    if all(reasons.values()):
        raise typer.Exit(FAILED)


def _check_record(record: Path | None) -> None:
    """Reads the record once, so that a damaged one is reported before hours of runs and not after."""
    if record:
        from reproduction import verdicts

        verdicts.recorded(record / verdicts.JSON, ())


def _announced(targets: Sequence[Target], scale: Scale) -> Iterator[Target]:
    """The targets, each printed before it runs."""
    for number, target in enumerate(targets, start=1):
        time = f"; about {target.minutes} minutes" if scale == Scale.MEDIUM and target.medium is not None else ""
        typer.echo(f"[{number}/{len(targets)}] {target.name}: {target.paper}, {target.place}{time}")
        sys.stdout.flush()
        yield target


def _show(target: Target, out: Path, judged: Sequence["Verdict"]) -> None:
    """Draws the figure of a target; prints its path, paired differences and the verdicts on the target's claims."""
    from reproduction import figures, outcome, paired, verdicts

    results = outcome.read(out / target.name)
    figure = results and figures.save(target, results, out / "figures")
    if figure:
        typer.echo(f"  {figure}")
    if results and target.paired:
        try:
            typer.echo("\n".join(f"  {line}" for line in paired.table(target, results)))
        except outcome.MissingError as missing:
            typer.echo(f"  paired differences: {missing}")
    for verdict in judged:
        if verdict.claim.target == target.name:
            typer.echo(f"  {verdicts.line(verdict)}")


if __name__ == "__main__":
    typer.run(main)
