"""Features that meet: attacks, absence, asynchrony, schedules and methods with models of their own."""

from typing import NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedjax_drag as fd
from fedjax_drag import algorithms, attacks
from fedjax_drag.aggregators import fedasync, fedavg, fedbuff, qffl, term
from fedjax_drag.data.malicious import choose_malicious
from fedjax_drag.simulation.program.dissimilarity import flattened
from fedjax_drag.types import Aggregator

CLIENTS = 8


def played(rule, **changes):
    data = fd.data.partition.dirichlet(fd.data.load("digits"), num_clients=CLIENTS, beta=0.5)
    base = {"model": fd.models.mlp(10, hidden=(8,)), "data": data, "num_rounds": 4, "cohort_size": 4}
    base |= {"local_steps": 2, "batch_size": 8, "step_size": 0.1, "progress": False}
    base |= {"eval_every": changes.get("num_rounds", 4)}
    return fd.simulate(rule, **base | changes)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: algorithms.ifca(aggregator=term()), "aggregator=term: needs start_loss, of the one global model"),
        (lambda: algorithms.hypcluster(aggregator=fedasync()), "aggregator=fedasync: needs .*starts, of the one"),
        (
            lambda: algorithms.fedper("Dense_1", aggregator=qffl()),
            "aggregator=qffl: needs start_loss, the losses of whole models",
        ),
        (
            lambda: algorithms.from_aggregator(
                fedavg("unbiased"), client=fd.privacy.local_dp(fd.clients.sgd(), 1.0, 1.0)
            ),
            "selection_weight",
        ),
    ],
)
def test_what_a_rule_would_be_told_wrongly_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.thorough
@pytest.mark.parametrize("keeps_state", [True, False])
def test_before_an_attack_malicious_clients_are_honest(keeps_state):
    kept = {"local_optimizer": optax.trace(0.9), "local_optimizer_state": "keep", "aggregation": "stack"}
    attack = attacks.during(attacks.sign_flip(keeps_state=keeps_state), start=1000)
    attacked = played(fedavg(), attack=attack, num_byzantine=2, **kept)
    honest = played(fedavg(), attack=attack, num_byzantine=0, **kept)
    chex.assert_trees_all_close(attacked.params, honest.params, rtol=1e-5)


class Normalised(nn.Module):
    @nn.compact
    def __call__(self, x, train=False):
        x = nn.BatchNorm(use_running_average=not train, momentum=0.8)(nn.Dense(8)(x.reshape(len(x), -1)))
        return nn.Dense(10)(nn.relu(x))


@pytest.mark.thorough
def test_a_message_that_is_rejected_does_not_move_statistics():
    """It is finite, as its sender's statistics are, but too long."""
    found = played(
        fedavg(),
        model=Normalised(),
        model_state="average",
        cohort_size=CLIENTS,
        attack=attacks.sign_flip(scale=1e34),
        num_byzantine=2,
    )
    assert found.history["num_rejected"].tolist() == [2 * 4]
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(found.state.model.statistics)) < 1e3


@pytest.mark.thorough
def test_fine_tuning_has_the_step_size_of_the_evaluated_round():
    falling = optax.linear_schedule(0.3, 0.0, 4)
    tuned = played(algorithms.fine_tune(steps=5), step_size=falling, evaluate_clients=True)
    given = algorithms.fine_tune(steps=5, step_size=float(falling(3)))
    same = played(given, step_size=falling, evaluate_clients=True)
    np.testing.assert_array_equal(tuned.history["own_accuracy"], same.history["own_accuracy"])


@pytest.mark.thorough
def test_nobody_moves_the_model_of_local_training():
    attacked = played(algorithms.local_only(), attack=attacks.gaussian(sigma=1.0), num_byzantine=2)
    chex.assert_trees_all_equal(attacked.params, played(algorithms.local_only()).params)


