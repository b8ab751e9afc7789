"""What is known of a run from shapes alone, and its programs, traced."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_drag import per_client
from fedjax_drag.simulation.arguments import check_benign
from fedjax_drag.simulation.devices.host_state import DEVICE
from fedjax_drag.simulation.devices.placement import everywhere, placement
from fedjax_drag.simulation.program import programs
from fedjax_drag.simulation.program.client_cost import ClientCost, Messages, client_cost, messages_of, with_traffic
from fedjax_drag.simulation.program.federation import Federation
from fedjax_drag.simulation.program.programs import own_examples
from fedjax_drag.simulation.run import Run, RunState
from fedjax_drag.types import Batch

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


def shape_of(leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype of an array or a number, and whether its dtype gives way to others."""
    weak = (isinstance(leaf, float | int) and not isinstance(leaf, np.generic)) or getattr(leaf, "weak_type", False)
    dtype = jnp.result_type(leaf) if isinstance(leaf, float | int) else leaf.dtype
    if not jnp.issubdtype(dtype, jax.dtypes.extended):
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    return jax.ShapeDtypeStruct(np.shape(leaf), dtype, weak_type=weak)


class Lowered(NamedTuple):
    """The programs of a run, traced; each has JAX's ``compile`` and ``as_text``.

    Attributes:
      advance: for rounds.
      evaluate: for the evaluation.
      draw: for the next round's cohort; None unless the clients' state is on the host.
    """

    advance: Any
    evaluate: Any
    draw: Any = None


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


def outline(run: Run, federation: Federation, key: Any, client_state: str) -> Outline:
    """The outline of a run.

    Args:
      run: what is computed.
      federation: its data, arrays or shapes.
      key: of the run, an array or a shape.
      client_state: where the rows of the clients' state are to be.

    Raises:
      ValueError: if the attack changes what benign clients send.
    """
    shapes, messages, cost = _facts(run, federation, key)
    cost = with_traffic(cost, messages, run.compression, run.downlink_compression)
    check_benign(run, messages.uplink)
    rows_on = client_state if per_client.found_in(shapes) else DEVICE
    return Outline(shapes, placement(_received(run, shapes, rows_on), run.mesh), cost, rows_on)


@by_shape
def _facts(run: Run, federation: Federation, key: Any) -> tuple[RunState, Messages, ClientCost]:
    shapes = jax.eval_shape(programs.start, run, key)
    messages = messages_of(run, federation, key, shapes)
    found: list[ClientCost] = []
    one = messages.downlink, messages.batch, messages.uplink
    jax.eval_shape(lambda client: found.append(client_cost(client, *one)), run.algorithm.client)
    return shapes, messages, found[0]


def _received(run: Run, shapes: RunState, rows_on: str) -> RunState:
    """Shapes of the state that a round's program receives: with the rows of all clients, or of its cohort."""
    if rows_on == DEVICE:
        return shapes
    return jax.eval_shape(per_client.gather, shapes, jax.ShapeDtypeStruct((run.cohort_size,), jnp.int32))


def lowered(
    run: Run, outline: Outline, federation: Federation, held_out: tuple[Batch, Batch | None], key: Any
) -> Lowered:
    """The programs of a run, traced for its shapes.

    Args:
      run: what is computed.
      outline: of the run.
      federation: on the devices, arrays or shapes.
      held_out: test and validation examples on the devices; None for the latter where there are none.
      key: on the devices.
    """
    # Arrays on the default device may be on another one later; shapes are for the device that they name.
    shared = everywhere(run.mesh) if isinstance(key, jax.Array) else key.sharding
    on_devices = functools.partial(_placed, sharding=shared)
    state = _received(run, outline.shapes, outline.rows_on)
    state = on_devices(state) if outline.shardings is None else jax.tree.map(_leaf, state, outline.shardings)
    without_rows = on_devices(per_client.without_rows(outline.shapes))
    own = own_examples(federation, state if outline.rows_on == DEVICE else on_devices(outline.shapes))
    totals = programs.no_totals(run.may_be_absent)
    return Lowered(
        programs.advance.lower(run, federation, key, state, totals, np.int32(1)),
        programs.evaluate.lower(run, without_rows, *held_out, own),
        None if outline.rows_on == DEVICE else programs.draw.lower(run, federation, key, without_rows),
    )


def _placed(shapes: Any, sharding: Any) -> Any:
    return jax.tree.map(functools.partial(_leaf, sharding=sharding), shapes)


def _leaf(x: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
