"""The ``fedjax-drag report`` command."""

from pathlib import Path
from typing import Annotated

import typer

from fedjax_drag.cli.common import Debug, laid_out, misuse, reported, writes

# Nothing else is imported here: NumPy and JAX take their time, and --help needs neither.


@laid_out
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Results folder.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="The page; default report.html in DIR.")
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(metavar="ACC", help="Accuracy in [0, 1] of which the table says when it was reached."),
    ] = None,
    skew: Annotated[
        bool, typer.Option(help="Load and split the data again, to show how they are spread over the clients.")
    ] = True,
    debug: Debug = False,
) -> None:
    r"""Write what is in the results folder of a run, a comparison or a sweep as one HTML page.

    The page needs no network and can be sent as it is. Runs that are still going, were interrupted, failed or diverged
    are marked.

    \b
    Examples:
      fedjax-drag report runs/quickstart
      fedjax-drag report runs/short --target 0.8 --out robustness.html
    """
    with reported(debug):
        with misuse(), writes("out", out or folder / "report.html"):
            from fedjax_drag.experiment import report as reports

            place = reports.write(folder, out, target, skew)
        typer.echo(place)
