"""Order statistics over clients: median, trimmed mean and majority vote."""

import functools
from fractions import Fraction

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_drag.aggregators._median import median
from fedjax_drag.aggregators._signsgd_majority import signsgd_majority
from fedjax_drag.aggregators._trimmed_mean import _number_cut, trimmed_mean
from fedjax_drag.kernels import order_statistics

SIZES = [1, 2, 3, 10, 16, 17, 33, 41, 100, 300]  # inline networks, a network over a copy, one and more groups
WIDTH = 230  # more than a block of 300 clients
bounded = settings(max_examples=25, deadline=None, derandomize=True)


def split(G):
    """``[..., WIDTH]`` as two leaves."""
    return {"a": G[..., :60].reshape(*G.shape[:-1], 10, 6), "b": G[..., 60:]}


def join(tree):
    return np.concatenate([np.ravel(tree["a"]), np.ravel(tree["b"])])


@jax.jit
def middle(G, valid, trim):
    return order_statistics.middle(split(G), valid, trim)


@functools.cache
def rule(name, **static):
    """``(deltas [S, d], valid, hyperparameters) -> (update, metrics)``."""
    builders = {"median": median, "trimmed_mean": trimmed_mean, "signsgd_majority": signsgd_majority}

    @jax.jit
    def update(G, valid, hyper):
        built = builders[name](**static, **hyper)
        zero = {"w": jnp.zeros(G.shape[1], G.dtype)}
        params, state = built.apply(zero, {"w": G}, built.init(zero), valid=valid)
        return params["w"], state.metrics

    return lambda G, valid=None, **hyper: update(G, np.ones(len(G), bool) if valid is None else valid, hyper)


def keys(values):
    """The floats' order as integers, in NumPy."""
    bits = np.asarray(values).view(np.int32).astype(np.int64)
    return np.where(bits < 0, np.iinfo(np.int32).min - bits - 1, bits)


def cohort(size, seed=0):
    """Normal values; some columns tied, of six orders of magnitude, of zeros of both signs, or nearly zero."""
    rng = np.random.default_rng([size, seed])
    G = rng.normal(size=(size, WIDTH)).astype(np.float32)
    G[:, :40] = np.round(G[:, :40])
    G[:, 40:60] *= (10.0 ** rng.integers(-30, 31, (size, 20))).astype(np.float32)
    G[:, 60:70] = rng.choice(np.float32([-0.0, 0.0, 1.0]), (size, 10))
    G[:, 70:80] = rng.integers(-9, 9, (size, 10)) * np.float32(1e-45)
    return G


