"""What the formulas imply, on inputs that hypothesis chooses."""

import functools

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from fedjax_drag import aggregators, algorithms, clients, server_optimizers
from fedjax_drag.types import Batch, Uplink

COHORT, SIZE = 5, 4

entries = st.integers(-8, 8).map(lambda k: k / 4)
cohorts = hnp.arrays(np.float32, (COHORT, SIZE), elements=entries)
vectors = hnp.arrays(np.float32, (SIZE,), elements=entries)
weights = hnp.arrays(np.float32, (COHORT,), elements=st.integers(1, 8).map(float))
fractions = st.integers(0, 8).map(lambda k: k / 8)
bounded = settings(max_examples=25, deadline=None, derandomize=True)


@functools.cache
def compiled(name, **static):
    """``(deltas, previous deltas, hyperparameters, extras) -> (update, metrics)``, compiled once for each rule.

    A round with the previous deltas comes first, so that DRAG has a reference of its own.
    """

    @jax.jit
    def update(G, before, hyper, extra):
        rule = getattr(aggregators, name)(**static, **hyper)
        zero = {"w": jnp.zeros(SIZE)}
        _, state = rule.apply(zero, {"w": before}, rule.init(zero), **extra)
        params, state = rule.apply(zero, {"w": G}, state, **extra)
        return params["w"], state.metrics

    return update


def run(name, G, before=None, hyper=None, extra=None, **static):
    update, metrics = compiled(name, **static)(G, G if before is None else before, hyper or {}, extra or {})
    return np.asarray(update), {key: np.asarray(value) for key, value in metrics.items()}


def angle(a, b):
    """Angle between two vectors in [0, pi], accurate when it is small."""
    a, b = a / np.linalg.norm(a), b / np.linalg.norm(b)
    return 2 * np.arctan2(np.linalg.norm(a - b), np.linalg.norm(a + b))


@bounded
@given(cohorts, cohorts, fractions)
def test_drag_without_correction_is_fedavg(G, before, alpha):
    np.testing.assert_allclose(
        run("drag", G, before, {"c": 0.0, "alpha": alpha})[0], run("fedavg", G)[0], rtol=1e-6, atol=1e-6
    )


@bounded
@given(vectors, weights, weights, fractions, fractions)
def test_drag_is_fedavg_when_all_deltas_are_parallel_to_the_reference(r, lengths, earlier, c, alpha):
    G, before = np.outer(lengths, r), np.outer(earlier, r)
    update, _ = run("drag", G, before, {"c": c, "alpha": alpha})
    np.testing.assert_allclose(update, run("fedavg", G)[0], rtol=1e-5, atol=1e-5)


@bounded
@given(vectors, cohorts, fractions)
def test_drag_never_turns_a_client_away_from_the_reference(g, before, c):
    """With c up to 1/2, lambda is in [0, 1]. All clients are equal in the second round, so that the update is
    their ``v``; with alpha = 0 the reference is still the mean of the first round."""
    update, _ = run("drag", np.tile(g, (COHORT, 1)), before, {"c": c / 2, "alpha": 0.0})
    r = before.mean(axis=0, dtype=np.float64)
    if min(np.linalg.norm(r), np.linalg.norm(g), np.linalg.norm(update)) > 1e-3:
        assert angle(update, r) <= angle(g, r) + 1e-3
        assert np.linalg.norm(update) <= np.linalg.norm(g) * (1 + 1e-5)


@bounded
@given(cohorts, vectors)
def test_br_drag_without_correction_averages_directions(G, root):
    update, _ = run("br_drag", G, hyper={"c": 0.0}, extra={"root_delta": {"w": root}})
    norms = np.linalg.norm(G, axis=1, keepdims=True)
    directions = np.divide(G, norms, out=np.zeros_like(G), where=norms > 0)
    np.testing.assert_allclose(update, np.linalg.norm(root) * directions.mean(axis=0), rtol=1e-5, atol=1e-5)


@bounded
@given(vectors, vectors, fractions)
def test_no_client_of_br_drag_moves_farther_than_the_root_delta(g, root, c):
    """c up to 1/2, so lambda in [0, 1]; equal clients, so the update is their ``v``."""
    update, metrics = run("br_drag", np.tile(g, (COHORT, 1)), hyper={"c": c / 2}, extra={"root_delta": {"w": root}})
    assert metrics["divergence"].max() <= 1 + 1e-6
    assert np.linalg.norm(update) <= np.linalg.norm(root) * (1 + 1e-5)


