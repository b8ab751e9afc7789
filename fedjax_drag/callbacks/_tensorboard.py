"""TensorBoard."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_drag.callbacks._logger import Logger, needed

_LARGEST = 1e19
"""Beyond the bins of tensorboardX's histograms, which end at about 1e20."""


def tensorboard(folder: str | Path, name: str = "", config: Mapping[str, Any] | None = None) -> Logger:
    """Writes event files for TensorBoard, per-client metrics as histograms.

    Needs tensorboardX, and neither TensorFlow nor PyTorch: ``pip install 'fedjax-drag[tensorboard]'``.

    Args:
      folder: for ``tensorboard --logdir``, which also accepts a folder above it.
      name: of the run, a folder in ``folder``; default ``folder`` itself.
      config: of the run, shown as text.

    Raises:
      ImportError: tensorboardX is not installed.
    """
    writer = needed("tensorboard").SummaryWriter(str(Path(folder) / name))
    if config:
        writer.add_text("config", f"```json\n{json.dumps(config, indent=2, default=str)}\n```")

    def write(number: int, scalars: dict[str, float], vectors: dict[str, np.ndarray]) -> None:
        for key, value in scalars.items():
            writer.add_scalar(key, value, number)
        for key, values in vectors.items():
            writer.add_histogram(key, np.clip(values, -_LARGEST, _LARGEST), number)
        writer.flush()  # a run may take hours between evaluations, or be killed

    return Logger(write, lambda succeeded: writer.close())
