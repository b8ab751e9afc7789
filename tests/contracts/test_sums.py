"""Rules and methods that are sums over the clients: chunks of the cohort give the results of the whole stack."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import AGGREGATORS, ALGORITHMS, SIZE, extras, nested_params, parametrize, unflatten
from quadratics import batches, uplink_of

from fedjax_drag import tree
from fedjax_drag.aggregators import fedavg
from fedjax_drag.algorithms import from_aggregator, scaffold
from fedjax_drag.testing._server import round_in_chunks
from fedjax_drag.types import Aggregator, Sums

COHORT = 7  # two chunks of three and one client by itself
RTOL, ATOL = 2e-5, 2e-6  # the same terms in float32, added in another order

SUMMING = [case for case in AGGREGATORS if case.build().streamed]
METHODS = [case for case in ALGORITHMS if case.build().streamed and "root_delta" not in case.requires]


def in_fast_tier(case):
    """A sum that needs one pass, one with a reference of its own and one with the root data's."""
    return case.label in ("fedavg", "drag", "fltrust")


def test_who_sums():
    assert {case.builder.__name__ for case in SUMMING} == {
        "fedavg",
        "fedexp",
        "drag",
        "br_drag",
        "fltrust",
        "norm_clipping",
        "signsgd_majority",
        "root_only",
        "qffl",
        "term",
        "afl",
        "crfl",
        "robust_lr",
    }
    summing = {case.label for case in METHODS}
    assert {"from_aggregator", "scaffold", "fedacg", "feddyn", "feddc", "fedadmm", "adabest", "mime"} <= summing
    assert not {"scaffold-krum", "scaffold-tailored", "taco", "stem", "fednova"} & summing


def test_sums_do_not_speak_for_another_rule():
    """A copy that applies something else takes the whole stack, also inside a method."""
    plain = fedavg()
    other = plain._replace(apply=lambda *args, **extras: plain.apply(*args, **extras))
    assert other.streamed is None
    assert from_aggregator(other).streamed is None
    assert scaffold(4, aggregator=other).streamed is None
    method = from_aggregator(plain)
    assert method.streamed is not None
    assert method._replace(aggregate=lambda *args, **extras: method.aggregate(*args, **extras)).streamed is None


def test_sums_that_are_given_are_those_of_the_rule_and_of_the_method():
    plain = fedavg()
    sums = plain.streamed
    assert Aggregator(plain.init, plain.apply, sums=Sums(sums.accumulate, sums.finish)).streamed is not None
    other = plain._replace(apply=lambda *args, **extras: plain.apply(*args, **extras), sums=sums)
    assert other.streamed == sums
    assert plain._replace(needs=frozenset({"round"})).streamed == sums
    assert from_aggregator(other).streamed is not None


@functools.cache
def compiled(case):
    """Both forms of a rule, each as one program."""
    rule = case.build()
    whole = jax.jit(lambda params, deltas, state, extra: rule.apply(params, deltas, state, **extra))
    chunks = jax.jit(functools.partial(round_in_chunks, rule.streamed))
    return rule, whole, chunks


def without_metrics(state):
    return state._replace(metrics={})


def matrix(seed):
    return np.random.default_rng(seed).normal(size=(COHORT, SIZE)).astype(np.float32)


def assert_close(a, b):
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=RTOL, atol=ATOL), a, b)


@parametrize(SUMMING, fast=in_fast_tier)
@pytest.mark.parametrize("trouble", ["none", "some absent, some not finite", "huge and tiny"])
@pytest.mark.sample(1)
def test_chunks_equal_the_stack(case, trouble):
    """Three rounds, in the first of which a rule may need a first pass."""
    rule, whole, chunks = compiled(case)
    params = other = nested_params()
    state = now = without_metrics(rule.init(params))
    for t in range(3):
        G, valid = matrix(t), np.ones(COHORT, bool)
        if trouble.startswith("some"):
            G[0], G[4], G[6, 2] = np.nan, np.inf, np.nan
            valid[[1, 4]] = False
        elif trouble.startswith("huge"):
            G[2] *= 1e30
            G[5] *= 1e-30
        extra = {**extras(COHORT, t), "valid": jnp.asarray(valid)}
        params, state = whole(params, unflatten(G), state, extra)
        other, now = chunks(other, unflatten(G), now, extra)
        if trouble.startswith("huge"):  # to a model of that size, the small clients are rounding
            scale = max(1.0, *(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(params)))
            assert_close(tree.scale(1 / scale, other), tree.scale(1 / scale, params))
            return
        assert_close(other, params)
        assert_close(without_metrics(now), without_metrics(state))
        assert now.metrics.keys() == state.metrics.keys() == rule.init(params).metrics.keys()
        for name, value in now.metrics.items():
            if value.size:
                np.testing.assert_allclose(value, state.metrics[name], err_msg=name, rtol=RTOL, atol=ATOL)
            else:
                assert name in ("cosine", "agreement")
        assert int(now.metrics["num_rejected"]) == (2 if trouble.startswith("some") else 0)
        state, now = without_metrics(state), without_metrics(now)


