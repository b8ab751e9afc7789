"""Newton's method for the geometric median of places: its steps, and places whose median is not one point."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_drag.aggregators import geometric_median
from fedjax_drag.kernels.newton import median_of_places

COHORT, SIZE, NU = 10, 50, 1e-6
MASS = jnp.full(COHORT, 1 / COHORT)

median = jax.jit(median_of_places)


def objective(places, point):
    return np.linalg.norm(np.asarray(places, float) - np.asarray(point, float), axis=1).sum()


def scaled_by_noise(seed, num_malicious=6):
    """Places like those of clients of whom some scale their message by N(0, 3), in their span."""
    rng = np.random.default_rng(seed)
    messages = 3 * rng.normal(size=SIZE) + rng.normal(size=(COHORT, SIZE))
    messages[:num_malicious] *= np.sqrt(3) * rng.normal(size=(num_malicious, 1))
    away = messages - messages.mean(0)
    return np.linalg.qr(away.T)[1].T / np.median(np.linalg.norm(away, axis=1))


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", [0, 3, 5, 7])
def test_steps_end_at_the_rounding_error(seed):
    """Without an end there, the steps are halved and halved again: 60 of them with 500 halvings."""
    places = scaled_by_noise(seed)
    point, steps = median(jnp.float32(places), MASS, NU)
    with jax.enable_x64():
        exact, _ = median_of_places(jnp.float64(places), jnp.full(COHORT, 1 / COHORT, jnp.float64), NU)
    assert steps <= 12
    np.testing.assert_allclose(point, exact, atol=2e-6)


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", [100, 242, 274, 300])
def test_deltas_on_a_line(seed):
    """An even number of them has a median anywhere between the two in the middle: the equations are singular."""
    rng = np.random.default_rng(seed)
    places = rng.normal(size=(COHORT, 1))
    direction = rng.normal(size=(1, SIZE))
    deltas = np.float32(places * direction)
    rule, params = geometric_median(), {"w": jnp.zeros(SIZE)}
    moved, _ = jax.jit(rule.apply)(params, {"w": jnp.asarray(deltas)}, rule.init(params))
    least = np.abs(places - np.median(places)).sum() * np.linalg.norm(direction)
    np.testing.assert_allclose(objective(deltas, moved["w"]), least, rtol=1e-6)
