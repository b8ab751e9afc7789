"""No result depends on two computations of one number being equal.

XLA computes a number anew for each of its readers, and contracts a product with the sum that follows it for one of them
and not for another. A rule behind such a product, inside one compiled program, must give what it gives for the product
itself: parameters, coefficients and metrics.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import AGGREGATORS, SIZE, Case, extras, nested_params, parametrize, unflatten

from fedjax_drag import aggregators, compression, tree
from fedjax_drag.aggregators._deepsight import update_energies
from fedjax_drag.kernels import distances

pytestmark = pytest.mark.optimised

COHORT = 11
ORDER = np.random.default_rng(1).permutation(COHORT)
MIXING = np.random.default_rng(2).normal(size=(COHORT, COHORT)).astype(np.float32)


def clipped(deltas):
    return jax.tree.map(lambda x: tree.expand(jnp.minimum(1.0, 1.3 / tree.norms(deltas)), x) * x, deltas)


def of_leaves(function):
    return functools.partial(jax.tree.map, function)


PRODUCERS = {
    "scaled": of_leaves(lambda x: 0.37 * x),
    "clipped": clipped,
    "negated": of_leaves(lambda x: -1.7 * x),
    "cast": of_leaves(lambda x: (0.37 * x).astype(jnp.bfloat16).astype(jnp.float32)),
    "gathered": of_leaves(lambda x: 1.3 * x[ORDER]),
    "moved": of_leaves(lambda x: 0.3 * x + 0.7 * x[ORDER]),
    "mixed": of_leaves(lambda x: jnp.tensordot(MIXING, x, 1)),
}

median, meamed, bulyan = aggregators.median(), aggregators.meamed(2), aggregators.bulyan(2)
WRAPPED = [
    Case("clipping-meamed", aggregators.clipping, {"aggregator": meamed, "max_norm": 1.7}),
    Case("clipping-bulyan", aggregators.clipping, {"aggregator": bulyan, "max_norm": 0.1}),
    Case("arc-meamed", aggregators.arc, {"aggregator": meamed, "num_byzantine": 2}),
    Case("nnm-bulyan", aggregators.nnm, {"aggregator": bulyan, "num_byzantine": 2}),
    Case("rescaled-meamed", aggregators.rescaled_mean, {"aggregator": meamed}),
    Case("clipping-nnm-meamed", aggregators.clipping, {"aggregator": aggregators.nnm(meamed, 2), "max_norm": 1.7}),
    Case(
        "arc-clipping-trimmed",
        aggregators.arc,
        {"aggregator": aggregators.clipping(aggregators.trimmed_mean(0.2), 1.0), "num_byzantine": 2},
    ),
]
"""Wrappers around the rules that find values again, and around such wrappers."""

THOROUGH = {"meamed", "bulyan", "median", "trimmed_mean", "caf", "mda", "autogm", "signguard"}
"""Rules that find a value again; the others, which compile for minutes in all, are slow."""

each_rule = parametrize(
    AGGREGATORS,
    slow=lambda case: case.label not in THOROUGH,
    fast=lambda _: False,
)


def drawn(seed=0):
    return unflatten(np.random.default_rng(seed).normal(size=(COHORT, SIZE)).astype(np.float32))


def check(case):
    of_federation = {"num_clients": COHORT} if "num_clients" in case.settings else {}
    rule, params, extra = case.build(**of_federation), nested_params(), extras(COHORT)
    state = rule.init(params)

    def applied(deltas):
        """Without the number of steps of an iteration, which ends where only rounding errors are left."""
        params_after, after = rule.apply(params, deltas, state, **extra)
        metrics = {name: value for name, value in after.metrics.items() if name != "iterations"}
        return params_after, after._replace(metrics=metrics)

    apply = jax.jit(applied)
    fused = jax.jit(lambda deltas: {name: applied(make(deltas)) for name, make in PRODUCERS.items()})
    found, made = (
        fused(drawn()),
        jax.jit(lambda deltas: {name: make(deltas) for name, make in PRODUCERS.items()})(drawn()),
    )
    for name, deltas in made.items():
        for one, other in zip(jax.tree.leaves(found[name]), jax.tree.leaves(apply(deltas)), strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5, err_msg=name)


@each_rule
def test_a_rule_behind_a_product(case):
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", WRAPPED, ids=lambda case: case.label)
def test_wrappers_around_wrappers(case):
    check(case)


@pytest.mark.thorough
@pytest.mark.parametrize("make", [PRODUCERS["scaled"], PRODUCERS["moved"]], ids=["scaled", "moved"])
@pytest.mark.parametrize("rule", [meamed, bulyan, median, aggregators.trimmed_mean(0.2)], ids=lambda rule: rule.name)
def test_coefficients_sum_to_one_in_every_coordinate(rule, make):
    """The choices of these rules have no gradient: along ones, the derivative is the sum of the coefficients."""
    params, deltas = nested_params(), drawn()
    ones = jax.tree.map(jnp.ones_like, deltas)

    def sums(deltas):
        apply = lambda deltas: rule.apply(params, deltas, rule.init(params))
        (_, after), (along, _) = jax.jvp(apply, (make(deltas),), (ones,))
        return along, after.metrics["weight"].sum()

    along, weight = jax.jit(sums)(deltas)
    for leaf in jax.tree.leaves(along):
        np.testing.assert_allclose(leaf, 1.0, rtol=1e-5)
    np.testing.assert_allclose(weight, 1.0, rtol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_distances_of_energies_are_the_same_both_ways(seed):
    """HDBSCAN finds other clusters where a distance differs from its mirror image."""
    rng = np.random.default_rng(seed)
    bias, kernel = (rng.normal(size=(COHORT, *shape)).astype(np.float32) for shape in ((5,), (3, 5)))
    apart = jax.jit(lambda *layer: distances.reference({"energy": update_energies(*layer)}))(bias, kernel)
    np.testing.assert_array_equal(apart, apart.T)
    np.testing.assert_array_equal(jnp.diag(apart), 0.0)


@pytest.mark.parametrize("seed", range(3))
def test_top_k_behind_a_product(seed):
    message = {"w": np.random.default_rng(seed).normal(size=301).astype(np.float32)}
    compressor, key = compression.top_k(0.1, error_feedback=False), jax.random.key(0)
    made = lambda x: jax.tree.map(lambda w: 0.37 * w - 0.11 * w[::-1], x)
    sent = jax.jit(lambda x: compressor.compress(made(x), (), key)[0]["w"])(message)
    expected = np.asarray(jax.jit(made)(message)["w"])
    largest = np.argsort(-np.abs(expected), kind="stable")[:30]
    assert set(np.flatnonzero(sent)) == set(largest)
    np.testing.assert_allclose(sent[largest], expected[largest], rtol=1e-5)


def test_what_is_stored_is_the_same_under_every_transformation():
    x = jnp.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(tree.stored(x), x)
    np.testing.assert_array_equal(jax.jit(jax.vmap(tree.stored))(x), x)
    np.testing.assert_array_equal(jax.grad(lambda x: (tree.stored(x) ** 2).sum())(x), 2 * x)
    whole = {"a": jnp.full(2, jnp.finfo(jnp.float32).max), "b": jnp.arange(3)}
    jax.tree.map(np.testing.assert_array_equal, jax.jit(tree.stored)(whole), whole)
