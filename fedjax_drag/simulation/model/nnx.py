"""An nnx module as pure functions: split into graph and state once, merged inside the program."""

import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, PRNGKeyArray

from fedjax_drag.models.modes import WithModes
from fedjax_drag.simulation.model.functions import ModelFunctions, model_name
from fedjax_drag.simulation.model.model import Statistics, Streams
from fedjax_drag.simulation.model.modes import modes_of
from fedjax_drag.types import Params

_KINDS = (nnx.Param, nnx.RngState, ...)
"""Parameters, random streams, and the rest, in the order of a split."""


def functions_of_nnx(model: Any, frozen: bool = False) -> ModelFunctions:
    """The functions of an nnx module; the module itself is not changed.

    Its parameters and its other variables become nested dicts, as ``nnx.to_pure_dict`` gives them. In training and in
    evaluation ``module.train()`` and ``module.eval()`` set the attributes of its layers.

    Args:
      model: the module, whose parameters every run starts from; or a function ``(rngs) -> module``, such as its class,
        which makes them from a run's key; with or without modes.
      frozen: whether BatchNorm normalises by its running statistics in training too, and no variable changes.

    Raises:
      ValueError: its call needs an argument that is not known, or, in ``train``, it has BatchNorm and is given padding.
    """
    given: Any = model.model if isinstance(model, WithModes) else model
    make: Callable[[PRNGKeyArray], Any] = lambda key: given(rngs=nnx.Rngs(key))
    if isinstance(given, nnx.Module):
        make = lambda key: given
    module: Any = given if isinstance(given, nnx.Module) else nnx.eval_shape(make, jax.random.key(0))
    modes = modes_of(model, module.__call__, 1)
    graphs = _graph(module, training=True, frozen=frozen), _graph(module, training=False, frozen=frozen)
    params_like, rngs_like, rest_like = nnx.split(module, *_KINDS)[1:]
    normalises = any(isinstance(layer, nnx.BatchNorm) for _, layer in nnx.iter_graph(module))

    def init(key: PRNGKeyArray) -> tuple[Params, Statistics]:
        params, _, rest = nnx.split(make(key), *_KINDS)[1:]
        return nnx.to_pure_dict(params), nnx.to_pure_dict(rest)

    def merged(graph: Any, params: Params, statistics: Statistics, rngs: Streams) -> Any:
        return nnx.merge(graph, _filled(params_like, params), _seeded(rngs_like, rngs), _filled(rest_like, statistics))

    def evaluate(params: Params, statistics: Statistics, x: jax.Array) -> Any:
        return merged(graphs[1], params, statistics, {})(x, **modes.evaluation)

    def train(
        params: Params, statistics: Statistics, x: jax.Array, rngs: Streams, real: Bool[Array, " batch"] | None
    ) -> tuple[Any, Statistics]:
        if real is not None and normalises and not frozen:
            raise ValueError(
                f"{model_name(model)}: has BatchNorm, whose statistics would take in the padding of batches that "
                "are not full: must have none with local_epochs or batch_size='full'; local_steps draws full batches"
            )
        instance = merged(graphs[0], params, statistics, rngs)
        logits = instance(x, **modes.training)
        if frozen or not statistics:
            return logits, statistics
        rest: Any = nnx.split(instance, *_KINDS)[3]
        after = nnx.to_pure_dict(rest)
        return logits, jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), after, statistics)

    tags = {variable.get_metadata("tag") for _, variable in _flat(rngs_like)}
    return ModelFunctions(init, evaluate, train, tuple(sorted(tags)))


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
    """A state like ``like`` with these values."""
    return _with_values(like, lambda path, _: _at(values, path))


def _at(values: Any, path: tuple[Any, ...]) -> Any:
    for part in path:
        values = values[part]
    return values


def _seeded(like: Any, rngs: Streams) -> Any:
    """The state of random streams: a key for each place, from that of its stream; counters start at 0."""

    def value(path: tuple[Any, ...], variable: Any) -> Any:
        if not isinstance(variable, nnx.RngKey):
            return jnp.zeros((), jnp.uint32)
        key = rngs.get(variable.get_metadata("tag"), jax.random.key(0))  # in evaluation nothing is drawn from it
        return jax.random.fold_in(key, zlib.crc32("/".join(map(str, path)).encode()))

    return _with_values(like, value)


def _with_values(like: Any, value: Callable[[tuple[Any, ...], Any], Any]) -> Any:
    """A state like ``like`` with ``value(path, variable)`` in the place of every variable's value."""
    paths = {id(variable): path for path, variable in _flat(like)}
    variables = jax.tree.leaves(like, is_leaf=lambda node: isinstance(node, nnx.Variable))
    # Made anew, and not copied: a variable belongs to the trace in which it was made.
    return jax.tree.unflatten(jax.tree.structure(like), [value(paths[id(one)], one) for one in variables])


def _flat(state: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """The variables of a state with their paths."""
    return list(nnx.to_flat_state(state))
