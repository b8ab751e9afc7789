"""The callback that all tracking tools share."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedjax_drag.simulation import Evaluation

Write = Callable[[int, dict[str, float], dict[str, np.ndarray]], None]
"""``(round, scalars, vectors)``; vectors are finite and not empty."""


class Logger:
    """A callback of the engine that sends every evaluation to a tool; a ``with`` block closes it.

    Args:
      write: ``(round, scalars, vectors)``, called for every evaluation.
      close: ``(succeeded)``, called at the end of the block; False if an exception ended it, Ctrl-C included.
    """

    def __init__(self, write: Write, close: Callable[[bool], Any]) -> None:
        self._write, self._close = write, close

    def __call__(self, event: Evaluation) -> None:
        """Sends an evaluation: scalars unchanged, of per-client metrics the finite entries."""
        metrics = {name: np.asarray(value) for name, value in event.metrics.items() if name != "round"}
        scalars = {name: float(value) for name, value in metrics.items() if value.ndim == 0}
        finite = {name: value[np.isfinite(value)].astype(float) for name, value in metrics.items() if value.ndim}
        self._write(event.round, scalars, {name: value for name, value in finite.items() if value.size})

    def __enter__(self) -> "Logger":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._close(kind is None)


PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb", "mlflow": "mlflow"}


def needed(tool: str) -> Any:
    """The package of a tool.

    Args:
      tool: one of ``PACKAGES``.

    Raises:
      ImportError: one line that says what to install.
    """
    try:
        return importlib.import_module(PACKAGES[tool])
    except ImportError as error:
        raise ImportError(f"{tool}: {error}; pip install 'fedjax-drag[{tool}]'") from None


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A configuration with dotted keys."""
    entries: dict[str, Any] = {}
    for key, value in config.items():
        entries |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return entries
