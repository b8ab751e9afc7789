"""The programs of a run, traced for its shapes."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fedjax_drag import per_client
from fedjax_drag.simulation.client_cost import ClientCost, cost_of, messages_of
from fedjax_drag.simulation.devices import program_cache
from fedjax_drag.simulation.devices.host_state import DEVICE
from fedjax_drag.simulation.devices.placement import everywhere, placement
from fedjax_drag.simulation.planning.arguments import check_benign
from fedjax_drag.simulation.program.clients_axis import Walk
from fedjax_drag.simulation.program.federation import Federation
from fedjax_drag.simulation.program.programs import Programs, Totals, own_examples
from fedjax_drag.simulation.program.round import choose_cohort
from fedjax_drag.simulation.program.work import RunState, Work
from fedjax_drag.simulation.settings import Settings
from fedjax_drag.types import Batch


class Lowered(NamedTuple):
    """The programs of a run, traced for its shapes, or compiled.

    Attributes:
      advance: of :class:`Programs`.
      evaluate: of :class:`Programs`, given the state, the test and validation examples and those of the clients.
      draw: ``(federation, key, state) -> client_ids``, the next round's cohort; only if the clients' state is on the
        host.
    """

    advance: Any
    evaluate: Any
    draw: Any = None

    def compile(self, mesh: Mesh | None) -> "Lowered":
        """The same programs compiled, or those of an earlier run."""
        return Lowered(*(program and program_cache.compiled(program, mesh) for program in self))

    @property
    def is_self_contained(self) -> bool:
        """Whether other runs may use these programs."""
        return all(program_cache.is_self_contained(program) for program in self if program is not None)


class Outline(NamedTuple):
    """What is known of a run from shapes alone.

    Attributes:
      shapes: shapes and dtypes of a state.
      shardings: devices of the state that a round's program receives; None without a mesh.
      cost: what the method asks of one client.
      walk: how a device goes through its clients of a round.
      rows_on: what keeps the rows of the clients' state, one of
        :data:`~fedjax_drag.simulation.devices.host_state.PLACES`; the device where there are none.
      totals: those of no rounds, on the host.
    """

    shapes: RunState
    shardings: Any
    cost: ClientCost
    walk: Walk
    rows_on: str
    totals: Totals


class Traced(NamedTuple):
    """The programs of a run and what was found while they were traced."""

    programs: Programs
    lowered: Lowered
    outline: Outline


@dataclasses.dataclass
class Shared:
    """What identical runs share; it holds no data and no function of theirs.

    Attributes:
      outline: of the run.
      compiled: its programs; None until the first of the runs has started.
      needed: bytes that its programs ``advance`` and ``evaluate`` need on each device.
      inits: ``(key, given) -> state``, by the structure of what is given; each compiled when it is first needed.
      seconds_per_step: of a client's local step, where one of the runs has measured it.
    """

    outline: Outline
    compiled: Lowered | None = None
    needed: tuple[int, ...] = ()
    inits: dict[Any, Any] = dataclasses.field(default_factory=dict)
    seconds_per_step: float | None = None


def trace_programs(
    asked: Settings,
    programs: Programs,
    work: Work,
    federation: Federation,
    held_out: tuple[Batch, Batch | None],
    key: jax.Array,
) -> Traced:
    """Traces the programs of a run.

    Args:
      asked: settings of the run.
      programs: from :func:`~fedjax_drag.simulation.planning.setup.programs_of`.
      work: from there too.
      federation: on the devices.
      held_out: test and validation examples on the devices; None for the latter where there are none.
      key: on the devices.

    Raises:
      ValueError: if the attack changes what benign clients send.
    """
    mesh = work.execution.mesh
    shared = everywhere(mesh)
    shapes = state = jax.eval_shape(programs.init, key)
    without_rows = _placed(per_client.without_rows(state), shared)
    draw = None
    if asked.client_state != DEVICE and per_client.found_in(state):
        cohort = functools.partial(choose_cohort, asked.algorithm, asked.cohort_size)
        draw = jax.jit(lambda *inputs: cohort(*inputs)[0], out_shardings=shared).lower(federation, key, without_rows)
        state = jax.eval_shape(per_client.gather, state, jax.ShapeDtypeStruct((asked.cohort_size,), jnp.int32))
    shardings = placement(state, mesh)
    state = _placed(state, shardings)
    check_benign(asked, programs, federation, key, state)
    advance = jax.jit(programs.advance, donate_argnames="state", out_shardings=(shardings, shared, shared))
    evaluate = jax.jit(programs.evaluate, out_shardings=shared)
    own = own_examples(federation, state if draw is None else _placed(shapes, shared))
    lowered = Lowered(
        advance.lower(federation, key, state, programs.totals, np.int32(1)),
        evaluate.lower(without_rows, *held_out, own),
        draw,
    )
    rows_on = DEVICE if draw is None else asked.client_state
    messages = messages_of(asked.algorithm, work, programs, federation, key, state)
    cost = cost_of(asked.algorithm, work, messages)
    outline = Outline(shapes, shardings, cost, work.execution.walk, rows_on, programs.totals)
    return Traced(programs, lowered, outline)


def _placed(state: Any, shardings: Any) -> Any:
    """Shapes, dtypes and shardings of a state; ``shardings`` is one for all, one for each, or None."""

    def leaf(x: Any, sharding: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    if isinstance(shardings, RunState):
        return jax.tree.map(leaf, state, shardings)
    return jax.tree.map(lambda x: leaf(x, shardings), state)