@bounded
@given(cohorts, vectors, weights)
def test_length_of_a_delta_is_nothing_to_br_drag_and_fltrust(G, root, lengths):
    for name, hyper in (("br_drag", {"c": 0.5}), ("fltrust", {})):
        extra = {"root_delta": {"w": root}}
        longer, _ = run(name, lengths[:, None] * G, hyper=hyper, extra=extra)
        np.testing.assert_allclose(longer, run(name, G, hyper=hyper, extra=extra)[0], rtol=1e-4, atol=1e-5)


@bounded
@given(cohorts, vectors)
def test_fltrust_does_not_go_farther_than_the_root_delta_nor_against_it(G, root):
    for projection in (False, True):
        update, metrics = run("fltrust", G, extra={"root_delta": {"w": root}}, projection=projection)
        assert update @ root >= -1e-4
        assert (metrics["trust"] >= 0).all()
        if not projection:
            assert np.linalg.norm(update) <= np.linalg.norm(root) * (1 + 1e-5)


@pytest.mark.thorough
def test_geomed_of_single_clients_is_the_geometric_median_bit_for_bit():
    """It draws no groups, and so needs no key."""
    rule = aggregators.geomed("clients", max_iterations=30)
    assert (rule.needs, rule.name) == (aggregators.geometric_median().needs, "geomed")
    G, valid = np.random.default_rng(0).normal(size=(COHORT, SIZE)).astype(np.float32), jnp.arange(COHORT) != 2
    alone = run("geomed", G, extra={"valid": valid}, num_groups="clients", max_iterations=30)
    median = run("geometric_median", G, extra={"valid": valid}, max_iterations=30)
    jax.tree.map(np.testing.assert_array_equal, alone, median)
    grouped, _ = run("geomed", G, extra={"valid": valid, "key": jax.random.key(0)})
    assert np.abs(grouped - alone[0]).max() > 0.1
    with pytest.raises(ValueError, match="num_groups='client': must be an integer >= 1, or 'clients'"):
        aggregators.geomed("client")


ONE = {"num_byzantine": 1}


@pytest.mark.thorough
@bounded
@given(cohorts, st.sampled_from([0.125, 0.5, 2.0, 64.0]))
def test_scaling_all_deltas_scales_the_update(G, factor):
    """Bit for bit nearly everywhere: the factors are powers of two."""
    drag = {"c": 0.25, "alpha": 0.25}
    for name, hyper, static in (("fedavg", {}, {}), ("drag", drag, {}), ("median", {}, {}), ("krum", {}, ONE)):
        plain, _ = run(name, G, hyper=hyper, **static)
        scaled, _ = run(name, np.float32(factor) * G, hyper=hyper, **static)
        np.testing.assert_allclose(scaled, factor * plain, rtol=1e-5, atol=1e-5 * factor)


@pytest.mark.thorough
@bounded
@given(cohorts, vectors)
def test_shifting_all_deltas_shifts_what_depends_on_differences_only(G, shift):
    for name, static in (("fedavg", {}), ("median", {}), ("krum", ONE)):
        plain, metrics = run(name, G, **static)
        moved, after = run(name, G + shift, **static)
        np.testing.assert_allclose(moved, plain + shift, rtol=1e-5, atol=1e-5)
        if name == "krum":
            np.testing.assert_array_equal(after["weight"], metrics["weight"])


@bounded
@given(cohorts, vectors)
@pytest.mark.thorough
def test_the_update_is_the_weighted_sum_where_the_weights_are_coefficients(G, root):
    extra, converged = {"root_delta": {"w": root}}, {"max_iterations": 1000}
    for name, static in (("fedavg", {}), ("geometric_median", converged), ("krum", ONE), ("fltrust", {})):
        update, metrics = run(name, G, extra=extra, **static)
        np.testing.assert_allclose(metrics["weight"] @ G, update, rtol=1e-4, atol=1e-4)


