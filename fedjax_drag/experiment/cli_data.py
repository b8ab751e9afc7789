"""The ``fedjax-drag data`` commands."""

from pathlib import Path
from typing import Annotated

import typer

from fedjax_drag.experiment.cli_common import laid_out, misuse, reported

# Nothing else is imported here: NumPy and JAX take their time, and --help needs neither.

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Find, prepare and look at data sets.")


@app.command()
@laid_out
def skew(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file of an experiment.", show_default=False)],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changes to it.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Heat map: .png, .pdf or .svg.")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    r"""Show how the data of an experiment are spread over clients and classes, without running it.

    \b
    Examples:
      fedjax-drag data skew configs/quickstart.yaml
      fedjax-drag data skew configs/quickstart.yaml partition.beta=10 -o skew.png
    """
    with reported(debug):
        with misuse():
            from fedjax_drag.experiment import build
            from fedjax_drag.experiment.config import load

            resolved = build.resolve(load(config, overrides or ()))
            report = build.federation(resolved, build.dataset(resolved)).skew_report()
            if output is not None:
                report.plot(output)
        typer.echo(report if output is None else f"{report}\n\nheat map in {output}")
