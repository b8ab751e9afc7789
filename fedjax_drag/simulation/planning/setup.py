"""From settings to what the engine compiles: the federation as arrays, and the run as pure functions."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fedjax_drag.clients import sgd
from fedjax_drag.data.malicious import choose_malicious
from fedjax_drag.losses import cross_entropy
from fedjax_drag.simulation.devices import program_cache
from fedjax_drag.simulation.devices.placement import Devices, platform_of
from fedjax_drag.simulation.devices.processes import from_first
from fedjax_drag.simulation.model.forms import functions_of, make_model
from fedjax_drag.simulation.model.model import Model, ModelState
from fedjax_drag.simulation.model.statistics import resolved
from fedjax_drag.simulation.options import span
from fedjax_drag.simulation.planning.arguments import (
    check_attack,
    check_augmented,
    check_loss,
    check_secure_aggregation,
    check_sign,
    resolve_aggregation,
    resolve_axis,
)
from fedjax_drag.simulation.planning.calibration import Passes, choose
from fedjax_drag.simulation.planning.method_checks import check_method
from fedjax_drag.simulation.planning.model_checks import check_model, check_tokens, refusing_tokens
from fedjax_drag.simulation.planning.privacy import check_statistics
from fedjax_drag.simulation.program.client_pass import batch_length
from fedjax_drag.simulation.program.clients_axis import Walk, make_accumulator, make_mapper
from fedjax_drag.simulation.program.federation import Federation, choose_root
from fedjax_drag.simulation.program.programs import Programs, make_programs
from fedjax_drag.simulation.program.work import FULL, CohortExecution, LocalTraining, Work
from fedjax_drag.simulation.settings import Settings
from fedjax_drag.types import Batch, Params


def federate(settings: Settings) -> Federation:
    """The data of a run with its malicious clients and root data, on the host.

    Raises:
      ValueError: if the clients hold too few examples for the root data, or none to be evaluated on, or may take more
        local steps between two evaluations than are counted; or JAX is to compile nothing.
    """
    program_cache.check_jit()
    _check_total(settings)
    (data, held_out), number = settings.split, settings.num_malicious
    of_federation = settings.byzantine_of == "federation"
    malicious = choose_malicious(data.num_clients, number if of_federation else 0, settings.seed)
    root = np.zeros(0, np.int32)
    if settings.uses_root:
        drawn_from = (settings.root_source, settings.seed)
        root = choose_root(data, malicious, settings.root_size, settings.root_bias, *drawn_from)
    drawn = None if of_federation else np.int32(number)
    assert data.rows is not None
    assert data.counts is not None
    absence = [settings.availability_trace, np.float32(settings.dropout_rate) if settings.dropout_rate else None]
    if held_out is not None:
        held_out = held_out.of(~malicious)
        if not held_out.counts.any():
            raise ValueError(f"evaluate_clients={settings.evaluate_clients}: no benign client has two examples")
    on_host: list[Any] = [data.train, data.rows, data.counts, malicious, root, np.int32(len(root)), drawn]
    on_host += [held_out, *absence]
    return Federation(*on_host)


def _check_total(settings: Settings) -> None:
    """Refuses more local steps between two evaluations than an int32 counts; no other total is larger."""
    of_round = int(np.sort(steps_of_clients(settings, at_most=True))[-settings.cohort_size :].sum())
    rounds, most = min(settings.eval_every, settings.num_rounds), np.iinfo(np.int32).max
    if of_round * rounds > most:
        raise ValueError(
            f"eval_every={settings.eval_every}: is up to {of_round * rounds:,} local steps of all clients; "
            f"must be at most {most // of_round}, so that an int32 counts those between two evaluations"
        )


def programs_of(
    settings: Settings, mesh: Mesh | None, num_byzantine: int | None, devices: Devices | None = None
) -> tuple[Programs, Work]:
    """The run as pure functions, and what its clients do.

    Args:
      settings: of the run; numbers in its parts may be traced.
      mesh: devices that share the clients, or None.
      num_byzantine: of a cohort, which rules are told; None to tell none.
      devices: for which the run is lowered only, so that nothing is measured; None for those of this process.

    Raises:
      ValueError: if the parts do not fit together.
    """
    attack = settings.active_attack
    _check_parts(settings)
    axis = resolve_axis(settings.clients_axis, settings.clients_per_chunk, platform_of(devices))
    usual = Walk(axis, settings.clients_per_chunk)
    statistics = resolved(settings.model_state, attack)
    model = _model_of(settings, statistics == "frozen")
    params, model_state = check_model(settings.model, model, _example(settings))
    check_method(settings.algorithm, settings.data.num_clients, settings.cohort_size, params)
    if settings.secure_aggregation:
        has_statistics = bool(jax.tree.leaves(model_state.statistics))
        check_secure_aggregation(settings.algorithm, statistics if has_statistics else None)
    check_statistics(settings.algorithm.guarantee, statistics, model_state.statistics)
    if settings.local_optimizer is not None:
        check_sign(settings.local_optimizer, params)
    streams = resolve_aggregation(settings.aggregation, settings.algorithm, attack)
    undecided = settings.clients_axis == "auto" and settings.clients_per_chunk is None and devices is None
    walk = _fastest_walk(usual, _passes(settings, mesh, model, params, model_state), mesh) if undecided else usual
    work = Work(
        model,
        _training_of(settings),
        _execution_of(settings, walk, mesh, streams),
        num_clients=settings.data.num_clients,
        cohort_size=settings.cohort_size,
        root_client=settings.root_client or sgd(),
        reject_nonfinite=settings.nonfinite == "reject",
        num_byzantine=num_byzantine,
        may_be_absent=settings.may_be_absent,
        statistics=statistics,
        compression=settings.compression,
        downlink_compression=settings.downlink_compression,
        compresses_forged=settings.forged_messages == "compressed",
    )
    return make_programs(settings.algorithm, attack, work, settings.reports_clients), work


def _check_parts(settings: Settings) -> None:
    """Checks attack, loss, tokens and augmentation against the data."""
    check_attack(settings.active_attack, settings.uses_root)
    check_loss(settings.loss or cross_entropy(), settings.data.num_classes)
    check_tokens(settings.model, settings.data)
    if settings.augmentation is not None:
        check_augmented(settings.augmentation, _example(settings), _batch_length(settings))


def _execution_of(settings: Settings, walk: Walk, mesh: Mesh | None, streams: bool) -> CohortExecution:
    """How a run goes through the clients of a cohort; ``streams``: whether it adds their messages up as they come."""
    return CohortExecution(
        walk,
        over_clients=make_mapper(walk, mesh),
        accumulate_clients=make_accumulator(walk, mesh) if streams else None,
        mesh=mesh,
        shard_data=settings.shard_data and mesh is not None,
    )


def _training_of(settings: Settings) -> LocalTraining:
    """The local passes of a run."""
    fewest_steps, steps = span(settings.local_steps)
    fewest_epochs, epochs = span(settings.local_epochs)
    return LocalTraining(
        batch_size=settings.batch_size,
        step_size=settings.step_size,
        local_steps=steps,
        local_epochs=epochs,
        optimizer=settings.local_optimizer,
        keeps_optimizer=settings.local_optimizer_state == "keep",
        augmentation=settings.augmentation,
        fewest=fewest_epochs if steps is None else fewest_steps,
        drawn_once=settings.steps_drawn == "once",
        deadline=settings.deadline,
        drop_late=settings.drops_late,
    )


def passes_on_one_device(settings: Settings) -> Passes:
    """The local passes of a run whose clients are not shared among devices.

    Raises:
      ValueError: the model does not fit the data.
    """
    model = _model_of(settings, resolved(settings.model_state, settings.active_attack) == "frozen")
    return _passes(settings, None, model, *check_model(settings.model, model, _example(settings)))


def _model_of(settings: Settings, frozen: bool) -> Model:
    """The model of a run as pure functions; with ``frozen`` statistics that never change."""
    with refusing_tokens(settings.model):
        functions = functions_of(settings.model, _example(settings), frozen)
    data = settings.data
    of_data = settings.loss or cross_entropy(), data.preprocess, data.num_classes
    return make_model(functions, settings.trainable, settings.compute_dtype, *of_data)


def _example(settings: Settings) -> jax.Array:
    """An input of the model, ``[1, *input_shape]``."""
    data = settings.data
    return jnp.zeros((1, *data.input_shape), jax.eval_shape(data.preprocess, data.train.x[:1]).dtype)


def _fastest_walk(usual: Walk, passes: Passes, mesh: Mesh | None) -> Walk:
    """The fastest walk; where devices belong to several processes, as the first of them has measured it."""
    if mesh is not None and mesh.is_multi_process:
        return Walk(*from_first(choose, usual, passes))
    return choose(usual, passes)


def _passes(settings: Settings, mesh: Mesh | None, model: Model, params: Params, state: ModelState) -> Passes:
    """The local passes of a run by their shapes, of which the fastest walk is chosen."""
    size = _batch_length(settings)
    at_once = settings.cohort_size // (mesh.size if mesh else 1)
    arrays = (_example(settings), settings.data.train.y)
    batch: list[Any] = [jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype) for x in arrays]

    def loss_fn(params: Params, batch: Batch) -> jax.Array:
        blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), state)
        rngs = dict.fromkeys(model.streams, jax.random.key(0))
        return model.training_loss(blank, params, blank.statistics, batch, rngs)[0]

    number = at_once * settings.num_rounds
    return Passes(loss_fn, params, Batch(*batch), steps_of_clients(settings), at_once, number)


def _batch_length(settings: Settings) -> int:
    """Examples in a mini-batch of a client, padding included."""
    rows = settings.split.training.rows
    assert rows is not None
    return batch_length(_training_of(settings), rows.shape[1])


def steps_of_clients(settings: Settings, at_most: bool = False) -> np.ndarray:
    """Local steps in a pass of each client of the federation ``[M]``.

    Args:
      settings: of the run.
      at_most: the most that may be drawn, where numbers of steps are; default as they may be drawn.
    """
    counts = settings.split.training.counts
    assert counts is not None
    fewest, most = span(settings.local_epochs if settings.local_steps is None else settings.local_steps)
    steps = np.full(len(counts), most)
    if fewest is not None and not at_most:
        steps = np.random.default_rng(0).integers(fewest, most + 1, len(counts))
    if settings.local_epochs is not None:
        whole = settings.batch_size == FULL
        steps = np.ceil(steps * (np.ones(len(counts)) if whole else counts / settings.batch_size))
    return steps if settings.deadline is None else np.minimum(steps, settings.deadline)
