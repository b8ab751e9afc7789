"""From settings to what the engine compiles: the federation as arrays, and the run as a value.

``mesh="auto"`` shares the clients among the devices of a CPU where a run gains from it. Devices of one CPU wait for
each other in every round, some milliseconds where the messages are added up, and tens of milliseconds where an
iterative rule works on the stack of them. Sharing also takes seconds longer to compile. Rounds that compute for long,
in runs of half a minute or more, save a quarter of their time or more with two cores (``docs/benchmarks.md``). How long
they compute is estimated from the operations of a local step, to an order of magnitude: nothing is timed, and the same
run is shared on every machine that has the devices.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import psutil
from jax.sharding import Mesh

from fedjax_drag.clients import sgd
from fedjax_drag.data.batching import epoch_steps, gather
from fedjax_drag.data.malicious import choose_malicious
from fedjax_drag.data.normalization import TOKENS, UNSCALED
from fedjax_drag.losses import cross_entropy
from fedjax_drag.models.lora import ADAPTERS, LoRA
from fedjax_drag.models.modes import module_of
from fedjax_drag.simulation.devices.placement import Devices, can_share, platform_of, resolve_mesh
from fedjax_drag.simulation.model.forms import form_of
from fedjax_drag.simulation.model.model import Model, ModelState
from fedjax_drag.simulation.options import span
from fedjax_drag.simulation.planning.compatibility import (
    check_jit,
    check_parts,
    check_secure_aggregation,
    check_sign,
    check_tokens,
    refusing_tokens,
)
from fedjax_drag.simulation.planning.outline import by_shape, with_message_bytes
from fedjax_drag.simulation.planning.spending import check_statistics
from fedjax_drag.simulation.program.clients_axis import ClientBatching
from fedjax_drag.simulation.program.dissimilarity import requested
from fedjax_drag.simulation.program.federation import Federation, choose_root, lists_of, malicious_per_cohort
from fedjax_drag.simulation.program.server import resolve_statistics
from fedjax_drag.simulation.run import FULL, Run
from fedjax_drag.simulation.settings import Settings
from fedjax_drag.types import Algorithm, Attack, Batch, Params
from fedjax_drag.types._part import as_part, told

MOST_AT_ONCE = 512
"""Clients at once under ``"auto"``: enough to occupy any accelerator; more need memory that grows with the cohort."""


def resolve_batching(
    clients_axis: str, clients_per_chunk: int | None, platform: str, cohort_size: int
) -> ClientBatching:
    """The way over the clients of a round: what the settings say, or the platform's usual one for ``"auto"``.

    That is one after another on a CPU, all of whose cores a single client occupies, and all at once elsewhere, in
    chunks of :data:`MOST_AT_ONCE` where the cohort is larger.
    """
    if clients_axis == "vmap" and clients_per_chunk is not None:
        raise ValueError(f"clients_per_chunk={clients_per_chunk}: goes with clients_axis='map', not 'vmap'")
    if clients_axis == "auto":
        if platform != "cpu" and clients_per_chunk is None and cohort_size > MOST_AT_ONCE:
            clients_per_chunk = MOST_AT_ONCE
        clients_axis = "map" if clients_per_chunk is not None or platform == "cpu" else "vmap"
    return ClientBatching(clients_axis, clients_per_chunk)


def resolve_aggregation(aggregation: str, algorithm: Algorithm, attack: Attack | None) -> bool:
    """Whether messages are added up as they come; ``"auto"`` does so where it can be done."""
    obstacle = None
    if algorithm.streamed is None:
        obstacle = "the method's rule compares the clients with each other"
    elif attack is not None and attack.forges:
        obstacle = "the attack forges messages from those of all clients"
    elif requested(algorithm.needs):
        obstacle = "the method needs the clients' dissimilarity, which is computed from the stacked messages"
    if aggregation == "stream" and obstacle:
        raise ValueError(f"aggregation='stream': {obstacle}; must be 'auto' or 'stack'")
    return aggregation != "stack" and obstacle is None


def federate(settings: Settings) -> Federation:
    """The data of a run with its malicious clients and root data, on the host.

    Raises:
      ValueError: if the clients hold too few examples for the root data, or none to be evaluated on, or may take more
        local steps between two evaluations than are counted; or JAX is to compile nothing.
    """
    check_jit()
    _check_total(settings)
    (data, held_out, examples), number = settings.split, settings.num_malicious
    of_federation = settings.byzantine_of == "federation"
    malicious = choose_malicious(data.num_clients, number if of_federation else 0, settings.seed)
    root = np.zeros(0, np.int32)
    if not settings.algorithm.needs.isdisjoint({"root_delta", "root_data"}):
        drawn_from = (settings.root_source, settings.seed)
        root = choose_root(data, malicious, settings.root_size, settings.root_bias, *drawn_from)
    drawn = None if of_federation else np.int32(number)
    absence = [settings.availability_trace, np.float32(settings.dropout_rate) if settings.dropout_rate else None]
    if held_out is not None:
        held_out = held_out.of(~malicious)
        if not held_out.counts.any():
            has = "two examples" if examples is data.train else "a test example"
            raise ValueError(f"evaluate_clients={settings.evaluate_clients}: no benign client has {has}")
    on_host: list[Any] = [data.train, *lists_of(data), malicious, root, np.int32(len(root)), drawn]
    on_host += [held_out, *absence, None if examples is data.train else examples]
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


def run_of(settings: Settings, devices: Devices | None = None) -> Run:
    """The run that settings ask for, on one device.

    Args:
      settings: of the run.
      devices: for which the run is lowered only; None for those of this process.

    Raises:
      ValueError: if the parts do not fit together.
    """
    number, targets, asked = settings.num_malicious, settings.data.train.y, settings.model_state
    attack = settings.attack if number else None  # of nobody is none: the bits are those of no attack
    if attack is not None and not settings.data.num_classes and hasattr(targets, "dtype"):  # one array
        attack = told(attack, target_mean=np.asarray(targets).mean(0, dtype=np.float64))
    statistics = resolve_statistics(settings.algorithm.model_state if asked == "auto" else asked, attack)
    model = _model_of(settings, statistics == "frozen")
    fewest_steps, steps = span(settings.local_steps)
    fewest_epochs, epochs = span(settings.local_epochs)
    num_clients, cohort_size = settings.data.num_clients, settings.cohort_size
    run = Run(
        algorithm=told(settings.algorithm, num_clients=num_clients),
        model=model,
        root_client=settings.root_client or sgd(),
        step_size=settings.step_size,
        attack=attack,
        local_optimizer=as_part(settings.local_optimizer),
        augmentation=as_part(settings.augmentation),
        compression=settings.compression,
        downlink_compression=settings.downlink_compression,
        num_clients=num_clients,
        cohort_size=cohort_size,
        batch_size=settings.batch_size,
        local_steps=steps,
        local_epochs=epochs,
        epochs_shuffled=settings.epoch_order == "random",
        fewest=fewest_epochs if steps is None else fewest_steps,
        drawn_once=settings.steps_drawn == "once",
        deadline=settings.deadline,
        drop_late=settings.drops_late,
        keeps_optimizer=settings.local_optimizer_state == "keep",
        statistics=statistics,
        reject_nonfinite=settings.nonfinite == "reject",
        num_byzantine=malicious_per_cohort(num_clients, cohort_size, number, settings.byzantine_of)[0],
        may_be_absent=settings.may_be_absent,
        compresses_forged=settings.forged_messages == "compressed",
        streams=resolve_aggregation(settings.aggregation, settings.algorithm, attack),
        batching=resolve_batching(settings.clients_axis, settings.clients_per_chunk, platform_of(devices), cohort_size),
        diagnostics=settings.reports_clients,
        matmul_precision=settings.matmul_precision,
        selection=settings.selected_by,
        clock=settings.clock,
        deadline_seconds=settings.deadline_seconds,
    )
    # Inputs of one type, whatever type of number each was given as.
    run = jax.tree.map(lambda x: float(x) if isinstance(x, int | float | np.number) else x, run)
    check_tokens(settings.model, settings.data)
    rows, _ = lists_of(settings.split.training)
    one_target = jax.tree.map(lambda y: y[:1], settings.data.train.y)
    params, model_state = _checked(run, _example(settings), one_target, rows)
    if settings.secure_aggregation:
        has_statistics = bool(jax.tree.leaves(model_state.statistics))
        check_secure_aggregation(run.algorithm, run.statistics if has_statistics else None, run.selection)
    check_statistics(run.algorithm.guarantee, run.statistics, model_state.statistics)
    if settings.local_optimizer is not None:
        check_sign(settings.local_optimizer, params)
    if run.clock is not None:
        run = with_message_bytes(run, settings.split.training)
    return run


@by_shape
def _checked(run: Run, example: Any, target: Any, rows: jax.ShapeDtypeStruct) -> tuple[Params, ModelState]:
    """:func:`~fedjax_drag.simulation.planning.compatibility.check_parts`, with traced numbers."""
    found: list[Any] = []
    jax.eval_shape(lambda run: found.append(check_parts(run, example, target, rows)), run)
    return found[0]


def _model_of(settings: Settings, frozen: bool) -> Model:
    """The model of a run as a value; with ``frozen`` statistics that never change."""
    data, trainable = settings.data, settings.trainable
    if trainable is None and isinstance(module_of(settings.model), LoRA):
        trainable = ADAPTERS
    with refusing_tokens(settings.model):
        form = form_of(settings.model, _example(settings), frozen)
        _ = form.streams
    return Model(
        form,
        as_part(settings.loss or cross_entropy()),
        data.preprocessing,
        data.num_classes,
        settings.measured,
        tuple(trainable) if isinstance(trainable, Sequence) and not isinstance(trainable, str) else trainable,
        settings.algorithm.personal_layers,
        settings.compute_dtype,
        settings.model_forms,
    )


def _example(settings: Settings) -> Any:
    """Shape and dtype of an input of the model, ``[1, *input_shape]``."""

    def leaf(x: np.ndarray) -> jax.ShapeDtypeStruct:  # as Preprocess gives it, without a trace in each call
        dtype = jnp.int32 if x.dtype in TOKENS else bool if x.dtype in UNSCALED else jnp.float32
        return jax.ShapeDtypeStruct((1, *x.shape[1:]), dtype)

    return jax.tree.map(leaf, settings.data.train.x)


def steps_of_clients(settings: Settings, at_most: bool = False) -> np.ndarray:
    """Local steps in a pass of each client of the federation ``[M]``.

    Args:
      settings: of the run.
      at_most: the most that may be drawn, where numbers of steps are; default as they may be drawn.
    """
    rows, counts = lists_of(settings.split.training)
    fewest, most = span(settings.local_epochs if settings.local_steps is None else settings.local_steps)
    steps = np.full(len(counts), most)
    if fewest is not None and not at_most:
        steps = np.random.default_rng(0).integers(fewest, most + 1, len(counts))
    if settings.local_epochs is not None:
        size = rows.shape[1] if settings.batch_size == FULL else int(settings.batch_size)
        each: Any = epoch_steps(counts, 1 if fewest else most, size)
        steps = np.asarray(steps * each if fewest else each)
    return steps if settings.deadline is None else np.minimum(steps, settings.deadline)


SHORTEST_ROUND = {"stream": 0.01, "stack": 0.1}
"""Seconds of local work below which a round is not worth sharing, by what the server does with the messages."""

SHORTEST_RUN = 30.0
"""Seconds of local work below which a run is not worth sharing."""

FEWEST_STEPS = 100
"""Local steps of a run below which it is not worth an estimate, which traces one of them."""

MOST_OF_MEMORY = 0.25
"""Share of the machine's memory that the copies of the examples, one for each device, may take."""

