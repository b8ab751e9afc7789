"""The ``fedjax-drag`` command: its subcommands are in modules of their own."""

from typing import Annotated

import typer

from fedjax_drag.cli import arena, data, listing, plan, plot, report, run, sweep
from fedjax_drag.cli.common import laid_out
from fedjax_drag.version import __version__

# Nothing else is imported here: JAX and matplotlib take seconds, and --help needs neither.

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True)


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
      fedjax-drag plan configs/quickstart.yaml --target h100
      fedjax-drag plot runs/quickstart runs/c05 -o accuracy.png
      fedjax-drag report runs/quickstart
      fedjax-drag list aggregators
      fedjax-drag data status
    """


app.command()(run.run)
app.command()(sweep.sweep)
app.command()(plan.plan)
app.command()(plot.plot)
app.command()(report.report)
app.command("list")(listing.list_)
app.add_typer(arena.app, name="arena")
app.add_typer(data.app, name="data")