def mask(size, seed=0):
    valid = np.random.default_rng([size, seed]).random(size) < 0.8
    valid[0] = True
    return valid


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_order_statistics_to_the_bit_and_their_mean(size, masked):
    G = cohort(size)
    valid = mask(size) if masked else np.ones(size, bool)
    sent = np.where(valid[:, None], G, np.float32(np.nan))
    n = valid.sum()
    ordered = np.sort(keys(G[valid]), axis=0)
    for trim in sorted({0, n // 5, (n - 1) // 2}):
        kept = middle(sent, valid, trim)
        np.testing.assert_array_equal(join(kept.low), ordered[trim])
        np.testing.assert_array_equal(join(kept.high), ordered[n - 1 - trim])
        values = np.sort(G[valid], axis=0)[trim : n - trim].astype(np.float64)
        tiny = 2e-38  # sums take subnormal floats for zero
        tolerance = 1e-6 * np.abs(values).mean(axis=0) + tiny
        assert (np.abs(join(kept.mean) - values.mean(axis=0)) <= tolerance).all()
        assert (join(kept.mean) >= values[0] - tiny).all()
        assert (join(kept.mean) <= values[-1] + tiny).all()
    np.testing.assert_array_equal(join(kept.mean)[:60], np.median(G[valid], axis=0)[:60])


@pytest.mark.slow
@pytest.mark.parametrize("size", [10, 41])
def test_median_is_numpy_s(size):
    G, valid = cohort(size)[:, :60], mask(size)
    update, metrics = rule("median")(np.where(valid[:, None], G, np.float32(np.nan)), valid)
    np.testing.assert_array_equal(update, np.median(G[valid], axis=0))
    np.testing.assert_allclose(metrics["weight"].sum(), 1, rtol=1e-6)
    assert not metrics["weight"][~valid].any()


def partition_mean(G, trim):
    """As scipy's ``trim_mean``."""
    n = len(G)
    return np.partition(G, (trim, n - 1 - trim), axis=0)[trim : n - trim].mean(axis=0, dtype=np.float64)


@pytest.mark.slow
@pytest.mark.parametrize("size", [10, 41])
def test_trimmed_mean_is_numpy_s(size):
    G, valid = cohort(size)[:, 80:140], mask(size)
    sent = np.where(valid[:, None], G, np.float32(np.inf))
    for fraction in (0.0, 0.1, 0.3, 0.45):
        update, metrics = rule("trimmed_mean")(sent, valid, trim_fraction=fraction)
        expected = partition_mean(G[valid], int(Fraction(str(fraction)) * int(valid.sum())))
        np.testing.assert_allclose(update, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(metrics["weight"].sum(), 1, rtol=1e-6)
        assert not metrics["weight"][~valid].any()
        if fraction == 0.0:  # the mean
            np.testing.assert_allclose(metrics["weight"], valid / valid.sum(), rtol=1e-6)


@pytest.mark.thorough
def test_the_number_cut_is_that_of_the_decimal_fraction():
    """0.29 * 100 is 28.999... in float64 and 0.3 * 10 is 3.0000001 in float32; both are meant exactly."""
    numbers = np.arange(1001)
    cut = jax.jit(_number_cut)
    for percent in range(50):
        expected = [percent * n // 100 for n in numbers.tolist()]
        np.testing.assert_array_equal(_number_cut(percent / 100, jnp.asarray(numbers)), expected)
        np.testing.assert_array_equal(cut(percent / 100, numbers), expected)
    assert int(cut(0.4999999, 10)) == 4


@pytest.mark.parametrize("fraction", [0.5, -0.1, float("nan"), "0.1", None])
def test_fractions_out_of_range_are_refused(fraction):
    with pytest.raises(ValueError, match="trim_fraction=") as error:
        trimmed_mean(fraction)
    assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("size", [10, 41])
def test_values_near_the_largest_float_do_not_overflow(size):
    G = np.full((size, 60), 3e38, np.float32)
    G[::2, 1] = -3e38
    found, valid = jax.jit(order_statistics.middle), mask(size)  # the rules' screening rejects deltas as long as these
    median = found({"w": G}, valid, (valid.sum() - 1) // 2).mean["w"]
    np.testing.assert_array_equal(median, np.median(G[valid].astype(np.float64), axis=0).astype(np.float32))
    trimmed = np.asarray(found({"w": G}, np.ones(size, bool), size // 10).mean["w"])
    np.testing.assert_array_equal(np.delete(trimmed, 1), np.delete(G[0], 1))
    assert abs(trimmed[1]) < 3e38


@pytest.mark.slow
@pytest.mark.parametrize("size", [10, 41])
def test_half_precision_is_summed_in_float32(size):
    G = jnp.asarray(cohort(size), jnp.bfloat16)
    wide = np.asarray(G.astype(jnp.float32))
    kept = middle(G, np.ones(size, bool), size // 5)
    assert kept.mean["a"].dtype == jnp.float32
    assert kept.low["a"].dtype == jnp.int16
    np.testing.assert_allclose(
        join(kept.mean)[80:], partition_mean(wide, size // 5)[80:].astype(np.float32), rtol=1e-5, atol=1e-6
    )
    mixed = {"a": split(G)["a"], "b": split(wide)["b"]}
    again = jax.jit(order_statistics.middle)(mixed, np.ones(size, bool), size // 5)
    np.testing.assert_array_equal(again.low["a"], kept.low["a"])
    np.testing.assert_array_equal(join(again.mean), join(kept.mean))


@pytest.mark.slow
@pytest.mark.parametrize("size", [10, 41])
def test_double_precision_is_kept(size):
    with jax.enable_x64(True):
        G = np.random.default_rng(0).normal(size=(size, WIDTH)) * np.logspace(-200, 200, WIDTH)
        kept = middle(G, np.ones(size, bool), size // 5)
        np.testing.assert_allclose(join(kept.mean), partition_mean(G, size // 5), rtol=1e-13, atol=0)


def test_the_network_sorts():
    """Whatever it is given, if it sorts every vector of zeros and ones."""
    for size in range(1, 14):
        rows = list((np.arange(2**size) >> np.arange(size)[:, None]) & 1)
        for a, b in order_statistics.exchange_network(size):
            rows[a], rows[b] = np.minimum(rows[a], rows[b]), np.maximum(rows[a], rows[b])
        assert (np.diff(rows, axis=0) >= 0).all()


def test_the_network_is_computed_once_for_each_result():
    """Not in every operation on what it finds: the mean, the smallest and the largest value that are kept."""
    built, size = median(), 24
    params = {"a": jnp.zeros((5, 3)), "b": jnp.zeros(7), "c": jnp.zeros(2)}
    deltas = jax.tree.map(lambda p: jnp.zeros((size, *p.shape)), params)
    program = jax.jit(built.apply).lower(params, deltas, built.init(params)).compile().as_text()
    exchanges = len(order_statistics.exchange_network(size))
    assert exchanges < program.count(" minimum(") < 4 * exchanges


@functools.cache
def gradient(size):
    """Of a weighted sum of the trimmed means, by the deltas."""

    def total(G, valid, trim, weights):
        return (weights * order_statistics.middle({"w": G}, valid, trim).mean["w"]).sum()

    return jax.jit(total), jax.jit(jax.grad(total))


@pytest.mark.slow
@pytest.mark.parametrize("size", [10, 41])
def test_gradient_is_that_of_finite_differences(size):
    rng = np.random.default_rng(size)
    G, weights, valid = (
        rng.normal(size=(size, 20)).astype(np.float32),
        rng.normal(size=20).astype(np.float32),
        mask(size),
    )
    G[~valid] = np.nan
    total, grad = gradient(size)
    n = valid.sum()
    for trim in (0, n // 4, (n - 1) // 2):
        found = np.asarray(grad(G, valid, trim, weights))
        assert not found[~valid].any()
        order = np.argsort(np.argsort(np.where(valid[:, None], G, np.inf), axis=0), axis=0)
        kept = (order >= trim) & (order <= n - 1 - trim)
        np.testing.assert_allclose(found, kept * weights / (n - 2 * trim), rtol=1e-5, atol=1e-7)
        step = np.zeros_like(G)
        step[np.flatnonzero(valid)[n // 2]] = 1e-4  # smaller than the gaps between neighbours
        slope = (total(G + step, valid, trim, weights) - total(G - step, valid, trim, weights)) / 2e-4
        np.testing.assert_allclose(slope, (found[valid] * step[valid]).sum() / 1e-4, atol=2e-2)


@pytest.mark.slow
@pytest.mark.parametrize("size", [10, 41])
def test_gradient_is_shared_among_ties(size):
    _, grad = gradient(size)
    G = np.tile(np.float32([[1.0] * 10 + [-2.0] * 10]), (size, 1))
    everybody, ones = np.ones(size, bool), np.ones(20, np.float32)
    np.testing.assert_allclose(grad(G, everybody, size // 5, ones), 1 / size, rtol=1e-6)
    G[: size // 2] -= 1  # two values, each kept in part
    found = np.asarray(grad(G, everybody, 2, ones))
    np.testing.assert_allclose(found.sum(axis=0), 1, rtol=1e-5)
    np.testing.assert_allclose(found[0], (size // 2 - 2) / (size // 2) / (size - 4), rtol=1e-5)
    np.testing.assert_allclose(found[-1], (size - size // 2 - 2) / (size - size // 2) / (size - 4), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("size", [10, 41])
def test_sweep_over_the_fraction_and_its_gradient_equal_loops(size):
    G = cohort(size)[:, 80:140]
    fractions = jnp.asarray([0.0, 0.1, 0.25, 0.4])

    def loss(G, fraction):
        built = trimmed_mean(fraction)
        zero = {"w": jnp.zeros(60)}
        params, _ = built.apply(zero, {"w": G}, built.init(zero))
        return jnp.square(params["w"]).sum()

    both = jax.value_and_grad(loss, argnums=(0, 1))
    swept, alone = jax.jit(jax.vmap(both, (None, 0)))(G, fractions), jax.jit(both)
    for index, fraction in enumerate(fractions):
        value, (slope, by_fraction) = alone(G, fraction)
        np.testing.assert_allclose(swept[0][index], value, rtol=1e-6)
        np.testing.assert_allclose(swept[1][0][index], slope, rtol=1e-5, atol=1e-7)
        assert np.isfinite(slope).all()
        assert by_fraction == 0


@pytest.mark.slow
@pytest.mark.parametrize("size", [10, 41])
def test_order_of_clients_changes_no_bit_of_the_order_statistics(size):
    G, order = cohort(size), np.random.default_rng(1).permutation(size)
    everybody = np.ones(size, bool)
    for trim in (size // 5, (size - 1) // 2):
        plain, shuffled = middle(G, everybody, trim), middle(G[order], everybody, trim)
        for a, b in ((plain.low, shuffled.low), (plain.high, shuffled.high)):
            np.testing.assert_array_equal(join(a), join(b))
        if size <= 32 or trim == (size - 1) // 2:  # else the kept are added up in the order of clients
            assert join(plain.mean).tobytes() == join(shuffled.mean).tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("size", [9, 41])
def test_median_of_an_odd_number_follows_an_increasing_map(size):
    G = np.random.default_rng(2).normal(size=(size, 60)).astype(np.float32)
    plain, _ = rule("median")(G)
    bent, _ = rule("median")(np.exp(G))
    np.testing.assert_array_equal(bent, np.exp(np.asarray(plain)))


cohorts = hnp.arrays(np.float32, (5, 4), elements=st.integers(-9, 9).map(lambda k: k * 1e29))


@pytest.mark.thorough
def test_entries_are_counted_in_blocks_and_the_rest():
    G = np.random.default_rng(0).normal(size=(3, 2500)).astype(np.float32)
    for width in (7, 1008, 2500):
        found = order_statistics.count_entries(lambda g, level: g > level, {"w": G[:, :width]}, {"w": jnp.zeros(width)})
        np.testing.assert_array_equal(found, (G[:, :width] > 0).sum(axis=1))
    slope = jax.jit(jax.grad(lambda G: rule("median")(G)[0].sum()))(G)
    np.testing.assert_array_equal(slope, np.median(G, axis=0) == G)


@pytest.mark.thorough
@bounded
@given(cohorts, st.integers(0, 2), st.integers(1, 31))
def test_bounds_permutations_and_absent_clients(G, trim, present):
    valid = (present >> np.arange(5)) & 1 == 1
    n = valid.sum()
    update, _ = rule("trimmed_mean")(G, valid, trim_fraction=0.2 * trim)
    cut = min(int(Fraction(trim, 5) * int(n)), (n - 1) // 2)
    ordered = np.sort(G[valid], axis=0)[cut : n - cut]
    assert (update >= ordered[0]).all()
    assert (update <= ordered[-1]).all()
    order = np.argsort(G[:, 0])
    shuffled, _ = rule("trimmed_mean")(G[order], valid[order], trim_fraction=0.2 * trim)
    np.testing.assert_array_equal(shuffled, update)


@pytest.mark.slow
@pytest.mark.parametrize("size", [4, 34])
def test_clients_split_over_devices(size):
    mesh = Mesh(np.array(jax.devices()[:2]), ("clients",))
    G, valid = cohort(size), mask(size)
    sharded = jax.device_put(G, NamedSharding(mesh, PartitionSpec("clients")))
    for trim in (0, 1):
        one, two = middle(G, valid, trim), middle(sharded, valid, trim)
        for a, b in zip(one, two, strict=True):  # zeros lose their sign on the way between devices
            np.testing.assert_allclose(join(a)[80:], join(b)[80:], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("size", [5, 40])
def test_majority_vote(size):
    G, valid = np.delete(cohort(size), np.s_[70:80], axis=1), mask(size)  # without subnormal values
    G = G.clip(-1e30, 1e30)  # clients with longer messages do not count
    vote = np.sign(np.sign(G[valid]).sum(axis=0))
    update, metrics = rule("signsgd_majority")(np.where(valid[:, None], G, np.float32(np.nan)), valid, step_size=0.25)
    np.testing.assert_array_equal(update, 0.25 * vote)
    np.testing.assert_allclose(metrics["weight"], valid / valid.sum(), rtol=1e-6)
    np.testing.assert_allclose(metrics["agreement"], valid * (np.sign(G) == vote).mean(axis=1), rtol=1e-6)


@pytest.mark.slow
def test_a_minority_cannot_change_a_unanimous_vote():
    honest = np.abs(np.random.default_rng(0).normal(size=(6, 30))).astype(np.float32)
    update, metrics = rule("signsgd_majority")(
        np.concatenate([honest, np.full((5, 30), -1e30, np.float32)]), step_size=0.5
    )
    np.testing.assert_array_equal(update, 0.5)
    np.testing.assert_array_equal(metrics["agreement"], [1] * 6 + [0] * 5)


@pytest.mark.slow
def test_majority_vote_has_no_gradient_but_by_its_step():
    G = np.random.default_rng(0).normal(size=(5, 30)).astype(np.float32)
    loss = lambda G, step: rule("signsgd_majority")(G, step_size=step)[0][:3].sum()
    by_deltas, by_step = jax.grad(loss, argnums=(0, 1))(G, 0.5)
    assert not by_deltas.any()
    np.testing.assert_allclose(by_step, np.sign(np.sign(G).sum(axis=0))[:3].sum())
    with pytest.raises(ValueError, match="step_size=0"):
        signsgd_majority(step_size=0)
