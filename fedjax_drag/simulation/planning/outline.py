"""What is known of a run from shapes alone: the cost for a client, the programs, traced."""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_drag import per_client
from fedjax_drag.compression import _channel as channel
from fedjax_drag.data import FederatedDataset
from fedjax_drag.data.batching import gather
from fedjax_drag.simulation.devices.host_state import DEVICE
from fedjax_drag.simulation.devices.placement import everywhere, placement, shape_of
from fedjax_drag.simulation.planning.compatibility import check_benign
from fedjax_drag.simulation.program import programs
from fedjax_drag.simulation.program.federation import Federation, lists_of
from fedjax_drag.simulation.program.programs import client, first_message, has_own_models, own_examples
from fedjax_drag.simulation.run import Inputs, Run, RunState
from fedjax_drag.types import Batch, ClientRule, Downlink, Params, Uplink
from fedjax_drag.types._messages import client_params

_MOVES = {"broadcast_in_dim", "convert_element_type", "copy", "dynamic_slice", "gather", "iota", "reshape", "slice"} | {
    "squeeze",
    "stop_gradient",
    "transpose",
}
"""Primitives that move or rename values and compute nothing."""

_ENOUGH_SECONDS = 0.2
_ENOUGH_REPEATS = 5


class ClientCost(NamedTuple):
    """Cost of a method for one client.

    Attributes:
      gradients: gradient evaluations in a local step, each on one mini-batch, whatever its size.
      vector_operations: elementwise operations in a local step beyond that of SGD, in units of one operation on each
        parameter: 1 is the cost of an addition to the gradient. Counted in the traced program, before compilation.
      bytes_down: from the server to a client in a round.
      bytes_up: from the client to the server.
    """

    gradients: int
    vector_operations: float
    bytes_down: int
    bytes_up: int

    def of(self, work: Mapping[str, Any]) -> dict[str, Any]:
        """Cost of all clients, given ``local_steps``, ``participants`` and, where not all answer, ``drawn``."""
        steps, messages = int(work["local_steps"]), int(work["participants"])
        return {
            "gradient_evaluations": steps * self.gradients,
            "vector_operations": steps * self.vector_operations,
            "bytes_down": int(work.get("drawn", messages)) * self.bytes_down,
            "bytes_up": (messages + int(work.get("num_too_stale", 0))) * self.bytes_up,
        }


class Messages(NamedTuple):
    """Shapes of what one client receives and sends, before it is compressed, and of what it works on."""

    downlink: Downlink
    batch: Batch
    uplink: Uplink
    statistics: Any


def traffic(run: Run, messages: Messages) -> tuple[int, int]:
    """Bytes of what a client receives in a round, and of what it sends, as they travel."""
    algorithm, statistics, start = run.algorithm, num_bytes(messages.statistics), messages.downlink.start
    if not algorithm.communicates:
        return 0, 0
    compressed = run.compression and channel.uplink_bytes(run.compression, messages.uplink)
    up = statistics + (num_bytes(messages.uplink) if compressed is None else compressed)
    if algorithm.num_neighbours is not None:
        up = round(algorithm.num_neighbours * up)
        return up, up
    down = statistics + num_bytes(messages.downlink)
    if run.downlink_compression is not None:
        down += channel.broadcast_bytes(run.downlink_compression, start) - num_bytes(start)
    if algorithm.num_models is not None:  # clients start from one of the models, all of which they are sent
        down -= num_bytes(start)
    return down, up


