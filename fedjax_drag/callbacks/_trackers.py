"""Tracking tools that receive the metrics of a run: the callback that they share, and a function for each."""

import importlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict

from fedjax_drag.simulation import Evaluation

_PER_REQUEST, _LONGEST = 100, 500
"""Limits of MLflow: parameters in a request, and characters of a value."""

_LARGEST = 1e19
"""Beyond the bins of tensorboardX's histograms, which end at about 1e20."""

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


def mlflow(name: str | None = None, config: Mapping[str, Any] | None = None) -> Logger:
    """Logs scalars to MLflow, which has no histograms for per-client metrics; ``pip install 'fedjax-drag[mlflow]'``.

    MLflow's environment variables set the destination: ``MLFLOW_TRACKING_URI`` (default ``mlflow.db`` in the current
    folder, a SQLite file) and ``MLFLOW_EXPERIMENT_NAME`` (default ``fedjax-drag``).

    Args:
      name: of the run; default a name that MLflow generates.
      config: of the run, as parameters with dotted keys; long values are cut.

    Raises:
      ImportError: MLflow is not installed.
    """
    package = needed("mlflow")
    client, place = connect_mlflow()
    run = client.create_run(place, run_name=name).info.run_id
    flat = flatten_dict({**(config or {})}, sep=".")
    params = [package.entities.Param(key, str(value)[:_LONGEST]) for key, value in flat.items()]
    for begin in range(0, len(params), _PER_REQUEST):
        client.log_batch(run, params=params[begin : begin + _PER_REQUEST])

    def write(number: int, scalars: dict[str, float], vectors: dict[str, np.ndarray]) -> None:
        del vectors
        now = int(time.time() * 1000)
        client.log_batch(run, [package.entities.Metric(key, value, now, number) for key, value in scalars.items()])

    return Logger(write, lambda succeeded: client.set_terminated(run, "FINISHED" if succeeded else "FAILED"))


def connect_mlflow() -> tuple[Any, str]:
    """MLflow's client and the id of the experiment, which is made if it does not exist; MLflow's own errors."""
    client = needed("mlflow").MlflowClient()
    title = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedjax-drag")
    experiment = client.get_experiment_by_name(title)
    return client, experiment.experiment_id if experiment else client.create_experiment(title)
