"""Models: builders of Flax modules that map inputs ``[B, ...]`` to logits, and what says how to call one's own."""

from fedjax_drag.models.cnn import cnn
from fedjax_drag.models.lenet import lenet
from fedjax_drag.models.lora import lora
from fedjax_drag.models.lstm import lstm
from fedjax_drag.models.mlp import mlp
from fedjax_drag.models.modes import with_modes
from fedjax_drag.models.resnet import resnet18
from fedjax_drag.models.transformer import transformer
from fedjax_drag.models.vit import vit

__all__ = [  # noqa: RUF022 - the order of lists
    "mlp",
    "cnn",
    "lenet",
    "resnet18",
    "lstm",
    "transformer",
    "vit",
    "lora",
    "with_modes",
]