@pytest.mark.thorough
@bounded
@given(cohorts, weights)
def test_weighting_by_equal_or_repeated_examples(G, counts):
    equal = {"num_examples": jnp.full(COHORT, 7)}
    np.testing.assert_allclose(
        run("fedavg", G, extra=equal, weighting="examples")[0], run("fedavg", G)[0], rtol=1e-5, atol=1e-6
    )
    update, metrics = run("fedavg", G, extra={"num_examples": counts}, weighting="examples")
    np.testing.assert_allclose(update, np.repeat(G, counts.astype(int), axis=0).mean(axis=0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(metrics["weight"].sum(), 1, rtol=1e-6)


def quadratic(w, batch):
    return jax.tree.map(lambda p: batch.x * (p - batch.y), w)


def step(rule, downlink, w, carry, batch):
    direction, carry = rule.direction(quadratic, w, carry, downlink, batch)
    return jax.tree.map(lambda p, d: p - 0.1 * d, w, direction), carry


@jax.jit
def local_pass(mu, start, target):
    """Three local steps of FedProx and of plain SGD on one quadratic."""
    ends = []
    for rule in (clients.fedprox(mu=mu), clients.sgd()):
        method = algorithms.from_aggregator(aggregators.fedavg(), client=rule)
        params = {"w": start}
        downlink = method.broadcast(params, method.init(params), jnp.arange(1))
        w, carry = downlink.start, rule.begin(downlink)
        for _ in range(3):
            w, carry = step(rule, downlink, w, carry, Batch(jnp.float32(0.5), target))
        ends.append(w["w"])
    return ends


@bounded
@given(vectors, vectors)
def test_fedprox_without_its_term_is_sgd(start, target):
    proximal, plain = local_pass(0.0, start, target)
    np.testing.assert_allclose(proximal, plain, rtol=1e-6, atol=1e-6)


@bounded
@given(vectors, vectors, fractions)
def test_fedprox_stays_nearer_to_its_start(start, target, mu):
    """On ``a/2 ||w - y||^2`` each step shrinks the way left to ``y' = (a y + mu theta) / (a + mu)``."""
    proximal, _ = local_pass(mu, start, target)
    goal = (0.5 * target + mu * start) / (0.5 + mu)
    np.testing.assert_allclose(proximal, goal + (1 - 0.1 * (0.5 + mu)) ** 3 * (start - goal), rtol=1e-4, atol=1e-5)


@jax.jit
def scaffold_without_correction(G, changes):
    zero = {"w": jnp.zeros(SIZE)}
    ids = jnp.arange(COHORT)
    method = algorithms.scaffold(num_clients=8, a=0.0)
    params, state = zero, method.init(zero)
    for _ in range(2):
        params, state = method.aggregate(params, Uplink({"w": G}, {"w": changes}), state, client_ids=ids)
    downlink = method.broadcast(params, state, ids)
    one = downlink._replace(own=jax.tree.map(lambda x: x[2], downlink.own))
    batch = Batch(jnp.float32(0.5), jnp.ones(SIZE))
    direction, _ = method.client.direction(quadratic, params, method.client.begin(one), one, batch)
    return params["w"], direction["w"], quadratic(params, batch)["w"]


@bounded
@given(cohorts, cohorts)
def test_scaffold_without_correction_is_fedavg(G, changes):
    """Whatever its control variates have become."""
    params, direction, gradient = scaffold_without_correction(G, changes)
    np.testing.assert_allclose(params, 2 * G.mean(axis=0), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(direction, gradient)


@pytest.mark.parametrize(
    "rule",
    [
        aggregators.fedavg(),
        aggregators.nnm(aggregators.median(), num_byzantine=1),
        aggregators.robust_lr(2),
        aggregators.fldetector(aggregators.median(), window=1, num_clients=5),
    ],
    ids=["fedavg", "nnm", "robust_lr", "fldetector"],
)
def test_an_array_without_entries_changes_nothing(rule):
    with_empty = {"w": jnp.zeros(3), "none": jnp.zeros((2, 0))}
    deltas = jax.random.normal(jax.random.key(0), (5, 3))
    apply = functools.partial(jax.jit(rule.apply), client_ids=jnp.arange(5), key=jax.random.key(1))
    expected, _ = apply({"w": jnp.zeros(3)}, {"w": deltas}, rule.init({"w": jnp.zeros(3)}))
    moved, state = apply(with_empty, {"w": deltas, "none": jnp.zeros((5, 2, 0))}, rule.init(with_empty))
    np.testing.assert_array_equal(moved["w"], expected["w"])
    assert moved["none"].shape == (2, 0)
    assert all(np.isfinite(value).all() for value in state.metrics.values())


@pytest.mark.parametrize(
    "rule",
    [
        aggregators.root_only(),
        aggregators.crfl(clip=10.0, sigma=0.0),
        aggregators.fedbuff(),
        aggregators.fedasync(alpha=1.0),
        aggregators.robust_lr(0),
        aggregators.fedavg(server_optimizer=server_optimizers.fedavgm()),
        aggregators.fedavg(server_optimizer=server_optimizers.fedadam(0.1)),
    ],
    ids=["root_only", "crfl", "fedbuff", "fedasync", "robust_lr", "fedavgm", "fedadam"],
)
def test_parameters_that_are_plain_floats_are_arrays(rule):
    deltas = jnp.asarray([0.5, 1.5])
    about = {"root_delta": 1.0, "staleness": jnp.zeros(2, jnp.int32), "starts": jnp.full(2, 0.25)}

    def moved(params):
        return rule.apply(params, deltas, rule.init(params), key=jax.random.key(0), **about)[0]

    np.testing.assert_array_equal(moved(0.25), moved(jnp.asarray(0.25)))
