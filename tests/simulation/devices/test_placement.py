"""Clients sharded over devices: the same results, to rounding."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import fedjax_drag as fd
from fedjax_drag.simulation.devices.placement import resolve_mesh

ALGORITHMS = {
    "drag": fd.algorithms.from_aggregator(fd.aggregators.drag()),
    "median": fd.algorithms.from_aggregator(fd.aggregators.median()),
    "br_drag": fd.algorithms.from_aggregator(fd.aggregators.br_drag()),
    "scaffold-krum": fd.algorithms.scaffold(12, aggregator=fd.aggregators.krum(num_byzantine=2)),
}


OFTEN = ("drag",)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in OFTEN else pytest.mark.slow) for n in ALGORITHMS])
def test_two_devices_give_the_results_of_one(settings, name):
    attacked = settings(cohort_size=6, attack=fd.attacks.scale_noise(), byzantine_fraction=0.3)
    one = fd.simulate(ALGORITHMS[name], **attacked)
    two = fd.simulate(ALGORITHMS[name], mesh="cores", **attacked)
    for a, b in zip(jax.tree.leaves(one.state), jax.tree.leaves(two.state), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(one.history["test_accuracy"], two.history["test_accuracy"])
    assert all(len(leaf.sharding.device_set) == 2 for leaf in jax.tree.leaves(two.params))


@pytest.mark.optimised
@pytest.mark.slow
def test_continued_on_two_devices_equals_uninterrupted(settings):
    on_two = settings(cohort_size=6, mesh="cores")
    half = fd.simulate(ALGORITHMS["drag"], **on_two | {"num_rounds": 3})
    resumed = fd.simulate(ALGORITHMS["drag"], initial=half.state, **on_two)
    whole = fd.simulate(ALGORITHMS["drag"], **on_two)
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, resumed.state, whole.state)))


SHARDED = {
    "drag": ({"attack": fd.attacks.label_flip(), "byzantine_fraction": 0.3}, ALGORITHMS["drag"]),
    "br_drag": ({"local_epochs": 1.0, "local_steps": None}, ALGORITHMS["br_drag"]),
    "clusterguard": ({}, fd.algorithms.from_aggregator(fd.aggregators.clusterguard())),
}
"""With an attack on the data; with root data and passes over all examples; with predictions of all examples."""


@pytest.mark.optimised
@pytest.mark.slow
@pytest.mark.parametrize("name", SHARDED)
def test_examples_divided_among_devices_are_the_same_examples(settings, name):
    changes, algorithm = SHARDED[name]
    asked = settings(cohort_size=6, mesh="cores", num_rounds=3) | changes
    copied, divided = (fd.simulation.prepare(algorithm, shard_data=shard, **asked) for shard in (False, True))
    number = len(asked["data"].train.x)
    shards = divided.federation.train.x.addressable_shards
    assert [shard.data.shape[0] for shard in shards] == [-(-number // 2)] * 2
    assert divided.federation.train.x.dtype == copied.federation.train.x.dtype
    one, other = copied.run(), divided.run()
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, one.state, other.state)))
    np.testing.assert_array_equal(one.history["train_loss"], other.history["train_loss"])


@pytest.mark.thorough
def test_no_device_is_sent_all_examples(settings):
    asked = settings(cohort_size=6, mesh="cores", shard_data=True)
    program = fd.simulation.prepare(ALGORITHMS["drag"], **asked).lowered.advance.compile().as_text()
    assert "reduce-scatter" in program
    shape = asked["data"].train.x.shape
    assert f"[{shape[0]}," not in program
    assert f"[{shape[0] + shape[0] % 2}," not in program


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cohort_size": 5, "mesh": "cores"}, "cohort_size=5: must be a multiple of the 2 devices"),
        ({"shard_data": True, "mesh": None}, "shard_data=True with mesh=None: needs a mesh of several devices"),
        ({"mesh": "core"}, "mesh='core': must be one of auto, cores"),
        ({"mesh": Mesh(np.array(jax.devices()).reshape(1, 2), ("a", "b"))}, "must have one axis"),
    ],
)
def test_a_mesh_that_does_not_fit(refused, changes, message):
    refused(message, ALGORITHMS["drag"], **changes)


def test_auto_takes_the_cores_where_they_divide_the_cohort():
    assert resolve_mesh("auto", 6) == resolve_mesh("cores", 6)
    assert resolve_mesh("auto", 5) is None


def test_one_device_is_no_mesh_of_cores(monkeypatch):
    monkeypatch.setattr(jax, "local_devices", lambda *_: jax.devices()[:1])
    with pytest.raises(ValueError, match=r"must have several devices, and there is one; call fd\.use_cores"):
        resolve_mesh("cores", 6)