@parametrize(SUMMING, fast=lambda case: case.label == "drag")
@pytest.mark.parametrize("magnitude", [1e20, 1e30, 2e37, 3e38])
def test_chunks_judge_long_deltas_as_the_stack_does(case, magnitude):
    """What is rejected in one is rejected in the other, in a chunk of three as in one of a single client."""
    rule, whole, chunks = compiled(case)
    params, state = nested_params(), without_metrics(rule.init(nested_params()))
    G = matrix(0)
    G[[1, 6]] = magnitude
    extra = {**extras(COHORT), "valid": jnp.ones(COHORT, bool)}
    one, after = whole(params, unflatten(G), state, extra)
    other, now = chunks(params, unflatten(G), state, extra)
    assert int(after.metrics["num_rejected"]) == int(now.metrics["num_rejected"]) == (2 if magnitude > 1e31 else 0)
    size = max(1.0, *(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(one)))
    assert np.isfinite(size)
    assert_close(tree.scale(1 / size, other), tree.scale(1 / size, one))
    if magnitude > 1e31:
        there = jnp.asarray(np.isin(np.arange(COHORT), [1, 6], invert=True))
        assert_close(other, whole(params, unflatten(matrix(0)), state, extra | {"valid": there})[0])


@parametrize(SUMMING, fast=in_fast_tier)
def test_chunks_without_a_usable_delta_change_nothing(case):
    rule, _, chunks = compiled(case)
    params, state = nested_params(), without_metrics(rule.init(nested_params()))
    everybody = {**extras(COHORT), "valid": jnp.ones(COHORT, bool)}
    for G, extra, rejected in (
        (np.full((COHORT, SIZE), np.nan), everybody, COHORT),
        (matrix(1), everybody | {"valid": jnp.zeros(COHORT, bool)}, 0),
    ):
        after, kept = chunks(params, unflatten(G), state, extra)
        for x, y in zip(jax.tree.leaves((after, without_metrics(kept))), jax.tree.leaves((params, state)), strict=True):
            assert np.asarray(x).tobytes() == np.asarray(y).tobytes()
        assert int(kept.metrics["num_rejected"]) == rejected


@pytest.mark.thorough
@parametrize([case for case in SUMMING if case.label in ("fedavg", "drag")])
def test_non_finite_deltas_reach_the_parameters_if_asked_to(case):
    rule, G = case.build(), matrix(0)
    G[3] = np.nan
    extra = {**extras(COHORT), "reject_nonfinite": False}
    state = rule.init(nested_params())
    after, state = round_in_chunks(rule.streamed, nested_params(), unflatten(G), state, extra)
    assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(after))
    assert int(state.metrics["num_rejected"]) == 0


@parametrize(METHODS, fast=lambda case: case.label == "scaffold")
def test_methods_in_chunks_equal_the_whole(case):
    """Three rounds, in the last of which a client is lost and another absent."""
    method, cohort = case.build(), 5

    @jax.jit
    def both(params, state, extra, broken):
        uplink = uplink_of(method, params, state, extra["client_ids"], batches())
        lost = lambda x: jnp.where(tree.expand(broken, x), jnp.nan, x)
        uplink = uplink._replace(delta=jax.tree.map(lost, uplink.delta))
        whole = method.aggregate(params, uplink, state, **extra)
        return whole, round_in_chunks(method.streamed, params, uplink, state, extra)

    params, state = nested_params(), method.init(nested_params())
    for t in range(3):
        at = jnp.arange(cohort)
        extra = {**extras(cohort, t), "valid": (at != 1) | (t < 2)}
        (params, state), (other, now) = both(params, state, extra, (at == 3) & (t == 2))
        assert_close(other, params)
        for (path, x), y in zip(jax.tree.leaves_with_path(now), jax.tree.leaves(state), strict=True):
            if x.size:
                np.testing.assert_allclose(x, y, err_msg=jax.tree_util.keystr(path), rtol=RTOL, atol=ATOL)
