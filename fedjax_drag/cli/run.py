"""The ``fedjax-drag run`` command."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedjax_drag import stopping
from fedjax_drag.cli import common

if TYPE_CHECKING:
    from fedjax_drag.experiment.run.planning import CheckedExperiment
    from fedjax_drag.simulation import Result

# Nothing else is imported here: NumPy and JAX take their time, and --help needs neither.


def run(
    config: Annotated[Path, common.config_argument("an experiment")],
    overrides: common.Overrides = None,
    out: common.OutFolder = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the results folder.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in the results folder.")] = False,
    quiet: common.Quiet = False,
    log: Annotated[
        list[str] | None, typer.Option(metavar="TOOL", help="Log to tensorboard, wandb or mlflow too.")
    ] = None,
    distributed: Annotated[
        bool, typer.Option("--distributed", help="Share the run with the other processes of a job.")
    ] = False,
    coordinator: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Address of the first process.")] = None,
    num_processes: Annotated[int | None, typer.Option(metavar="N", help="How many processes there are.")] = None,
    process_id: Annotated[int | None, typer.Option(metavar="I", help="Which of them this is, from 0.")] = None,
    allow_code: common.AllowCode = False,
    debug_nans: common.DebugNans = False,
    debug: common.Debug = False,
) -> None:
    """Run the experiment in CONFIG and write a results folder with curves, metrics and checkpoints.

    KEY=VALUE changes a key of the configuration; dots reach into a component, and into those inside it. Naming
    another component replaces it, arguments included. A component may be code of your own, FILE.py:NAME or
    MODULE:NAME.

    Without --out the results go to runs/NAME, where NAME is the configuration's name and the changes, such as
    runs/quickstart-aggregator_krum-attack_sign_flip. With --resume, if there is no such folder, the one is taken whose
    name differs only in keys that may change in between: rounds, keep_checkpoints, keep_best,
    checkpoint_every_seconds, stop_on_divergence, patience, stop_when and time_clients.

    On a CPU every core is a device, and the clients of a round are shared among them where that is faster; mesh=null
    keeps to one device.

    \b
    Examples:
      fedjax-drag run quickstart
      fedjax-drag run quickstart aggregator=krum attack=sign_flip byzantine_fraction=0.3
      fedjax-drag run quickstart seed=1 --out runs/seed1
      fedjax-drag run quickstart algorithm=scaffold 'model.hidden=[128,64]'
      fedjax-drag run quickstart 'aggregator={name: fedavg, server_optimizer: {name: adam, learning_rate: 0.01}}'
      fedjax-drag run quickstart aggregator=nnm aggregator.aggregator=krum
      fedjax-drag run quickstart --resume rounds=400
      fedjax-drag run runs/quickstart/config.yaml --out runs/again

    \b
    With a rule of your own, with the extra [tensorboard]:
      fedjax-drag run quickstart aggregator=my_rules.py:my_rule aggregator.power=2.0
      fedjax-drag run quickstart --log tensorboard --out runs/logged

    With --distributed every process of a job calls the same command, and the clients are shared among the devices of
    all (mesh=all, whose number of processes must divide cohort_size). SLURM and Open MPI say by themselves who takes
    part; elsewhere the options say it. All must load the same data; the first writes the results folder. On CPU a
    process is one device unless JAX_NUM_CPU_DEVICES says more.

    \b
    In a job of several processes:
      srun --nodes 2 --ntasks-per-node 4 --gpus-per-node 4 fedjax-drag run CONFIG --distributed
      fedjax-drag run CONFIG --distributed --coordinator 10.0.0.1:1234 --num-processes 2 --process-id 0
      fedjax-drag run CONFIG --distributed --coordinator 10.0.0.1:1234 --num-processes 2 --process-id 1

    Exit status: 0 done, 1 the run failed or diverged (its parameters are not finite; other runs of the comparison
    are finished), 2 bad usage or configuration, 130 stopped by Ctrl-C or SIGTERM (--resume goes on from there).
    """
    with common.reported(debug), common.nan_checks(debug_nans), ExitStack() as held:
        with common.user_errors():
            from fedjax_drag.cli.folders import default_folder
            from fedjax_drag.cores import one_device_per_core, start
            from fedjax_drag.experiment.build.experiment import load_experiment
            from fedjax_drag.experiment.run.planning import plan
            from fedjax_drag.simulation.devices.compilation_cache import keep_compiled
            from fedjax_drag.simulation.devices.processes import initialize

            keep_compiled()
            experiment = load_experiment(config, overrides or (), allow_code)
            folder = out or default_folder(experiment.config.name, overrides or (), resume)
            given = (coordinator, num_processes, process_id)
            if distributed:
                if experiment.config.mesh == "cores":
                    raise ValueError("mesh='cores': the devices of one process; must be all with --distributed")
                experiment = experiment.with_mesh("all")
                initialize(*given)  # before the first use of a device
            elif given != (None, None, None):
                raise ValueError("--coordinator, --num-processes, --process-id: go with --distributed")
            elif any(one.mesh in ("auto", "cores") for one in experiment.runs.values()):
                one_device_per_core()
            start()
            planned = held.enter_context(plan(experiment, folder, resume, overwrite, log=log or ()))
        with stopping.saving():
            _execute(planned, quiet)


def _execute(planned: "CheckedExperiment", quiet: bool) -> None:
    """Runs what is planned, draws the curve and prints the table; exits with a failure where a run diverged."""
    from fedjax_drag.experiment.run.run import divergences, execute, rejections
    from fedjax_drag.experiment.run.saver import import_ahead
    from fedjax_drag.simulation.devices.processes import is_first

    if is_first():
        import_ahead("fedjax_drag.experiment.figures.plotting")  # matplotlib, while XLA compiles
    finished = execute(planned, quiet=quiet or None)
    diverged = divergences(planned, finished)
    if is_first():
        assert planned.folder is not None
        for line in rejections(finished):
            typer.echo(f"fedjax-drag: warning: {line}", err=True)
        for line in diverged:
            typer.echo(f"fedjax-drag: error: {line}", err=True)
        _conclude(planned.folder, [_marked(label, result) for label, result in finished.items()], quiet)
    if diverged:
        raise typer.Exit(common.FAILED)


def _marked(label: str, result: "Result") -> str:
    """The label of a run in the table, with what makes its figures meaningless."""
    from fedjax_drag.simulation.result import rejected_since

    if result.diverged_at is not None:
        return f"{label} (not finite since round {result.diverged_at})"
    since = rejected_since(result.history)
    return label if since is None else f"{label} (all messages rejected since round {since})"


def _conclude(folder: Path, labels: Sequence[str], quiet: bool) -> None:
    """Draws the curve and prints the table of results."""
    from fedjax_drag.experiment.figures import plotting
    from fedjax_drag.experiment.run import results
    from fedjax_drag.experiment.run.summary import table
    from fedjax_drag.simulation.criterion import ACCURACY, common

    runs = results.read(folder)
    by = common(run for run in runs if run.history)
    figure = plotting.plot([folder], folder / results.FIGURES[by.name != ACCURACY.name])
    if quiet:
        return
    rows = {label: (run.history, run.figures) for label, run in zip(labels, runs, strict=True)}
    ended = [f"{label}: {figures['ended_early']}" for label, (_, figures) in rows.items() if "ended_early" in figures]
    typer.echo("\n".join(["", table(rows, by), *([""] if ended else []), *ended]))
    typer.echo(f"\nresults in {folder}, curve in {figure}")
