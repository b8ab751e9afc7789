"""Parameters of a finished or interrupted run: the documented address of :func:`load_params`."""

from fedjax_drag.experiment.run.checkpoints import load_params

__all__ = ["load_params"]
