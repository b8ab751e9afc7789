"""Each compressor against its paper: the bytes that are sent, what is read from them, and the bounds of the error."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from reference import numpy_compressors as twin

from fedjax_drag import checks
from fedjax_drag.compression import Compressor, error_feedback, low_rank, qsgd, random_k, sign, top_k
from fedjax_drag.compression._selection import largest, num_kept
from fedjax_drag.ops.largest import magnitude

SHAPES = {"bias": (7,), "conv": (3, 2, 4), "dense": (9, 6)}
SIZE = 7 + 24 + 54

CONTRACTIONS = {
    "top_k": top_k(0.2),
    "random_k": random_k(0.2, error_feedback=True),
    "qsgd": qsgd(3, error_feedback=True),
    "sign": sign(),
    "low_rank": low_rank(2),
}
ALL = CONTRACTIONS | {"random_k unbiased": random_k(0.2), "qsgd unbiased": qsgd(3), "top_k whole": top_k(1.0)}
each = pytest.mark.parametrize("compressor", [pytest.param(c, id=name) for name, c in ALL.items()])
each_contraction = pytest.mark.parametrize("compressor", [pytest.param(c, id=n) for n, c in CONTRACTIONS.items()])


def message(seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    return {name: jnp.asarray(scale * rng.normal(size=shape), jnp.float32) for name, shape in SHAPES.items()}


@functools.cache
def compiled(compressor):
    return jax.jit(compressor.compress)


def once(compressor, x, key=0):
    """What is received of a single message."""
    inner = compressor.contraction or compressor
    return compiled(inner)(x, inner.init(x), jax.random.key(key))[0]


def squares(x):
    return sum(float(np.square(np.float64(leaf)).sum()) for leaf in jax.tree.leaves(x))


def error(received, x):
    return squares(jax.tree.map(lambda a, b: np.float64(a) - np.float64(b), received, x))


def lots(key_data, size):
    return np.asarray(jax.random.bits(jax.random.wrap_key_data(jnp.asarray(key_data)), (size,), jnp.uint32)) >> 1


class TestBytes:
    """What is sent, as bytes made by hand: their number, and that the receiver can read the message from them."""

    def check(self, compressor, sent, read, rtol=0.0):
        x = message()
        assert len(sent) == compressor.num_bytes(x)
        assert compressor.num_bytes(jax.eval_shape(lambda: x)) == len(sent)
        for got, expected in zip(jax.tree.leaves(once(compressor, x)), read, strict=True):
            np.testing.assert_allclose(got, expected, rtol=rtol, atol=rtol)

    @pytest.mark.parametrize("fraction", [0.001, 0.2, 0.49, 0.5, 1.0])
    def test_top_k(self, fraction):
        leaves = list(message().values())
        sent = twin.top_k(leaves, fraction)
        self.check(top_k(fraction), sent, twin.read_top_k(sent, leaves))

    @pytest.mark.sample(2)
    @pytest.mark.parametrize("feedback", [False, True])
    @pytest.mark.parametrize("fraction", [0.001, 0.2, 1.0])
    def test_random_k(self, fraction, feedback):
        leaves = list(message().values())
        sent = twin.random_k(leaves, fraction, np.asarray(jax.random.key_data(jax.random.key(0))), lots)
        read = twin.read_random_k(sent, leaves, lots, scaled=not feedback)
        self.check(random_k(fraction, feedback), sent, read, rtol=1e-6)

    @pytest.mark.sample(2)
    @pytest.mark.parametrize("feedback", [False, True])
    @pytest.mark.parametrize("bits", [2, 5, 16])
    def test_qsgd(self, bits, feedback):
        leaves, key = list(message().values()), jax.random.key(0)
        uniform = [np.asarray(jax.random.uniform(jax.random.fold_in(key, i), x.shape)) for i, x in enumerate(leaves)]
        sent = twin.qsgd(leaves, bits, uniform)
        read = twin.read_qsgd(sent, leaves, bits)
        if feedback:
            read = [x / twin.qsgd_shrinkage(x.size, bits) for x in read]
        self.check(qsgd(bits, feedback), sent, read, rtol=1e-6)

    def test_sign(self):
        leaves = list(message().values())
        sent = twin.sign(leaves)
        self.check(sign(), sent, twin.read_sign(sent, leaves), rtol=1e-6)

    @pytest.mark.sample(1)
    @pytest.mark.parametrize("rank", [1, 2, 3, 6])
    def test_low_rank(self, rank):
        x = message()
        first = [np.asarray(q) for q in low_rank(rank).init(x).inner]
        sent, _ = twin.low_rank([np.asarray(leaf) for leaf in x.values()], first, rank)
        self.check(low_rank(rank), sent, twin.read_low_rank(sent, list(x.values()), rank), rtol=1e-5)

    def test_numbers_of_a_hand(self):
        x = {"a": jnp.zeros((100, 10)), "b": jnp.zeros(3)}
        assert top_k(0.01).num_bytes(x) == 10 * (4 + 4)
        assert random_k(0.01).num_bytes(x) == 8 + 10 * 4
        assert qsgd(4).num_bytes(x) == (4 + 500) + (4 + 2)
        assert sign().num_bytes(x) == (4 + 125) + (4 + 1)
        assert low_rank(2).num_bytes(x) == 2 * 110 * 4 + 3 * 4
        assert top_k(1.0).num_bytes(x) == random_k(1.0).num_bytes(x) == low_rank(10).num_bytes(x) == 1003 * 4


class TestSecondMessages:
    def test_the_power_iteration_goes_on_where_it_was(self):
        compressor = low_rank(2, error_feedback=False)
        x, memory = message(), compressor.init(message())
        factors = [np.asarray(q) for q in memory]
        for seed in range(3):
            x = message(seed)
            leaves = [np.asarray(leaf) for leaf in x.values()]
            sent, factors = twin.low_rank(leaves, factors, 2)
            received, memory = compiled(compressor)(x, memory, jax.random.key(0))
            for got, expected in zip(received.values(), twin.read_low_rank(sent, leaves, 2), strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)

    def test_it_finds_the_best_approximation_of_a_message_that_stays(self):
        compressor, x = low_rank(2, error_feedback=False), message()
        memory = compressor.init(x)
        for _ in range(60):
            received, memory = compiled(compressor)(x, memory, jax.random.key(0))
        u, s, vt = np.linalg.svd(np.float64(x["dense"]))
        np.testing.assert_allclose(received["dense"], (u[:, :2] * s[:2]) @ vt[:2], atol=1e-3)

    def test_a_message_of_zeros_does_not_stop_the_power_iteration(self):
        """The kernel of a dense layer has rows of zeros where inputs are always 0; the first broadcast is zero."""
        compressor = low_rank(2, error_feedback=False)
        rows = jnp.arange(12)[:, None] >= 3
        x = {"dense": jnp.where(rows, jax.random.normal(jax.random.key(0), (12, 8)), 0.0)}
        memory = compressor.init(x)
        expected, _ = compiled(compressor)(x, memory, jax.random.key(0))
        _, memory = compiled(compressor)(jax.tree.map(jnp.zeros_like, x), memory, jax.random.key(0))
        received, _ = compiled(compressor)(x, memory, jax.random.key(1))
        np.testing.assert_array_equal(received["dense"], expected["dense"])
        assert jnp.linalg.norm(received["dense"]) > 0

    @each_contraction
    def test_what_was_received_and_the_error_are_what_was_to_be_sent(self, compressor):
        memory, to_send, got = compressor.init(message()), 0.0, 0.0
        for step in range(6):
            x = message(step, scale=10.0**-step)
            received, memory = compiled(compressor)(x, memory, jax.random.key(step))
            to_send = jax.tree.map(lambda a, b: np.float64(b) + a, to_send or jax.tree.map(np.zeros_like, x), x)
            got = jax.tree.map(lambda a, b: np.float64(b) + a, got or jax.tree.map(np.zeros_like, x), received)
        for name in SHAPES:
            np.testing.assert_allclose(got[name] + memory.error[name], to_send[name], atol=1e-5)

    @pytest.mark.sample(1)
    @each_contraction
    def test_the_error_stays_bounded(self, compressor):
        memory, longest = compressor.init(message()), 0.0
        for step in range(200):
            _, memory = compiled(compressor)(message(step), memory, jax.random.key(step))
            longest = max(longest, squares(memory.error))
        assert longest < 4 * SIZE * squares(message())  # 2 / delta times the messages' length at most


def errors(compressor, number=8192):
    """Of many draws for one message: what is received less what was sent, ``[number, *p]``."""
    keys = jax.random.split(jax.random.key(1), number)
    received = jax.jit(jax.vmap(lambda key: compressor.compress(message(), (), key)[0]))(keys)
    return {name: np.float64(received[name]) - np.float64(leaf) for name, leaf in message().items()}


def assert_unbiased(samples):
    for name, leaf in samples.items():
        assert (np.abs(leaf.mean(0)) < 5 * (leaf.std(0) + 1e-6) / np.sqrt(len(leaf))).all(), name


def variance(samples):
    return sum(np.square(leaf).reshape(len(leaf), -1).sum(1) for leaf in samples.values()).mean()


@pytest.mark.sample(1)
@pytest.mark.parametrize(("fraction", "k"), [(0.2, 17), (0.012, 1)])
def test_random_k_is_unbiased_with_the_variance_of_the_paper(fraction, k):
    samples = errors(random_k(fraction))
    assert_unbiased(samples)
    assert variance(samples) == pytest.approx((SIZE / k - 1) * squares(message()), rel=0.05)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("bits", "s"), [(2, 1), (4, 7)])
def test_qsgd_is_unbiased_within_the_variance_of_the_paper(bits, s):
    samples = errors(qsgd(bits))
    assert_unbiased(samples)
    for name, leaf in message().items():
        omega = min(leaf.size / s**2, np.sqrt(leaf.size) / s)
        assert 0 < variance({name: samples[name]}) <= 1.02 * omega * squares(leaf)


FLOATS = st.floats(-1e6, 1e6, width=32)


@settings(max_examples=40, deadline=None)
@given(arrays.arrays(np.float32, SIZE, elements=FLOATS))
def test_contractions(x):
    """Of any message, with the constants of the papers; of random ones the mean over draws."""
    x = dict(zip(SHAPES, map(jnp.asarray, twin.like([np.empty(s) for s in SHAPES.values()], x)), strict=True))
    length, slack = squares(x), 1e-5 * squares(x) + 1e-30
    assert error(once(CONTRACTIONS["top_k"], x), x) <= (1 - 17 / SIZE) * length + slack
    assert error(once(CONTRACTIONS["random_k"], x), x) <= length + slack
    for name, leaf in once(CONTRACTIONS["sign"], x).items():
        own = {name: x[name]}
        kept = np.abs(np.float64(x[name])).sum() ** 2 / x[name].size
        assert error({name: leaf}, own) == pytest.approx(squares(own) - kept, abs=1e-5 * squares(own) + 1e-30)
    assert error(once(CONTRACTIONS["low_rank"], x), x) <= length + slack


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["random_k", "qsgd"])
def test_contraction_on_the_average(name):
    x, number = message(3), 2048
    inner = CONTRACTIONS[name].contraction
    received = jax.jit(jax.vmap(lambda key: inner.compress(x, (), key)[0]))(jax.random.split(jax.random.key(1), number))
    for key in x if name == "qsgd" else [None]:
        parts = [key] if key else list(x)
        mean = sum(np.square(np.float64(received[n]) - x[n]).reshape(number, -1).sum(1) for n in parts).mean()
        delta = 17 / SIZE if key is None else 1 / twin.qsgd_shrinkage(x[key].size, 3)
        assert mean <= 1.02 * (1 - delta) * squares({n: x[n] for n in parts})


class TestLargest:
    @settings(max_examples=60, deadline=None)
    @given(arrays.arrays(np.float32, 33, elements=st.sampled_from([0.0, -0.0, 1.0, -1.0, 3e38, 1e-45, 2.0])))
    def test_of_equal_ones_the_first(self, x):
        ranks = magnitude(jnp.asarray(x), jnp.dtype("int32"))
        for number in (1, 2, 16, 32, 33):
            expected = np.zeros(33, bool)
            expected[np.argsort(-np.abs(x), kind="stable")[:number]] = True
            np.testing.assert_array_equal(jax.jit(largest)(ranks, number), expected)

    @pytest.mark.thorough
    def test_nan_is_sent(self):
        x = message()
        x["dense"] = x["dense"].at[2, 3].set(jnp.nan)
        assert all(np.isnan(once(c, x)["dense"]).any() for c in ALL.values() if c.name != "random_k")

    @pytest.mark.sample(3)
    @pytest.mark.parametrize("size", [1, 2, 1000, 101_770, 11_173_962])
    @pytest.mark.parametrize("fraction", [1e-9, 0.001, 0.01, 0.1, 1 / 3, 0.9999999, 1.0])
    def test_a_traced_fraction_gives_the_same_number(self, fraction, size):
        plain = num_kept(fraction, size)
        assert checks.is_concrete(plain)
        assert int(jax.jit(lambda f: num_kept(f, size))(jnp.float32(fraction))) == plain
        assert 1 <= plain <= size

    def test_all_of_more_than_a_float32_counts(self):
        size = 2**24 + 1
        assert num_kept(1.0, size) == num_kept(1, size) == jax.jit(lambda f: num_kept(f, size))(1.0) == size


class TestIdentities:
    @pytest.mark.parametrize("compressor", [top_k(1.0), random_k(1.0), low_rank(6)], ids=lambda c: c.name)
    def test_everything_is_sent(self, compressor):
        x = message()
        for got, expected in zip(jax.tree.leaves(once(compressor, x)), jax.tree.leaves(x), strict=True):
            np.testing.assert_array_equal(got, expected)

    @pytest.mark.parametrize("bits", [2, 8, 14, 15, 16])
    def test_the_length_is_a_level(self, bits):
        x = {"w": jnp.array([0.0, -4.0, 0.0])}
        np.testing.assert_array_equal(once(qsgd(bits), x)["w"], x["w"])

    @each
    @pytest.mark.parametrize("scale", [1e-20, 1e20])
    def test_equivariant_to_scale(self, compressor, scale):
        plain, scaled = once(compressor, message()), once(compressor, message(scale=scale))
        for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(scaled), strict=True):
            np.testing.assert_allclose(np.float64(b) / scale, a, rtol=1e-4, atol=1e-4)

    @each
    def test_zero_stays_zero(self, compressor):
        assert squares(once(compressor, message(scale=0.0))) == 0.0

    @each
    def test_forms_stay(self, compressor):
        for dtype in (jnp.float32, jnp.bfloat16):
            x = jax.tree.map(lambda leaf, dtype=dtype: leaf.astype(dtype), message())
            memory = compressor.init(x)
            received, after = jax.eval_shape(compressor.compress, x, memory, jax.random.key(0))
            assert jax.tree.map(lambda y: (y.shape, y.dtype), received) == jax.tree.map(lambda y: (y.shape, y.dtype), x)
            assert jax.tree.map(lambda y: (y.shape, y.dtype), after) == jax.tree.map(
                lambda y: (y.shape, y.dtype), memory
            )

    @pytest.mark.sample(2)
    @pytest.mark.parametrize("build", [top_k, random_k, qsgd], ids=lambda b: b.__name__)
    @pytest.mark.parametrize("feedback", [False, True])
    def test_traced_numbers(self, build, feedback):
        values = [2, 5] if build is qsgd else [0.02, 0.5]
        x, key = message(), jax.random.key(0)

        def received(value):
            inner = build(value, feedback)
            return inner.compress(x, inner.init(x), key)[0]

        together = jax.jit(jax.vmap(received))(jnp.asarray(values, jnp.float32))
        for place, value in enumerate(values):
            for a, b in zip(
                jax.tree.leaves(together), jax.tree.leaves(jax.jit(received, static_argnums=0)(value)), strict=True
            ):
                np.testing.assert_allclose(a[place], b, rtol=1e-6)


def test_names():
    assert [c.name for c in CONTRACTIONS.values()] == list(CONTRACTIONS)
    assert repr(error_feedback(qsgd(4))) == "error_feedback(compressor=qsgd(bits=4, error_feedback=False))"
    assert isinstance(top_k(0.1).contraction, Compressor)
    assert random_k(0.1).contraction is None


@pytest.mark.parametrize(
    ("build", "value", "name"),
    [
        (top_k, 0.0, "fraction=0.0: must be in (0, 1]"),
        (top_k, 1.5, "fraction=1.5: must be in (0, 1]"),
        (random_k, float("nan"), "fraction=nan: must be in (0, 1]"),
        (qsgd, 1, "bits=1: must be an integer in [2, 16]"),
        (qsgd, 2.5, "bits=2.5: must be an integer in [2, 16]"),
        (qsgd, "8", "bits='8': must be an integer in [2, 16]"),
        (qsgd, True, "bits=True: must be an integer in [2, 16]"),
        (
            error_feedback,
            sign,
            "compressor=class sign: must be a compressor, such as fd.compression.top_k(0.01); "
            "call it, fd.compression.sign(...)",
        ),
        (low_rank, 0, "rank=0: must be an integer >= 1"),
    ],
)
def test_wrong_arguments(build, value, name):
    with pytest.raises(ValueError) as caught:
        build(value)
    assert str(caught.value) == name