_TO_START, _PER_SECOND = 2e-5, 5e10  # seconds to start a step, FLOPs per second of a core: orders of magnitude


def mesh_of(asked: Settings, run: Run) -> Mesh | None:
    """The devices that share the clients; None for one device.

    Args:
      asked: of the run.
      run: the same without a mesh.
    """
    mesh = asked.mesh
    if mesh == "auto" and not asked.shard_data and can_share(asked.cohort_size):
        mesh = "cores" if is_worthwhile(asked, run) else None
    return resolve_mesh(mesh, asked.cohort_size)


def is_worthwhile(asked: Settings, run: Run) -> bool:
    """Whether the local work of a run is long enough to be shared among the cores."""
    examples = jax.tree.leaves((asked.data.train, asked.data.test))
    if jax.local_device_count() * sum(x.nbytes for x in examples) > MOST_OF_MEMORY * psutil.virtual_memory().total:
        return False
    steps = asked.cohort_size * float(steps_of_clients(asked).mean())  # of a round
    if steps * asked.num_rounds < FEWEST_STEPS:
        return False
    rows, _ = lists_of(asked.split.training)
    of_round = steps * (_TO_START + _operations(run, asked.data.train, rows) / _PER_SECOND)
    shortest = SHORTEST_ROUND["stream" if run.streams else "stack"]
    return of_round >= shortest and of_round * asked.num_rounds >= SHORTEST_RUN


@by_shape
def _operations(run: Run, train: Batch, rows: Any) -> float:
    """Floating-point operations of the gradient on a mini-batch."""

    def step(run: Run, train: Batch, rows: Any) -> Any:
        params, state = run.model.init(jax.random.key(0))
        batch = gather(train, rows[0], jnp.zeros(run.batch_length(rows.shape[1]), jnp.int32), run.model.preprocess)
        rngs = dict.fromkeys(run.model.streams, jax.random.key(0))
        return jax.grad(lambda w: run.model.training_loss(state, w, state.statistics, batch, rngs)[0])(params)

    return (jax.jit(step).lower(run, train, rows).cost_analysis() or {}).get("flops", 0.0)
