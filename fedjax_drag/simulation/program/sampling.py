"""Who can be drawn and who answers in a round, and how many local steps each client takes.

A client is *available* or not; the server draws its cohort among those that are. A client that was drawn may *drop
out*, or be *late*. Shapes do not depend on who is missing: a client that is absent computes as the others do, and its
message does not count.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from fedjax_drag import checks
from fedjax_drag.clocks import Work
from fedjax_drag.data.batching import epoch_steps
from fedjax_drag.selection import Selected
from fedjax_drag.simulation.program.keys import stream
from fedjax_drag.simulation.run import Attendance, RoundInput, Run

_MOST_BYTES = 1 << 30
"""Of a file of availabilities."""


READERS: dict[str, Callable[[Path], np.ndarray]] = {
    # As a map, whose length is compared with that of the file before anything is allocated.
    ".npy": lambda path: np.array(np.lib.format.open_memmap(path, mode="r")),
    ".csv": lambda path: np.loadtxt(path, delimiter=",", encoding="utf-8-sig"),
}
"""How a file of availabilities is read, by the end of its name."""


def check_availability(name: str, value: Any) -> None:
    """Refuses what cannot be an availability whatever the number of clients."""
    if isinstance(value, list | tuple | np.ndarray) or getattr(value, "shape", ()):
        return
    if isinstance(value, str | Path):
        allowed = Path(value).suffix in READERS
    else:
        allowed = checks.is_concrete(value) and 0 <= value <= 1
    if not allowed:
        kinds = "a number in [0, 1], a list of them or of lists, or a .npy or .csv file of them"
        raise ValueError(f"{name}={checks.shown(value)}: must be {kinds}")


def as_trace(availability: Any, num_clients: int) -> np.ndarray | None:
    """Availabilities as an array with a row for each round.

    Args:
      availability: None; a number; numbers ``[M]`` or ``[T, M]``; or the path of a ``.npy`` or ``.csv`` file of them.
      num_clients: M.

    Returns:
      Bool or float32 ``[T, M]``, T being 1 where all rounds are alike; None where everybody is always available.

    Raises:
      ValueError: for anything else, a file that cannot be read included.
    """
    if availability is None or (checks.is_concrete(availability) and availability == 1):
        return None
    check_availability("availability", availability)
    name, trace = f"availability={checks.shown(availability)}", probabilities(availability)
    shape = trace.shape
    if trace.ndim == 0:
        trace = np.broadcast_to(trace, (1, num_clients))
    trace = np.atleast_2d(trace)
    if trace.ndim != 2 or trace.shape[1] != num_clients or not len(trace):
        raise ValueError(f"{name} with shape {shape}: must be [{num_clients}] or [rounds, {num_clients}]")
    if not ((trace >= 0) & (trace <= 1)).all():
        raise ValueError(f"{name}: must be in [0, 1] for every client")
    return np.ascontiguousarray(trace)


def probabilities(availability: Any) -> np.ndarray:
    """What was given, or is in the file that was given, as bool or float32.

    Raises:
      ValueError: these are no numbers, or the file cannot be read.
    """
    is_file = isinstance(availability, str | Path)
    try:
        values = _of_file(Path(availability)) if is_file else np.asarray(availability)
        if not (values.dtype == bool or jnp.issubdtype(values.dtype, jnp.floating) or values.dtype.kind in "iu"):
            raise ValueError(f"has {values.dtype}")
        return values if values.dtype == bool else values.astype(np.float32)
    except (OSError, ValueError, TypeError, EOFError) as error:
        allowed = "must be a file of numbers" if is_file else "must be numbers, as many in each row"
        name = f"availability={checks.shown(availability)}"
        raise ValueError(f"{name}: {allowed}; {checks.first_line(error)}") from None


def _of_file(path: Path) -> np.ndarray:
    """The values in a file of this machine; NumPy would look for an address elsewhere.

    Raises:
      OSError, ValueError: there is no such file, it is too long, or holds something else.
    """
    if path.exists() and not path.is_file():
        raise ValueError("not a file")
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"has more than {_MOST_BYTES:,} bytes")
    return READERS[path.suffix](path)


def available(shared: RoundInput) -> Bool[Array, " federation"] | None:
    """Which clients can be drawn in a round; None if all can."""
    probability = _probabilities(shared)
    if probability is None:
        return None
    return _uniform(shared.key_of("availability"), jnp.arange(len(probability))) < probability


def attend(
    run: Run,
    shared: RoundInput,
    selected: Selected,
    drawable: Bool[Array, " federation"] | None,
    present: Bool[Array, " federation"] | None,
    malicious: Bool[Array, " clients"],
) -> Attendance:
    """Who of a cohort takes part, and for how many steps.

    Args:
      run: of which the local passes and the clock are read.
      shared: of the round, with the rates of absence.
      selected: the cohort.
      drawable: who could be drawn; the others fill up a cohort that lacks clients. None for everybody.
      present: who is available; None for everybody.
      malicious: of the cohort.
    """
    ids, arrivals, dropout_rate = selected.client_ids, selected.arrivals, shared.federation.dropout_rate
    answers = num_steps = seconds = too_stale = None
    started, drawn = shared.round, None if drawable is None else drawable[ids]
    present = None if present is None else present[ids]
    if arrivals is not None:  # who was available when it started
        started, drawn, present = shared.round - arrivals.staleness, arrivals.arrived, arrivals.arrived
    if dropout_rate is not None:
        answers = _uniform(shared.key_of("dropout"), ids) >= dropout_rate
    if run.fewest is not None or run.drop_late:
        num_steps = _planned_steps(run, shared, started, ids)
        if run.drop_late:
            assert run.deadline is not None
            answers = both(answers, num_steps <= run.deadline)
    if run.clock is not None and arrivals is None:
        each = seconds_of(run, shared, ids, malicious)
        seconds = each.max() if drawn is None else jnp.where(drawn, each, 0.0).max()
        if run.deadline_seconds is not None:
            answers = both(answers, each <= run.deadline_seconds)
            seconds = jnp.minimum(seconds, run.deadline_seconds)
    if drawn is None and answers is not None:
        drawn = jnp.ones(ids.shape, bool)
    valid = both(drawn, answers)
    if arrivals is not None:
        assert valid is not None
        assert run.selection.max_staleness is not None
        fresh = arrivals.staleness <= run.selection.max_staleness
        seconds, too_stale, valid = arrivals.seconds, (valid & ~fresh).sum(dtype=jnp.int32), valid & fresh
        present = both(present, fresh)
    return Attendance(drawn, valid, both(present, answers), num_steps, seconds, too_stale)


def seconds_of(
    run: Run, shared: RoundInput, ids: Int[Array, " clients"], malicious: Bool[Array, " clients"]
) -> Float[Array, " clients"]:
    """How long clients that start in a round take, by the clock of the run."""
    assert run.clock is not None
    assert run.message_bytes is not None
    steps = _planned_steps(run, shared, shared.round, ids)
    if run.deadline is not None:
        steps = jnp.minimum(steps, run.deadline)
    work = Work(ids, jnp.broadcast_to(shared.round, ids.shape), steps, malicious, *run.message_bytes)
    return run.clock.seconds(stream(shared.key, "clock"), work)


def expected_clients(shared: RoundInput, cohort_size: int) -> Array:
    """How many clients are expected to answer in a round, float32 scalar; it depends on no client's data.

    Those that are available on the average, at most S, less the share that drops out. Where the number of those that
    are available varies around S, a few less answer on the average; clients that are late are not taken off.
    """
    number, probability, dropout_rate = jnp.float32(cohort_size), _probabilities(shared), shared.federation.dropout_rate
    if probability is not None:
        number = jnp.minimum(probability.sum(), number)
    return number if dropout_rate is None else number * (1 - dropout_rate)


def _probabilities(shared: RoundInput) -> Float[Array, " federation"] | None:
    """With what probability each client is available in a round; None where everybody always is."""
    trace = shared.federation.availability
    return None if trace is None else trace[shared.round % len(trace)].astype(jnp.float32)


def both(one: jax.Array | None, other: jax.Array | None) -> jax.Array | None:
    """The conjunction of two masks, of which one that is None holds everywhere."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _planned_steps(
    run: Run, shared: RoundInput, started: Int[Array, "*clients"], ids: Int[Array, " clients"]
) -> Int[Array, " clients"]:
    """How many local steps each client would take without a deadline that starts in a round, or in one of its own."""
    amount: Any = run.local_epochs if run.local_steps is None else run.local_steps
    if run.fewest is not None:
        draws, bounds = stream(shared.key, "local steps"), (run.fewest, amount + 1)

        def draw(client: Array, started: Array) -> Array:
            of_round = draws if run.drawn_once else jax.random.fold_in(draws, started)
            return jax.random.randint(jax.random.fold_in(of_round, client), (), *bounds)

        amount = jax.vmap(draw)(ids, jnp.broadcast_to(started, ids.shape))
    if run.local_steps is not None:
        return jnp.broadcast_to(amount, ids.shape)
    size = run.batch_length(shared.federation.rows.shape[1])
    return epoch_steps(shared.federation.counts[ids], amount, size)


def _uniform(key: PRNGKeyArray, clients: Int[Array, " clients"]) -> Array:
    """A number in [0, 1) for each client, whoever else there is."""
    return jax.vmap(lambda client: jax.random.uniform(jax.random.fold_in(key, client)))(clients)
