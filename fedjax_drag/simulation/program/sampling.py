"""Randomness by name, who can be drawn and who answers in a round, and how many local steps each client takes.

There is a key for each purpose, round and client, independent of the order of use. A client is *available* or not; the
server draws its cohort among those that are. A client that was drawn may *drop out*, or be *late*. Shapes do not depend
on who is missing: a client that is absent computes as the others do, and its message does not count.
"""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from fedjax_drag import checks
from fedjax_drag.data.batching import epoch_steps
from fedjax_drag.simulation.program.federation import Federation
from fedjax_drag.simulation.run import Run


def stream(key: PRNGKeyArray, name: str) -> PRNGKeyArray:
    """The key of a named purpose; adding another purpose changes no existing draw."""
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


def round_key(key: PRNGKeyArray, name: str, round_index: Any) -> PRNGKeyArray:
    """The key of a named purpose in one round."""
    return jax.random.fold_in(stream(key, name), round_index)


def client_key(key: PRNGKeyArray, name: str, round_index: Any, client_id: Any) -> PRNGKeyArray:
    """The key of a named purpose of one client in one round."""
    return jax.random.fold_in(round_key(key, name, round_index), client_id)


_MOST_BYTES = 1 << 30
"""Of a file of availabilities."""


READERS: dict[str, Callable[[Path], np.ndarray]] = {
    # As a map, whose length is compared with that of the file before anything is allocated.
    ".npy": lambda path: np.array(np.lib.format.open_memmap(path, mode="r")),
    ".csv": lambda path: np.loadtxt(path, delimiter=",", encoding="utf-8"),
}
"""How a file of availabilities is read, by the end of its name."""


def check_availability(name: str, value: Any) -> None:
    """Refuses what cannot be an availability whatever the number of clients."""
    if value is None or isinstance(value, list | tuple | np.ndarray) or getattr(value, "shape", ()):
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


class Attendance(NamedTuple):
    """Who takes part in a round; a mask ``[S]`` that is None holds for all clients.

    Attributes:
      drawn: who receives the server's message and works.
      valid: whose message reaches the server.
      present: who is available, does not drop out and is not late, whether the method lets it take part or not.
      num_steps: local steps of each client without a deadline ``[S]``; None where they need not be known before.
    """

    drawn: Bool[Array, " clients"] | None
    valid: Bool[Array, " clients"] | None
    present: Bool[Array, " clients"] | None
    num_steps: Int[Array, " clients"] | None


def available(
    federation: Federation, key: PRNGKeyArray, round_index: Int[Array, ""]
) -> Bool[Array, " federation"] | None:
    """Which clients can be drawn in a round; None if all can."""
    if federation.availability is None:
        return None
    probability = federation.availability[round_index % len(federation.availability)]
    everyone = jnp.arange(len(probability))
    return _uniform(round_key(key, "availability", round_index), everyone) < probability.astype(jnp.float32)


def attend(
    run: Run,
    federation: Federation,
    key: PRNGKeyArray,
    round_index: Int[Array, ""],
    ids: Int[Array, " clients"],
    drawable: Bool[Array, " federation"] | None,
    present: Bool[Array, " federation"] | None,
) -> Attendance:
    """Who of a cohort takes part, and for how many steps.

    Args:
      run: of which the local passes are read.
      federation: with the rates of absence.
      key: of the run.
      round_index: from 0.
      ids: of the cohort.
      drawable: who could be drawn; the others fill up a cohort that lacks clients. None for everybody.
      present: who is available; None for everybody.
    """
    answers = num_steps = None
    if federation.dropout_rate is not None:
        answers = _uniform(round_key(key, "dropout", round_index), ids) >= federation.dropout_rate
    if run.fewest is not None or run.drop_late:
        num_steps = _planned_steps(run, federation, key, round_index, ids)
        if run.drop_late:
            assert run.deadline is not None
            answers = both(answers, num_steps <= run.deadline)
    drawn = None if drawable is None else drawable[ids]
    if drawn is None and answers is not None:
        drawn = jnp.ones(ids.shape, bool)
    present = both(None if present is None else present[ids], answers)
    return Attendance(drawn, both(drawn, answers), present, num_steps)


def expected_clients(federation: Federation, cohort_size: int, round_index: Int[Array, ""]) -> Array:
    """How many clients are expected to answer in a round, float32 scalar; it depends on no client's data.

    Those that are available on the average, at most S, less the share that drops out. Where the number of those that
    are available varies around S, a few less answer on the average; clients that are late are not taken off.
    """
    number = jnp.float32(cohort_size)
    if federation.availability is not None:
        probability = federation.availability[round_index % len(federation.availability)]
        number = jnp.minimum(probability.astype(jnp.float32).sum(), number)
    return number if federation.dropout_rate is None else number * (1 - federation.dropout_rate)


def both(one: jax.Array | None, other: jax.Array | None) -> jax.Array | None:
    """The conjunction of two masks, of which one that is None holds everywhere."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _planned_steps(
    run: Run,
    federation: Federation,
    key: PRNGKeyArray,
    round_index: Int[Array, ""],
    ids: Int[Array, " clients"],
) -> Int[Array, " clients"]:
    """How many local steps each client of a cohort would take without a deadline."""
    amount: Any = run.local_epochs if run.local_steps is None else run.local_steps
    if run.fewest is not None:
        draws = stream(key, "local steps")
        if not run.drawn_once:
            draws = jax.random.fold_in(draws, round_index)
        bounds = run.fewest, amount + 1
        amount = jax.vmap(lambda client: jax.random.randint(jax.random.fold_in(draws, client), (), *bounds))(ids)
    if run.local_steps is not None:
        return jnp.broadcast_to(amount, ids.shape)
    size = run.batch_length(federation.rows.shape[1])
    return epoch_steps(federation.counts[ids], amount, size)


def _uniform(key: PRNGKeyArray, clients: Int[Array, " clients"]) -> Array:
    """A number in [0, 1) for each client, whoever else there is."""
    return jax.vmap(lambda client: jax.random.uniform(jax.random.fold_in(key, client)))(clients)
