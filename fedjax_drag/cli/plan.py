"""The ``fedjax-drag plan`` command."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedjax_drag.cli import common

if TYPE_CHECKING:
    from fedjax_drag.accelerators.targets import Target
    from fedjax_drag.experiment.build.experiment import Experiment
    from fedjax_drag.experiment.sweep.grid import Grid

# Nothing else is imported here: NumPy and JAX take their time, and --help needs neither.


def plan(
    config: Annotated[Path, common.config_argument("an experiment or a sweep")],
    overrides: common.Overrides = None,
    target: Annotated[
        str,
        typer.Option(metavar="T", help="h100, h200, a100-40, a100-80, with :N for N of them; v5e:2x2, v6e:1x1 ..."),
    ] = "h100",
    as_json: Annotated[bool, typer.Option("--json", help="The plan as JSON: bytes, seconds, kernels.")] = False,
    cells_per_program: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Most cells of a sweep in one program.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No word of what is being compiled.")] = False,
    allow_code: common.AllowCode = False,
    debug: common.Debug = False,
) -> None:
    """Tell what CONFIG would need on an accelerator, on a machine that has none.

    The programs are compiled by the accelerator's own compiler, which says whether they fit, how much memory is data,
    state and temporary, what a round moves and multiplies and how many kernels it starts. From these follows about how
    long it takes, and what limits it. Nothing is computed.

    \b
    With the compiler for the target, which is installed as below:
      fedjax-drag plan quickstart
      fedjax-drag plan quickstart cohort_size=40 --target v5e:1x1
      fedjax-drag plan quickstart cohort_size=40 mesh=all --target h100:8
      fedjax-drag plan sweeps/robustness_matrix 'axes.seed=[0]' --target v5e:2x2
      fedjax-drag plan quickstart --json

    A target is a GPU (h100, h200, a100-40, a100-80, or several of one host such as h100:8) or a slice of TPUs by its
    shape (v5e:2x2, v6e:4x4, v5p:2x2x1). A configuration with axes is planned as a sweep: its programs, the memory of a
    cell, how many cells a program holds. Where a run does not fit, changes are tried, fewer clients at once first, and
    the first with which it fits is named.

    The compilers are installed apart, in an environment of their own if that is to run on a CPU in peace:

    \b
      pip install libtpu                                                           for TPUs
      pip install --no-deps jax-cuda12-plugin==JAX jax-cuda12-pjrt==JAX            for GPUs, JAX being its version

    Exit status: 0 everything fits, 1 something does not fit, 2 bad usage or configuration, or no compiler.
    """
    with common.reported(debug), common.user_errors():
        found, experiment = _loaded(config, overrides or (), target, allow_code)
        say = lambda words: None if quiet else typer.echo(f"compiling {words} ...", err=True)
        fits = _tell(experiment, found, say, cells_per_program, as_json)
    if not fits:
        raise typer.Exit(common.FAILED)


def _loaded(
    config: Path, overrides: Sequence[str], name: str, allow_code: bool
) -> tuple["Target", "Experiment | Grid"]:
    """The target, whose compiler is started, and the experiment or the sweep."""
    from fedjax_drag.accelerators.silence import silent

    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # nothing is computed, and no device is taken
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors of compilers, and no warnings
    with silent():  # what compilers say of devices that are not here
        from fedjax_drag.cores import start

        start()
    from fedjax_drag.accelerators import targets
    from fedjax_drag.experiment.build.experiment import load_experiment, read
    from fedjax_drag.experiment.build.own_parts import Code
    from fedjax_drag.experiment.config.yaml_text import parse
    from fedjax_drag.experiment.sweep.grid import AXES, load_grid

    found = targets.find(name)
    try:
        _ = found.devices
    except targets.MissingCompilerError as error:
        raise common.MisuseError(str(error)) from error
    if any(AXES in part for part in (read(config), *parse(overrides))):
        return found, load_grid(config, overrides, Code(allow_code))
    return found, load_experiment(config, overrides, allow_code)


def _tell(
    experiment: "Experiment | Grid", target: "Target", say: Callable[[str], Any], most: int | None, as_json: bool
) -> bool:
    """Prints the plan; returns whether everything fits."""
    from fedjax_drag.experiment import plan
    from fedjax_drag.experiment.sweep.grid import Grid

    if isinstance(experiment, Grid):
        planned = plan.plan_sweep(experiment, target, say, most)
        typer.echo(json.dumps(plan.as_mapping(planned), indent=2) if as_json else plan.as_text(planned))
        return planned.fits
    runs = []
    for run in plan.plan_runs(experiment.runs, target, say):
        runs.append(run)
        if not as_json:
            typer.echo(plan.as_text(run))
    if as_json:
        typer.echo(json.dumps([plan.as_mapping(run) for run in runs], indent=2))
    return all(run.fits for run in runs)
