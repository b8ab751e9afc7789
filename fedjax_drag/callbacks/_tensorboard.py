"""TensorBoard."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedjax_drag.callbacks._logger import Logger, needed


def tensorboard(folder: str | Path, name: str = "", config: Mapping[str, Any] | None = None) -> Logger:
    """Writes event files for TensorBoard, per-client metrics as histograms.

    Needs tensorboardX, and neither TensorFlow nor PyTorch: ``pip install 'fedjax-drag[tensorboard]'``.

    Args:
      folder: ``tensorboard --logdir`` shows it, or one above it.
      name: of the run, a folder in it; default none.
      config: of the run, shown as text.

    Raises:
      ImportError: tensorboardX is not installed.
    """
    writer = needed("tensorboard").SummaryWriter(str(Path(folder) / name))
    if config:
        writer.add_text("config", f"```json\n{json.dumps(config, indent=2, default=str)}\n```")

    def write(number, scalars, vectors):
        for key, value in scalars.items():
            writer.add_scalar(key, value, number)
        for key, values in vectors.items():
            writer.add_histogram(key, values, number)
        writer.flush()  # a run may take hours between evaluations, or be killed

    return Logger(write, lambda succeeded: writer.close())
