"""Clients sharded over devices: the same numbers, to rounding."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import fedjax_drag as fd
from fedjax_drag.simulation.mesh import resolve_mesh

ALGORITHMS = {
    "drag": fd.algorithms.from_aggregator(fd.aggregators.drag()),
    "median": fd.algorithms.from_aggregator(fd.aggregators.median()),
    "br_drag": fd.algorithms.from_aggregator(fd.aggregators.br_drag()),
    "scaffold-krum": fd.algorithms.scaffold(12, aggregator=fd.aggregators.krum(num_byzantine=1)),
}


OFTEN = ("drag",)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in OFTEN else pytest.mark.slow) for n in ALGORITHMS])
def test_two_devices_give_the_numbers_of_one(settings, name):
    attacked = settings(cohort_size=6, attack=fd.attacks.scale_noise(), byzantine_fraction=0.3)
    one = fd.simulate(ALGORITHMS[name], **attacked)
    two = fd.simulate(ALGORITHMS[name], mesh="cores", **attacked)
    for a, b in zip(jax.tree.leaves(one.state), jax.tree.leaves(two.state), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(one.history["test_accuracy"], two.history["test_accuracy"])
    assert all(len(leaf.sharding.device_set) == 2 for leaf in jax.tree.leaves(two.params))


def test_continued_on_two_devices_equals_uninterrupted(settings):
    on_two = settings(cohort_size=6, mesh="cores")
    half = fd.simulate(ALGORITHMS["drag"], **on_two | {"num_rounds": 3})
    resumed = fd.simulate(ALGORITHMS["drag"], initial=half.state, **on_two)
    whole = fd.simulate(ALGORITHMS["drag"], **on_two)
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, resumed.state, whole.state)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cohort_size": 5, "mesh": "cores"}, "cohort_size=5: must be a multiple of the 2 devices"),
        ({"mesh": "core"}, "mesh='core': must be one of auto, cores"),
        ({"mesh": Mesh(np.array(jax.devices()).reshape(1, 2), ("a", "b"))}, "must have one axis"),
    ],
)
def test_a_mesh_that_does_not_fit(settings, changes, message):
    with pytest.raises(ValueError, match=message):
        fd.simulation.prepare(ALGORITHMS["drag"], **settings(**changes))


def test_auto_takes_the_cores_where_they_divide_the_cohort():
    assert resolve_mesh("auto", 6) == resolve_mesh("cores", 6)
    assert resolve_mesh("auto", 5) is None
