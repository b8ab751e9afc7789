"""What one run would need on a target."""

import dataclasses
import math
from typing import Any

import numpy as np
from jax.sharding import Mesh

from fedjax_drag import per_client
from fedjax_drag.accelerators import counts
from fedjax_drag.accelerators.counts import Work
from fedjax_drag.accelerators.targets import Target
from fedjax_drag.experiment.build import build
from fedjax_drag.experiment.config.config import Config
from fedjax_drag.experiment.plan.programs import (
    Compiled,
    Say,
    TooLargeError,
    array_bytes,
    compile_rounds,
    compiled,
    total_seconds,
)
from fedjax_drag.experiment.run.planning import Federations
from fedjax_drag.simulation.devices.host_state import DEVICE
from fedjax_drag.simulation.engine import LoweredRun, lower_settings
from fedjax_drag.simulation.planning.setup import steps_of_clients
from fedjax_drag.simulation.program.clients_axis import ClientBatching
from fedjax_drag.simulation.program.local import LOCAL_STEPS
from fedjax_drag.simulation.settings import Settings


@dataclasses.dataclass(frozen=True)
class RunPlan:
    """A run on a target.

    Attributes:
      label: of the run.
      target: of the compilers.
      devices: how many share the clients.
      batching: the way over the clients of a round.
      cohort_size: clients in a round.
      usable: bytes of a device that JAX gives to programs.
      needed: bytes that the run needs on each device; where the compiler refused, what it names.
      data: of these the examples, index lists and other inputs; None where the compiler refused, as are the others.
      state: of these the state of the run.
      client_state: of these what is kept for every client, by the method and by the engine.
      temporary: of these the largest temporary memory of a program.
      round: work of a round.
      evaluation: work of an evaluation.
      rounds: of the run.
      evaluations: of the run.
      seconds: about how long, of the run.
    """

    label: str
    target: Target
    devices: int
    batching: ClientBatching
    cohort_size: int
    usable: int
    needed: int
    client_state: int
    rounds: int
    evaluations: int
    data: int | None = None
    state: int | None = None
    temporary: int | None = None
    round: Work | None = None
    evaluation: Work | None = None
    seconds: float | None = None

    @property
    def fits(self) -> bool:
        """Whether a device has the memory that the run needs."""
        return self.needed <= self.usable


def plan_run(label: str, config: Config, target: Target, federations: Federations, say: Say) -> RunPlan:
    """Compiles a run for a target; it computes nothing.

    Args:
      label: of the run.
      config: resolved.
      target: whose devices there need not be.
      federations: data that other plans have read.
      say: told what is compiled.

    Raises:
      ValueError: the configuration cannot be run.
      FileNotFoundError: the data are not on this machine.
    """
    settings = build.settings(config, federations.split(config))
    lowered = build.traced(lower_settings, settings, target.devices)
    common = _common(label, settings, target, lowered)
    try:
        say(f"{label}: the program for rounds, for {target.description}")
        lengths = {LOCAL_STEPS: typical_steps(settings, lowered.batching, lowered.mesh)}
        advance = compile_rounds(lowered.programs.advance, lengths)
        say(f"{label}: the program for evaluations")
        program = compiled(lowered.programs.evaluate)
    except TooLargeError as error:
        return RunPlan(**common, needed=max(error.needed, common["usable"] + 1))
    memory, evaluation = counts.memory_of(program), counts.work_of(program.as_text())
    calls = math.ceil(settings.num_rounds / (settings.rounds_per_compile or settings.eval_every))
    parts = [(settings.num_rounds, advance.round), (calls, advance.call), (common["evaluations"], evaluation)]
    without_rows = array_bytes(per_client.without_rows(lowered.outline.shapes))
    resident = advance.memory.arguments + max(0, memory.arguments - without_rows)
    working = max(_beside_arguments(advance), memory.output + memory.temporary)
    state = min(resident, without_rows + _rows_on_device(lowered, common["devices"]))
    return RunPlan(
        **common,
        needed=resident + working,
        data=resident - state,
        state=state,
        temporary=max(advance.memory.temporary, memory.temporary),
        round=advance.round,
        evaluation=evaluation,
        seconds=total_seconds(parts, target.chip),
    )


def typical_steps(settings: Settings, batching: ClientBatching, mesh: Mesh | None) -> int:
    """Local steps of a client where they differ: the mean over clients, or over the longest of those at once.

    Args:
      settings: of the run.
      batching: the way over the clients of a round.
      mesh: devices that share the clients, or None.
    """
    steps, sharing = steps_of_clients(settings), mesh.size if mesh else 1
    at_once = settings.cohort_size // sharing if batching.clients_axis == "vmap" else batching.clients_per_chunk or 1
    at_once = min(at_once, len(steps))
    groups = steps[: len(steps) // at_once * at_once].reshape(-1, at_once)
    return round(float(np.max(groups, axis=1).mean()))


def _common(label: str, settings: Settings, target: Target, lowered: LoweredRun) -> dict[str, Any]:
    return {
        "label": label,
        "target": target,
        "devices": lowered.mesh.size if lowered.mesh else 1,
        "batching": lowered.batching,
        "cohort_size": settings.cohort_size,
        "usable": target.chip.usable,
        "client_state": per_client.num_bytes(lowered.outline.shapes),
        "rounds": settings.num_rounds,
        "evaluations": math.ceil(settings.num_rounds / settings.eval_every),
    }


def _beside_arguments(program: Compiled) -> int:
    memory = program.memory
    return memory.output - memory.aliased + memory.temporary


def _rows_on_device(lowered: LoweredRun, devices: int) -> int:
    """Bytes of clients' rows on each device."""
    return 0 if lowered.outline.rows_on != DEVICE else per_client.num_bytes(lowered.outline.shapes) // devices
