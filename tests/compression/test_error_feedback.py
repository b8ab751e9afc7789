"""Error feedback on quadratics of several clients: it reaches their common optimum, where compression alone stalls."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_drag.compression import low_rank, qsgd, random_k, sign, top_k

CLIENTS, ROWS, COLUMNS, ROUNDS = 6, 6, 5, 3000

CURVATURE = jnp.asarray(np.random.default_rng(0).uniform(0.2, 1.0, (CLIENTS, ROWS, COLUMNS)), jnp.float32)
MINIMA = jnp.asarray(np.random.default_rng(1).normal(size=(CLIENTS, ROWS, COLUMNS)), jnp.float32)
OPTIMUM = (CURVATURE * MINIMA).sum(0) / CURVATURE.sum(0)


@functools.partial(jax.jit, static_argnums=0)
def distances(compressor):
    """Distance to the optimum after each round of gradient descent with compressed gradients; the steps fall."""

    def one_round(carry, t):
        w, memory = carry
        step = 0.5 / (1 + 0.02 * t)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.fold_in(jax.random.key(0), t), jnp.arange(CLIENTS))
        deltas = [-step * CURVATURE * (w - MINIMA)]
        received, memory = jax.vmap(compressor.compress)(deltas, memory, keys)
        w = w + received[0].mean(0)
        return (w, memory), jnp.linalg.norm(w - OPTIMUM)

    row = compressor.init([OPTIMUM])
    memory = jax.tree.map(lambda x: jnp.broadcast_to(x, (CLIENTS, *x.shape)), row)
    return jax.lax.scan(one_round, (jnp.zeros_like(OPTIMUM), memory), jnp.arange(ROUNDS))[1]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "build",
    [functools.partial(top_k, 1 / 30), functools.partial(top_k, 0.2), sign, functools.partial(low_rank, 1)],
    ids=["top_1", "top_6", "sign", "low_rank"],
)
def test_it_reaches_the_optimum_where_the_same_without_it_stalls(build):
    stalled = np.asarray(distances(build(error_feedback=False)))
    reached = np.asarray(distances(build(error_feedback=True)))
    start = float(jnp.linalg.norm(OPTIMUM))
    assert reached[-1] < 0.03 * start
    assert stalled[-1] > 0.1 * start
    assert stalled[-1] > 0.5 * stalled[ROUNDS // 2], "more rounds do not help"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "compressor",
    [random_k(0.2), random_k(0.2, error_feedback=True), qsgd(3), qsgd(2, error_feedback=True)],
    ids=["random_k", "random_k fed back", "qsgd", "qsgd fed back"],
)
def test_unbiased_ones_and_their_contractions_reach_it(compressor):
    reached = np.asarray(distances(compressor))
    assert reached[-200:].mean() < 0.1 * float(jnp.linalg.norm(OPTIMUM))
