"""What accelerators compute in another form than the CPU: the same, here computed on the CPU in both."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import AGGREGATORS, NUM_CLIENTS, SIZE, extras, flatten, nested_params, parametrize, unflatten

from fedjax_drag import tree
from fedjax_drag.aggregators import fedavg
from fedjax_drag.kernels import order_statistics

PLATFORMS = ["cuda", "tpu"]


@pytest.fixture
def on(monkeypatch):
    """``on(platform, function, *args)`` traces a function with that platform's forms, compiles it and calls it."""

    def compute(platform, function, *args):
        def chosen(*operands, default, **forms):
            return forms.get(platform, default)(*operands)

        with monkeypatch.context() as patched:
            if platform != "cpu":
                patched.setattr(jax.lax, "platform_dependent", chosen)
            # A new function, since JAX would find that of another platform in its cache.
            return jax.jit(lambda *operands: function(*operands))(*args)

    return compute


def rows():
    """Deltas of the scales, and with the entries, of which the CPU takes care in passes of their own."""
    G = np.random.default_rng(0).normal(size=(12, SIZE)).astype(np.float32)
    scales = np.array([1, 1e4, 1e-4, 1e16, 1e-12, 1e25, 1e-25, 0, 3e37, 1, 1, 1], np.float32)
    G *= scales[:, None]
    G[9, 3], G[10, 5], G[11, 7] = np.inf, np.nan, 1e20
    return G


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_norms_and_who_is_usable(on, dtype):
    deltas = unflatten(rows(), dtype)
    exact = flatten(deltas, lead=1)
    length = np.sqrt((exact**2).sum(1))
    expected = np.where(np.isfinite(length), length, 0)
    of_all = lambda deltas: (tree.norms(deltas), tree.finite_rows(deltas), tree.usable_rows(deltas))
    norms, finite, usable = on("tpu", of_all, deltas)
    np.testing.assert_allclose(norms, expected, rtol=3e-7)
    for ours, usual in zip((finite, usable), on("cpu", of_all, deltas)[1:], strict=True):
        np.testing.assert_array_equal(ours, usual)


@pytest.mark.sample(1)
@pytest.mark.optimised
@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_a_single_nan_in_a_long_row_rejects_it(on, platform, clients):
    """XLA:CPU, with its optimisations, leaves NaN out of a maximum over some thousand numbers."""
    G = np.random.default_rng(0).normal(size=(clients, 9001)).astype(np.float32)
    G[0, 4500] = np.nan
    of_all = lambda deltas: (tree.finite_rows(deltas), tree.usable_rows(deltas))
    for found in on(platform, of_all, {"a": G}):
        np.testing.assert_array_equal(found, np.arange(clients) > 0)
    rule, params = fedavg(), {"a": jnp.zeros(9001)}
    moved, state = on(platform, rule.apply, params, {"a": G}, rule.init(params))
    assert state.metrics["num_rejected"] == 1
    np.testing.assert_allclose(moved["a"], G[1:].mean(0) if clients > 1 else 0.0, rtol=1e-5, atol=1e-6)


def test_gradients_of_norms_are_unit_vectors(on):
    G = rows()[[0, 1, 2, 3, 4, 5, 6, 7, 11]]
    gradient = on("tpu", jax.grad(lambda deltas: tree.norms(deltas).sum()), unflatten(G))
    exact = G.astype(np.float64)
    length = np.linalg.norm(exact, axis=1, keepdims=True)
    np.testing.assert_allclose(flatten(gradient, lead=1), exact / np.where(length > 0, length, 1), rtol=1e-5, atol=1e-7)


def test_cosines_and_weighted_sums(on):
    deltas, reference = unflatten(rows()), unflatten(rows()[1])
    weights = jnp.asarray(tree.finite_rows(deltas) & (jnp.arange(12) < 5), jnp.float32) * jnp.linspace(0.1, 0.5, 12)
    for function, *args in ((tree.cosines, deltas, reference), (tree.weighted_sum, weights, deltas)):
        ours, usual = (on(platform, function, *args) for platform in ("tpu", "cpu"))
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7), ours, usual)
    assert np.isfinite(flatten(ours)).all()


@pytest.mark.thorough
@pytest.mark.parametrize("size", [40, 10, 24])
@pytest.mark.parametrize("platform", PLATFORMS)
def test_order_statistics_to_the_bit(on, platform, size):
    G = np.random.default_rng(size).normal(size=(size, SIZE)).astype(np.float32).round(1)  # with ties
    valid = jnp.arange(size) % 5 != 2
    G[2] = np.nan

    def of_all(deltas):
        kept = order_statistics.middle(deltas, valid, jnp.int32(3))
        return kept, order_statistics.kept_share(deltas, valid, kept)

    (ours, share), (usual, usual_share) = (on(name, of_all, unflatten(G)) for name in (platform, "cpu"))
    jax.tree.map(np.testing.assert_array_equal, ours[1:], usual[1:])
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7), ours.mean, usual.mean)
    np.testing.assert_array_equal(share, usual_share)


OFTEN = ("drag", "geometric_median", "median", "krum", "clusterguard")
"""A rule of each form: sums, iterations, order statistics, distances and groups; the others are slow."""


@pytest.mark.thorough
@pytest.mark.parametrize("platform", ["tpu", pytest.param("cuda", marks=pytest.mark.slow)])
@parametrize(AGGREGATORS, slow=lambda case: case.label not in OFTEN)
def test_every_rule_computes_the_same(on, platform, case):
    rule, params = case.build(), nested_params()
    G = np.random.default_rng(1).normal(0.3, 1, (2, NUM_CLIENTS, SIZE)).astype(np.float32)
    G[0, 1, 2] = np.inf
    given = [extras(NUM_CLIENTS, turn) for turn in range(2)]
    start = tree.initial_state(rule.apply, rule.init(params), params, unflatten(G[0]), **given[0])

    def two_rounds(params, state, stacked):
        (params, state), _ = jax.lax.scan(
            lambda at, now: (rule.apply(at[0], now[0], at[1], **now[1]), None), (params, state), stacked
        )
        return params, state.metrics

    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *zip(map(unflatten, G), given, strict=True))
    ours, usual = (on(name, two_rounds, params, start, stacked) for name in (platform, "cpu"))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), ours, usual)
