"""A pair ``(init, apply)`` of plain functions."""

import dataclasses
import inspect
from collections.abc import Callable, Hashable, Set
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray

from fedjax_drag import checks
from fedjax_drag.models.modes import WithModes
from fedjax_drag.simulation.model.model import Modes, Statistics, Streams, model_name, modes_of
from fedjax_drag.types import Params
from fedjax_drag.types._part import comparable


@dataclasses.dataclass(frozen=True, eq=False)
class PairForm:
    """The functions ``init(key) -> params``, or ``init(key, x)``, and ``apply(params, x) -> logits``.

    ``apply`` may also have arguments that switch between training and evaluation, and ``key``, a random key in
    training and None in evaluation, or ``rngs``, a mapping of keys by stream.

    Args:
      model: the pair, or one with modes.
      example: shape and dtype of an input ``[1, ...]``, for an ``init`` that takes one.

    Raises:
      ValueError: ``apply`` needs an argument that is not known.
    """

    model: Any
    example: jax.ShapeDtypeStruct

    def __post_init__(self) -> None:
        _ = self.modes

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._key == self._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> Hashable:
        return comparable(self.model), self.example

    @property
    def name(self) -> str:
        return model_name(self.model)

    @property
    def pair(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """``(init, apply)``."""
        return self.model.model if isinstance(self.model, WithModes) else self.model

    @cached_property
    def modes(self) -> Modes:
        """Arguments of ``apply``."""
        return modes_of(self.model, self.pair[1], 2)

    @cached_property
    def _random(self) -> Set[str]:
        """Arguments of ``apply`` for random keys."""
        return inspect.signature(self.pair[1]).parameters.keys() & {"key", "rngs"}

    @property
    def streams(self) -> tuple[str, ...]:
        return (self.modes.streams or ("dropout",)) if self._random else ()

    def init(self, key: PRNGKeyArray) -> tuple[Params, Statistics]:
        make, _ = self.pair
        shown = (jnp.zeros(self.example.shape, self.example.dtype),) if _takes_input(make) else ()
        try:
            return make(key, *shown), {}
        except Exception as error:  # a user's function may raise anything
            raise ValueError(f"{self.name}: init fails: {checks.first_line(error)}") from error

    def evaluate(self, params: Params, statistics: Statistics, x: jax.Array) -> Any:
        del statistics
        return self.pair[1](params, x, **self.modes.evaluation, **self._given({}))

    def train(
        self, params: Params, statistics: Statistics, x: jax.Array, rngs: Streams, real: Bool[Array, " batch"] | None
    ) -> tuple[Any, Statistics]:
        del real
        return self.pair[1](params, x, **self.modes.training, **self._given(rngs)), statistics

    def _given(self, rngs: Streams) -> dict[str, Any]:
        known = {"key": next(iter(rngs.values()), None), "rngs": dict(rngs)}
        return {name: known[name] for name in self._random}


def _takes_input(init: Callable[..., Any]) -> bool:
    """Whether ``init`` takes an input beside the key."""
    parameters = list(inspect.signature(init).parameters.values())
    needed = [one for one in parameters if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    return len(needed) > 1
