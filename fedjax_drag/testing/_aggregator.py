"""The contract of aggregation rules."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_drag import checks, kinds, tree
from fedjax_drag.testing._chunks import round_in_chunks
from fedjax_drag.testing._promises import (
    ATOL,
    COMMON,
    RTOL,
    assert_needs,
    assert_pure,
    check,
    parameters,
    random_deltas,
    random_extras,
    rows_of,
    stacked,
    tolerated,
)
from fedjax_drag.types import Aggregator, Deltas, Params, State
from fedjax_drag.types._part import told


@dataclasses.dataclass(frozen=True)
class _AggregatorBench:
    """A rule and its test input.

    Attributes:
      rule: under test.
      params: the global parameters.
      cohort: S.
      keyed: whether the places of the clients matter.
      starts: the states before the first round, by the size of the cohort.
    """

    rule: Aggregator
    params: Params
    cohort: int
    keyed: bool
    starts: dict[int, State] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def apply(self) -> Callable[..., tuple[Params, State]]:
        """``apply`` of the rule, compiled once for each cohort size."""
        return jax.jit(self.rule.apply)

    def deltas(self, seed: int) -> Params:
        """Normally distributed, like the parameters with a leading axis ``[S]``."""
        return random_deltas(self.params, self.cohort, seed)

    def extras(self, round: int) -> dict[str, Any]:
        """The extras that the rule receives; every client takes part."""
        given = random_extras(self.params, self.cohort, round, self.rule.needs)
        return given | {"valid": np.ones(self.cohort, bool), "expected_clients": np.float32(self.cohort)}

    def start(self, deltas: Params, extras: Mapping[str, Any]) -> State:
        """The state before the first round, in the shapes of this cohort."""
        size = tree.cohort_size(deltas)
        if size not in self.starts:  # tracing takes most of the time of a check
            first = self.rule.init(self.params)
            self.starts[size] = tree.initial_state(self.rule.apply, first, self.params, deltas, **extras)
        return self.starts[size]

    def rounds(self, inputs: list[tuple[Params, dict[str, Any]]]) -> tuple[Params, State]:
        """Parameters and state after several rounds, from the initial state."""
        params, state = self.params, self.start(*inputs[0])
        for deltas, extras in inputs:
            params, state = self.apply(params, deltas, state, **extras)
        return params, state


def check_aggregator(rule: Aggregator, *, params: Params = None, cohort: int = 8, keyed: bool = False) -> None:
    """Checks the behaviour of a rule that simulations, sweeps and other rules rely on.

    The rule is called with random parameters, deltas and extras. Its formula is not checked, but that it is pure, keeps
    shapes, ignores unknown extras, can be scanned over rounds, reports its metrics, and leaves out clients that are
    absent or whose delta is not finite or too long for its dtype; of its sums, that chunks give what the stack gives.

    Args:
      rule: the rule to check.
      params: parameters to use; default a small pytree of float32 arrays.
      cohort: clients in a round, >= 3; the rule must accept one client fewer.
      keyed: True for a rule that draws from ``key`` by the clients' places in the cohort: their order then matters,
        and the absence of one changes the draw for the others.

    Raises:
      AssertionError: names every broken promise, one per line.
      ValueError: if ``rule`` is something else, or ``cohort`` not a count from 3.
    """
    kinds.AGGREGATOR.check("rule", rule)
    checks.count("cohort", cohort, 3)
    rule = told(rule, num_clients=cohort)
    if "num_byzantine" in rule.needs:  # a Python integer, which no transformation sees
        rule = rule._replace(apply=functools.partial(rule.apply, num_byzantine=tolerated(cohort)))
    check(_AggregatorBench(rule, parameters(params), cohort, keyed), _PROMISES)


def _keeps_shapes(bench: _AggregatorBench) -> None:
    """Parameters and state keep structure, shapes and dtypes."""
    assert_needs(bench.rule.needs)
    deltas, extras = bench.deltas(0), bench.extras(0)
    before = bench.params, bench.start(deltas, extras)
    after = jax.eval_shape(bench.rule.apply, bench.params, deltas, before[1], **extras)
    for old, new in zip(before, after, strict=True):
        chex.assert_trees_all_equal_structs(old, new)
        chex.assert_trees_all_equal_shapes_and_dtypes(old, new)


def _reports_metrics(bench: _AggregatorBench) -> None:
    """``state.metrics`` has weight, cosine and num_rejected, and the same keys from ``init`` on."""
    first = bench.rule.init(bench.params).metrics.keys()
    _, state = bench.rounds([(bench.deltas(0), bench.extras(0))])
    assert first >= COMMON, f"lacks {sorted(COMMON - first)}"
    assert first == state.metrics.keys(), f"{sorted(first)} at first, then {sorted(state.metrics)}"
    for name, value in state.metrics.items():
        assert value.shape[:1] in ((), (bench.cohort,)), f"{name} has shape {value.shape}: must be () or [S, ...]"
        assert not np.isnan(value).any(), f"{name} is NaN"


def _repeats(bench: _AggregatorBench) -> None:
    """The same input gives the same bits."""
    deltas, extras = bench.deltas(0), bench.extras(0)
    assert_pure(
        lambda *args: bench.rule.apply(*args[:3], **args[3]), bench.params, deltas, bench.start(deltas, extras), extras
    )


def _ignores_unknown_extras(bench: _AggregatorBench) -> None:
    """Extras that the rule does not know are ignored."""
    deltas, extras = bench.deltas(0), bench.extras(0)
    jax.eval_shape(bench.rule.apply, bench.params, deltas, bench.start(deltas, extras), **extras, weather=np.ones(()))


def _scans(bench: _AggregatorBench) -> None:
    """A scan over rounds equals a loop."""
    inputs = [(bench.deltas(t), bench.extras(t)) for t in range(3)]
    looped, _ = bench.rounds(inputs)

    def body(carry: tuple[Params, State], xs: Any) -> tuple[tuple[Params, State], None]:
        return bench.rule.apply(carry[0], xs[0], carry[1], **xs[1]), None

    (scanned, _), _ = jax.lax.scan(body, (bench.params, bench.start(*inputs[0])), stacked(inputs))
    chex.assert_trees_all_close(scanned, looped, rtol=RTOL, atol=ATOL)


def _ignores_order(bench: _AggregatorBench) -> None:
    """The order of the clients does not matter."""
    if bench.keyed:
        return
    order = np.random.default_rng(3).permutation(bench.cohort)
    deltas, extras = bench.deltas(0), bench.extras(0)
    shuffled, _ = bench.rounds([_rows(deltas, extras, order)])
    chex.assert_trees_all_close(shuffled, bench.rounds([(deltas, extras)])[0], rtol=RTOL, atol=ATOL)


def _leaves_out_the_absent(bench: _AggregatorBench) -> None:
    """A client with valid=False is as if it were not there."""
    _compare_without_one(bench, lambda deltas, extras, there: (deltas, {**extras, "valid": there}), rejected=0)


def _rejects_what_is_not_finite(bench: _AggregatorBench) -> None:
    """A client that sends NaN is as if it were not there, and is counted in num_rejected."""
    _compare_without_one(bench, _sending(lambda dtype: np.nan), rejected=1)


def _rejects_what_is_too_long(bench: _AggregatorBench) -> None:
    """A client that sends the largest numbers is as if it were not there, and is counted in num_rejected."""
    send = _sending(lambda dtype: float(jnp.finfo(dtype).max))
    nobody = np.zeros(bench.cohort, bool)
    if not tree.usable_rows(send(bench.deltas(0), {}, nobody)[0]).any():  # float16 has no number that long
        _compare_without_one(bench, send, rejected=1)


def _sending(value: Callable[[Any], float]) -> Callable[..., tuple[Params, dict[str, Any]]]:
    """A function that replaces all numbers of a client by ``value`` of their dtype."""

    def send(deltas: Deltas, extras: dict[str, Any], there: np.ndarray) -> tuple[Params, dict[str, Any]]:
        def leaf(d: np.ndarray) -> np.ndarray:
            return np.where(tree.expand(there, d), d, np.asarray(value(d.dtype), d.dtype))

        return jax.tree.map(leaf, deltas), extras

    return send


def _stands_still_without_clients(bench: _AggregatorBench) -> None:
    """A round without a usable delta changes neither parameters nor state, unless by noise that hides it."""
    if bench.rule.guarantee is not None:
        return
    nobody = bench.extras(1) | {"valid": np.zeros(bench.cohort, bool)}
    before = bench.rounds([(bench.deltas(0), bench.extras(0))])
    after = bench.apply(before[0], bench.deltas(1), before[1], **nobody)
    chex.assert_trees_all_equal(*((params, state._replace(metrics={})) for params, state in (before, after)))


def _survives_long_deltas(bench: _AggregatorBench) -> None:
    """A delta of any length leaves the parameters finite."""
    for length in (1e20, 1e30, 2e37, 3e38):
        factor = np.where(np.arange(bench.cohort) == 2, length, 1.0)
        deltas = jax.tree.map(functools.partial(_lengthened, factor), bench.deltas(0))
        params, _ = bench.rounds([(deltas, bench.extras(0))])
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params)), f"at {length:g} they are not"


def _sums_in_chunks(bench: _AggregatorBench) -> None:
    """Its sums of chunks move the parameters as ``apply`` moves them by the whole stack."""
    sums = bench.rule.streamed
    if sums is None:
        return
    deltas, extras = bench.deltas(0), bench.extras(0)
    whole, _ = bench.rounds([(deltas, extras)])
    state = bench.start(deltas, extras)
    chunks, _ = jax.jit(functools.partial(round_in_chunks, sums))(bench.params, deltas, state, extras)
    chex.assert_trees_all_close(chunks, whole, rtol=RTOL, atol=ATOL)


def _lengthened(factor: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """``factor`` ``[S]`` times a leaf of the deltas, clipped to the range of its dtype."""
    end = float(jnp.finfo(delta.dtype).max)
    return np.clip(delta * tree.expand(factor, delta), -end, end).astype(delta.dtype)


def _compare_without_one(
    bench: _AggregatorBench, exclude: Callable[..., tuple[Params, dict[str, Any]]], rejected: int
) -> None:
    """Two rounds of a cohort with one client excluded against two of a cohort without it."""
    there = np.arange(bench.cohort) != 1
    whole = [exclude(bench.deltas(t), bench.extras(t), there) for t in range(2)]
    params, state = bench.rounds(whole)
    count = int(state.metrics["num_rejected"])
    assert count == rejected, f"num_rejected={count}: must be {rejected}"
    assert not np.asarray(state.metrics["weight"])[~there].any(), "its weight is not 0"
    if bench.keyed:
        return
    fewer, _ = bench.rounds([_rows(bench.deltas(t), bench.extras(t), there) for t in range(2)])
    chex.assert_trees_all_close(params, fewer, rtol=RTOL, atol=ATOL)


def _rows(deltas: Params, extras: dict[str, Any], rows: np.ndarray) -> tuple[Params, dict[str, Any]]:
    """Deltas and extras of some of the clients, in the order given."""
    return jax.tree.map(lambda d: d[rows], deltas), rows_of(extras, rows)


_PROMISES = (
    _keeps_shapes,
    _reports_metrics,
    _repeats,
    _ignores_unknown_extras,
    _scans,
    _ignores_order,
    _leaves_out_the_absent,
    _rejects_what_is_not_finite,
    _rejects_what_is_too_long,
    _stands_still_without_clients,
    _survives_long_deltas,
    _sums_in_chunks,
)
