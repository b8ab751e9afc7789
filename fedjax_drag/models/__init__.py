"""Models as Flax modules: inputs ``[B, H, W, C]`` to logits ``[B, num_classes]``."""

from fedjax_drag.models.cnn import cnn
from fedjax_drag.models.lenet import lenet
from fedjax_drag.models.mlp import mlp

__all__ = ["cnn", "lenet", "mlp"]
