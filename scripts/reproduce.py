"""Reproduces the papers' figures and tables, draws them, and decides which of the papers' claims hold.

    python scripts/reproduce.py --list                              # the targets and their times
    python scripts/reproduce.py brdrag003_fig7_alpha                # quick: minutes, to test that it runs
    python scripts/reproduce.py taco004_table6_adult --scale full   # the configuration as it is
    python scripts/reproduce.py brdrag003 --scale medium            # all targets whose names begin with this
    python scripts/reproduce.py paper --scale medium                # all figures and tables, of configs/paper
    python scripts/reproduce.py why --scale medium                  # this project's own questions, of configs/why
    nohup python scripts/reproduce.py all --scale medium --resume > medium.log &
    python scripts/reproduce.py NAME --scale medium --seeds 5,6 --record docs/results   # more seeds of what is stored
    python scripts/reproduce.py NAME --from F1 --from F2 --record docs/results   # results of other sweeps; no run
    python scripts/reproduce.py --judge docs/results                # all claims again, by the stored results alone

With --seeds all cells are run with these seeds alone, and OUT is runs/paper-SCALE-seeds-SEEDS; --record adds them to
what is stored at the same scale, and leaves the cells of other seeds as they are.

The results folder of a target is OUT/NAME, and its figure is in OUT/figures. With --resume, finished targets are only
judged again and interrupted ones continue.

Claims are judged by stored results alone: what decides them is kept in OUT/measured/NAME.parquet, and OUT/claims.json
and OUT/claims.md list the verdicts on every claim. --record FOLDER stores the results in another folder as well, cell
by cell: a cell that is stored there is replaced and the others stay, so that seeds and parts that were run on several
days or machines form one result. All of them are drawn in FOLDER/figures, and a target that compares over seeds or
chooses a step size prints its table of them. Results that were run under other settings than those stored (not counting
the seeds and the values of the axes) are refused; remove FOLDER/measured/NAME.parquet to start anew.
"""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedjax_drag import stopping
from reproduction.targets.all_targets import listing, matching
from reproduction.targets.target import Scale, Target

if TYPE_CHECKING:
    from reproduction.judging.outcome import Outcome

# All other modules are imported where they are used, so that --list does not wait for JAX and matplotlib.

STOPPED = "interrupted; --resume continues from here"
"""Said after Ctrl-C or SIGTERM."""


def main(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME|paper|why|all", help="A target, or the beginning of the names of several."),
    ] = None,
    scale: Annotated[
        Scale, typer.Option(help="quick: minutes; medium: all targets in about 20 hours; full: as in the papers.")
    ] = Scale.QUICK,
    out: Annotated[Path | None, typer.Option(help="Results folder; default runs/paper-SCALE.", file_okay=False)] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Skip what is finished, and continue what was interrupted.")
    ] = False,
    record: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            file_okay=False,
            help="Also store the results in this other folder, beside those of other seeds and parts, and judge all "
            "claims by it; results under other settings than those stored are refused.",
        ),
    ] = None,
    sources: Annotated[
        list[Path] | None,
        typer.Option("--from", metavar="FOLDER", help="With --record: a sweep of NAME to store in place of a run."),
    ] = None,
    judge: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Judge all claims by the results stored in a folder; no run.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bars.")] = False,
    seeds: Annotated[
        str, typer.Option(metavar="N,N,...", help="Seeds to run in place of those of the configuration.")
    ] = "",
    show: Annotated[
        bool, typer.Option("--list", help="List the targets, their times and the changes of the medium scale.")
    ] = False,
) -> None:
    """Reproduces a figure or table of the papers, or all of them, and judges their claims."""
    if show or not (name or judge or sources or record):
        typer.echo(listing())
        raise typer.Exit
    folder = out or Path("runs") / f"paper-{scale}{seeds and '-seeds-'}{seeds.replace(',', '-')}"
    try:
        if not re.fullmatch(r"(\d+(,\d+)*)?", seeds):
            raise ValueError(f"--seeds {seeds}: must be integers with commas between them, such as 5,6")
        if judge is not None:
            given = {str(name): name, "--from": sources, "--record": record}
            _judge_stored(judge, [text for text, value in given.items() if value])
            return
        if not name:
            raise ValueError("--record and --from: must be with NAME")
        targets = matching(name)
        if sources:
            _store(targets, sources, record)
            return
        _check_record(targets, scale, record, folder)
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from error
    with stopping.saving():
        _run(targets, scale, folder, resume, record, quiet, seeds)


def _judge_stored(folder: Path, others: Sequence[str]) -> None:
    """Judges without a run; ``others`` are arguments that ask for something else."""
    from reproduction.storing import stored

    if others:
        raise ValueError(f"--judge: runs nothing and judges all claims; must be without {', '.join(others)}")
    if not (folder / stored.FOLDER).is_dir():
        raise ValueError(f"--judge {folder}: must be a folder with results in {stored.FOLDER}")
    _judge(folder)


