"""What rules and methods promise alike: both move the parameters by the messages of a cohort."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_drag import per_client, tree
from fedjax_drag.testing._promises import COMMON, assert_close, assert_pure, random_extras, rows_of, stacked
from fedjax_drag.types import Aggregator, Algorithm, Params, State, Sums

Inputs = tuple[Any, dict[str, Any]]
"""Of a round: a pytree with a leading axis ``[S]``, from which the messages follow, and the extras."""

Tested = TypeVar("Tested", bound=Aggregator | Algorithm)

_CHUNK = 3


@dataclasses.dataclass(frozen=True)
class ServerBench(Generic[Tested]):
    """A rule or a method, and its test input.

    Attributes:
      part: under test; it has the number of malicious clients already, if it needs one.
      params: the global parameters.
      cohort: S.
      keyed: whether the places of the clients matter.
      starts: the states before the first round, by the size of the cohort.
    """

    part: Tested
    params: Params
    cohort: int
    keyed: bool
    starts: dict[int, State] = dataclasses.field(default_factory=dict)

    def inputs(self, round: int) -> Inputs:
        """Of a round in which every client takes part."""
        raise NotImplementedError

    def messages(self, params: Params, state: State, inputs: Inputs) -> Any:
        """What the clients send, leading axis ``[S]``."""
        raise NotImplementedError

    def step(self, params: Params, state: State, inputs: Inputs) -> tuple[Params, State]:
        """Parameters and state after a round."""
        raise NotImplementedError

    def sending_nan(self, inputs: Inputs, who: np.ndarray) -> Inputs:
        """The input of a round in which the clients ``who`` ``[S]`` send NaN."""
        raise NotImplementedError

    def extras(self, round: int) -> dict[str, Any]:
        """The extras that the part receives in a round; every client takes part."""
        given = random_extras(self.params, self.cohort, round, self.part.needs)
        return given | {"valid": np.ones(self.cohort, bool)}

    @functools.cached_property
    def compiled(self) -> Callable[..., tuple[Params, State]]:
        """:meth:`step`, compiled once for each size of a cohort."""
        return jax.jit(self.step)

    def start(self, inputs: Inputs) -> State:
        """The state before the first round, in the shapes of its cohort."""
        size = len(inputs[1]["client_ids"])
        if size not in self.starts:  # tracing takes most of the time of a check
            first, turn = self.part.init(self.params), lambda params, given, state: self.step(params, state, given)
            self.starts[size] = tree.initial_state(turn, first, self.params, inputs)
        return self.starts[size]

    def rounds(self, inputs: list[Inputs]) -> tuple[Params, State]:
        """Parameters and state after several rounds, from the initial state."""
        params, state = self.params, self.start(inputs[0])
        for now in inputs:
            params, state = self.compiled(params, state, now)
        return params, state


def reports_metrics(bench: ServerBench) -> None:
    """``state.metrics`` has weight, cosine and num_rejected, and the same keys from ``init`` on."""
    first = bench.part.init(bench.params).metrics.keys()
    _, state = bench.rounds([bench.inputs(0)])
    assert first >= COMMON, f"lacks {sorted(COMMON - first)}"
    assert first == state.metrics.keys(), f"{sorted(first)} at first, then {sorted(state.metrics)}"
    for name, value in state.metrics.items():
        assert value.shape[:1] in ((), (bench.cohort,)), f"{name} has shape {value.shape}: must be () or [S, ...]"
        assert not np.isnan(value).any(), f"{name} is NaN"


def repeats(bench: ServerBench) -> None:
    """The same input gives the same bits."""
    inputs = bench.inputs(0)
    assert_pure(bench.step, bench.params, bench.start(inputs), inputs)


def ignores_unknown_extras(bench: ServerBench) -> None:
    """Extras that it does not know are ignored."""
    messages, extras = bench.inputs(0)
    unknown = messages, extras | {"weather": np.ones(())}
    jax.eval_shape(bench.step, bench.params, bench.start((messages, extras)), unknown)


def scans(bench: ServerBench) -> None:
    """A scan over rounds equals a loop."""
    inputs = [bench.inputs(t) for t in range(3)]
    start = bench.params, bench.start(inputs[0])
    (scanned, _), _ = jax.lax.scan(lambda now, xs: (bench.step(*now, xs), None), start, stacked(inputs))
    assert_close(scanned, bench.rounds(inputs)[0])


def ignores_order(bench: ServerBench) -> None:
    """The order of the clients does not matter."""
    if bench.keyed:
        return
    order = np.random.default_rng(3).permutation(bench.cohort)
    inputs = [bench.inputs(t) for t in range(2)]
    assert_close(bench.rounds([_rows(now, order) for now in inputs])[0], bench.rounds(inputs)[0])


def leaves_out_the_absent(bench: ServerBench) -> None:
    """A client with valid=False is as if it were not there."""
    compare_without_one(bench, lambda inputs, who: (inputs[0], inputs[1] | {"valid": ~who}), rejected=0)


def rejects_what_is_not_finite(bench: ServerBench) -> None:
    """A client that sends NaN is as if it were not there, and is counted in num_rejected."""
    compare_without_one(bench, bench.sending_nan, rejected=1)


def compare_without_one(bench: ServerBench, exclude: Callable[[Inputs, np.ndarray], Inputs], rejected: int) -> None:
    """Two rounds of a cohort with one client excluded against two of a cohort without it."""
    one = np.arange(bench.cohort) == 1
    inputs = [bench.inputs(t) for t in range(2)]
    params, state = bench.rounds([exclude(now, one) for now in inputs])
    count = int(state.metrics["num_rejected"])
    assert count == rejected, f"num_rejected={count}: must be {rejected}"
    assert not np.asarray(state.metrics["weight"])[one].any(), "its weight is not 0"
    if not bench.keyed:
        assert_close(params, bench.rounds([_rows(now, ~one) for now in inputs])[0])


def sums_in_chunks(bench: ServerBench) -> None:
    """Its sums of chunks move the parameters as the whole stack does."""
    sums = bench.part.streamed
    if sums is None:
        return
    inputs = bench.inputs(0)

    def in_chunks(params: Params, state: State, inputs: Inputs) -> Params:
        return round_in_chunks(sums, params, bench.messages(params, state, inputs), state, inputs[1])[0]

    chunks = jax.jit(in_chunks)(bench.params, bench.start(inputs), inputs)
    assert_close(chunks, bench.rounds([inputs])[0])


def round_in_chunks(
    sums: Sums, params: Params, messages: Any, state: State, extras: dict[str, Any]
) -> tuple[Params, State]:
    """Parameters and state after a round whose messages come in chunks, as the engine streams them.

    Args:
      sums: of a rule or a method.
      params: the global parameters.
      messages: of the cohort, leading axis ``[S]``.
      state: of the federation, with the rows of all clients.
      extras: of the round.
    """
    size = jax.tree.leaves(messages)[0].shape[0]

    def pass_over(state: State, **first_pass: Any) -> tuple[Any, Any]:
        chunks = []
        for start in range(0, size, _CHUNK):
            here = slice(start, start + _CHUNK)
            own = per_client.gather(state, extras["client_ids"][here])
            some, known = _rows((messages, extras), here)
            chunks.append(sums.accumulate(params, some, own, **known, **first_pass))
        totals, kept = zip(*chunks, strict=True)
        total = jax.tree.map(lambda *parts: sum(parts[1:], parts[0]), *totals)
        return total, jax.tree.map(lambda *parts: jnp.concatenate(parts), *kept)

    if sums.needs_first_pass is not None:
        assert sums.prepare is not None, "sums with needs_first_pass need prepare"
        total, kept = pass_over(state, first_pass=True)
        ready = sums.prepare(total, state, kept, **extras)
        state = jax.lax.cond(sums.needs_first_pass(state), lambda: ready, lambda: state)
    total, kept = pass_over(state)
    return sums.finish(params, total, state, kept, **extras)


def _rows(inputs: Inputs, rows: Any) -> Inputs:
    """The input of some of the clients, in the order given."""
    messages, extras = inputs
    return jax.tree.map(lambda x: x[rows], messages), rows_of(extras, rows)
