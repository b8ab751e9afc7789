import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fedjax_drag.selection._uniform import draw_uniformly

SIZES = [(16, 2), (12, 3)]
"""Clients and cohort: drawn one by one, and by a permutation."""


def draws(num_clients: int, cohort_size: int, number: int, eligible: jax.Array | None = None) -> np.ndarray:
    keys = jax.random.split(jax.random.key(3), number)
    return np.asarray(jax.jit(jax.vmap(lambda key: draw_uniformly(key, num_clients, cohort_size, eligible)))(keys))


@pytest.mark.sample(1)
@pytest.mark.parametrize(("num_clients", "cohort_size"), SIZES)
def test_all_cohorts_are_equally_likely(num_clients, cohort_size):
    found = draws(num_clients, cohort_size, 40_000)
    assert (np.diff(found, axis=1) > 0).all()
    assert found.min() == 0
    assert found.max() == num_clients - 1
    counts = np.unique(found, axis=0, return_counts=True)[1]
    assert len(counts) == math.comb(num_clients, cohort_size)
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.sample(1)
@pytest.mark.parametrize(("num_clients", "cohort_size"), SIZES)
def test_a_mask_of_all_clients_changes_nothing(num_clients, cohort_size):
    everybody = jnp.ones(num_clients, bool)
    plain = draws(num_clients, cohort_size, 500)
    np.testing.assert_array_equal(draws(num_clients, cohort_size, 500, everybody), plain)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("num_clients", "cohort_size"), SIZES)
@pytest.mark.parametrize("number_eligible", [1, 2, 6])
def test_ineligible_clients_fill_up_only_missing_places(num_clients, cohort_size, number_eligible):
    eligible = jnp.arange(num_clients) % 2 == 1
    eligible &= jnp.cumsum(eligible) <= number_eligible
    found = draws(num_clients, cohort_size, 500, eligible)
    assert (np.diff(found, axis=1) > 0).all()
    assert (np.asarray(eligible)[found].sum(axis=1) == min(cohort_size, number_eligible)).all()


def test_full_participation_ignores_the_mask():
    np.testing.assert_array_equal(draw_uniformly(jax.random.key(0), 5, 5, jnp.zeros(5, bool)), np.arange(5))