def _judge(folder: Path, target: Target | None = None) -> None:
    """Judges all claims by the stored results, writes the record, and prints the verdicts of one target or the path."""
    from reproduction.publishing import published, verdicts

    judged = verdicts.verdicts(folder)
    published.write(folder, judged)
    if target is None:
        typer.echo(f"claims in {folder / published.MARKDOWN}")
    for verdict in judged:
        if target is not None and verdict.target == target.name:
            typer.echo(f"  {verdicts.line(verdict)}")


def _store(targets: Sequence[Target], sources: Sequence[Path], record: Path | None) -> None:
    """Stores the results of sweeps that were run by other means."""
    from reproduction.storing import recording

    if record is None or len(targets) != 1:
        raise ValueError(f"--from: must be with --record and one target, not {len(targets)}")
    (target,) = targets
    cells = recording.record(target, sources, record)
    if not cells:
        raise ValueError(f"--from {', '.join(map(str, sources))}: must have a cell that ran to the end")
    typer.echo(f"{target.name}: {cells} cells in {record}")
    _show_stored(target, record)
    _judge(record, target)


def _show_stored(target: Target, record: Path) -> None:
    """Shows a target by all of its stored results."""
    from reproduction.storing import settings, stored

    results = stored.read(stored.path_of(record, target.name))
    if results is not None:
        _show(target, results.outcome(settings.labels_of(target)), record / "figures")


def _check_record(targets: Sequence[Target], scale: Scale, record: Path | None, out: Path) -> None:
    """Refuses what could not be recorded before hours of runs and not after."""
    if record:
        from reproduction.publishing import published
        from reproduction.storing import recording

        published.check(record)
        for target in targets:
            recording.check(target, scale, record)
        if os.path.realpath(record) == os.path.realpath(out):  # which keeps the results of its own runs alone
            raise ValueError(f"--record {record}: must be another folder than the results folder of the runs")


def _run(
    targets: Sequence[Target],
    scale: Scale,
    out: Path,
    resume: bool,
    record: Path | None,
    quiet: bool,
    seeds: str,
) -> None:
    """Runs targets one after another, and judges after each."""
    from fedjax_drag.cli.common import FAILED, INTERRUPTED
    from fedjax_drag.cores import one_device_per_core
    from fedjax_drag.simulation.devices.compilation_cache import keep_compiled
    from reproduction import running
    from reproduction.judging import outcome
    from reproduction.publishing import published

    one_device_per_core()
    keep_compiled()
    reasons: dict[str, str] = {}
    for target in _announced(targets, scale, quiet):
        try:
            reasons[target.name] = running.run(target, scale, out / target.name, resume, quiet or None, seeds)
        except KeyboardInterrupt:
            typer.echo(STOPPED, err=True)
            raise typer.Exit(INTERRUPTED) from None
        if reasons[target.name]:
            typer.echo(f"  not all of it ran: {reasons[target.name]}")
        results = outcome.read(out / target.name)
        if results is not None:
            _show(target, results, out / "figures")
        try:
            _keep(target, out, record)
        except ValueError as error:  # of a folder resumed under other settings; the other targets still run
            typer.echo(f"  not recorded: {error}", err=True)
    typer.echo(f"claims in {out / published.MARKDOWN}")
    if all(reasons.values()):
        raise typer.Exit(FAILED)


def _announced(targets: Sequence[Target], scale: Scale, quiet: bool) -> Iterator[Target]:
    """The targets, each printed before it runs."""
    from fedjax_drag.simulation.progress import Progress

    with Progress("reproduce", len(targets), unit="target", quiet=quiet or None) as bar:
        for number, target in enumerate(targets, start=1):
            time = f"; about {target.minutes} minutes" if scale == Scale.MEDIUM and target.medium is not None else ""
            typer.echo(f"[{number}/{len(targets)}] {target.name}: {target.paper}, {target.place}{time}")
            sys.stdout.flush()
            yield target
            bar.advance()


def _show(target: Target, results: "Outcome", figures_in: Path) -> None:
    """Draws the figure of a target; prints its path, paired differences and the choices of validation."""
    from reproduction.judging.outcome import MissingError
    from reproduction.showing import figures, paired, tuned

    figure = figures.save(target, results, figures_in)
    if figure:
        typer.echo(f"  {figure}")
    for table, wanted in ((paired.table, target.paired), (tuned.table, target.tuned)):
        if wanted:
            try:
                typer.echo("\n".join(f"  {line}" for line in table(target, results)))
            except MissingError as missing:
                typer.echo(f"  table: {missing}")


def _keep(target: Target, out: Path, record: Path | None) -> None:
    """Stores what a target measured, judges all claims, and prints those of the target."""
    from fedjax_drag.experiment.sweep import sweep_folder
    from reproduction.storing import recording

    if (out / target.name / sweep_folder.CONFIG).is_file():
        recording.record(target, [out / target.name], out, anew=True)
        if record:
            recording.record(target, [out / target.name], record)
            _show_stored(target, record)
    _judge(out, target)
    if record:
        _judge(record)


if __name__ == "__main__":
    stopping.listen(lambda: STOPPED)
    typer.run(main)
