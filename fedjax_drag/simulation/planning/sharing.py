"""Whether a run gains from sharing its clients among the devices of a CPU: for ``mesh="auto"``, and as advice.

Devices of one CPU wait for each other in every round, some milliseconds where the messages are added up, and tens of
milliseconds where an iterative rule works on the stack of them. Sharing also takes seconds longer to compile. Rounds
that compute for long, in runs of half a minute or more, save a quarter of their time or more with two cores
(``docs/benchmarks.md``).
"""

import sys
import time
from collections.abc import Hashable
from typing import Any

import jax
import psutil
from tqdm import tqdm

from fedjax_drag.cores import ENVIRONMENT_VARIABLE, num_cores
from fedjax_drag.simulation.devices.program_cache import Recent
from fedjax_drag.simulation.planning import calibration
from fedjax_drag.simulation.planning.arguments import resolve_aggregation
from fedjax_drag.simulation.planning.setup import passes_on_one_device, steps_of_clients
from fedjax_drag.simulation.settings import Settings

SHORTEST_ROUND = {"stream": 0.01, "stack": 0.1}
"""Seconds of local work below which a round is not worth sharing, by what the server does with the messages."""

FEWEST_STEPS = 100
"""Local steps of a run below which it is not worth an estimate, which traces one of them."""

MOST_OF_MEMORY = 0.25
"""Share of the machine's memory that the copies of the examples, one for each device, may take."""

_steps = Recent(100)  # estimated seconds of a local step, by the fingerprint of the run

_advised = False  # whether this process has given its advice


def pays(round_seconds: float, num_rounds: int, server: str) -> bool:
    """Whether so many rounds, with so much local work each on one device, are worth sharing.

    Args:
      round_seconds: of local work in a round, on one device.
      num_rounds: rounds to come.
      server: what it does with the messages, a key of :data:`SHORTEST_ROUND`.
    """
    whole = round_seconds * num_rounds
    return round_seconds >= SHORTEST_ROUND[server] and whole >= calibration.WORTHWHILE_SECONDS


def is_worthwhile(settings: Settings, name: Hashable | None) -> bool:
    """:func:`pays` of a run, by an estimate from the operations of its local steps; nothing is computed.

    Args:
      settings: of the run.
      name: by which identical runs find the estimate; None if they cannot.

    Raises:
      ValueError: the model does not fit the data.
    """
    examples = jax.tree.leaves((settings.data.train, settings.data.test))
    if jax.local_device_count() * sum(x.nbytes for x in examples) > MOST_OF_MEMORY * psutil.virtual_memory().total:
        return False
    steps = settings.cohort_size * float(steps_of_clients(settings).mean())  # of a round
    if steps * settings.num_rounds < FEWEST_STEPS:
        return False
    seconds = None if name is None else _steps.get(name)
    if seconds is None:
        _, seconds = calibration.estimate(passes_on_one_device(settings))
        if name is not None:
            _steps.put(name, seconds)
    attack = settings.active_attack
    streams = resolve_aggregation(settings.aggregation, settings.algorithm, attack)
    return pays(seconds * steps, settings.num_rounds, "stream" if streams else "stack")


class Advisor:
    """A callback of the engine that says on standard error, once in a process, that idle cores would help the run."""

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None

    def __call__(self, event: Any) -> None:
        """Compares the time since the last evaluation with what :func:`pays` asks for."""
        global _advised
        now, last = time.perf_counter(), self._last
        self._last = event.round, now
        if last is None or _advised:  # the first rounds may have waited for something else
            return
        round_seconds = (now - last[1]) / (event.round - last[0])
        if pays(round_seconds, event.num_rounds - event.round, "stack"):
            _advised = True
            tqdm.write(
                f"fedjax_drag: this run has one device on {num_cores()} CPU cores; call fd.use_cores() before anything "
                f"else in JAX, or set {ENVIRONMENT_VARIABLE}=1, to share its clients among them",
                file=sys.stderr,
            )


def advisors(mesh: Any, cohort_size: int) -> list[Advisor]:
    """An :class:`Advisor` where cores are idle that could share the clients of a round; else none.

    Args:
      mesh: as asked for.
      cohort_size: S.
    """
    is_alone = mesh == "auto" and jax.default_backend() == "cpu" and jax.device_count() == 1
    is_divisible = any(cohort_size % share == 0 for share in range(2, num_cores() + 1))
    return [Advisor()] if is_alone and is_divisible and not _advised else []
