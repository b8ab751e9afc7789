"""Models: builders of Flax modules that map inputs ``[B, ...]`` to logits, with a ``params`` collection only."""

from fedjax_drag.models.cnn import cnn
from fedjax_drag.models.lenet import lenet
from fedjax_drag.models.mlp import mlp

__all__ = ["cnn", "lenet", "mlp"]
