"""An nnx module as pure functions: split into graph and state once, merged inside the program."""

import zlib
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


def functions_of_nnx(model: Any, frozen: bool = False) -> ModelFunctions:
    """The functions of an nnx module; the module itself is not changed.

    Its parameters and its other variables become nested dicts, as ``nnx.to_pure_dict`` gives them. ``init`` returns
    those that the module has, whatever the key. In training and in evaluation ``module.train()`` and ``module.eval()``
    set the attributes of its layers.

    Args:
      model: the module, or one with modes.
      frozen: whether BatchNorm normalises by its running statistics in training too, and no variable changes.

    Raises:
      ValueError: its call needs an argument that is not known, or, in ``train``, it has BatchNorm and is given padding.
    """
    module: Any = model.model if isinstance(model, WithModes) else model
    modes = modes_of(model, module.__call__, 1)
    graphs = _graph(module, training=True, frozen=frozen), _graph(module, training=False, frozen=frozen)
    state = nnx.split(module, nnx.Param, nnx.RngState, ...)[1:]
    normalises = any(isinstance(layer, nnx.BatchNorm) for _, layer in nnx.iter_graph(module))

    def init(key: PRNGKeyArray) -> tuple[Params, Statistics]:
        del key
        return _pure(state[0]), _pure(state[2])

    def merged(graph: Any, params: Params, statistics: Statistics, rngs: Streams) -> Any:
        parts = _filled(state[0], params), _seeded(state[1], rngs), _filled(state[2], statistics)
        return nnx.merge(graph, *parts)

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
        after = _pure(nnx.split(instance, nnx.Param, nnx.RngState, ...)[3])
        return logits, jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), after, statistics)

    tags = {variable.get_metadata("tag") for _, variable in nnx.to_flat_state(state[1])}
    return ModelFunctions(init, evaluate, train, modes.streams or tuple(sorted(tags)))


def _graph(module: Any, training: bool, frozen: bool) -> Any:
    """The graph of a module in one of its modes."""
    copy: Any = nnx.clone(module)
    if training:
        copy.train()
    else:
        copy.eval()
    if frozen:
        for _, layer in nnx.iter_graph(copy):
            if isinstance(layer, nnx.BatchNorm):
                layer.use_running_average = True
    return nnx.split(copy, nnx.Param, nnx.RngState, ...)[0]


def _pure(state: Any) -> Any:
    return nnx.to_pure_dict(state)


def _filled(like: Any, values: Any) -> Any:
    """A state like ``like`` with these values."""
    flat = [(path, variable.replace(_at(values, path))) for path, variable in nnx.to_flat_state(like)]
    return nnx.from_flat_state(flat)


def _at(values: Any, path: tuple[Any, ...]) -> Any:
    for part in path:
        values = values[part]
    return values


def _seeded(like: Any, rngs: Streams) -> Any:
    """The state of random streams: a key for each place, from that of its stream; counters start at 0."""

    def value(path: tuple[Any, ...], variable: Any) -> Any:
        if not isinstance(variable, nnx.RngKey):
            return jnp.zeros_like(variable.get_value())
        key = rngs.get(variable.get_metadata("tag"))
        if key is None:  # in evaluation, where nothing is drawn
            return variable.get_value()
        return jax.random.fold_in(key, zlib.crc32("/".join(map(str, path)).encode()))

    flat = [(path, variable.replace(value(path, variable))) for path, variable in nnx.to_flat_state(like)]
    return nnx.from_flat_state(flat)
