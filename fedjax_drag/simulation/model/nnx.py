"""An nnx module as pure functions: split into graph and state once, merged inside the program."""

import dataclasses
import functools
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.core import FrozenDict
from jaxtyping import Array, Bool, PRNGKeyArray

from fedjax_drag import checks
from fedjax_drag.models.modes import module_of
from fedjax_drag.simulation.model.model import Like, Statistics, Streams, model_name, modes_of
from fedjax_drag.types import Params

_KINDS = (nnx.Param, nnx.RngState, ...)
"""Parameters, random streams, and the rest, in the order of a split."""


@dataclasses.dataclass(frozen=True)
class NnxForm:
    """An nnx module, of which two are equal if their graphs and shapes are; what is in its arrays is no part of it.

    Attributes:
      name: what a message begins with.
      graphs: of the module in training and in evaluation.
      params: of the module.
      rngs: its random streams.
      rest: its other variables.
      modes: arguments of its call in training and in evaluation.
      normalises: whether it has BatchNorm.
      frozen: whether BatchNorm normalises by its running statistics in training too, and no variable changes.
      maker: ``(rngs) -> module``, which makes the parameters from a run's key; None for a module that has them.
    """

    name: str
    graphs: tuple[Any, Any]
    params: Like
    rngs: Like
    rest: Like
    modes: tuple[FrozenDict[str, Any], FrozenDict[str, Any]]
    normalises: bool
    frozen: bool
    maker: Callable[..., Any] | None

    @property
    def streams(self) -> tuple[str, ...]:
        return tuple(sorted({variable.get_metadata("tag") for _, variable in nnx.to_flat_state(self.rngs.tree)}))

    def init(self, key: PRNGKeyArray) -> tuple[Params, Statistics]:
        """Those that the maker makes; of a module that has parameters zeros, whose place :func:`variables_of` takes."""
        if self.maker is not None:
            params, _, rest = nnx.split(self.maker(rngs=nnx.Rngs(key)), *_KINDS)[1:]
        else:
            blank = lambda like: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like.tree)
            params, rest = blank(self.params), blank(self.rest)
        return nnx.to_pure_dict(params), nnx.to_pure_dict(rest)

    def evaluate(self, params: Params, statistics: Statistics, x: Any) -> Any:
        return self._merged(self.graphs[1], params, statistics, {})(x, **self.modes[1])

    def train(
        self, params: Params, statistics: Statistics, x: Any, rngs: Streams, real: Bool[Array, " batch"] | None
    ) -> tuple[Any, Statistics]:
        if real is not None and self.normalises and not self.frozen:
            raise ValueError(
                f"{self.name}: has BatchNorm, whose statistics would take in the padding of batches that "
                "are not full: must have none with local_epochs or batch_size='full'; local_steps draws full batches"
            )
        instance = self._merged(self.graphs[0], params, statistics, rngs)
        logits = instance(x, **self.modes[0])
        if self.frozen or not statistics:
            return logits, statistics
        rest: Any = nnx.split(instance, *_KINDS)[3]
        after = nnx.to_pure_dict(rest)
        return logits, jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), after, statistics)

    def _merged(self, graph: Any, params: Params, statistics: Statistics, rngs: Streams) -> Any:
        seeded = _seeded(self.rngs.tree, rngs)
        return nnx.merge(graph, _filled(self.params.tree, params), seeded, _filled(self.rest.tree, statistics))


def form_of_nnx(model: Any, frozen: bool = False) -> NnxForm:
    """The form of an nnx module; the module itself is not changed.

    Its parameters and its other variables become nested dicts, as ``nnx.to_pure_dict`` gives them. In training and in
    evaluation ``module.train()`` and ``module.eval()`` set the attributes of its layers.

    Args:
      model: the module, whose parameters every run starts from; or a function ``(rngs) -> module``, such as its class,
        which makes them from a run's key; with or without modes.
      frozen: whether BatchNorm normalises by its running statistics in training too, and no variable changes.

    Raises:
      ValueError: its call needs an argument that is not known, or, in ``train``, it has BatchNorm and is given padding.
    """
    given: Any = module_of(model)
    is_module = isinstance(given, nnx.Module)
    make = _made if checks.has_hash(given) else _made.__wrapped__
    module: Any = given if is_module else make(given)
    modes = modes_of(model, module.__call__, 1)
    likes = [Like.of(state) for state in nnx.split(module, *_KINDS)[1:]]
    return NnxForm(
        model_name(model),
        (_graph(module, training=True, frozen=frozen), _graph(module, training=False, frozen=frozen)),
        *likes,
        modes=(FrozenDict(modes.training), FrozenDict(modes.evaluation)),
        normalises=any(isinstance(layer, nnx.BatchNorm) for _, layer in nnx.iter_graph(module)),
        frozen=frozen,
        maker=None if is_module else given,
    )


@functools.lru_cache(maxsize=32)
def _made(maker: Callable[..., Any]) -> Any:
    """A module whose arrays are shapes."""
    return nnx.eval_shape(lambda key: maker(rngs=nnx.Rngs(key)), jax.random.key(0))


def variables_of(model: Any) -> tuple[Params, Statistics] | None:
    """The parameters and statistics that a module has; None of a function that makes one."""
    given: Any = module_of(model)
    if not isinstance(given, nnx.Module):
        return None
    params, _, rest = nnx.split(given, *_KINDS)[1:]
    return nnx.to_pure_dict(params), nnx.to_pure_dict(rest)


def _graph(module: Any, training: bool, frozen: bool) -> Any:
    """The graph of a module in one of its modes."""
    copy: Any = nnx.merge(*nnx.split(module))
    if training:
        copy.train()
    else:
        copy.eval()
    if frozen:
        for _, layer in nnx.iter_graph(copy):
            if isinstance(layer, nnx.BatchNorm):
                layer.use_running_average = True
    return nnx.split(copy, *_KINDS)[0]


def _filled(like: Any, values: Any) -> Any:
    """A state like ``like`` with these values; made anew, for a variable belongs to the trace in which it was made."""
    return jax.tree.unflatten(jax.tree.structure(like), jax.tree.leaves(values))


def _seeded(like: Any, rngs: Streams) -> Any:
    """The state of random streams: a key for each place, from that of its stream; counters start at 0."""

    def value(path: tuple[Any, ...], variable: Any) -> Any:
        if not isinstance(variable, nnx.RngKey):
            return jnp.zeros((), jnp.uint32)
        key = rngs.get(variable.get_metadata("tag"), jax.random.key(0))  # in evaluation nothing is drawn from it
        return jax.random.fold_in(key, zlib.crc32("/".join(map(str, path)).encode()))

    return _filled(like, [value(*one) for one in nnx.to_flat_state(like)])
