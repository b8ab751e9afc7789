"""The ``fedjax-drag`` command: its subcommands are in modules of their own."""

from typing import Annotated

import typer

from fedjax_drag.cli import arena, configs, data, listing, plan, run, showing, sweep, tune
from fedjax_drag.version import __version__

# Nothing else is imported here: JAX and matplotlib take seconds, and --help needs neither.

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"fedjax-drag {__version__}")
        raise typer.Exit


@app.callback()
def _app(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Federated learning under data heterogeneity and Byzantine attack, as one compiled JAX program.

    \b
    Examples:
      fedjax-drag configs
      fedjax-drag run quickstart
      fedjax-drag run quickstart rounds=50 aggregator.c=0.5 --out runs/c05
      fedjax-drag run quickstart aggregator=krum attack=sign_flip byzantine_fraction=0.3
      fedjax-drag run quickstart --resume rounds=400
      fedjax-drag sweep quickstart 'axes.aggregator.c=[0.1,0.25,0.5]' --out runs/c
      fedjax-drag plot runs/quickstart runs/c05 -o accuracy.png
      fedjax-drag report runs/quickstart
      fedjax-drag list aggregators
      fedjax-drag data status
    """


app.command()(run.run)
app.command()(sweep.sweep)
app.command()(plan.plan)
app.command()(tune.tune)
app.command()(showing.plot)
app.command()(showing.report)
app.command("list")(listing.list_)
app.add_typer(arena.app, name="arena")
app.add_typer(configs.app, name="configs")
app.add_typer(data.app, name="data")
