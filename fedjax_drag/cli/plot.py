"""The ``fedjax-drag plot`` command."""

from pathlib import Path
from typing import Annotated

import typer

from fedjax_drag.cli.common import Debug, laid_out, misuse, reported

# Nothing else is imported here: NumPy and JAX take their time, and --help needs neither.


@laid_out
def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Results folders.", show_default=False)],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Image: .png, .pdf or .svg.", show_default=False)
    ],
    debug: Debug = False,
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
