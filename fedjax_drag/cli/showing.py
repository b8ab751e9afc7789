"""The commands that show what is in results folders: ``fedjax-drag plot`` and ``fedjax-drag report``."""

from pathlib import Path
from typing import Annotated

import typer

from fedjax_drag.cli.common import Debug, reported, user_errors, writes

# Nothing else is imported here: NumPy and JAX take their time, and --help needs neither.


def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Results folders.", show_default=False)],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Image: .png, .pdf or .svg.", show_default=False)
    ],
    metric: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="What is drawn; default the runs' metric on the test set.")
    ] = None,
    against: Annotated[
        str,
        typer.Option(metavar="COLUMN", help="The horizontal axis: round, seconds, bytes_up, local_steps, ..."),
    ] = "round",
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="LABEL", help="Name of a line; once for each run in their order, or LABEL=DIR."),
    ] = None,
    title: Annotated[str | None, typer.Option(metavar="TEXT", help="Headline.")] = None,
    debug: Debug = False,
) -> None:
    """Draw test accuracy, or another metric, against rounds or their cost, one line per method.

    Runs that differ only by seed share a line, their mean, in a band from minimum to maximum. The folder
    of a comparison or of a sweep stands for all its runs. Lines are named by what differs between the runs.

    \b
    Examples:
      fedjax-drag plot runs/quickstart runs/seed1 -o accuracy.svg
      fedjax-drag plot runs/quickstart runs/c05 --label ours=runs/c05 --metric test_loss -o loss.png
      fedjax-drag plot runs/strength --against bytes_up -o bytes.svg
    """
    with reported(debug):
        with user_errors(), writes("output", output):
            from fedjax_drag.experiment.figures import plotting

            path = plotting.plot(runs, output, metric=metric, against=against, labels=label or (), title=title)
        typer.echo(path)


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Results folder.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="The page; default report.html in DIR.")
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(metavar="ACC", help="Accuracy, or other metric, of which the table says when it was reached."),
    ] = None,
    skew: Annotated[
        bool, typer.Option(help="Load and split the data again, to show how they are spread over the clients.")
    ] = True,
    debug: Debug = False,
) -> None:
    """Write what is in the results folder of a run, a comparison or a sweep as one HTML page.

    The page needs no network and can be sent as it is. Runs that are still going, were interrupted, failed or diverged
    are marked.

    \b
    Examples:
      fedjax-drag report runs/quickstart
      fedjax-drag report runs/short --target 0.8 --out robustness.html
    """
    with reported(debug):
        with user_errors(), writes("out", out or folder / "report.html"):
            from fedjax_drag.experiment import report as reports

            place = reports.write(folder, out, target, skew)
        typer.echo(place)
