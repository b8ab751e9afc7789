"""How a round's clients are walked where nobody says: measured once for a model and remembered.

Measured are local passes alone, on zeros: plain SGD steps of a few clients at once, first the way that is usually best
on the backend (one client at a time on a CPU; elsewhere all at once, though no more than 512), then the next, and so on
as long as each is much faster than the one before. Nothing is measured for a run that is too short to win what it
costs, and nothing more once that has taken a twentieth of the run; what is left then is the usual way.

With the environment variable ``FEDJAX_DRAG_CALIBRATE=0`` nothing is measured nor remembered, and every run takes the
usual way: the same bits on every machine of one kind.

A calibration as a rule compiles two small programs: on two CPU cores 1.5 s for a perceptron, 4 to 5 s for
a small convolutional network. It is kept in the process and, one small file for each question, in the cache folder of
:mod:`fedjax_drag.data.formats.cache`.
"""

import dataclasses
import functools
import hashlib
import json
import math
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_drag.clients import sgd
from fedjax_drag.data.formats import cache
from fedjax_drag.simulation.planning import memory
from fedjax_drag.simulation.program.client_cost import measure_seconds
from fedjax_drag.simulation.program.clients_axis import Walk
from fedjax_drag.simulation.program.local import local_pass
from fedjax_drag.types import Batch, Downlink, Params

ENVIRONMENT_VARIABLE = "FEDJAX_DRAG_CALIBRATE"
"""``0`` turns calibration off."""

WORTHWHILE_SECONDS = 30.0
"""A shorter run is not worth a calibration."""

FEWEST_STEPS = 500
"""A run with fewer local steps is not worth one either: it times some twenty."""

_MOST_OF_A_RUN = 0.05  # that a calibration may take before it is cut short
_MARGIN = 0.05  # by which another way must be faster: less may be noise
_PROMISING = 0.25  # a gain after which a further step in the same direction is tried
_TIMED_STEPS = 3
_CHUNKS = (1, 2, 8)  # clients at once, beside all of them or, of a large cohort, the most
_MOST_AT_ONCE = 512  # enough to fill any device; more only takes memory, which would grow with the cohort
_SPEEDS = {"cpu": (2e-5, 5e10)}  # seconds for starting a step, FLOPs a second: orders of magnitude
_ACCELERATOR = (2e-4, 5e12)


