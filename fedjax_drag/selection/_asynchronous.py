"""Buffered asynchrony: a cohort is whose answers arrive next."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from fedjax_drag import checks
from fedjax_drag.selection._round_robin import round_robin
from fedjax_drag.selection._selection import SELECTION, Arrivals, Candidates, Memory, Observed, Selected, Selection
from fedjax_drag.selection._uniform import uniform


class InFlight(NamedTuple):
    """What :func:`asynchronous` keeps: C places, each of a client that works, or free.

    Attributes:
      client_ids: ``[C]`` int32.
      started: the round in which each client has started, ``[C]`` int32.
      finish: seconds from now until it answers, ``[C]`` float32; infinite of a free place.
      inner: memory of the selection of those that start.
    """

    client_ids: Int[Array, " places"]
    started: Int[Array, " places"]
    finish: Float[Array, " places"]
    inner: Memory


class Starting(NamedTuple):
    """Clients that can start, in the order in which they do: ``[n]``, infinite ``seconds`` of those that cannot."""

    client_ids: Int[Array, " some"]
    seconds: Float[Array, " some"]


class asynchronous(Selection):
    """Keeps C clients at work, and takes the K = ``cohort_size`` of them that answer first.

    A round is a buffer of K answers. The server's parameters do not change between two updates, so all clients that
    start meanwhile start from the same ones. Of C places, ::

        at the start of a round: free places go to clients that are not at work
        K times: the place with the earliest answer (of equal ones the first) gives that to the buffer,
                 and goes at once to another client that is not at work
        at the K-th answer: the server updates; places that became free at this very instant wait for it

    so that a client that starts when the server updates starts from the new parameters. With ``C = K`` and equally fast
    clients that is a run without it, round for round.

    Args:
      concurrency: C, clients at work at the same time, in [1, M].
      selection: of those that start; None for :func:`uniform`. What it learns of a client, it learns when that answers.
      max_staleness: updates since its start after which a client's answer does not count any more, >= 0. The run keeps
        so many broadcasts, and one more.

    Returns:
      A :class:`Selection` for runs with a ``clock``. The history has ``staleness`` ``[S]``, the updates since each
      client's start, and ``num_too_stale``, the answers that did not count. Where fewer than K clients are at work and
      no other can start, the buffer is what there is, and other clients fill up the cohort with ``valid`` False. A
      client that drops out takes its place for as long as its work takes.

    Raises:
      ValueError: if an argument is out of range, or ``selection`` draws with replacement or in turn, or changes its
        memory where it draws.

    Cost:
      K steps over C places, and two draws of ``selection``

    References:
      Nguyen et al., Federated learning with buffered asynchronous aggregation, AISTATS 2022, Algorithm 1, whose server
      is :func:`~fedjax_drag.aggregators.fedbuff`; with K = 1 Xie, Koyejo and Gupta, Asynchronous federated
      optimization, 2019. Interpretations: clients that start within a round are drawn at its start, and a client is in
      a buffer at most once.
    """

    concurrency: int
    selection: Selection | None = None
    max_staleness: int = 32

    def check(self) -> None:
        checks.count("concurrency", self.concurrency, 1)
        checks.count("max_staleness", self.max_staleness)
        if self.selection is not None:
            SELECTION.check("selection", self.selection)
            if self.selection.repeats or self.selection.max_staleness is not None:
                raise checks.ArgumentError(f"selection={self.selection.name}", "must draw a cohort without replacement")
            if isinstance(self.selection, round_robin):
                raise checks.ArgumentError("selection=round_robin", "must not go by turns, as clients end out of turn")

    @property
    def starts(self) -> Selection:
        """Who starts."""
        return uniform() if self.selection is None else self.selection

    @property
    def needs(self) -> frozenset[str]:
        return self.starts.needs

    def check_sizes(self, num_clients: int, cohort_size: int) -> None:
        checks.count("concurrency", self.concurrency, 1, num_clients)
        for number in {self.concurrency, max(cohort_size - 1, 1)}:
            self.starts.check_sizes(num_clients, number)

    def init(self, num_clients: int) -> InFlight:
        nobody = jnp.zeros(self.concurrency, jnp.int32)
        free = jnp.full(self.concurrency, jnp.inf, jnp.float32)
        return InFlight(nobody, nobody, free, self.starts.init(num_clients))

    def select(self, key: PRNGKeyArray, memory: InFlight, candidates: Candidates, cohort_size: int) -> Selected:
        now = candidates.round
        memory = self._filled(memory, self._next(key, memory, candidates, self.concurrency), now)
        # One for each answer; the place of the last one waits in any case.
        spare = Starting(jnp.zeros(1, jnp.int32), jnp.full(1, jnp.inf))
        if cohort_size > 1:
            others = self._next(jax.random.fold_in(key, 1), memory, candidates, cohort_size - 1)
            spare = jax.tree.map(lambda x, last: jnp.append(x, last), others, spare)

        def answer(carry: tuple[InFlight, Array], new: Starting) -> tuple[tuple[InFlight, Array], tuple[Array, ...]]:
            flight, taken_at = carry
            place = jnp.argmin(flight.finish)
            at = flight.finish[place]
            came = flight.client_ids[place], flight.started[place], at
            put = lambda x, value: x.at[place].set(value)
            starting = (put(flight.client_ids, new.client_ids), put(flight.started, now))
            flight = InFlight(*starting, put(flight.finish, at + new.seconds), flight.inner)
            return (flight, put(taken_at, at)), came

        carry = memory, jnp.full(self.concurrency, -1.0)
        (flight, taken_at), (ids, started, at) = jax.lax.scan(answer, carry, spare)
        arrived = jnp.isfinite(at)
        end = jnp.where(arrived, at, 0.0).max()
        flight = flight._replace(finish=jnp.where(taken_at == end, jnp.inf, flight.finish - end))
        ids = _distinct(ids, arrived, candidates.num_examples.shape[0])
        order = jnp.argsort(ids)
        staleness = jnp.where(arrived, now - started, 0)
        return Selected(ids[order], None, Arrivals(arrived[order], staleness[order], end), flight)

    def _next(self, key: PRNGKeyArray, memory: InFlight, candidates: Candidates, number: int) -> Starting:
        """Clients that can start, in random order, followed by others where there are fewer than ``number``."""
        assert candidates.seconds is not None
        num_clients = candidates.num_examples.shape[0]
        idle = jnp.ones(num_clients, bool) if candidates.available is None else candidates.available
        at_work = jnp.where(jnp.isfinite(memory.finish), memory.client_ids, num_clients)
        idle = idle.at[at_work].set(False, mode="drop")
        found = self.starts.select(key, memory.inner, candidates._replace(available=idle), number)
        if found.memory is not None:
            raise checks.ArgumentError(f"selection={self.starts.name}", "must change its memory in observe alone")
        ids = found.client_ids
        lot = jax.random.uniform(jax.random.fold_in(key, 2), (number,))
        ids = ids[jnp.argsort(jnp.where(idle[ids], lot, 2.0))]
        return Starting(ids, jnp.where(idle[ids], candidates.seconds(ids), jnp.inf))

    def _filled(self, memory: InFlight, new: Starting, now: Int[Array, ""]) -> InFlight:
        """With clients in the free places, one after another."""
        free = ~jnp.isfinite(memory.finish)
        turn = jnp.cumsum(free) - 1
        filled = lambda mine, theirs: jnp.where(free, theirs, mine)
        return InFlight(
            filled(memory.client_ids, new.client_ids[turn]),
            filled(memory.started, now),
            filled(memory.finish, new.seconds[turn]),
            memory.inner,
        )

    def observe(self, memory: InFlight, observed: Observed) -> InFlight:
        return memory._replace(inner=self.starts.observe(memory.inner, observed))


def _distinct(
    ids: Int[Array, " clients"], arrived: Bool[Array, " clients"], num_clients: int
) -> Int[Array, " clients"]:
    """The ids of those that arrived, and different ones in the place of the others."""
    few = jnp.arange(min(2 * len(ids), num_clients), dtype=ids.dtype)
    taken = (few[:, None] == jnp.where(arrived, ids, -1)).any(1)
    others = few[jnp.argsort(taken, stable=True)]
    return jnp.where(arrived, ids, others[jnp.cumsum(~arrived) - 1])
