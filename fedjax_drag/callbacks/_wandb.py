"""Weights & Biases."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedjax_drag.callbacks._logger import Logger, needed


def wandb(folder: str | Path, name: str | None = None, config: Mapping[str, Any] | None = None) -> Logger:
    """Logs to Weights & Biases, per-client metrics as histograms; ``pip install 'fedjax-drag[wandb]'``.

    The rest is said by wandb's own environment variables, such as ``WANDB_PROJECT`` (default ``fedjax-drag``) and
    ``WANDB_MODE=offline``.

    Args:
      folder: where wandb keeps its files.
      name: of the run; default one that wandb makes up.
      config: of the run.

    Raises:
      ImportError: wandb is not installed.
    """
    package = needed("wandb")
    Path(folder).mkdir(parents=True, exist_ok=True)  # or wandb writes elsewhere
    project = package.Settings().project or "fedjax-drag"
    run = package.init(dir=str(folder), project=project, name=name, config=dict(config or {}), reinit="create_new")

    def write(number, scalars, vectors):
        histograms = {key: package.Histogram(values) for key, values in vectors.items()}
        run.log(scalars | histograms, step=number)

    return Logger(write, lambda succeeded: run.finish(exit_code=0 if succeeded else 1))
