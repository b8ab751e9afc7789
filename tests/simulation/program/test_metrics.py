"""Metrics of a run under attack, who is malicious, and what an attack is given."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import fedjax_drag as fd
from fedjax_drag.simulation.program.evaluation import attack_metrics, sum_of_benign
from fedjax_drag.types import Attack

MALICIOUS = np.array([True, False, False, True, False])
WEIGHT = np.array([0.0, 0.5, 0.25, -0.25, 0.0])


def told(honest, update, malicious=MALICIOUS, **others):
    malicious = jnp.asarray(malicious)
    benign = sum_of_benign({"w": jnp.asarray(honest)}, malicious, others.get("valid"))
    metrics = jax.jit(attack_metrics)(benign, {"w": jnp.asarray(update)}, malicious, **others)
    return {name: float(value) for name, value in metrics.items()}


def test_attack_metrics_agree_with_numpy():
    rng = np.random.default_rng(0)
    honest, update = rng.normal(size=(5, 7)).astype(np.float32), rng.normal(size=7).astype(np.float32)
    found = told(honest, update, weight=jnp.asarray(WEIGHT))
    mean = honest[~MALICIOUS].mean(0)
    cosine = update @ mean / np.linalg.norm(update) / np.linalg.norm(mean)
    expected = {"cosine_to_benign": cosine, "malicious_weight": 0.25, "detection_tpr": 0.5, "detection_fpr": 1 / 3}
    assert found == pytest.approx(expected, abs=1e-6)
    assert set(told(honest, update)) == {"cosine_to_benign"}

    # An expelled client counts as rejected, whatever its weight; what is not finite is not in the mean.
    honest[2] = np.nan
    valid = jnp.array([True, False, True, False, True])
    found = told(honest, honest[4], weight=jnp.asarray(WEIGHT), valid=valid)
    expected = {"cosine_to_benign": 1.0, "malicious_weight": 0.0, "detection_tpr": 1.0, "detection_fpr": 2 / 3}
    assert found == pytest.approx(expected, abs=1e-6)

    # One that is absent was not detected: of clients 0 and 3 the rule expelled the latter, of 1 and 2 it rejected none.
    valid, present = jnp.array([True, True, True, False, False]), jnp.array([True, True, True, True, False])
    weight = jnp.array([0.5, 0.25, 0.25, 0.0, 0.0])
    found = told(honest, honest[1], weight=weight, valid=valid, present=present)
    assert found["detection_tpr"] == 0.5
    assert found["detection_fpr"] == 0.0


def test_attack_metrics_of_extreme_cohorts():
    """No malicious client, only malicious clients, only zero deltas."""
    ones = np.ones((5, 7), np.float32)
    found = told(ones, ones[0], np.zeros(5, bool), weight=jnp.full(5, 0.2))
    assert found == pytest.approx(
        {"cosine_to_benign": 1, "malicious_weight": 0, "detection_tpr": np.nan, "detection_fpr": 0}, nan_ok=True
    )
    found = told(ones, ones[0], np.ones(5, bool), weight=jnp.zeros(5))
    assert found == pytest.approx(
        {"cosine_to_benign": 0, "malicious_weight": 0, "detection_tpr": 1, "detection_fpr": np.nan}, nan_ok=True
    )


@pytest.mark.thorough
def test_the_history_of_a_run_under_attack_has_attack_metrics(settings):
    """Krum selects one of twelve clients, and none that sends a reversed delta ten times as long."""
    attacked = settings(attack=fd.attacks.sign_flip(scale=10.0), num_byzantine=3, cohort_size=12)
    history = fd.simulate(fd.algorithms.from_aggregator(fd.aggregators.krum(num_byzantine=3)), **attacked).history
    np.testing.assert_array_equal(history["malicious"].sum(1), [3, 3])
    np.testing.assert_array_equal(history["malicious_weight"], 0)
    np.testing.assert_array_equal(history["detection_tpr"], 1)
    np.testing.assert_allclose(history["detection_fpr"], 8 / 9)
    assert (history["cosine_to_benign"] > 0).all()
    mean = fd.simulate(fd.algorithms.from_aggregator(fd.aggregators.fedavg()), **attacked).history
    assert (mean["cosine_to_benign"] < 0).all()
    np.testing.assert_allclose(mean["malicious_weight"], 0.25, rtol=1e-6)
    np.testing.assert_array_equal(mean["detection_fpr"], 0)


@pytest.mark.thorough
def test_malicious_clients_of_each_cohort(settings, fedavg):
    """The same number in every round, of different clients, which also depend on the seed."""
    attacked = settings(
        attack=fd.attacks.sign_flip(), byzantine_fraction=0.4, byzantine_of="cohort", eval_every=1, num_rounds=12
    )
    history = fd.simulate(fedavg, **attacked).history
    np.testing.assert_array_equal(history["malicious"].sum(1), 2)
    roles = {}
    for ids, malicious in zip(history["client_ids"], history["malicious"], strict=True):
        for client, role in zip(ids, malicious, strict=True):
            roles.setdefault(int(client), set()).add(bool(role))
    assert sum(len(of) == 2 for of in roles.values()) > 6
    again = fd.simulate(fedavg, **attacked | {"rounds_per_compile": 5}).history
    np.testing.assert_array_equal(again["malicious"], history["malicious"])


def observer(needs, seen):
    """An attack that sends zeros and records what it is given."""

    def forge(key, uplink, malicious, **knowledge):
        del key
        seen.update(knowledge)
        asked = {name: knowledge[name] for name in needs if name != "aggregate"}
        if "aggregate" in needs:
            asked["aggregate"] = knowledge["aggregate"](uplink)
        per_client = lambda g: fd.tree.expand(malicious, g)
        spread = lambda g, *parts: jnp.where(per_client(g), sum(parts, 0 * g[0]), g)
        return uplink._replace(delta=jax.tree.map(spread, uplink.delta, *asked.values()))

    return Attack(forge=forge, needs=frozenset(needs))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "needs",
    [
        pytest.param((), marks=pytest.mark.slow),
        pytest.param(("root_delta",), marks=pytest.mark.slow),
        ("last_update", "aggregate"),
    ],
)
def test_an_attack_receives_only_what_it_needs(settings, needs):
    seen = {}
    method = fd.algorithms.from_aggregator(fd.aggregators.br_drag())
    history = fd.simulate(method, **settings(attack=observer(needs, seen), num_byzantine=6)).history
    assert set(seen) == {"client_ids", "round", *needs}
    assert np.isfinite(history["test_loss"]).all()


@pytest.mark.thorough
def test_the_previewed_update_is_the_update_of_the_round(settings):
    """Malicious clients send the update that the server would make without the attack: sent by all, the mean."""
    method = fd.algorithms.from_aggregator(fd.aggregators.fedavg())
    everybody = settings(num_rounds=1, eval_every=1, cohort_size=12)
    plain = fd.simulate(method, **everybody)
    forged = fd.simulate(method, **everybody, attack=observer(("aggregate",), {}), num_byzantine=12)
    for a, b in zip(jax.tree.leaves(forged.params), jax.tree.leaves(plain.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_unavailable_knowledge_is_refused(refused, fedavg):
    refused("attack: needs the server's root update", fedavg, attack=observer(("root_delta",), {}), num_byzantine=1)
    refused(
        "attack: needs='weather': must be one of last_update, root_delta, aggregate",
        fedavg,
        attack=observer(("weather",), {}),
        num_byzantine=1,
    )


CLIENTS = 4


class Linear(nn.Module):
    """Logits that begin at zero, so that the first loss is known."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(CLIENTS, kernel_init=nn.initializers.zeros)(x)


def loss(logits, labels):
    """Cross-entropy times the label, and not a number for the last class."""
    weight = jnp.where(labels == CLIENTS - 1, jnp.nan, labels)
    return weight * fd.losses.cross_entropy()(logits, labels)


@pytest.mark.parametrize("aggregation", ["stack", "stream"])
def test_a_rejected_client_is_left_out_of_it(aggregation):
    labels = np.repeat(np.arange(CLIENTS), 10)  # client m has the examples of class m
    inputs = np.random.default_rng(0).normal(size=(len(labels), 3)).astype(np.float32)
    data = fd.data.from_arrays(inputs, labels, inputs, labels, users=labels)
    result = fd.simulate(
        fd.aggregators.fedavg(),
        model=Linear(),
        data=fd.data.partition.natural(data),
        num_rounds=1,
        cohort_size=CLIENTS,
        local_steps=1,
        batch_size=10,
        step_size=0.1,
        loss=loss,
        aggregation=aggregation,
    )
    assert result.history["num_rejected"].tolist() == [1]
    expected = np.log(CLIENTS) * np.mean([0, 1, 2])  # clients 0, 1 and 2 at uniform predictions
    np.testing.assert_allclose(result.history["train_loss"], expected, rtol=1e-5)
