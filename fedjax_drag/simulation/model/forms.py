"""From a user's model in any of its forms to the one form that a run trains."""

from typing import Any

import flax.linen as nn
import jax

from fedjax_drag.models.modes import WithModes
from fedjax_drag.simulation.model.linen import LinenForm
from fedjax_drag.simulation.model.model import ModelForm, Statistics, is_nnx, is_pair
from fedjax_drag.simulation.model.pair import PairForm
from fedjax_drag.types import Params


def form_of(model: Any, example: jax.ShapeDtypeStruct, frozen: bool = False) -> ModelForm:
    """A user's model as pure functions of all its parameters.

    Args:
      model: a linen module, an nnx module or a pair ``(init, apply)``, with or without modes.
      example: shape and dtype of an input ``[1, ...]``.
      frozen: whether its statistics never change.

    Raises:
      ValueError: its call needs an argument that is not known.
    """
    inner = model.model if isinstance(model, WithModes) else model
    if is_pair(inner):
        return PairForm(model, example)
    if isinstance(inner, nn.Module):
        return LinenForm(model, example, frozen)
    from fedjax_drag.simulation.model.nnx import form_of_nnx  # here: imports nnx, which takes 0.2 s

    return form_of_nnx(model, frozen)


def variables_of(model: Any) -> tuple[Params, Statistics] | None:
    """The parameters and statistics that a model brings with it, as an nnx module does; None of any other."""
    inner = model.model if isinstance(model, WithModes) else model
    if not is_nnx(inner):
        return None
    from fedjax_drag.simulation.model import nnx

    return nnx.variables_of(model)