@dataclasses.dataclass(frozen=True)
class Passes:
    """The local passes of a run, by their shapes.

    Attributes:
      loss_fn: ``(params, batch) -> scalar``.
      params: shapes of the parameters.
      batch: shapes of a mini-batch.
      steps: local steps in a pass of each client of the federation ``[M]``.
      at_once: clients of a round on one device, >= 1.
      number: passes of the whole run on one device.
    """

    loss_fn: Callable[[Params, Batch], jax.Array]
    params: Any
    batch: Batch
    steps: np.ndarray
    at_once: int
    number: int

    @property
    def total_steps(self) -> float:
        """Local steps of the whole run on one device."""
        return self.number * float(self.steps.mean())

    def waiting(self, chunk: int) -> float:
        """By what factor clients that run at once and wait for each other take more steps, >= 1."""
        groups = self.steps[: len(self.steps) // chunk * chunk].reshape(-1, chunk)
        return float(groups.max(1).mean() / groups.mean())


def choose(usual: Walk, passes: Passes) -> Walk:
    """The fastest walk over the clients of a round.

    Args:
      usual: what is taken if it is not worth while to ask.
      passes: what the clients do.
    """
    if os.environ.get(ENVIRONMENT_VARIABLE) == "0" or passes.at_once == 1 or passes.total_steps < FEWEST_STEPS:
        return usual
    lowered = jax.jit(jax.value_and_grad(passes.loss_fn)).lower(passes.params, passes.batch)
    flops = (lowered.cost_analysis() or {}).get("flops", 0.0)
    per_step, per_second = _SPEEDS.get(jax.default_backend(), _ACCELERATOR)
    if passes.total_steps * (per_step + flops / per_second) < WORTHWHILE_SECONDS:
        return usual
    all_at_once = usual.clients_axis == "vmap"
    chunk = _remembered(_Question(_name(lowered.as_text(), passes), all_at_once, passes))
    if chunk is None:
        return usual
    return Walk("vmap") if chunk == passes.at_once else Walk("map", chunk if chunk > 1 else None)


@dataclasses.dataclass(frozen=True)
class _Question:
    """Equal to another whose answer is the same."""

    name: str
    all_at_once: bool
    passes: Passes = dataclasses.field(compare=False)


def _name(program: str, passes: Passes) -> str:
    """A text that is the same for all runs to which one answer applies; a part of a file name."""
    waits = [round(passes.waiting(chunk), 1) for chunk in _candidates(passes.at_once)]
    device = jax.devices()[0]
    place = [device.device_kind, device.platform, jax.local_device_count(), os.cpu_count(), jax.__version__]
    return hashlib.sha256(json.dumps([program, passes.at_once, waits, place]).encode()).hexdigest()[:32]


def _candidates(at_once: int) -> list[int]:
    return [chunk for chunk in _CHUNKS if chunk < at_once] + [min(at_once, _MOST_AT_ONCE)]


@functools.lru_cache(maxsize=1000)
def _remembered(question: _Question) -> int | None:
    """How many clients at once; None if that is not known and too long to find out."""
    folder = cache.cache_folder()
    path = folder and folder / f"walk-{question.name}.json"
    chunk = _recall(path, question.passes.at_once) if path else None
    if chunk is None:
        chunk = _fastest(question.passes, question.all_at_once)
        if path and chunk is not None:
            _keep(path, chunk)
    return chunk


def _fastest(passes: Passes, all_at_once: bool) -> int | None:
    """Measures one candidate after the other while that helps; None if it would take too long."""
    candidates = _candidates(passes.at_once)
    started, best, shortest, time_best = time.perf_counter(), None, math.inf, None
    for chunk in reversed(candidates) if all_at_once else candidates:
        time_this = _timer(passes, chunk)
        seconds = time_this()
        if time_best and seconds < shortest:  # again, in turn: what else the machine does comes and goes
            shortest, seconds = min(shortest, time_best()), min(seconds, time_this())
        gained = 1 - seconds / shortest if best is not None else 1.0
        if gained > _MARGIN and seconds < math.inf:
            best, shortest, time_best = chunk, seconds, time_this
        if gained < _PROMISING:
            break
        if time.perf_counter() - started > _MOST_OF_A_RUN * shortest * passes.total_steps:
            return None
    return best


def _timer(passes: Passes, chunk: int) -> Callable[[], float]:
    """Measures the seconds that a client needs for a step with ``chunk`` at once, those included that it waits.

    Infinite if they do not fit the memory.
    """

    def one(params: Params, batches: Batch) -> Any:
        return local_pass(sgd(), passes.loss_fn, Downlink(params), lambda batch: batch, batches, 1e-3).uplink

    leading = (_TIMED_STEPS,) if chunk == 1 else (chunk, _TIMED_STEPS)
    batches = jax.tree.map(lambda x: jax.ShapeDtypeStruct((*leading, *x.shape), x.dtype), passes.batch)
    program = jax.jit(one if chunk == 1 else jax.vmap(one, (None, 0))).lower(passes.params, batches).compile()
    if memory.needed(program) > memory.available():
        return lambda: math.inf
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (passes.params, batches))
    return lambda: measure_seconds(program, *zeros) * passes.waiting(chunk) / (chunk * _TIMED_STEPS)


def _recall(path: Path, at_once: int) -> int | None:
    """What is kept at ``path``, or None unless it can be an answer."""
    try:
        chunk = json.loads(path.read_text())["clients_at_once"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # whatever is wrong with it
        return None
    return chunk if chunk in _candidates(at_once) else None


def _keep(path: Path, chunk: int) -> None:
    """Writes beside it, then renames: another process sees all or nothing."""
    try:
        cache.make_private(path.parent)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".temporary-", delete=False) as stream:
            json.dump({"clients_at_once": chunk}, stream)
        os.replace(stream.name, path)
    except OSError:  # no space or no permission: done without
        pass
