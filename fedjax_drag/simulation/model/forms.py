"""From a user's model in any of its forms to pure functions: linen modules and pairs here, nnx modules in ``nnx``."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Set
from functools import cached_property
from typing import Any

import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray

from fedjax_drag import checks, tree
from fedjax_drag.models.lora import LoRA
from fedjax_drag.models.modes import module_of
from fedjax_drag.simulation.model.model import (
    Like,
    ModelForm,
    Modes,
    Statistics,
    Streams,
    is_nnx,
    is_pair,
    model_name,
    modes_of,
)
from fedjax_drag.types import Params, Part

_USUAL, _ANY_OTHER = "dropout", "params"
"""The stream that most modules name, and the one from which Flax draws for a stream that was not given."""


class ShownForm(Part):
    """A model whose call shows by its signature how it is told that it is in training.

    Args:
      model: as the user gave it, with or without modes.
      example: shape and dtype of an input ``[1, ...]``, or of several.
      frozen: whether BatchNorm normalises by its running statistics in training too, and no collection changes.

    Raises:
      ValueError: its call needs an argument that is not known.
    """

    model: Any
    example: Like
    frozen: bool = False

    def check(self) -> None:
        _ = self.modes

    @property
    def name(self) -> str:
        return model_name(self.model)

    @property
    def inner(self) -> Any:
        """The model without modes."""
        return module_of(self.model)

    @property
    def zeros(self) -> Any:
        """An input of zeros."""
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), self.example.tree)

    @cached_property
    def modes(self) -> Modes:
        """Arguments of its call."""
        if is_pair(self.inner):
            return modes_of(self.model, self.inner[1], 2)
        called = self.inner.model if isinstance(self.inner, LoRA) else self.inner
        return modes_of(self.model, called.__call__, 1)


class LinenForm(ShownForm):
    """A linen module."""

    @property
    def streams(self) -> tuple[str, ...]:
        return self.modes.streams if self.modes.streams is not None else _streams(self)

    def init(self, key: PRNGKeyArray) -> tuple[Params, Statistics]:
        try:
            variables = dict(self.inner.init(key, self.zeros, **self.modes.evaluation))
        except Exception as error:  # a user's module may raise anything
            what = f"fails for inputs {tree.described(self.example.tree, 1)}"
            raise ValueError(f"{self.name}: {what}: {checks.first_line(error)}") from error
        return variables.pop("params", {}), variables

    def evaluate(self, params: Params, statistics: Statistics, x: Any) -> Any:
        return self.inner.apply({"params": params, **statistics}, x, **self.modes.evaluation)

    def train(
        self, params: Params, statistics: Statistics, x: Any, rngs: Streams, real: Bool[Array, " batch"] | None
    ) -> tuple[Any, Statistics]:
        arguments = {**self.modes.training, **({"rngs": dict(rngs)} if rngs else {})}
        variables = {"params": params, **statistics}
        if not statistics:
            return self.inner.apply(variables, x, **arguments), statistics
        with _batch_norm(self.frozen, real):
            logits, changed = self.inner.apply(variables, x, mutable=list(statistics), **arguments)
        return logits, statistics if self.frozen else _like(self.name, statistics, changed)


@functools.lru_cache(maxsize=64)
def _streams(form: LinenForm) -> tuple[str, ...]:
    """The random streams that a module needs in training; of those with other names than dropout Flax's substitute."""
    for streams in ((), (_USUAL,)):

        def forward(key: PRNGKeyArray, names: tuple[str, ...] = streams) -> Any:
            return form.train(*form.init(key), form.zeros, dict.fromkeys(names, key), None)[0]

        with contextlib.suppress(flax.errors.InvalidRngError):
            jax.eval_shape(forward, jax.random.key(0))
            return streams
    return (_USUAL, _ANY_OTHER)


def _like(name: str, before: Statistics, changed: Mapping[str, Any]) -> Statistics:
    """The statistics after a batch, in the dtypes that they had before."""
    after, before = {**before, **changed}, dict(before)
    tree.check_structure(f"{name}: in training", after, "its collections before", before)
    return jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), after, before)


