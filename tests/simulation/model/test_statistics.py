"""What becomes of the clients' running statistics."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from nets import Net

import fedjax_drag as fd
from fedjax_drag.simulation.model.forms import LinenForm
from fedjax_drag.simulation.model.model import Like
from fedjax_drag.simulation.program.server import combined_statistics, resolve_statistics

COUNTS = np.array([1, 2, 3, 4, 10])
VALID = np.array([True, True, True, False, True])


@pytest.fixture(scope="module")
def local():
    rng = np.random.default_rng(0)
    mean, var = rng.normal(size=(5, 3)).astype(np.float32), rng.random((5, 3)).astype(np.float32)
    mean[1, 2] = np.inf
    return {"batch_stats": {"mean": mean, "var": var}, "counters": {"steps": np.array([3, 9, 5, 7, 4], np.int32)}}


def before(local):
    return jax.tree.map(lambda x: jnp.full(x.shape[1:], 7, x.dtype), local)


def numpy_twin(how, x, counted):
    if how == "median":
        return np.median(x[counted], axis=0)
    return np.average(x[counted], axis=0, weights=COUNTS[counted] if how == "weighted" else None)


@pytest.mark.parametrize("how", ["average", "weighted", "median"])
def test_numpy_twin(local, how):
    """The client whose mean is infinite does not count, nor does the one that is absent."""
    found = jax.jit(combined_statistics, static_argnums=0)(how, before(local), local, COUNTS, VALID)
    counted = VALID & np.array([True, False, True, True, True])
    for name, x in local["batch_stats"].items():
        np.testing.assert_allclose(found["batch_stats"][name], numpy_twin(how, x, counted), rtol=1e-6)
    assert found["counters"]["steps"] == 5


def test_nobody_counts(local):
    for how in ("average", "weighted", "median", "frozen"):
        found = combined_statistics(how, before(local), local, jnp.asarray(COUNTS), jnp.zeros(5, bool))
        jax.tree.map(np.testing.assert_array_equal, found, before(local))


@pytest.mark.parametrize("how", ["average", "median"])
def test_counters_alone(how):
    steps = {"counters": {"steps": np.array([3, 9, 5], np.int32)}}
    found = combined_statistics(how, {"counters": {"steps": jnp.int32(1)}}, steps, jnp.ones(3), None)
    assert found["counters"]["steps"] == 9


def test_default_is_the_median_under_an_attack_that_forges():
    forging, poisoning = fd.attacks.sign_flip(), fd.attacks.label_flip()
    assert [resolve_statistics("auto", attack) for attack in (None, poisoning, forging)] == [
        "average",
        "average",
        "median",
    ]
    assert resolve_statistics("average", forging) == "average"


def moments(settings, **changes):
    rule = fd.aggregators.norm_clipping(1.0)  # moves the parameters little whatever malicious clients send
    result = fd.simulate(rule, **settings(model=Net(), num_rounds=1, eval_every=1, cohort_size=12, **changes))
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(result.state.model.statistics)]), result


class Counting(nn.Module):
    """Counts its batches in training."""

    @nn.compact
    def __call__(self, x, train):
        count = self.variable("counters", "steps", lambda: jnp.int32(0))
        if train:
            count.value += 1
        return x


def test_a_counter_of_a_linen_module_can_be_frozen():
    for frozen, steps in ((True, 0), (False, 1)):
        functions = LinenForm(Counting(), Like.of(jax.ShapeDtypeStruct((1, 2), jnp.float32)), frozen)
        statistics = functions.train(*functions.init(jax.random.key(0)), jnp.ones((1, 2)), {}, None)[1]
        assert statistics["counters"]["steps"] == steps


@pytest.mark.slow
def test_forged_statistics_are_clipped_to_the_median(settings):
    """A quarter of the clients sends statistics that a mean would follow."""
    honest, _ = moments(settings)
    attacked = {"attack": fd.attacks.scale_noise(variance=1e8), "byzantine_fraction": 0.25}
    clipped, result = moments(settings, **attacked)
    followed, _ = moments(settings, **attacked, model_state="average")
    assert np.abs(followed - honest).max() > 100
    assert np.abs(clipped - honest).max() < 0.5
    assert np.isfinite(result.history["test_loss"]).all()


@pytest.mark.thorough
def test_statistics_that_stay_with_their_clients_are_in_no_message_to_forge(settings):
    honest, _ = moments(settings, model_state="local")
    attack = fd.attacks.scale_noise(variance=1e8)
    attacked, _ = moments(settings, model_state="local", attack=attack, byzantine_fraction=0.25)
    np.testing.assert_allclose(attacked, honest, rtol=1e-6)


@pytest.mark.thorough
def test_statistics_that_are_frozen_are_evaluation_mode(settings):
    """And dropout, which is switched by the same argument, stays on in training."""
    frozen = fd.simulate(fd.aggregators.fedavg(), **settings(model=Net(0.0), model_state="frozen"))
    off = fd.models.with_modes(Net(0.0), training={"train": False}, evaluation={"train": False}, rngs=())
    evaluated = fd.simulate(fd.aggregators.fedavg(), **settings(model=off, model_state="frozen"))
    jax.tree.map(np.testing.assert_array_equal, frozen.state.params, evaluated.state.params)
    dropped = fd.simulate(fd.aggregators.fedavg(), **settings(model=Net(), model_state="frozen"))
    start = fd.simulation.prepare(fd.aggregators.fedavg(), **settings(model=Net())).initial_state()
    jax.tree.map(np.testing.assert_array_equal, dropped.state.model, start.model)
    assert dropped.history["train_loss"][-1] != frozen.history["train_loss"][-1]


@pytest.mark.slow
def test_local_statistics_stay_with_their_clients(settings):
    """Parameters do not depend on running statistics; those of who has taken part average to the server's."""
    rule = fd.aggregators.fedavg()
    options = {"model": Net(), "model_state": "local", "num_rounds": 1, "eval_every": 1}
    local = fd.simulate(rule, **settings(**options))
    average = fd.simulate(rule, **settings(**options | {"model_state": "average"}))
    jax.tree.map(np.testing.assert_array_equal, local.params, average.params)
    jax.tree.map(np.testing.assert_array_equal, local.state.model, average.state.model)
    cohort = local.history["client_ids"][0]
    start = fd.simulation.prepare(rule, **settings(**options)).initial_state()
    rows, before = local.state.clients.statistics.rows, start.clients.statistics.rows
    absent = np.setdiff1d(np.arange(12), cohort)
    for row, old, mean in zip(*map(jax.tree.leaves, (rows, before, local.state.model.statistics)), strict=True):
        np.testing.assert_array_equal(row[absent], old[absent])
        assert (row[cohort] != old[cohort]).any(1).all()
        np.testing.assert_allclose(row[cohort].mean(0), mean, atol=1e-6)
    again = fd.simulate(rule, **settings(**options | {"num_rounds": 2}), initial=local.state)
    later = fd.simulate(rule, **settings(**options | {"num_rounds": 2, "client_state": "host"}))
    for row, other in zip(*(jax.tree.leaves(run.state.clients.statistics.rows) for run in (again, later)), strict=True):
        np.testing.assert_array_equal(row, other)


def test_statistics_travel(settings):
    """32 numbers in each direction, unless they are frozen."""
    rule = fd.aggregators.fedavg()
    costs = [
        fd.simulation.prepare(rule, **settings(model=Net(), model_state=how)).cost for how in ("average", "frozen")
    ]
    assert costs[0].bytes_up - costs[1].bytes_up == costs[0].bytes_down - costs[1].bytes_down == 32 * 4
