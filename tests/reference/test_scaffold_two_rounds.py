"""SCAFFOLD worked by hand, its control variates and its aggregator; its twin is in ``test_numpy_federation.py``.

The local loop is written here, so that only the functions of ``Algorithm`` are under test.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_drag.aggregators import median
from fedjax_drag.algorithms import scaffold
from fedjax_drag.types import Batch, Uplink


def gradient(w, batch):
    """Of ``(w - b)' A (w - b) / 2``, with ``A`` in ``batch.x`` and ``b`` in ``batch.y``."""
    return {"w": batch.x @ (w["w"] - batch.y)}


def client_pass(method, downlink, batch, step_size, local_steps):
    """One client: its delta and message."""
    w, carry = downlink.start, method.client.begin(downlink)
    for _ in range(local_steps):
        direction, carry = method.client.direction(gradient, w, carry, downlink, batch)
        w = jax.tree.map(lambda p, d: p - step_size * d, w, direction)
    aux = method.client.report(downlink, w, carry, jnp.float32(step_size * local_steps))
    return Uplink(jax.tree.map(jnp.subtract, w, downlink.start), aux)


@functools.partial(jax.jit, static_argnums=(0, 5))
def cohort_pass(method, params, state, cohort, data, local_steps, step_size):
    """The uplink of a cohort; ``data`` has a row for each client of the federation."""
    downlink = method.broadcast(params, state, cohort)
    axes = downlink._replace(start=None, shared=None, own=0)

    def one(downlink, batch):
        return client_pass(method, downlink, batch, step_size, local_steps)

    return jax.vmap(one, in_axes=(axes, 0))(downlink, jax.tree.map(lambda x: x[cohort], data))


@functools.partial(jax.jit, static_argnums=0)
def aggregate(method, params, uplink, state, **extra):
    return method.aggregate(params, uplink, state, **extra)


