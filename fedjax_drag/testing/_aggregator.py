"""The contract of aggregation rules."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_drag import checks, kinds, tree
from fedjax_drag.testing import _server
from fedjax_drag.testing._promises import assert_needs, check, parameters, random_deltas, tolerated
from fedjax_drag.testing._server import Inputs, ServerBench
from fedjax_drag.types import Aggregator, Deltas, Params, State
from fedjax_drag.types._part import told


class _AggregatorBench(ServerBench[Aggregator]):
    """A rule and its test input, of which the messages are normally distributed deltas."""

    def inputs(self, round: int) -> Inputs:
        extras = self.extras(round) | {"expected_clients": np.float32(self.cohort)}
        return random_deltas(self.params, self.cohort, round), extras

    def messages(self, params: Params, state: State, inputs: Inputs) -> Deltas:
        del params, state
        return inputs[0]

    def step(self, params: Params, state: State, inputs: Inputs) -> tuple[Params, State]:
        return self.part.apply(params, inputs[0], state, **inputs[1])

    def sending_nan(self, inputs: Inputs, who: np.ndarray) -> Inputs:
        return _scaled(inputs, np.where(who, np.nan, 1.0))


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
    assert_needs(bench.part.needs)
    inputs = bench.inputs(0)
    before = bench.params, bench.start(inputs)
    after = jax.eval_shape(bench.step, *before, inputs)
    for old, new in zip(before, after, strict=True):
        chex.assert_trees_all_equal_structs(old, new)
        chex.assert_trees_all_equal_shapes_and_dtypes(old, new)


def _rejects_what_is_too_long(bench: _AggregatorBench) -> None:
    """A client that sends the largest numbers is as if it were not there, and is counted in num_rejected."""

    def send(inputs: Inputs, who: np.ndarray) -> Inputs:
        return _scaled(inputs, np.where(who, np.inf, 1.0))

    everybody = np.ones(bench.cohort, bool)
    if not tree.usable_rows(send(bench.inputs(0), everybody)[0]).any():  # float16 has no number that long
        _server.compare_without_one(bench, send, rejected=1)


def _stands_still_without_clients(bench: _AggregatorBench) -> None:
    """A round without a usable delta changes neither parameters nor state, unless by noise that hides it."""
    if bench.part.guarantee is not None:
        return
    before = bench.rounds([bench.inputs(0)])
    deltas, extras = bench.inputs(1)
    after = bench.compiled(*before, (deltas, extras | {"valid": np.zeros(bench.cohort, bool)}))
    chex.assert_trees_all_equal(*((params, state._replace(metrics={})) for params, state in (before, after)))


def _survives_long_deltas(bench: _AggregatorBench) -> None:
    """A delta of any length leaves the parameters finite."""
    for length in (1e20, 1e30, 2e37, 3e38):
        inputs = _scaled(bench.inputs(0), np.where(np.arange(bench.cohort) == 2, length, 1.0))
        params, _ = bench.rounds([inputs])
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params)), f"at {length:g} they are not"


def _scaled(inputs: Inputs, factor: np.ndarray) -> Inputs:
    """``factor`` ``[S]`` times the deltas, clipped to the range of their dtypes."""

    def leaf(delta: np.ndarray) -> np.ndarray:
        end = float(jnp.finfo(delta.dtype).max)
        return np.clip(delta * tree.expand(factor, delta), -end, end).astype(delta.dtype)

    return jax.tree.map(leaf, inputs[0]), inputs[1]


_PROMISES = (
    _keeps_shapes,
    _server.reports_metrics,
    _server.repeats,
    _server.ignores_unknown_extras,
    _server.scans,
    _server.ignores_order,
    _server.leaves_out_the_absent,
    _server.rejects_what_is_not_finite,
    _rejects_what_is_too_long,
    _stands_still_without_clients,
    _survives_long_deltas,
    _server.sums_in_chunks,
)