def num_bytes(message: Any) -> int:
    """Bytes of a message, arrays or shapes."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(message))


def client_cost(client: ClientRule, downlink: Downlink, batch: Batch, uplink: Uplink, own: Any = ()) -> ClientCost:
    """Counts from shapes alone; nothing is computed.

    Args:
      client: what the client runs.
      downlink: what one client receives, arrays or shapes.
      batch: a mini-batch, arrays or shapes.
      uplink: what one client sends back, arrays or shapes.
      own: what one client has for itself, arrays or shapes; ``()`` for nothing.
    """
    start = client_params(downlink.start, own)
    parameters = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(downlink.start))
    carry = jax.eval_shape(client.begin, downlink)
    calls: list[None] = []

    def direction(
        start: Params, carry: Any, downlink: Downlink, batch: Batch, gradients: Sequence[Params]
    ) -> tuple[Params, Any]:
        calls.clear()

        def grad_fn(w: Params, batch: Batch) -> Params:
            del batch
            calls.append(None)
            return gradients[len(calls) - 1] if gradients else jax.tree.map(jnp.zeros_like, w)

        keyed: dict[str, Any] = {"key": jax.random.key(0)} if client.keyed else {}
        return client.direction(grad_fn, start, carry, downlink._replace(num_steps=1), batch, **keyed)

    jax.eval_shape(direction, start, carry, downlink, batch, [])
    number = len(calls)
    traced = jax.make_jaxpr(direction)(start, carry, downlink, batch, [start] * number)
    operations = _elementwise(traced.jaxpr) / max(parameters, 1)
    return ClientCost(number, round(operations, 2), num_bytes(downlink), num_bytes(uplink))


def _elementwise(jaxpr: Any) -> int:
    """Values computed by a program, a reduction counting as many as it reads."""
    total = 0
    for equation in jaxpr.eqns:
        inner = [_elementwise(sub) for sub in _programs_in(equation.params.values())]
        if inner:
            total += max(inner) * equation.params.get("length", 1)
        elif equation.primitive.name not in _MOVES:
            sizes = [math.prod(x.aval.shape) for x in (*equation.invars, *equation.outvars) if hasattr(x, "aval")]
            total += max(sizes)
    return total


def _programs_in(parameters: Iterable[Any]) -> list[Any]:
    """The programs inside an operation such as a loop or a conditional."""
    flat = [part for value in parameters for part in (value if isinstance(value, tuple | list) else (value,))]
    bare = [getattr(part, "jaxpr", part) for part in flat]
    return [part for part in bare if hasattr(part, "eqns")]


def measure_seconds(program: Callable[..., Any], *arguments: Any) -> float:
    """The shortest of a few runs of a compiled program, in seconds; the first, which warms up, counts as well."""
    seconds: list[float] = []
    while len(seconds) < 2 or (sum(seconds) < _ENOUGH_SECONDS and len(seconds) < _ENOUGH_REPEATS):
        started = time.perf_counter()
        jax.block_until_ready(program(*arguments))
        seconds.append(time.perf_counter() - started)
    return min(seconds)


Found = TypeVar("Found")


def by_shape(function: Callable[..., Found]) -> Callable[..., Found]:
    """``function`` of pytrees, which is called once for equal structures, shapes and dtypes, with these alone."""

    @functools.lru_cache(maxsize=256)
    def of_shapes(structure: Any, leaves: tuple[jax.ShapeDtypeStruct, ...]) -> Found:
        return function(*jax.tree.unflatten(structure, leaves))

    @functools.wraps(function)
    def called(*arguments: Any) -> Found:
        leaves, structure = jax.tree.flatten(arguments)
        return of_shapes(structure, tuple(map(shape_of, leaves)))

    return called


class Lowered(NamedTuple):
    """The programs of a run, or of a batch of cells, traced; each has JAX's ``compile`` and ``as_text``.

    Attributes:
      advance: for rounds.
      evaluate: for the evaluation.
      draw: for the next round's cohort; None unless the clients' state is on the host.
      evaluate_own: for the evaluation of clients' own models; None where there are none, and for cells.
      init: for the first states of cells; None of a single run.
    """

    advance: Any
    evaluate: Any
    draw: Any = None
    evaluate_own: Any = None
    init: Any = None


class Outline(NamedTuple):
    """What is known of a run from shapes alone.

    Attributes:
      shapes: shapes and dtypes of a state.
      shardings: devices of the state that a round's program receives; None without a mesh.
      cost: what the method asks of one client.
      rows_on: what keeps the rows of the clients' state, one of
        :data:`~fedjax_drag.simulation.devices.host_state.PLACES`; the device where there are none.
    """

    shapes: RunState
    shardings: Any
    cost: ClientCost
    rows_on: str


def outline(inputs: Inputs, client_state: str) -> Outline:
    """The outline of a run.

    Args:
      inputs: of the run, arrays or shapes.
      client_state: where the rows of the clients' state are to be.

    Raises:
      ValueError: if the attack changes what benign clients send.
    """
    run, (shapes, messages, cost) = inputs.run, _facts(inputs)
    bytes_down, bytes_up = traffic(run, messages)
    cost = cost._replace(bytes_down=bytes_down, bytes_up=bytes_up)
    check_benign(run, messages.uplink)
    rows_on = client_state if jax.tree.leaves(per_client.found_in(shapes)) else DEVICE
    return Outline(shapes, placement(_received(run, shapes, rows_on), run.mesh, run.specs), cost, rows_on)


def with_message_bytes(run: Run, data: FederatedDataset) -> Run:
    """A run whose clock knows the bytes of what the server sends to a client, and of what that sends back.

    Args:
      run: what is computed.
      data: of which shapes count alone.
    """
    nobody: list[Any] = [np.zeros(data.num_clients, bool), np.zeros(0, np.int32), np.int32(0)]
    arrays: list[Any] = [data.train, *lists_of(data), *nobody]
    told = lambda *numbers: dataclasses.replace(run, message_bytes=np.array(numbers, np.float32))
    cost = outline(Inputs(told(0, 0), Federation(*arrays), jax.random.key(0)), DEVICE).cost
    return told(cost.bytes_down, cost.bytes_up)


@by_shape
def _facts(inputs: Inputs) -> tuple[RunState, Messages, ClientCost]:
    def messages_of(inputs: Inputs, state: RunState) -> Messages:
        run, federation, _ = inputs
        downlink, own = first_message(run.algorithm, run.cohort_size, state.params, state.algorithm)
        length = run.batch_length(federation.rows.shape[1])
        batch = gather(federation.train, federation.rows[0], jnp.zeros(length, jnp.int32), run.model.preprocess)
        uplink = client(inputs, state).uplink
        travels = () if run.statistics in ("frozen", "local") else state.model.statistics
        return Messages(downlink._replace(own=own), batch, uplink, travels)

    shapes = jax.eval_shape(programs.start, inputs.run, inputs.key)
    messages = jax.eval_shape(messages_of, inputs, shapes)
    found: list[ClientCost] = []
    kept = shapes.clients.own
    own = jax.eval_shape(lambda rows: jax.tree.map(lambda x: x[0], rows), kept.rows if kept != () else ())
    one = messages.downlink, messages.batch, messages.uplink, own
    jax.eval_shape(lambda client: found.append(client_cost(client, *one)), inputs.run.algorithm.client)
    return shapes, messages, found[0]


def _received(run: Run, shapes: RunState, rows_on: str) -> RunState:
    """Shapes of the state that a round's program receives: with the rows of all clients, or of its cohort."""
    if rows_on == DEVICE:
        return shapes
    return jax.eval_shape(per_client.gather, shapes, jax.ShapeDtypeStruct((run.cohort_size,), jnp.int32))


