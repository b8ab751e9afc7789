"""The check that users run on compressors of their own: it accepts the package's and names what another breaks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_drag.compression import Compressor, error_feedback, low_rank, qsgd, random_k, sign, top_k
from fedjax_drag.testing import check_compressor

MATRICES = {
    "kernel": np.zeros((9, 7), np.float32),
    "conv": np.zeros((3, 3, 5), np.float32),
    "bias": np.zeros(5, np.float32),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "compressor",
    [sign(), top_k(0.3), random_k(0.3), random_k(0.3, True), qsgd(3), qsgd(3, True), low_rank(1), low_rank(2, False)],
    ids=repr,
)
def test_the_packages_pass(compressor):
    check_compressor(compressor, message=MATRICES)


def halving(received=lambda x: x / 2, num_bytes=lambda message: 8, memory=lambda message: ()):
    return Compressor(memory, lambda message, old, key: (jax.tree.map(received, message), old), num_bytes)


def test_one_of_ones_own_passes():
    check_compressor(error_feedback(halving()))


@pytest.mark.parametrize(
    ("compressor", "message"),
    [
        (halving(lambda x: x[..., None]), "What is decompressed is like the message"),
        (halving(num_bytes=lambda message: 0.5), "num_bytes returns a float"),
        (
            halving(num_bytes=lambda message: int(sum(np.abs(x).sum() for x in jax.tree.leaves(message)))),
            "The bytes are",
        ),
        (halving(lambda x: x / jnp.abs(x).max()), r"finite.*: \['message'\]\['bias'\] is not"),
        (halving(lambda x: x * np.random.default_rng().normal()), "random ones must come from key"),
        (error_feedback(halving(lambda x: -x)), "the mean squared error is 4 times the squared length"),
    ],
)
def test_each_broken_promise_is_named(compressor, message):
    with pytest.raises(AssertionError, match=message):
        check_compressor(compressor)
