"""The ``fedjax-drag list`` command."""

from typing import Annotated

import typer

from fedjax_drag.cli.common import Debug, reported, user_errors

# Nothing else is imported here: JAX takes its time, and neither --help nor a wrong kind needs it.

KINDS = (
    *("aggregators", "algorithms", "clients", "privacy", "attacks", "compressors", "selections", "clocks", "graphs"),
    *("mixings", "datasets", "partitions", "models", "optimizers", "local_optimizers", "schedules", "losses"),
    *("metrics", "augmentations"),
)
"""Those of the catalog, which imports JAX."""


def _complete_kind(incomplete: str) -> list[str]:
    return [kind for kind in KINDS if kind.startswith(incomplete)]


def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="KIND",
            help=f"{', '.join(KINDS[:-1])} or {KINDS[-1]}; left out, the kinds are listed.",
            show_default=False,
            autocompletion=_complete_kind,
        ),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="A Markdown table.")] = False,
    debug: Debug = False,
) -> None:
    """List what a configuration can name: arguments with defaults, what it does, its paper.

    Of an aggregation rule also its breakdown point and its cost.

    \b
    Examples:
      fedjax-drag list
      fedjax-drag list aggregators
      fedjax-drag list aggregators --markdown
    """
    with reported(debug):
        if kind is None:
            typer.echo("\n".join(KINDS))
            return
        with user_errors():
            from fedjax_drag.checks import one_of

            one_of("kind", kind, KINDS)
            from fedjax_drag.experiment.build import catalog

            text = catalog.table(kind) if markdown else catalog.describe(kind)
        typer.echo(text)
