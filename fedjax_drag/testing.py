"""What every aggregation rule promises, checked on a rule of one's own."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_drag import checks, tree
from fedjax_drag.types import Aggregator, Params, State

RTOL, ATOL = 1e-4, 1e-5
"""Of float32 numbers that are summed in another order, some of them by an iteration to a tolerance of its own."""

COMMON = {"weight", "cosine", "num_rejected"}
"""Metrics that every rule has."""

PER_CLIENT = ("client_ids", "num_examples", "dissimilarity", "malicious", "valid")
"""Extras that have an entry for each client."""


@dataclasses.dataclass(frozen=True)
class _Bench:
    """A rule with input to try it on.

    Attributes:
      rule: what is tried.
      params: the global parameters.
      cohort: S.
      keyed: whether the places of the clients matter.
    """

    rule: Aggregator
    params: Params
    cohort: int
    keyed: bool

    @functools.cached_property
    def apply(self) -> Callable[..., tuple[Params, State]]:
        """Of the rule, compiled once for every size of a cohort."""
        return jax.jit(self.rule.apply)

    def deltas(self, seed: int) -> Params:
        """Drawn from a normal distribution, like the parameters with a leading axis ``[S]``."""
        rng = np.random.default_rng([1, seed])
        return jax.tree.map(lambda p: rng.normal(size=(self.cohort, *p.shape)).astype(jnp.result_type(p)), self.params)

    def extras(self, round: int) -> dict[str, Any]:
        """Everything that a rule may ask for, everybody being there."""
        rng = np.random.default_rng([2, round])
        return {
            "client_ids": rng.permutation(self.cohort).astype(np.int32),
            "round": np.int32(round),
            "key": jax.random.key(round),
            "root_delta": jax.tree.map(lambda d: d[0], self.deltas(100 + round)),
            "num_examples": rng.integers(1, 90, self.cohort).astype(np.int32),
            "dissimilarity": rng.uniform(size=self.cohort).astype(np.float32),
            "malicious": np.arange(self.cohort) < self.cohort // 3,
            "valid": np.ones(self.cohort, bool),
        }

    def start(self, deltas: Params, extras: Mapping[str, Any]) -> State:
        """The state before the first round, in the shapes of this cohort."""
        return tree.initial_state(self.rule.apply, self.rule.init(self.params), self.params, deltas, **extras)

    def rounds(self, inputs: list[tuple[Params, dict[str, Any]]]) -> tuple[Params, State]:
        """One after another, from the beginning."""
        params, state = self.params, self.start(*inputs[0])
        for deltas, extras in inputs:
            params, state = self.apply(params, deltas, state, **extras)
        return params, state


def check_aggregator(rule: Aggregator, *, params: Params = None, cohort: int = 8, keyed: bool = False) -> None:
    """Checks that a rule keeps what simulations, sweeps and other rules rely on.

    It is given made-up parameters, deltas and extras. What it computes is its own affair; how it behaves is not: it is
    pure, keeps shapes, ignores extras that it does not know, can be scanned over rounds, tells its metrics, and clients
    that are absent, or send what is not finite or too long for their dtype, are as if they had not been there.

    Args:
      rule: to be checked.
      params: parameters to check it with, if it does not accept any pytree of float32 arrays.
      cohort: clients in a round, >= 3; what is left without one of them must be enough for the rule.
      keyed: of a rule that draws from ``key`` by the clients' places in the cohort, so that their order matters and
        the absence of one changes the draw for the others.

    Raises:
      AssertionError: names every promise that is not kept, one a line.
      ValueError: if ``cohort`` is not a count from 3.
    """
    checks.count("cohort", cohort, 3)
    params = _some_params() if params is None else jax.tree.map(np.asarray, params)
    bench = _Bench(rule, params, cohort, keyed)
    broken: list[str] = []
    for promise in _PROMISES:
        try:
            promise(bench)
        except Exception as error:  # whatever a rule of unknown origin raises is what there is to tell
            told = next(iter(str(error).strip().splitlines()), type(error).__name__)
            broken.append(f"- {(promise.__doc__ or '').rstrip('.')}: {told}")
            if promise is _PROMISES[0]:  # nothing else can be tried
                break
    if broken:
        raise AssertionError("\n".join([f"{len(broken)} of {len(_PROMISES)} promises are not kept:", *broken]))


def _some_params() -> Params:
    rng = np.random.default_rng(0)
    shapes = {"kernel": (3, 2), "bias": (2,), "scale": ()}
    return {name: np.asarray(rng.normal(size=shape), np.float32) for name, shape in shapes.items()}


def _keeps_shapes(bench: _Bench) -> None:
    """Parameters and state keep structure, shapes and dtypes."""
    deltas, extras = bench.deltas(0), bench.extras(0)
    before = bench.params, bench.start(deltas, extras)
    after = jax.eval_shape(bench.rule.apply, bench.params, deltas, before[1], **extras)
    for what, old, new in zip(("parameters", "state"), before, after, strict=True):
        assert jax.tree.structure(old) == jax.tree.structure(new), f"the structure of the {what} changes"
        for (path, x), y in zip(jax.tree.leaves_with_path(old), jax.tree.leaves(new), strict=True):
            was, now = (jnp.shape(x), jnp.result_type(x)), (y.shape, y.dtype)
            assert was == now, f"{what}{jax.tree_util.keystr(path)} was {was} and is {now}"


def _tells_metrics(bench: _Bench) -> None:
    """``state.metrics`` has weight, cosine and num_rejected, and the same keys from ``init`` on."""
    first = bench.rule.init(bench.params).metrics.keys()
    _, state = bench.rounds([(bench.deltas(0), bench.extras(0))])
    assert first >= COMMON, f"lacks {sorted(COMMON - first)}"
    assert first == state.metrics.keys(), f"{sorted(first)} at first, then {sorted(state.metrics)}"
    for name, value in state.metrics.items():
        assert value.shape[:1] in ((), (bench.cohort,)), f"{name} has shape {value.shape}: must be () or [S, ...]"
        assert not np.isnan(value).any(), f"{name} is NaN"


def _repeats(bench: _Bench) -> None:
    """The same input gives the same bits."""
    inputs = [(bench.deltas(0), bench.extras(0))]
    for x, y in zip(*(jax.tree.leaves(bench.rounds(inputs)) for _ in range(2)), strict=True):
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes(), "two calls differ"


def _ignores_unknown_extras(bench: _Bench) -> None:
    """Extras that the rule does not know are ignored."""
    deltas, extras = bench.deltas(0), bench.extras(0)
    jax.eval_shape(bench.rule.apply, bench.params, deltas, bench.start(deltas, extras), **extras, weather=np.ones(()))


def _scans(bench: _Bench) -> None:
    """A scan over rounds equals a loop."""
    inputs = [(bench.deltas(t), bench.extras(t)) for t in range(3)]
    looped, _ = bench.rounds(inputs)

    def body(carry, xs):
        return bench.rule.apply(carry[0], xs[0], carry[1], **xs[1]), None

    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *inputs)
    (scanned, _), _ = jax.lax.scan(body, (bench.params, bench.start(*inputs[0])), stacked)
    _assert_close(scanned, looped, "the parameters after three rounds")


def _ignores_order(bench: _Bench) -> None:
    """The order of the clients does not matter."""
    if bench.keyed:
        return
    order = np.random.default_rng(3).permutation(bench.cohort)
    deltas, extras = bench.deltas(0), bench.extras(0)
    shuffled, _ = bench.rounds([_rows(deltas, extras, order)])
    _assert_close(shuffled, bench.rounds([(deltas, extras)])[0], "the parameters")


def _leaves_out_the_absent(bench: _Bench) -> None:
    """A client with valid=False is as if it were not there."""
    _compare_without_one(bench, lambda deltas, extras, there: (deltas, {**extras, "valid": there}), rejected=0)


def _rejects_what_is_not_finite(bench: _Bench) -> None:
    """A client that sends NaN is as if it were not there, and is counted in num_rejected."""
    _compare_without_one(bench, _sending(lambda dtype: np.nan), rejected=1)


def _rejects_what_is_too_long(bench: _Bench) -> None:
    """A client that sends the largest numbers is as if it were not there, and is counted in num_rejected."""
    send = _sending(lambda dtype: float(jnp.finfo(dtype).max))
    nobody = np.zeros(bench.cohort, bool)
    if not tree.usable_rows(send(bench.deltas(0), {}, nobody)[0]).any():  # float16 has no number that long
        _compare_without_one(bench, send, rejected=1)


def _sending(value: Callable[[Any], float]) -> Callable[..., tuple[Params, dict[str, Any]]]:
    """What replaces all numbers of a client by that which ``value`` gives for their dtype."""

    def send(deltas, extras, there):
        def leaf(d):
            return np.where(_beside(there, d), d, np.asarray(value(d.dtype), d.dtype))

        return jax.tree.map(leaf, deltas), extras

    return send


def _stands_still_without_clients(bench: _Bench) -> None:
    """A round without a usable delta changes neither parameters nor what is remembered."""
    nobody = bench.extras(1) | {"valid": np.zeros(bench.cohort, bool)}
    before = bench.rounds([(bench.deltas(0), bench.extras(0))])
    after = bench.apply(before[0], bench.deltas(1), before[1], **nobody)
    for x, y in zip(*(jax.tree.leaves((p, s._replace(metrics={}))) for p, s in (before, after)), strict=True):
        assert np.array_equal(x, y), "they change"


def _bears_long_deltas(bench: _Bench) -> None:
    """A delta of any length leaves the parameters finite."""
    for length in (1e20, 1e30, 2e37, 3e38):
        factor = np.where(np.arange(bench.cohort) == 2, length, 1.0)
        deltas = jax.tree.map(functools.partial(_lengthened, factor), bench.deltas(0))
        params, _ = bench.rounds([(deltas, bench.extras(0))])
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params)), f"at {length:g} they are not"


def _lengthened(factor: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """``factor`` ``[S]`` times a leaf of the deltas, as far as its dtype has such numbers."""
    end = float(jnp.finfo(delta.dtype).max)
    return np.clip(delta * _beside(factor, delta), -end, end).astype(delta.dtype)


def _compare_without_one(bench: _Bench, exclude: Callable[..., tuple[Params, dict[str, Any]]], rejected: int) -> None:
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
    _assert_close(params, fewer, "the parameters")


def _beside(per_client: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """``[S]`` with as many axes as a leaf of the deltas."""
    return per_client.reshape(-1, *[1] * (delta.ndim - 1))


def _rows(deltas: Params, extras: dict[str, Any], rows: np.ndarray) -> tuple[Params, dict[str, Any]]:
    """Some of the clients, in the order given."""
    few = {name: value[rows] if name in PER_CLIENT else value for name, value in extras.items()}
    return jax.tree.map(lambda d: d[rows], deltas), few


def _assert_close(a: Params, b: Params, what: str) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        assert np.allclose(x, y, RTOL, ATOL), f"{what} differ by up to {np.abs(x - y).max():.2g}"


_PROMISES = (
    _keeps_shapes,
    _tells_metrics,
    _repeats,
    _ignores_unknown_extras,
    _scans,
    _ignores_order,
    _leaves_out_the_absent,
    _rejects_what_is_not_finite,
    _rejects_what_is_too_long,
    _stands_still_without_clients,
    _bears_long_deltas,
)
