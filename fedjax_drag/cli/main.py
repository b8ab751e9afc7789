"""The ``fedjax-drag`` command."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from fedjax_drag.cli import data, report
from fedjax_drag.cli.common import (
    FAILED,
    INTERRUPTED,
    abandon,
    laid_out,
    misuse,
    reported,
    watched,
)
from fedjax_drag.version import __version__

# Nothing else is imported here: JAX and matplotlib take seconds, and --help needs neither.

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True)
app.add_typer(data.app, name="data")


def main() -> None:
    """Runs the command line and exits."""
    try:
        app(prog_name="fedjax-drag")
    except SystemExit as ended:
        abandon(ended.code)
        raise


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"fedjax-drag {__version__}")
        raise typer.Exit


@app.callback()
@laid_out
def _app(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    r"""Federated learning under data heterogeneity and Byzantine attack, as one compiled JAX program.

    \b
    Examples:
      fedjax-drag run configs/quickstart.yaml
      fedjax-drag run configs/quickstart.yaml rounds=50 aggregator.c=0.5 --out runs/c05
      fedjax-drag run configs/quickstart.yaml aggregator=krum attack=sign_flip byzantine_fraction=0.3
      fedjax-drag run configs/fashion_mnist_drag.yaml --resume
      fedjax-drag sweep configs/sweeps/robustness_matrix.yaml
      fedjax-drag plot runs/quickstart runs/c05 -o accuracy.png
      fedjax-drag report runs/quickstart
      fedjax-drag list aggregators
      fedjax-drag data status
    """


@app.command()
@laid_out
def run(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file of the experiment.", show_default=False)],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changes to it.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Results folder; default runs/NAME, after the configuration and its changes.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the results folder.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in the results folder.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no summary.")] = False,
    log: Annotated[
        list[str] | None, typer.Option(metavar="TOOL", help="Log to tensorboard, wandb or mlflow too.")
    ] = None,
    distributed: Annotated[
        bool, typer.Option("--distributed", help="Share the run with the other processes of a job.")
    ] = False,
    coordinator: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where the first process is to be found.")
    ] = None,
    num_processes: Annotated[int | None, typer.Option(metavar="N", help="How many processes there are.")] = None,
    process_id: Annotated[int | None, typer.Option(metavar="I", help="Which of them this is, from 0.")] = None,
    debug_nans: Annotated[bool, typer.Option("--debug-nans", help="Fail at the first NaN; slower.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    r"""Run the experiment in CONFIG and write a results folder with curves, metrics and checkpoints.

    KEY=VALUE changes a key of the configuration; dots reach into a component, and into those inside it. Naming
    another component replaces it, arguments included.

    Without --out the results go to runs/NAME, where NAME is the configuration's name and the changes, such as
    runs/quickstart,aggregator=krum,attack=sign_flip. With --resume, if there is no such folder, the one is taken whose
    name lacks the keys that may change in between: rounds, keep_checkpoints, keep_best, stop_on_divergence.

    \b
    Examples:
      fedjax-drag run configs/quickstart.yaml
      fedjax-drag run configs/quickstart.yaml aggregator=krum attack=sign_flip byzantine_fraction=0.3
      fedjax-drag run configs/quickstart.yaml seed=1 --out runs/seed1
      fedjax-drag run configs/quickstart.yaml algorithm=scaffold 'model.hidden=[128,64]'
      fedjax-drag run CONFIG 'aggregator={name: fedavg, server_optimizer: {name: adam, learning_rate: 0.01}}'
      fedjax-drag run CONFIG aggregator=nnm aggregator.aggregator=krum
      fedjax-drag run configs/quickstart.yaml --resume rounds=400
      fedjax-drag run configs/quickstart.yaml --log tensorboard
      fedjax-drag run runs/quickstart/config.yaml --out runs/again

    With --distributed every process of a job calls the same command, and the clients are shared among the devices of
    all (mesh=all, whose number of processes must divide cohort_size). SLURM and Open MPI say by themselves who takes
    part; elsewhere each process is told. All must load the same data; the first writes the results folder. On CPU a
    process is one device unless JAX_NUM_CPU_DEVICES says more.

    \b
    Examples:
      srun --nodes 2 --ntasks-per-node 4 --gpus-per-node 4 fedjax-drag run CONFIG --distributed
      fedjax-drag run CONFIG --distributed --coordinator 10.0.0.1:1234 --num-processes 2 --process-id 0
      fedjax-drag run CONFIG --distributed --coordinator 10.0.0.1:1234 --num-processes 2 --process-id 1

    Exit status: 0 done, 1 the run failed or diverged (its parameters are not finite; other runs of the comparison
    are finished), 2 bad usage or configuration, 130 stopped by Ctrl-C (--resume goes on from there).
    """
    with reported(debug), watched(debug_nans):
        with misuse():
            from fedjax_drag.experiment.build.experiment import load_experiment
            from fedjax_drag.experiment.run.run import divergences, execute, plan
            from fedjax_drag.simulation.devices.compilation_cache import keep_compiled
            from fedjax_drag.simulation.devices.processes import initialize, is_first, one_device_per_core

            keep_compiled()
            experiment = load_experiment(config, overrides or ())
            folder = out or _default_folder(experiment.config.name, overrides or (), resume)
            if distributed:
                if experiment.config.mesh == "cores":
                    raise ValueError("mesh='cores': the devices of one process; must be all with --distributed")
                experiment = experiment.with_mesh("all")
                initialize(coordinator, num_processes, process_id)
            elif (coordinator, num_processes, process_id) != (None, None, None):
                raise ValueError("--coordinator, --num-processes, --process-id: go with --distributed")
            elif experiment.config.mesh in ("auto", "cores"):
                one_device_per_core()
            planned = plan(experiment, out=folder, resume=resume, overwrite=overwrite, log=log or ())
        with planned:
            try:
                finished = execute(planned, quiet=quiet or None)
            except KeyboardInterrupt:
                _stopped()
            diverged = divergences(planned, finished)
            if is_first():
                _conclude(planned.folder or folder, list(finished), quiet)
        for line in diverged if is_first() else ():
            typer.echo(f"fedjax-drag: error: {line}", err=True)
        if diverged:
            raise typer.Exit(FAILED)


@app.command()
@laid_out
def sweep(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file of the sweep.", show_default=False)],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changes to it.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Results folder; default runs/NAME, after the configuration and its changes.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Skip what is finished in the results folder, continue what is not.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the sweep in the results folder.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no summary.")] = False,
    cells_per_program: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Most cells in one program, 1 for none together; default what fits."),
    ] = None,
    launcher: Annotated[
        str | None, typer.Option(metavar="KIND", help="Run as jobs: local (of this machine) or slurm.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(metavar="N", help="How many jobs; default 1.")] = None,
    job_options: Annotated[
        list[str] | None, typer.Option("--job", metavar="KEY=VALUE", help="What each job asks for.")
    ] = None,
    debug_nans: Annotated[bool, typer.Option("--debug-nans", help="Fail at the first NaN; slower.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    r"""Run every combination of the values under axes in CONFIG; write a table, a summary and a heat map.

    CONFIG is the configuration of a run with one more key, axes: a mapping from a key, dotted to reach into a
    component, to the list of its values. What it compares, if it does, is one more axis, method.

    \b
      rounds: 100
      byzantine_fraction: 0.3
      axes:
        aggregator: [fedavg, krum, {name: trimmed_mean, trim_fraction: 0.3}]
        attack: [sign_flip, {name: scale_noise, variance: 9.0}, null]
        partition.beta: [0.1, 0.5]
        seed: [0, 1, 2]

    \b
    Examples:
      fedjax-drag sweep configs/sweeps/robustness_matrix.yaml
      fedjax-drag sweep configs/sweeps/robustness_matrix.yaml rounds=20 'axes.seed=[0]' --out runs/short
      fedjax-drag sweep configs/sweeps/robustness_matrix.yaml --resume
      fedjax-drag plot runs/robustness_matrix/cells/fedavg-* -o fedavg.png

    With --launcher N jobs share the cells; this command waits for them and puts the table together. They are
    submitted with submitit (pip install 'fedjax-drag[cluster]'), whose words --job takes: timeout_min (default a day),
    gpus_per_node, cpus_per_task, mem_gb, slurm_partition and others.

    \b
      fedjax-drag sweep CONFIG --launcher slurm --jobs 16 --job gpus_per_node=1 --job slurm_partition=gpu
      fedjax-drag sweep CONFIG --launcher local --jobs 2

    Cells that differ in numbers, seed, split of the data and share of malicious clients only are one program, compiled
    once and divided among the CPU's cores or all GPUs; another rule, model or kind of attack is another program.

    All cells are checked before the first one runs. Each has a run's folder in DIR/cells. One that cannot be run or
    that diverges is noted in DIR/table.csv (and .parquet) and DIR/summary.md and does not stop the others. Without
    --out DIR is runs/NAME, named as by 'run'.

    Exit status: 0 done, 1 every cell failed, 2 bad usage or configuration, 130 stopped by Ctrl-C (--resume goes on
    from there).
    """
    with reported(debug), watched(debug_nans):
        with misuse():
            from fedjax_drag.experiment.sweep import cluster
            from fedjax_drag.experiment.sweep import sweep as sweeping
            from fedjax_drag.experiment.sweep.grid import load_grid
            from fedjax_drag.simulation.devices.compilation_cache import keep_compiled
            from fedjax_drag.simulation.devices.processes import one_device_per_core

            grid = load_grid(config, overrides or ())
            folder = out or _default_folder(grid.base.name, overrides or (), resume)
            keep_compiled()
            one_device_per_core()
            if launcher is None and (jobs or job_options):
                raise ValueError("--jobs, --job: go with --launcher")
            if launcher is not None and debug_nans:
                raise ValueError("--debug-nans: watches this process, not the jobs of --launcher")
            target = launcher and cluster.executor(launcher, folder / cluster.JOBS, job_options or ())
            planned = sweeping.plan(grid, out=folder, resume=resume, overwrite=overwrite)
        with planned:
            try:
                if target is None:
                    finished = sweeping.execute(planned, quiet or None, cells_per_program)
                else:
                    finished = cluster.execute(planned, target, jobs or 1, quiet=quiet or None)
            except KeyboardInterrupt:
                _stopped()
        if not quiet:
            typer.echo(f"\n{(folder / sweeping.SUMMARY).read_text(encoding='utf-8')}\nresults in {folder}")
        if all(cell.status == "failed" for cell in finished.cells):
            raise RuntimeError(f"every cell: {finished.cells[0].message}")


def _stopped() -> NoReturn:
    """Ends after Ctrl-C, with the command that goes on."""
    typer.echo(f"stopped; to go on: {_resume_command(sys.argv[1:])}", err=True)
    raise typer.Exit(INTERRUPTED) from None


@app.command()
@laid_out
def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Results folders.", show_default=False)],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Image: .png, .pdf or .svg.", show_default=False)
    ],
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    r"""Draw test accuracy against rounds, one line per method.

    Runs that differ only by seed share a line, their mean, in a band from minimum to maximum. The folder
    of a comparison stands for all its runs.

    \b
    Example:
      fedjax-drag plot runs/seed0 runs/seed1 runs/seed2 -o accuracy.svg
    """
    with reported(debug):
        with misuse():
            from fedjax_drag.experiment.figures import plotting

            path = plotting.plot(runs, output)
        typer.echo(path)


app.command()(report.report)


@app.command("list")
@laid_out
def list_(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="aggregators, algorithms, clients, attacks, partitions, models, datasets, optimizers, "
            "local_optimizers, schedules, losses or augmentations.",
            show_default=False,
        ),
    ],
    markdown: Annotated[bool, typer.Option("--markdown", help="A Markdown table.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    r"""List what a configuration can name: arguments with defaults, what it does, its paper.

    Of an aggregation rule also its breakdown point and its cost.

    \b
    Examples:
      fedjax-drag list aggregators
      fedjax-drag list aggregators --markdown
    """
    with reported(debug):
        with misuse():
            from fedjax_drag.experiment.build import catalog

            text = catalog.table(kind) if markdown else catalog.describe(kind)
        typer.echo(text)


def _default_folder(name: str, overrides: Sequence[str], resume: bool) -> Path:
    """Where results go without --out.

    The run to resume may have been started without what is only now asked for, such as more rounds.
    """
    from fedjax_drag.experiment.config.names import folder_name
    from fedjax_drag.experiment.run import results

    folder = Path("runs") / folder_name(name, overrides)
    if resume and not folder.exists():
        return Path("runs") / folder_name(name, overrides, without=("rounds", *results.FREE))
    return folder


def _resume_command(arguments: Sequence[str]) -> str:
    kept = [argument for argument in arguments if argument not in ("--overwrite", "--resume")]
    return shlex.join(["fedjax-drag", *kept, "--resume"])


def _conclude(folder: Path, labels: Sequence[str], quiet: bool) -> None:
    """Draws the curve and tells what came out."""
    from fedjax_drag.experiment.figures import plotting
    from fedjax_drag.experiment.run import results
    from fedjax_drag.experiment.run.progress import table

    runs = results.read(folder)
    figure = plotting.plot([folder], folder / results.FIGURE)
    if quiet:
        return
    rows = {label: (run.history, results.read_summary(run.folder)) for label, run in zip(labels, runs, strict=True)}
    typer.echo(f"\n{table(rows)}\n\nresults in {folder}, curve in {figure}")