@pytest.mark.thorough
def test_attackers_that_are_not_there_rehearse_nothing():
    there = np.where(choose_malicious(CLIENTS, 2, 0), 0.0, 1.0)
    kept = {"cohort_size": CLIENTS, "num_byzantine": 2, "availability": there}
    found, idle = (played(fedavg(), attack=attacks.a3fl(trigger_size=3, steps=steps), **kept) for steps in (5, 0))
    chex.assert_trees_all_equal(found.state.attack, idle.state.attack)


@pytest.mark.thorough
def test_attackers_see_nothing_of_clients_that_the_method_excludes():
    """A cohort that they fill up is one whose other clients are absent."""
    there = choose_malicious(CLIENTS, 2, 0) | (np.arange(CLIENTS) < 4)
    assert not there.all()
    attacked = {"attack": attacks.alie(), "num_byzantine": 2, "cohort_size": CLIENTS, "num_rounds": 1}
    fedavg_of_some = algorithms.from_aggregator(fedavg())._replace(eligible=lambda state: jnp.asarray(there))
    excluded, absent = played(fedavg_of_some, **attacked), played(fedavg(), availability=there, **attacked)
    chex.assert_trees_all_close(excluded.params, absent.params, rtol=1e-5)


class MeasuredState(NamedTuple):
    metrics: dict


class measured(Aggregator):
    """Reports what it is told of each client, and the deltas."""

    split = "clients"

    @property
    def needs(self):
        return frozenset({"dissimilarity", "starts", "staleness"})

    def init(self, params):
        empty = {name: jnp.zeros(0) for name in ("weight", "told", "stale", "start", "delta")}
        return MeasuredState(empty | {"stale": jnp.zeros(0, jnp.int32)})

    def apply(self, params, deltas, state, *, dissimilarity, starts, staleness, **_):
        rows = lambda tree: jnp.concatenate([x.reshape(len(x), -1) for x in jax.tree.leaves(tree)], 1)
        told = {"told": dissimilarity, "stale": staleness, "start": rows(starts), "delta": rows(deltas)}
        moved = jax.tree.map(lambda p, d: p + d.mean(0), params, deltas)
        return moved, MeasuredState({"weight": jnp.ones(dissimilarity.shape), **told})


@pytest.mark.thorough
def test_dissimilarity_is_measured_from_where_each_client_started():
    model = fd.models.mlp(10, hidden=(8,))
    late = {"clock": fd.clocks.log_normal(sigma=1.0), "selection": fd.selection.asynchronous(6), "step_size": 0.5}
    found = played(measured(), model=model, cohort_size=2, num_rounds=12, **late)
    data = fd.data.partition.dirichlet(fd.data.load("digits"), num_clients=CLIENTS, beta=0.5)
    leaves, structure = jax.tree.flatten(found.params)
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1]
    rows = {name: found.history[name][-1] for name in ("client_ids", "start", "delta", "told")}
    assert found.history["stale"].max() > 0

    def predicted(vector, x):
        parts = [part.reshape(leaf.shape) for part, leaf in zip(np.split(vector, ends), leaves, strict=True)]
        return jax.nn.softmax(model.apply({"params": structure.unflatten(parts)}, x))

    for client, start, delta, told in zip(*rows.values(), strict=True):
        own = data.rows[client][: data.counts[client]]
        x = data.preprocess(jnp.asarray(data.train.x[own]))
        expected = flattened(predicted(start, x), predicted(start + delta, x), len(own))
        assert told == pytest.approx(float(expected), rel=1e-3)


@pytest.mark.thorough
def test_messages_that_are_too_late_have_travelled():
    late = {"clock": fd.clocks.log_normal(sigma=2.0), "selection": fd.selection.asynchronous(6, max_staleness=2)}
    history = played(fedbuff(), cohort_size=2, num_rounds=40, **late).history
    (each,) = played(fedavg(), num_rounds=1, eval_every=1).history["bytes_up"] / 4
    assert history["num_too_stale"][-1] > 0
    assert history["bytes_up"][-1] == each * (history["participants"] + history["num_too_stale"])[-1]
