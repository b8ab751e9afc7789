"""A linen module as pure functions."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import cached_property
from typing import Any

import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray

from fedjax_drag import checks
from fedjax_drag.models.modes import WithModes
from fedjax_drag.simulation.model.model import Modes, Statistics, Streams, model_name, modes_of
from fedjax_drag.types import Params
from fedjax_drag.types._part import comparable

_USUAL, _ANY_OTHER = "dropout", "params"
"""The stream that most modules name, and the one from which Flax draws for a stream that was not given."""


@dataclasses.dataclass(frozen=True, eq=False)
class LinenForm:
    """A linen module.

    Args:
      model: the module, or one with modes.
      example: shape and dtype of an input ``[1, ...]``.
      frozen: whether BatchNorm normalises by its running statistics in training too, and no collection changes.

    Raises:
      ValueError: its call needs an argument that is not known.
    """

    model: Any
    example: jax.ShapeDtypeStruct
    frozen: bool = False

    def __post_init__(self) -> None:
        _ = self.modes

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._key == self._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> Hashable:
        return comparable(self.model), self.example, self.frozen

    @property
    def name(self) -> str:
        return model_name(self.model)

    @property
    def module(self) -> nn.Module:
        """Without modes."""
        return self.model.model if isinstance(self.model, WithModes) else self.model

    @cached_property
    def modes(self) -> Modes:
        """Arguments of the module's call."""
        return modes_of(self.model, self.module.__call__, 1)

    @property
    def streams(self) -> tuple[str, ...]:
        return self.modes.streams if self.modes.streams is not None else _streams(self)

    def init(self, key: PRNGKeyArray) -> tuple[Params, Statistics]:
        example = jnp.zeros(self.example.shape, self.example.dtype)
        try:
            variables = dict(self.module.init(key, example, **self.modes.evaluation))
        except Exception as error:  # a user's module may raise anything
            what = f"fails for inputs {example.dtype}{list(example.shape)}"
            raise ValueError(f"{self.name}: {what}: {checks.first_line(error)}") from error
        return variables.pop("params", {}), variables

    def evaluate(self, params: Params, statistics: Statistics, x: jax.Array) -> Any:
        return self._apply({"params": params, **statistics}, x, **self.modes.evaluation)

    def train(
        self, params: Params, statistics: Statistics, x: jax.Array, rngs: Streams, real: Bool[Array, " batch"] | None
    ) -> tuple[Any, Statistics]:
        arguments = {**self.modes.training, **({"rngs": dict(rngs)} if rngs else {})}
        variables = {"params": params, **statistics}
        if not statistics:
            return self._apply(variables, x, **arguments), statistics
        with _batch_norm(self.frozen, real):
            logits, changed = self._apply(variables, x, mutable=list(statistics), **arguments)
        return logits, statistics if self.frozen else _like(statistics, changed)

    def _apply(self, variables: Any, x: jax.Array, **arguments: Any) -> Any:
        return self.module.apply(variables, x, **arguments)


@functools.lru_cache(maxsize=64)
def _streams(form: LinenForm) -> tuple[str, ...]:
    """The random streams that a module needs in training; of those with other names than dropout Flax's substitute."""
    for streams in ((), (_USUAL,)):

        def forward(key: PRNGKeyArray, names: tuple[str, ...] = streams) -> Any:
            example = jnp.zeros(form.example.shape, form.example.dtype)
            return form.train(*form.init(key), example, dict.fromkeys(names, key), None)[0]

        with contextlib.suppress(flax.errors.InvalidRngError):
            jax.eval_shape(forward, jax.random.key(0))
            return streams
    return (_USUAL, _ANY_OTHER)


def _like(before: Statistics, changed: Mapping[str, Any]) -> Statistics:
    """The statistics after a batch, in the dtypes that they had before."""
    after = {**before, **changed}
    return jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), after, dict(before))


@contextlib.contextmanager
def _batch_norm(frozen: bool, real: Bool[Array, " batch"] | None) -> Iterator[None]:
    """Within it, BatchNorm layers normalise by running statistics if ``frozen``, and else leave padding out."""

    def call(method: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        layer = context.module
        if not isinstance(layer, nn.BatchNorm) or context.method_name != "__call__":
            return method(*args, **kwargs)
        if frozen:
            with _running_average(layer):
                return method(args[0])
        if real is not None and kwargs.get("mask") is None:
            kwargs = {**kwargs, "mask": real.reshape(-1, *[1] * (jnp.ndim(args[0]) - 1))}
        return method(*args, **kwargs)

    with nn.intercept_methods(call):
        yield


@contextlib.contextmanager
def _running_average(layer: nn.BatchNorm) -> Iterator[None]:
    """Within it, a layer uses its running statistics, whatever it was made with."""
    before = layer.use_running_average
    object.__setattr__(layer, "use_running_average", True)  # a bound module is frozen
    try:
        yield
    finally:
        object.__setattr__(layer, "use_running_average", before)