def lowered(inputs: Inputs, outline: Outline, held_out: tuple[Batch, Batch | None]) -> Lowered:
    """The programs of a run, traced for its shapes.

    Args:
      inputs: of the run, on the devices, arrays or shapes.
      outline: of the run.
      held_out: test and validation examples on the devices; None for the latter where there are none.
    """
    run, federation, key = inputs
    # Arrays on the default device may be on another one later; shapes are for the device that they name.
    shared = everywhere(run.mesh) if isinstance(key, jax.Array) else key.sharding

    def leaf(x: Any, sharding: Any = shared) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    def on_devices(shapes: Any, shardings: Any = None) -> Any:
        return jax.tree.map(leaf, shapes, *(() if shardings is None else (shardings,)))

    state = on_devices(_received(run, outline.shapes, outline.rows_on), outline.shardings)
    without_rows = per_client.without_rows(outline.shapes)
    without_rows = on_devices(without_rows, placement(without_rows, run.mesh, run.specs))
    own = own_examples(federation, state if outline.rows_on == DEVICE else on_devices(outline.shapes))
    totals = on_devices(programs.no_totals(run))
    clients = np.arange(run.num_clients if outline.rows_on == DEVICE else run.cohort_size, dtype=np.int32)
    evaluate = programs.evaluate.lower(run, without_rows, *held_out, own)
    evaluate_own = programs.evaluate_own.lower(inputs, state, clients) if has_own_models(inputs) else None
    drawn, draw = (), None
    if outline.rows_on != DEVICE:
        drawn = (on_devices(jax.eval_shape(programs.draw, inputs, without_rows)),)
        draw = programs.draw.lower(inputs, without_rows)
    advance = programs.advance.lower(inputs, state, totals, np.int32(1), *drawn)
    return Lowered(advance, evaluate, draw, evaluate_own)
