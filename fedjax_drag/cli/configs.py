"""The ``fedjax-drag configs`` commands."""

import textwrap
from pathlib import Path
from typing import Annotated

import typer

from fedjax_drag.cli.common import Debug, MisuseError, config_argument, reported, user_errors, writes
from fedjax_drag.experiment.config import shipped
from fedjax_drag.files import read_bytes

app = typer.Typer(rich_markup_mode=None, invoke_without_command=True)

_COLUMNS = 120
"""Of a line of the list."""


@app.callback()
def list_(context: typer.Context) -> None:
    """List the configurations that come with the package: name, the command that takes it, what it is.

    \b
    Examples:
      fedjax-drag configs
      fedjax-drag configs copy quickstart
      fedjax-drag configs copy paper/drag000_fig3_emnist -o mine.yaml
      fedjax-drag run quickstart.yaml --out runs/mine
    """
    if context.invoked_subcommand is not None:
        return
    known = shipped.paths()
    width = max(map(len, known))
    for name, path in known.items():
        line = f"{name:<{width}}  {shipped.command(path):<9}  "
        typer.echo(line + textwrap.shorten(shipped.about(path), _COLUMNS - len(line), placeholder=" ..."))


@app.command()
def copy(
    config: Annotated[Path, config_argument("an experiment")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Default NAME.yaml in this folder.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Copy a configuration into a file, to edit it.

    \b
    Examples:
      fedjax-drag configs copy quickstart -o first.yaml
      fedjax-drag run first.yaml --out runs/first
    """
    place = output or Path(config.name)
    with reported(debug), user_errors(), writes("output", place):
        content = read_bytes(config)
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            with place.open("xb") as file:
                file.write(content)
        except FileExistsError:
            raise MisuseError(f"output={str(place)!r}: is there already; name another file by -o") from None
        typer.echo(place)