def test_two_rounds_by_hand():
    r"""Three clients with losses ``(w - b_m)^2 / 2``, b = (1, -1, 3), eta = 1/2, U = 2, a = 1, eta_g = 1.

    Round 0: theta = 0, cohort (0, 1), all control variates 0. A step is w <- w - (w - b)/2 = (w + b)/2.
      client 0: 0 -> 1/2 -> 3/4;          g = 3/4;    c_0' = 0 - 0 - (3/4)/(2 * 1/2) = -3/4
      client 1: 0 -> -1/2 -> -3/4;        g = -3/4;   c_1' = 3/4
      theta = 0 + (3/4 - 3/4)/2 = 0
      c = 0 + (2/3) * mean(-3/4, 3/4) = 0
    To see c move, round 1 has cohort (2, 0): theta = 0, c = 0.
      client 2 (c_2 = 0): 0 -> 3/2 -> 9/4;   g = 9/4;    c_2' = 0 - 0 - 9/4 = -9/4, change -9/4
      client 0: step w <- w - ((w - 1) + c - c_0)/2 = w - (w - 1 + 3/4)/2 = (w + 1/4)/2
                0 -> 1/8 -> 3/16;            g = 3/16;   c_0' = -3/4 - 0 - 3/16 = -15/16, change -3/16
      theta = (9/4 + 3/16)/2 = 39/32
      c = 0 + (2/3) * (-9/4 - 3/16)/2 = -13/16
    Round 2 (to see c used): cohort (1, 0), theta = 39/32, c = -13/16, c_1 = 3/4, c_0 = -15/16.
      client 1: w - ((w + 1) - 13/16 - 3/4)/2 = (w + 9/16)/2
                39/32 -> 57/64 -> 93/128;    g = 93/128 - 156/128 = -63/128
                c_1' = 3/4 + 13/16 + 63/128 = 263/128
      client 0: w - ((w - 1) - 13/16 + 15/16)/2 = (w + 7/8)/2
                39/32 -> 67/64 -> 123/128;   g = -33/128
                c_0' = -15/16 + 13/16 + 33/128 = 17/128
      theta = 39/32 - (63 + 33)/256 = 27/32
      c = -13/16 + (1/3) * ((263/128 - 3/4) + (17/128 + 15/16)) = -13/16 + (1/3) * 304/128 = -1/48
    """
    data = Batch(jnp.ones((3, 1, 1)), jnp.array([[1.0], [-1.0], [3.0]]))
    method = scaffold(num_clients=3)
    params = {"w": jnp.zeros(1)}
    state = method.init(params)
    expected = [
        ((0, 1), 0, 0, (-3 / 4, 3 / 4, 0)),
        ((2, 0), 39 / 32, -13 / 16, (-15 / 16, 3 / 4, -9 / 4)),
        ((1, 0), 27 / 32, -1 / 48, (17 / 128, 263 / 128, -9 / 4)),
    ]
    for cohort, theta, server, own in expected:
        ids = jnp.array(cohort)
        uplink = cohort_pass(method, params, state, ids, data, 2, 0.5)
        params, state = aggregate(method, params, uplink, state, client_ids=ids)
        np.testing.assert_allclose(params["w"], [theta], rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(state.control["w"], [server], rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(state.client_controls.rows["w"][:, 0], own, rtol=1e-6, atol=1e-7)


M, SIZE = 6, 3


class Quadratics:
    """Random positive definite quadratics, one for each client."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        roots = rng.normal(size=(M, SIZE, SIZE)).astype(np.float32)
        self.A = np.einsum("mij,mkj->mik", roots, roots) / SIZE + 0.2 * np.eye(SIZE, dtype=np.float32)
        self.b = rng.normal(size=(M, SIZE)).astype(np.float32)
        self.batches = Batch(jnp.asarray(self.A), jnp.asarray(self.b))

    def gradient(self, m, w):
        return self.A[m].astype(np.float64) @ (w - self.b[m])


@pytest.mark.thorough
@pytest.mark.parametrize("variate", ["first", "average"])
def test_with_one_step_every_variate_is_the_gradient_at_its_start(variate):
    """Else the mean gradient of the steps is another; the server's variate is the mean of the clients' all the same."""
    problem, params, ids = Quadratics(3), {"w": jnp.ones(SIZE)}, jnp.array([4, 1, 2])
    method, steps = scaffold(num_clients=M, variate=variate), scaffold(num_clients=M)
    state, usual = method.init(params), steps.init(params)
    for local_steps in (1, 1, 3):
        uplink = cohort_pass(method, params, state, ids, problem.batches, local_steps, 0.1)
        expected = cohort_pass(steps, params, usual, ids, problem.batches, local_steps, 0.1)
        np.testing.assert_allclose(uplink.delta["w"], expected.delta["w"], rtol=1e-5, atol=1e-6)
        difference = np.abs(uplink.aux["w"] - expected.aux["w"]).max()
        assert difference < 1e-5 if local_steps == 1 else difference > 0.1
        before, (params, state) = params, aggregate(method, params, uplink, state, client_ids=ids)
        _, usual = aggregate(steps, before, expected, usual, client_ids=ids)
        gradients = np.stack([problem.gradient(m, before["w"]) for m in np.asarray(ids)])
        own = state.client_controls.rows["w"]
        np.testing.assert_allclose(own[ids], gradients, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(state.control["w"], own.mean(0), rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_the_aggregator_takes_the_place_of_the_mean_of_deltas_only():
    problem = Quadratics(2)
    params = {"w": jnp.zeros(SIZE)}
    ids = jnp.arange(5)
    plain, robust = scaffold(num_clients=M), scaffold(num_clients=M, aggregator=median(), server_step_size=0.5)
    uplink = cohort_pass(plain, params, plain.init(params), ids, problem.batches, 3, 0.1)
    _, expected = aggregate(plain, params, uplink, plain.init(params), client_ids=ids)
    after, state = aggregate(robust, params, uplink, robust.init(params), client_ids=ids)
    np.testing.assert_allclose(after["w"], 0.5 * np.median(uplink.delta["w"], axis=0), rtol=1e-6)
    np.testing.assert_allclose(state.control["w"], expected.control["w"], rtol=1e-6)


@pytest.mark.thorough
def test_client_ids_are_needed():
    method = scaffold(num_clients=M)
    params = {"w": jnp.zeros(SIZE)}
    ones = {"w": jnp.ones((2, SIZE))}
    with pytest.raises(TypeError, match="client_ids"):
        method.aggregate(params, Uplink(ones, ones), method.init(params))
