"""Callbacks that send a run's metrics to a tracking tool; each needs a package of its own.

::

    with fd.callbacks.tensorboard("runs/x/logs") as log:
        fd.simulate(algorithm, callbacks=[log], ...)
"""

from fedjax_drag.callbacks._logger import Logger, needed
from fedjax_drag.callbacks._mlflow import mlflow
from fedjax_drag.callbacks._tensorboard import tensorboard
from fedjax_drag.callbacks._wandb import wandb

__all__ = ["Logger", "mlflow", "needed", "tensorboard", "wandb"]
