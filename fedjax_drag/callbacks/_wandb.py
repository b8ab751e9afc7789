"""Weights & Biases."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_drag.callbacks._logger import Logger, needed


def wandb(folder: str | Path, name: str | None = None, config: Mapping[str, Any] | None = None) -> Logger:
    """Logs to Weights & Biases, per-client metrics as histograms; ``pip install 'fedjax-drag[wandb]'``.

    wandb's environment variables set the rest, such as ``WANDB_PROJECT`` (default ``fedjax-drag``) and
    ``WANDB_MODE=offline``.

    Args:
      folder: of wandb's files.
      name: of the run; default a name that wandb generates.
      config: of the run.

    Raises:
      ImportError: wandb is not installed.
    """
    package = needed("wandb")
    Path(folder).mkdir(parents=True, exist_ok=True)  # without it wandb writes to another folder
    project = package.Settings().project or "fedjax-drag"
    run = package.init(dir=str(folder), project=project, name=name, config=dict(config or {}), reinit="create_new")

    def write(number: int, scalars: dict[str, float], vectors: dict[str, np.ndarray]) -> None:
        histograms = {key: package.Histogram(values) for key, values in vectors.items()}
        run.log(scalars | histograms, step=number)

    return Logger(write, lambda succeeded: run.finish(exit_code=0 if succeeded else 1))


def log_in_wandb() -> None:
    """Checks the login where a run is sent to a server, and asks for it in a terminal; wandb's own errors."""
    package = needed("wandb")
    if package.Settings().mode not in ("offline", "dryrun", "disabled"):
        package.login()
