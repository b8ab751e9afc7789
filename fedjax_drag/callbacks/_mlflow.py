"""MLflow."""

import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedjax_drag.callbacks._logger import Logger, flat, needed

_PER_REQUEST, _LONGEST = 100, 500
"""Limits of MLflow: parameters in a request, and characters of a value."""


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
    params = [package.entities.Param(key, str(value)[:_LONGEST]) for key, value in flat(config or {}).items()]
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
