"""A pair ``(init, apply)`` of plain functions."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Bool, PRNGKeyArray

from fedjax_drag import checks
from fedjax_drag.models.modes import WithModes
from fedjax_drag.simulation.model.functions import ModelFunctions, model_name
from fedjax_drag.simulation.model.model import Statistics, Streams
from fedjax_drag.simulation.model.modes import modes_of
from fedjax_drag.types import Params


def functions_of_pair(model: Any, example: jax.Array) -> ModelFunctions:
    """The functions of a pair: ``init(key) -> params``, or ``init(key, x)``, and ``apply(params, x) -> logits``.

    ``apply`` may also have arguments that switch between training and evaluation, and ``key``, a random key in
    training and None in evaluation, or ``rngs``, a mapping of keys by stream.

    Args:
      model: the pair, or one with modes.
      example: an input ``[1, ...]``, for an ``init`` that takes one.

    Raises:
      ValueError: ``apply`` needs an argument that is not known.
    """
    make, apply = model.model if isinstance(model, WithModes) else model
    modes = modes_of(model, apply, 2)
    names = inspect.signature(apply).parameters.keys() & {"key", "rngs"}
    streams = (modes.streams or ("dropout",)) if names else ()

    shown = (example,) if _takes_input(make) else ()

    def init(key: PRNGKeyArray) -> tuple[Params, Statistics]:
        try:
            return make(key, *shown), {}
        except Exception as error:  # a user's function may raise anything
            raise ValueError(f"{model_name(model)}: init fails: {checks.first_line(error)}") from error

    def given(rngs: Streams) -> dict[str, Any]:
        known = {"key": next(iter(rngs.values()), None), "rngs": dict(rngs)}
        return {name: known[name] for name in names}

    def evaluate(params: Params, statistics: Statistics, x: jax.Array) -> Any:
        del statistics
        return apply(params, x, **modes.evaluation, **given({}))

    def train(
        params: Params, statistics: Statistics, x: jax.Array, rngs: Streams, real: Bool[Array, " batch"] | None
    ) -> tuple[Any, Statistics]:
        del real
        return apply(params, x, **modes.training, **given(rngs)), statistics

    return ModelFunctions(init, evaluate, train, streams)


def _takes_input(init: Callable[..., Any]) -> bool:
    """Whether ``init`` takes an input beside the key."""
    parameters = list(inspect.signature(init).parameters.values())
    needed = [one for one in parameters if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    return len(needed) > 1
