"""From settings to what the engine compiles: the federation as arrays, and the run as pure functions."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fedjax_drag.clients import sgd
from fedjax_drag.losses import cross_entropy
from fedjax_drag.simulation.devices.processes import from_first
from fedjax_drag.simulation.planning.arguments import (
    check_attack,
    check_logits,
    check_loss,
    check_sign,
    resolve_aggregation,
    resolve_axis,
)
from fedjax_drag.simulation.planning.calibration import Passes, choose
from fedjax_drag.simulation.program.clients_axis import Walk, make_accumulator, make_mapper
from fedjax_drag.simulation.program.federation import Federation, choose_malicious, choose_root
from fedjax_drag.simulation.program.programs import Programs, make_programs
from fedjax_drag.simulation.program.round import FULL, Work
from fedjax_drag.simulation.settings import Settings
from fedjax_drag.types import Batch


def federate(settings: Settings) -> Federation:
    """The data of a run with its malicious clients and root data, as they lie on the host.

    Raises:
      ValueError: if the root data cannot be had.
    """
    data, number = settings.data, settings.num_malicious
    of_federation = settings.byzantine_of == "federation"
    malicious = choose_malicious(data.num_clients, number if of_federation else 0, settings.seed)
    root = np.zeros(0, np.int32)
    if settings.uses_root:
        drawn_from = (settings.root_source, settings.seed)
        root = choose_root(data, malicious, settings.root_size, settings.root_bias, *drawn_from)
    drawn = None if of_federation else np.int32(number)
    assert data.rows is not None
    assert data.counts is not None
    on_host: list[Any] = [data.train, data.rows, data.counts, malicious, root, np.int32(len(root)), drawn]
    return Federation(*on_host)


def programs_of(settings: Settings, mesh: Mesh | None) -> tuple[Programs, Work]:
    """The run as pure functions, and what its clients do.

    Args:
      settings: of the run; numbers in its parts may be traced.
      mesh: devices that share the clients, or None.

    Raises:
      ValueError: if the parts do not fit together.
    """
    # Without malicious clients: the same program, and so the same bits, as a run without attack.
    attack = settings.attack if settings.num_malicious else None
    check_attack(attack, settings.uses_root)
    data, loss = settings.data, settings.loss or cross_entropy()
    check_loss(loss, data.num_classes)
    usual = Walk(resolve_axis(settings.clients_axis, settings.clients_per_chunk), settings.clients_per_chunk)
    example = jnp.zeros((1, *data.input_shape), jax.eval_shape(data.preprocess, data.train.x[:1]).dtype)
    apply, init_params = _functions_of(settings.model, example, settings.compute_dtype)
    params = jax.eval_shape(init_params, jax.random.key(0))
    if settings.local_optimizer is not None:
        check_sign(settings.local_optimizer, params)
    check_logits(jax.eval_shape(apply, params, example), data.num_classes)
    streams = resolve_aggregation(settings.aggregation, settings.algorithm, attack)
    asked = settings.clients_axis == "auto" and settings.clients_per_chunk is None
    walk = _walk(usual, _passes(settings, mesh, apply, params, example), mesh) if asked else usual
    work = Work(
        apply,
        loss,
        data.preprocess,
        data.num_classes,
        settings.cohort_size,
        settings.local_steps,
        settings.batch_size,
        settings.step_size,
        make_mapper(*walk, mesh),
        mesh,
        reject_nonfinite=settings.nonfinite == "reject",
        root_client=settings.root_client or sgd(),
        local_epochs=settings.local_epochs,
        local_optimizer=settings.local_optimizer,
        augmentation=settings.augmentation,
        walk=walk,
        accumulate_clients=make_accumulator(*walk, mesh) if streams else None,
        shard_data=settings.shard_data and mesh is not None,
    )
    return make_programs(settings.algorithm, attack, work, init_params, settings.diagnostics), work


def _walk(usual: Walk, passes: Passes, mesh: Mesh | None) -> Walk:
    """The fastest walk; where devices belong to several processes, as the first of them has measured it."""
    if mesh is not None and mesh.is_multi_process:
        return Walk(*from_first(choose, usual, passes))
    return choose(usual, passes)


def _passes(settings: Settings, mesh: Mesh | None, apply: Callable[..., Any], params: Any, example: Any) -> Passes:
    """What there is to know of the local passes before one chooses how to walk over them."""
    counts, rows, loss = settings.data.counts, settings.data.rows, settings.loss or cross_entropy()
    assert counts is not None
    assert rows is not None
    whole = settings.batch_size == FULL
    size = rows.shape[1] if whole else settings.batch_size
    if settings.local_epochs is None:
        steps = np.full(len(counts), settings.local_steps)
    else:
        steps = np.ceil(settings.local_epochs * (np.ones(len(counts)) if whole else counts / size))
    at_once = settings.cohort_size // (mesh.size if mesh else 1)
    batch: list[Any] = [jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype) for x in (example, settings.data.train.y)]
    loss_fn = lambda params, batch: loss(apply(params, batch.x), batch.y).mean()
    return Passes(loss_fn, params, Batch(*batch), steps, at_once, at_once * settings.num_rounds)


def _functions_of(model: nn.Module, example: jax.Array, compute_dtype: str) -> tuple[Callable[..., Any], ...]:
    """``(params, x) -> logits`` and ``(key) -> params`` of a model, for inputs such as ``example`` ``[1, ...]``."""

    def narrow(leaf):
        return leaf.astype(compute_dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    def apply(params, x) -> Any:
        if compute_dtype == "float32":
            return model.apply({"params": params}, x)
        logits: Any = model.apply({"params": jax.tree.map(narrow, params)}, narrow(x))
        return logits.astype(jnp.float32)

    def init_params(key):
        variables = model.init(key, example)
        if set(variables) != {"params"}:
            extra = ", ".join(sorted(set(variables) - {"params"}))
            raise ValueError(
                f"model={type(model).__name__}: has collections beside 'params' ({extra}); running statistics have no "
                "meaning across clients, use GroupNorm or LayerNorm"
            )
        return variables["params"]

    return apply, init_params
