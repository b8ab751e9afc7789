"""Reproduces the papers' figures and tables, draws them, and says which of the papers' claims hold.

    python scripts/reproduce.py --list                              # what there is, and how long it takes
    python scripts/reproduce.py brdrag003_fig7_alpha                # quick: minutes, to see that it works
    python scripts/reproduce.py taco004_table6_adult --scale full   # the configuration as it is
    python scripts/reproduce.py brdrag003 --scale medium            # all whose names begin so
    python scripts/reproduce.py why --scale medium                  # our own questions, of configs/why
    nohup python scripts/reproduce.py all --scale medium --resume > medium.log &

Of each target the results folder of its sweep lies in OUT/NAME and its figure in OUT/figures; OUT/claims.md and
OUT/claims.json hold every claim of the papers, judged anew from all that lies in OUT. What is finished is not run again
with --resume, so that a second call merely judges; what was interrupted goes on. --record FOLDER enters what was judged
in the claims.json and claims.md there too, in which the other rows stay: so the parts of a day's work, or of several
machines, come to one page (docs/results/claims.md is such a one).
"""

import sys
from pathlib import Path
from typing import Annotated

import typer
from reproduction.targets import TARGETS, Scale, Target

# Nothing else is imported here: JAX and matplotlib take seconds, and --list needs neither.


def chosen(name: str) -> list[Target]:
    """The targets that a name stands for.

    Raises:
      ValueError: none begins so.
    """
    found = [target for known, target in TARGETS.items() if name in ("all", target.folder) or known.startswith(name)]
    if not found:
        raise ValueError(f"{name!r}: must be all, paper, why, or the beginning of one of {', '.join(TARGETS)}")
    return [TARGETS[name]] if name in TARGETS else found


def run(target: Target, scale: Scale, folder: Path, resume: bool, quiet: bool | None) -> str:
    """Runs a target's sweep; returns why it could not be run, or nothing.

    What is finished in the folder is left as it is with ``resume``.

    Args:
      target: what to run.
      scale: at which.
      folder: where its results go.
      resume: go on with what lies there.
      quiet: as for a sweep.
    """
    import jax
    from reproduction import timing

    from fedjax_drag.experiment import sweep

    overrides = target.overrides(scale)
    if overrides is None:
        return "at full length only"
    try:
        begun = resume and (folder / sweep.CONFIG).is_file()
        with sweep.plan(target.config, overrides, out=folder, resume=begun) as planned:
            cells = sweep.execute(planned, quiet).cells
        if target.timed:
            timing.measure(target, overrides, folder)
    except (ValueError, OSError) as error:
        return next(iter(str(error).splitlines()), type(error).__name__)
    finally:
        jax.clear_caches()
    failed = [cell.message for cell in cells if cell.status == "failed"]
    return f"{len(failed)} of {len(cells)} cells failed: {failed[0]}" if failed else ""


def listing() -> str:
    """All targets, with what the medium scale changes and its estimated time."""
    rows = []
    for target in TARGETS.values():
        changes = target.overrides(Scale.MEDIUM)
        told = "in full only" if changes is None else " ".join(changes) or "in full"
        rows.append(f"{target.name:32}{target.paper + ', ' + target.place:56}{target.minutes:6} min  {told}")
    total = sum(target.minutes for target in TARGETS.values() if target.medium is not None)
    return "\n".join([*rows, f"{'all --scale medium':88}{total:6} min"])


def main(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME|paper|why|all", help="A target, or how the names of several begin.")
    ] = None,
    scale: Annotated[
        Scale, typer.Option(help="quick: minutes; medium: all in some seven hours; full: the papers'.")
    ] = Scale.QUICK,
    out: Annotated[Path | None, typer.Option(help="Results folder; default runs/paper-SCALE.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Skip what is finished, go on with what is not.")] = False,
    record: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Update the claims.json and claims.md there as well.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bars.")] = False,
    show: Annotated[bool, typer.Option("--list", help="Show the targets, what medium changes, and its time.")] = False,
) -> None:
    """Reproduces a figure or table of the papers, or all of them, and judges their claims."""
    if show or name is None:
        typer.echo(listing())
        raise typer.Exit
    try:
        targets = chosen(name)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error

    from reproduction import figures, outcome, verdicts

    try:
        if record:  # found unreadable now, not after hours
            verdicts.recorded(record / verdicts.JSON, ())
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from error

    from fedjax_drag.experiment.cli_common import FAILED, INTERRUPTED
    from fedjax_drag.experiment.compiled import keep_compiled
    from fedjax_drag.simulation.distributed import one_device_per_core

    one_device_per_core()
    keep_compiled()
    out = out or Path("runs") / f"paper-{scale}"
    reasons: dict[str, str] = {}
    for number, target in enumerate(targets, start=1):
        time = f"; about {target.minutes} minutes" if scale == Scale.MEDIUM and target.medium is not None else ""
        typer.echo(f"[{number}/{len(targets)}] {target.name}: {target.paper}, {target.place}{time}")
        sys.stdout.flush()
        try:
            reasons[target.name] = run(target, scale, out / target.name, resume, quiet or None)
        except KeyboardInterrupt:
            typer.echo("stopped; --resume goes on from here", err=True)
            raise typer.Exit(INTERRUPTED) from None
        if reasons[target.name]:
            typer.echo(f"  not all of it ran: {reasons[target.name]}")
        found = outcome.read(out / target.name)
        drawn = found and figures.save(target, found, out / "figures")
        if drawn:
            typer.echo(f"  {drawn}")
        judged = verdicts.verdicts(out, reasons)
        for verdict in judged:
            if verdict.claim.target == target.name:
                typer.echo(f"  {verdicts.line(verdict)}")
        verdicts.write(out, judged, scale)
        if record:
            verdicts.write(record, verdicts.recorded(record / verdicts.JSON, judged), scale)
    typer.echo(f"claims in {out / verdicts.MARKDOWN}")
    if all(reasons.values()):
        raise typer.Exit(FAILED)


if __name__ == "__main__":
    typer.run(main)