@contextlib.contextmanager
def _batch_norm(frozen: bool, real: Bool[Array, " batch"] | None) -> Iterator[None]:
    """Within it, BatchNorm layers normalise by running statistics if ``frozen``, and else leave padding out."""

    def call(method: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        layer = context.module
        if not isinstance(layer, nn.BatchNorm) or context.method_name != "__call__":
            return method(*args, **kwargs)
        x = args[0] if args else kwargs["x"]
        if frozen:
            before = layer.use_running_average
            object.__setattr__(layer, "use_running_average", True)  # a bound module is frozen
            try:
                return method(x)
            finally:
                object.__setattr__(layer, "use_running_average", before)
        if real is not None and kwargs.get("mask") is None:
            kwargs = {**kwargs, "mask": real.reshape(-1, *[1] * (jnp.ndim(x) - 1))}
        return method(*args, **kwargs)

    with nn.intercept_methods(call):
        yield


class PairForm(ShownForm):
    """The functions ``init(key) -> params``, or ``init(key, x)``, and ``apply(params, x) -> logits``.

    ``apply`` may also have arguments that switch between training and evaluation, and ``key``, a random key in
    training and None in evaluation, or ``rngs``, a mapping of keys by stream.
    """

    @cached_property
    def _random(self) -> Set[str]:
        """Arguments of ``apply`` for random keys."""
        return inspect.signature(self.inner[1]).parameters.keys() & {"key", "rngs"}

    @property
    def streams(self) -> tuple[str, ...]:
        return (self.modes.streams or ("dropout",)) if self._random else ()

    def init(self, key: PRNGKeyArray) -> tuple[Params, Statistics]:
        make, _ = self.inner
        shown = (self.zeros,) if _takes_input(make) else ()
        try:
            return make(key, *shown), {}
        except Exception as error:  # a user's function may raise anything
            raise ValueError(f"{self.name}: init fails: {checks.first_line(error)}") from error

    def evaluate(self, params: Params, statistics: Statistics, x: Any) -> Any:
        del statistics
        return self.inner[1](params, x, **self.modes.evaluation, **self._given({}))

    def train(
        self, params: Params, statistics: Statistics, x: Any, rngs: Streams, real: Bool[Array, " batch"] | None
    ) -> tuple[Any, Statistics]:
        del real
        return self.inner[1](params, x, **self.modes.training, **self._given(rngs)), statistics

    def _given(self, rngs: Streams) -> dict[str, Any]:
        known = {"key": next(iter(rngs.values()), None), "rngs": dict(rngs)}
        return {name: known[name] for name in self._random}


def _takes_input(init: Callable[..., Any]) -> bool:
    """Whether ``init`` takes an input beside the key."""
    parameters = list(inspect.signature(init).parameters.values())
    needed = [one for one in parameters if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    return len(needed) > 1


def form_of(model: Any, example: Any, frozen: bool = False) -> ModelForm:
    """A user's model as pure functions of all its parameters.

    Args:
      model: a linen module, an nnx module or a pair ``(init, apply)``, with or without modes.
      example: shape and dtype of an input ``[1, ...]``, or a pytree of them.
      frozen: whether its statistics never change.

    Raises:
      ValueError: its call needs an argument that is not known.
    """
    inner = module_of(model)
    if is_pair(inner):
        return PairForm(model, Like.of(example))
    if isinstance(inner, nn.Module):
        return LinenForm(model, Like.of(example), frozen)
    from fedjax_drag.simulation.model.nnx import form_of_nnx  # here: imports nnx, which takes 0.2 s

    return form_of_nnx(model, frozen)


def variables_of(model: Any) -> tuple[Params, Statistics] | None:
    """The parameters and statistics that a model brings with it, as an nnx module does; None of any other."""
    inner = module_of(model)
    if not is_nnx(inner):
        return None
    from fedjax_drag.simulation.model import nnx

    return nnx.variables_of(model)
