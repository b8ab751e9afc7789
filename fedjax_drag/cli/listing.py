"""The ``fedjax-drag list`` command."""

from typing import Annotated

import typer

from fedjax_drag.cli.common import Debug, laid_out, misuse, reported

# Nothing else is imported here: NumPy and JAX take their time, and --help needs neither.


@laid_out
def list_(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="aggregators, algorithms, clients, privacy, attacks, compressors, partitions, models, datasets, "
            "optimizers, local_optimizers, schedules, losses or augmentations.",
            show_default=False,
        ),
    ],
    markdown: Annotated[bool, typer.Option("--markdown", help="A Markdown table.")] = False,
    debug: Debug = False,
) -> None:
    r"""List what a configuration can name: arguments with defaults, what it does, its paper.

    Of an aggregation rule also its breakdown point and its cost.

    \b
    Examples:
      fedjax-drag list aggregators
      fedjax-drag list aggregators --markdown
    """
    with reported(debug):
        with misuse():
            from fedjax_drag.experiment.build import catalog

            text = catalog.table(kind) if markdown else catalog.describe(kind)
        typer.echo(text)
