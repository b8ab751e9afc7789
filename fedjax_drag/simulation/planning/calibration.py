"""The fastest walk over a round's clients for ``clients_axis="auto"``: measured once for a model, then kept.

The measurement times local passes alone, on zeros: plain SGD steps of a few clients at once. It starts with the walk
that is usually best on the backend (one client at a time on a CPU; elsewhere all at once, though no more than 512) and
tries the next one as long as each is much faster than the one before. A run that is shorter than its calibration would
be worth takes the usual walk, and so does a run whose calibration has taken a twentieth of its estimated time.

With the environment variable ``FEDJAX_DRAG_CALIBRATE=0`` nothing is measured or kept, and every run takes the usual
walk: the same bits on every machine of one kind.

A calibration usually compiles two programs: on two CPU cores 1.5 s for a perceptron, 4 to 5 s for a small convolutional
network. Its result is kept in the process and, in one file for each question, in the cache folder of
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
from fedjax_drag.simulation.client_cost import measure_seconds
from fedjax_drag.simulation.planning import memory
from fedjax_drag.simulation.program.clients_axis import Walk
from fedjax_drag.simulation.program.local import local_pass, stateless
from fedjax_drag.types import Batch, Downlink, Params

ENVIRONMENT_VARIABLE = "FEDJAX_DRAG_CALIBRATE"
"""``0`` turns calibration off."""

WORTHWHILE_SECONDS = 30.0
"""A shorter run is not worth a calibration."""

FEWEST_STEPS = 500
"""A run with fewer local steps is not worth a calibration either, which times about twenty steps."""

_MOST_OF_A_RUN = 0.05  # share of the run after which a calibration stops
_MARGIN = 0.05  # gain below which another walk is not taken: it may be noise
_PROMISING = 0.25  # gain below which no further walk is tried
_TIMED_STEPS = 3
_CHUNKS = (1, 2, 8)  # clients at once; a further candidate is the whole cohort, or _MOST_AT_ONCE of a larger one
_MOST_AT_ONCE = 512  # enough to occupy any device; more would only need memory that grows with the cohort
_SPEEDS = {"cpu": (2e-5, 5e10)}  # seconds to start a step, FLOPs per second: orders of magnitude
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
        """Factor by which steps increase where clients that run at once wait for the slowest, >= 1."""
        groups = self.steps[: len(self.steps) // chunk * chunk].reshape(-1, chunk)
        return float(groups.max(1).mean() / groups.mean())


def choose(usual: Walk, passes: Passes) -> Walk:
    """The fastest walk over the clients of a round.

    Args:
      usual: the walk of a run that is not worth a calibration.
      passes: the local passes of the run.
    """
    if os.environ.get(ENVIRONMENT_VARIABLE) == "0" or passes.at_once == 1 or passes.total_steps < FEWEST_STEPS:
        return usual
    lowered, seconds = estimate(passes)
    if passes.total_steps * seconds < WORTHWHILE_SECONDS:
        return usual
    all_at_once = usual.clients_axis == "vmap"
    chunk = _remembered(_Question(_name(lowered.as_text(), passes), all_at_once, passes))
    if chunk is None:
        return usual
    return Walk("vmap") if chunk == passes.at_once else Walk("map", chunk if chunk > 1 else None)


def estimate(passes: Passes) -> tuple[Any, float]:
    """A local step without the update, lowered; and its seconds to an order of magnitude, from its operations."""
    lowered = jax.jit(jax.value_and_grad(passes.loss_fn)).lower(passes.params, passes.batch)
    flops = (lowered.cost_analysis() or {}).get("flops", 0.0)
    per_step, per_second = _SPEEDS.get(jax.default_backend(), _ACCELERATOR)
    return lowered, per_step + flops / per_second


@dataclasses.dataclass(frozen=True)
class _Question:
    """A model, cohort and device; equal to another for which the same walk is fastest."""

    name: str
    all_at_once: bool
    passes: Passes = dataclasses.field(compare=False)


def _name(program: str, passes: Passes) -> str:
    """The same text for all runs that share a calibration; a part of a file name."""
    waits = [round(passes.waiting(chunk), 1) for chunk in _candidates(passes.at_once)]
    device = jax.devices()[0]
    place = [device.device_kind, device.platform, jax.local_device_count(), os.cpu_count(), jax.__version__]
    return hashlib.sha256(json.dumps([program, passes.at_once, waits, place]).encode()).hexdigest()[:32]


def _candidates(at_once: int) -> list[int]:
    return [chunk for chunk in _CHUNKS if chunk < at_once] + [min(at_once, _MOST_AT_ONCE)]


@functools.lru_cache(maxsize=1000)
def _remembered(question: _Question) -> int | None:
    """How many clients at once, measured or kept; None where the measurement would take too long."""
    folder = cache.cache_folder()
    path = folder and folder / f"walk-{question.name}.json"
    chunk = _recall(path, question.passes.at_once) if path else None
    if chunk is None:
        chunk = _fastest(question.passes, question.all_at_once)
        if path and chunk is not None:
            _keep(path, chunk)
    return chunk


def _fastest(passes: Passes, all_at_once: bool) -> int | None:
    """Measures one candidate after the other while each is faster; None where that takes too long."""
    candidates = _candidates(passes.at_once)
    started, best, shortest, time_best = time.perf_counter(), None, math.inf, None
    for chunk in reversed(candidates) if all_at_once else candidates:
        time_this = _timer(passes, chunk)
        seconds = time_this()
        if time_best and seconds < shortest:  # both again, in turn: the load of the machine varies
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
    """A function that measures seconds per step of a client with ``chunk`` at once, waiting included.

    It returns infinity where they do not fit the memory.
    """

    def one(params: Params, batches: Batch) -> Any:
        return local_pass(sgd(), stateless(passes.loss_fn), Downlink(params), lambda batch: batch, batches, 1e-3).uplink

    leading = (_TIMED_STEPS,) if chunk == 1 else (chunk, _TIMED_STEPS)
    batches = jax.tree.map(lambda x: jax.ShapeDtypeStruct((*leading, *x.shape), x.dtype), passes.batch)
    program = jax.jit(one if chunk == 1 else jax.vmap(one, (None, 0))).lower(passes.params, batches).compile()
    if memory.needed(program) > memory.available():
        return lambda: math.inf
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (passes.params, batches))
    return lambda: measure_seconds(program, *zeros) * passes.waiting(chunk) / (chunk * _TIMED_STEPS)


def _recall(path: Path, at_once: int) -> int | None:
    """The number of clients kept at ``path``; None if there is none or it is not a candidate."""
    try:
        chunk = json.loads(path.read_text())["clients_at_once"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # a damaged file is measured anew
        return None
    return chunk if chunk in _candidates(at_once) else None


def _keep(path: Path, chunk: int) -> None:
    """Writes a temporary file, then renames it: another process reads all or nothing."""
    try:
        cache.make_private(path.parent)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".temporary-", delete=False) as stream:
            json.dump({"clients_at_once": chunk}, stream)
        os.replace(stream.name, path)
    except OSError:  # no space or no permission: nothing is kept
        pass
