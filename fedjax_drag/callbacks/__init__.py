"""Callbacks that send a run's metrics to a tracking tool; each needs a package of its own.

::

    with fd.callbacks.tensorboard("runs/x/logs") as log:
        fd.simulate(algorithm, callbacks=[log], ...)
"""

from fedjax_drag.callbacks._trackers import Logger, mlflow, needed, tensorboard, wandb

__all__ = ["Logger", "mlflow", "needed", "tensorboard", "wandb"]
