"""The ``fedjax-drag data`` commands."""

from pathlib import Path
from typing import Annotated

import typer

from fedjax_drag.cli.common import AllowCode, Debug, Overrides, config_argument, reported, user_errors, writes

# Nothing else is imported here: NumPy and JAX take their time, and --help needs neither.

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Find, prepare and look at data sets.")


@app.command()
def status(
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Look there alone, as data.data_dir in a configuration does.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Show which data sets are on this machine, and where.

    Looked in are the folder named by FEDJAX_DRAG_DATA, /usr/share/datasets, and for what TensorFlow Datasets has
    prepared TFDS_DATA_DIR or ~/tensorflow_datasets. Nothing is read but names.

    \b
    Examples:
      fedjax-drag data status
      fedjax-drag data status --data-dir .
    """
    with reported(debug):
        with user_errors():
            from fedjax_drag.data import loading

            if data_dir is not None and not data_dir.is_dir():
                raise ValueError(f"data_dir={str(data_dir)!r}: no such folder")
            rows = [(name, loading.where(name, data_dir) or "-", about) for name, about in loading.DATASETS]
        width = max(len(name) for name, _, _ in rows)
        for name, place, about in rows:
            typer.echo(f"{name:<{width}}  {place}\n{'':<{width}}    {about}")


@app.command()
def prepare(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Data set that TFDS has.", show_default=False)],
    source: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="Folder of the original files.", show_default=False)
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="TFDS's folder; default TFDS_DATA_DIR or ~/tensorflow_datasets.")
    ] = None,
    allow_download: Annotated[
        bool, typer.Option("--allow-download", help="Let TFDS download the original files; needs TensorFlow.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Prepare a data set for TensorFlow Datasets, from files that are here or by its download.

    Needs the extra tfds: pip install 'fedjax-drag[tfds]'. Files that are here are read without it, so this is for those
    who share data through TFDS.

    \b
    With files of the data set, or TensorFlow to download them:
      fedjax-drag data prepare fashion_mnist --from /usr/share/datasets/fashion-mnist
      fedjax-drag data prepare cifar10 --allow-download
      fedjax-drag run fashion_mnist_drag data.source=tfds
    """
    with reported(debug):
        with user_errors():
            from fedjax_drag.data import preparing

            folder = preparing.prepare(name, source, data_dir, allow_download)
        typer.echo(folder)


@app.command()
def skew(
    config: Annotated[Path, config_argument("an experiment")],
    overrides: Overrides = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Heat map: .png, .pdf or .svg.")
    ] = None,
    allow_code: AllowCode = False,
    debug: Debug = False,
) -> None:
    """Show how the data of an experiment are spread over clients and classes, without running it.

    \b
    Examples:
      fedjax-drag data skew quickstart
      fedjax-drag data skew quickstart partition.beta=10 -o skew.png
    """
    with reported(debug):
        with user_errors(), writes("output", output):
            from fedjax_drag.experiment.build import build
            from fedjax_drag.experiment.build.experiment import load_experiment
            from fedjax_drag.experiment.figures.plotting import check_format

            if output is not None:
                check_format(output)
            resolved = load_experiment(config, overrides or (), allow_code).config
            report = build.federation(resolved, build.dataset(resolved)).skew_report()
            if output is not None:
                output.parent.mkdir(parents=True, exist_ok=True)
                report.plot(output)
        typer.echo(report if output is None else f"{report}\n\nheat map in {output}")
