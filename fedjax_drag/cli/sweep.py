"""The ``fedjax-drag sweep`` command."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from fedjax_drag import stopping
from fedjax_drag.cli import common

# Nothing else is imported here: NumPy and JAX take their time, and --help needs neither.


def sweep(
    config: Annotated[Path, common.config_argument("a sweep")],
    overrides: common.Overrides = None,
    out: common.OutFolder = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Skip what is finished in the results folder, continue or start what is not."),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the sweep in the results folder.")] = False,
    quiet: common.Quiet = False,
    cells_per_program: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Most cells in one program, 1 to run each by itself; default what fits."),
    ] = None,
    launcher: Annotated[
        str | None, typer.Option(metavar="KIND", help="Run as jobs: local (of this machine) or slurm.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(metavar="N", min=1, help="How many jobs; default 1.")] = None,
    job_options: Annotated[
        list[str] | None, typer.Option("--job", metavar="KEY=VALUE", help="What each job asks for.")
    ] = None,
    allow_code: common.AllowCode = False,
    debug_nans: common.DebugNans = False,
    debug: common.Debug = False,
) -> None:
    """Run every combination of the values under axes in CONFIG; write a table, a summary and a heat map.

    CONFIG is the configuration of a run with one more key, axes: a mapping from a key, dotted to reach into a
    component, to the list of its values. What it compares, if it does, is one more axis, method.

    \b
      data: digits
      rounds: 100
      byzantine_fraction: 0.3
      axes:
        aggregator: [fedavg, krum, {name: trimmed_mean, trim_fraction: 0.3}]
        attack: [sign_flip, {name: scale_noise, variance: 9.0}, null]
        partition.beta: [0.1, 0.5]
        seed: [0, 1, 2]

    \b
    Examples:
      fedjax-drag sweep quickstart 'axes.aggregator.c=[0.1,0.25,0.5]' 'axes.seed=[0,1]' --out runs/strength
      fedjax-drag sweep sweeps/robustness_matrix rounds=20 'axes.seed=[0]' --out runs/short
      fedjax-drag sweep sweeps/robustness_matrix rounds=20 'axes.seed=[0]' --out runs/short --resume
      fedjax-drag plot runs/short/cells/fedavg-* -o fedavg.png

    \b
    With a rule of your own:
      fedjax-drag sweep quickstart 'axes.aggregator=[median, my_rules.py:my_rule]' 'axes.seed=[0,1]'

    With --launcher as many jobs as --jobs says share the cells; this command waits for them and puts the table
    together. They are submitted with submitit (pip install 'fedjax-drag[cluster]'), whose words --job takes:
    timeout_min (default a day), gpus_per_node, cpus_per_task, mem_gb, slurm_partition and others.

    \b
      fedjax-drag sweep CONFIG --launcher slurm --jobs 16 --job gpus_per_node=1 --job slurm_partition=gpu
      fedjax-drag sweep CONFIG --launcher local --jobs 2

    Cells that differ in numbers, seed, split of the data and share of malicious clients only are one program, compiled
    once and divided among the CPU's cores or all GPUs; another rule, model or kind of attack is another program.

    All cells are checked before the first one runs. Each has a run's folder in DIR/cells. One that cannot be run or
    that diverges is noted in DIR/table.csv (and .parquet) and DIR/summary.md and does not stop the others. Without
    --out DIR is runs/NAME, named as by 'run'.

    Exit status: 0 done, 1 cells failed, 2 bad usage or configuration, 130 stopped by Ctrl-C or SIGTERM (--resume
    goes on from there).
    """
    with common.reported(debug), common.nan_checks(debug_nans), ExitStack() as held:
        with common.user_errors():
            from fedjax_drag.cli.folders import default_folder
            from fedjax_drag.experiment.build.own_parts import Code
            from fedjax_drag.experiment.sweep import cluster, sweep_folder
            from fedjax_drag.experiment.sweep import sweep as sweeping
            from fedjax_drag.experiment.sweep.grid import describe, load_grid

            grid = load_grid(config, overrides or (), Code(allow_code))
            folder = out or default_folder(grid.base.name, overrides or (), resume)
            if launcher is None and (jobs or job_options):
                raise ValueError("--jobs, --job: go with --launcher")
            if launcher is not None and debug_nans:
                raise ValueError("--debug-nans: watches this process, not the jobs of --launcher")
            target = launcher and cluster.executor(launcher, folder / sweep_folder.JOBS, job_options or ())
            common.start_devices(here=target is None)
            planned = held.enter_context(sweeping.plan(grid, folder, resume, overwrite))
        with stopping.saving():
            if target is None:
                finished = sweeping.execute(planned, quiet or None, cells_per_program)
            else:
                finished = cluster.execute(planned, target, jobs or 1, quiet=quiet or None, most=cells_per_program)
        if not quiet:
            typer.echo(f"\n{(folder / sweep_folder.SUMMARY).read_text(encoding='utf-8')}\nresults in {folder}")
        if failed := [cell for cell in finished.cells if cell.status == "failed"]:
            first = f"{describe(failed[0].values)}: {failed[0].message}"
            typer.echo(f"fedjax-drag: error: {len(failed)} of {len(finished.cells)} cells failed; {first}", err=True)
            raise typer.Exit(common.FAILED)
