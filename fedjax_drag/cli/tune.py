"""The ``fedjax-drag tune`` command."""

from pathlib import Path
from typing import Annotated

import typer

from fedjax_drag import stopping
from fedjax_drag.cli import common

# Nothing else is imported here: NumPy and JAX take their time, and --help needs neither.


def tune(
    config: Annotated[Path, common.config_argument("an experiment")],
    overrides: common.Overrides = None,
    write: Annotated[
        Path | None, typer.Option("--write", "-w", metavar="FILE", help="A new file for CONFIG with the keys chosen.")
    ] = None,
    timed_rounds: Annotated[  # rounds=N is a key of the configuration
        int,
        typer.Option(
            "--rounds", metavar="N", min=1, help="Rounds between two readings of the clock, up to eval_every."
        ),
    ] = 10,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer readings and fewer alternatives.")] = False,
    allow_code: common.AllowCode = False,
    debug: common.Debug = False,
) -> None:
    """Measure how the run in CONFIG is computed fastest on this machine.

    Nothing else is timed: clients_axis=auto and mesh=auto, the defaults, decide without a clock. Here each alternative
    is compiled and timed for a few rounds: all clients of a round at once, one after another or in chunks
    (clients_axis, clients_per_chunk), the cores that share them (mesh), visits to the host (rounds_per_compile). What
    is clearly faster is kept for the next question. On an accelerator the precisions of products follow, which change
    results and are not chosen. What cannot be run, such as what needs too much memory, is named and passed over.

    \b
    Examples:
      fedjax-drag tune quickstart --quick
      fedjax-drag tune quickstart cohort_size=40 --write faster.yaml
      fedjax-drag run faster.yaml --out runs/faster

    A row says the median time of a round, with its share of the evaluations, its ratio to the present setting, and the
    memory of the program on each device. All alternatives have the same results to rounding. The machine should do
    nothing else meanwhile. A comparison is measured run by run, with compare=null.

    Exit status: 0 done, 2 bad usage or configuration, 130 stopped by Ctrl-C, after what was measured is printed.
    """
    with common.reported(debug):
        with common.user_errors(), common.writes("write", write), stopping.saving():
            common.start_devices()
            from fedjax_drag.experiment import tuning

            def show(row: tuning.Timing) -> None:
                typer.echo(f"{tuning.HEAD}\n{tuning.line(row)}" if row.setting == tuning.PRESENT else tuning.line(row))

            found = tuning.tune(config, overrides or (), timed_rounds, quick, write, allow_code, show)
        typer.echo(f"\n{found.conclusion}")
        if write is not None:
            typer.echo(f"configuration in {write}")
