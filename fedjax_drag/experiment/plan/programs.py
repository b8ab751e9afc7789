"""The programs of a run or of cells, compiled for a target: what they need and do there."""

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from fedjax_drag.accelerators import counts
from fedjax_drag.accelerators.counts import Memory, Work
from fedjax_drag.accelerators.targets import Chip, Target
from fedjax_drag.simulation.devices.host_state import DEVICE
from fedjax_drag.simulation.devices.model_sharding import num_shares
from fedjax_drag.simulation.planning.setup import steps_of_clients
from fedjax_drag.simulation.program.clients_axis import ClientBatching
from fedjax_drag.simulation.program.local import LOCAL_STEPS
from fedjax_drag.simulation.program.programs import ROUNDS
from fedjax_drag.simulation.settings import Settings

Say = Callable[[str], Any]
"""Told what is compiled next."""

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgramPlan:
    """What is known of every plan; figures that the compiler's refusal leaves unknown are None.

    Attributes:
      label: of the run, or what the cells have in common.
      target: of the compilers.
      devices: how many share the clients or the cells.
      usable: bytes of a device that JAX gives to programs.
      needed: bytes that are needed on each device; where the compiler refused, what it names.
      round: work of a round.
      evaluation: work of an evaluation.
      seconds: about how long, in all.
    """

    label: str
    target: Target
    devices: int
    usable: int
    needed: int
    round: Work | None = None
    evaluation: Work | None = None
    seconds: float | None = None

    @property
    def fits(self) -> bool:
        """Whether a device has the memory that is needed."""
        return self.needed <= self.usable


class Compiled(NamedTuple):
    """The programs for rounds and for evaluations.

    Attributes:
      advance: memory of the first on each device.
      evaluate: memory of the second; of the programs for evaluations that which needs most.
      round: work of one round.
      evaluation: work of one evaluation.
      seconds: about how long they take for all rounds.
    """

    advance: Memory
    evaluate: Memory
    round: Work
    evaluation: Work
    seconds: float


class TooLargeError(Exception):
    """The compiler refuses a program that does not fit the device's memory.

    Attributes:
      needed: bytes that the compiler names.
    """

    def __init__(self, needed: int) -> None:
        super().__init__(f"the compiler needs {needed} bytes")
        self.needed = needed


def compile_programs(lowered: Any, settings: Settings, mesh: Mesh | None, chip: Chip) -> Compiled:
    """Compiles the programs of a run, or of cells.

    Args:
      lowered: of :mod:`~fedjax_drag.simulation.engine` or :mod:`~fedjax_drag.simulation.batch`.
      settings: of the run, or of the first of the cells.
      mesh: devices that share the clients, or None.
      chip: what they are compiled for.

    Raises:
      TooLargeError: the compiler refuses one.
    """
    advance, evaluate = compiled(lowered.programs.advance), compiled(lowered.programs.evaluate)
    text, lengths = advance.as_text(), {LOCAL_STEPS: typical_steps(settings, lowered.batching, mesh)}
    call, whole = (counts.work_of(text, {**lengths, ROUNDS: times}) for times in (0, 1))
    of_round, evaluation = whole.beside(call), counts.work_of(evaluate.as_text())
    evaluated = counts.memory_of(evaluate)
    if (own := lowered.programs.evaluate_own) is not None:
        own_models = compiled(own)
        at_once = settings.data.num_clients if settings.client_state == DEVICE else settings.cohort_size
        times = math.ceil(settings.data.num_clients / at_once)
        evaluation = counts.total([(1, evaluation), (times, counts.work_of(own_models.as_text()))])
        own_memory = counts.memory_of(own_models)
        evaluated = max(evaluated, own_memory, key=lambda memory: memory.output + memory.temporary)
    calls = math.ceil(settings.num_rounds / (settings.rounds_per_compile or settings.eval_every))
    parts = [(settings.num_rounds, of_round), (calls, call), (num_evaluations(settings), evaluation)]
    seconds = sum(times * work.seconds(chip) for times, work in parts)
    return Compiled(counts.memory_of(advance), evaluated, of_round, evaluation, seconds)


def compiled(lowered: Any) -> Any:
    """A lowered program compiled.

    Raises:
      TooLargeError: the compiler refuses it.
    """
    try:
        return lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        words = "temporaries|total memory|[Uu]sed|[Uu]sage|required"  # of the compiler for TPUs
        sizes = re.findall(rf"(?:{words})[^\d]{{0,40}}?([\d.]+)([KMGT]?)\b", str(error))
        raise TooLargeError(max((int(float(size) * _UNITS[unit]) for size, unit in sizes), default=0)) from error


def num_evaluations(settings: Settings) -> int:
    """How often a run is evaluated."""
    return math.ceil(settings.num_rounds / settings.eval_every)


def typical_steps(settings: Settings, batching: ClientBatching, mesh: Mesh | None) -> int:
    """Local steps of a client where they differ: the mean over clients, or over the longest of those at once.

    Args:
      settings: of the run.
      batching: the way over the clients of a round.
      mesh: devices that share the clients, or None.
    """
    steps, sharing = steps_of_clients(settings), num_shares(mesh)
    at_once = settings.cohort_size // sharing if batching.clients_axis == "vmap" else batching.clients_per_chunk or 1
    at_once = min(at_once, len(steps))
    groups = steps[: len(steps) // at_once * at_once].reshape(-1, at_once)
    return round(float(np.max(groups, axis=1).mean()))


def array_bytes(tree: Any, shardings: Any = None) -> int:
    """Bytes of a pytree of arrays or shapes; those on each device where there are shardings of its leaves."""
    leaves, lies = jax.tree.leaves(tree), jax.tree.leaves(shardings)
    shapes = [leaf.shape for leaf in leaves]
    if lies:
        shapes = [own.shard_shape(shape) for own, shape in zip(lies, shapes, strict=True)]
    return sum(math.prod(shape) * leaf.dtype.itemsize for leaf, shape in zip(leaves, shapes, strict=True))
