"""Attack, number of malicious clients and rules go together; attacks leave benign clients alone."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import TINY

import fedjax_drag as fd
from fedjax_drag import aggregators, tree
from fedjax_drag.attacks._forgery import check_forgery
from fedjax_drag.simulation.planning import compatibility
from fedjax_drag.types import Attack

UNDER_ATTACK = {"attack": fd.attacks.sign_flip(), "byzantine_fraction": 0.25, "num_rounds": 2}
"""Three of 12 clients, so 1.25 of a cohort of five: two, rounded up."""


def run(algorithm, settings, **changes):
    return fd.simulate(algorithm, **settings(**UNDER_ATTACK | changes))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "build",
    [
        lambda *f: fd.algorithms.from_aggregator(aggregators.multi_krum(*f)),
        lambda *f: fd.algorithms.scaffold(12, aggregator=aggregators.nnm(aggregators.multi_krum(*f), *f)),
    ],
    ids=["multi_krum", "scaffold"],
)
def test_rules_are_told_the_number_of_malicious_clients(build, settings):
    chex.assert_trees_all_equal(run(build(), settings).params, run(build(2), settings).params)


@pytest.mark.thorough
def test_an_honest_federation_has_none(settings):
    """Multi-Krum is then the mean."""
    rule = fd.algorithms.from_aggregator(aggregators.multi_krum())
    history = fd.simulate(rule, **settings(num_rounds=1)).history
    assert history["weight"] == pytest.approx(0.2)


@pytest.mark.thorough
def test_a_streamed_rule_of_ones_own_is_told(settings):
    """The number stays a Python integer, also where messages come in chunks."""
    seen = []

    def weigh(clients, state, *, num_byzantine, **_):
        seen.append(num_byzantine)
        return aggregators.Weights(own=jnp.ones_like(clients.norm))

    rule = aggregators.weighted_rule(weigh)._replace(needs=frozenset({"num_byzantine"}))
    attack = fd.attacks.label_flip()
    prepared = fd.simulation.prepare(
        fd.algorithms.from_aggregator(rule), **settings(attack=attack, num_byzantine=3, aggregation="stream")
    )
    assert set(seen) == {2}
    assert prepared.spec.cohort_size == 5


def test_a_number_that_is_too_small_for_the_attack_is_warned_of(settings):
    rule = fd.algorithms.from_aggregator(aggregators.multi_krum(1))
    with pytest.warns(UserWarning, match="num_byzantine=1: the simulation has 2"):
        fd.simulation.prepare(rule, **settings(**UNDER_ATTACK))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attack": fd.attacks.sign_flip()}, "byzantine_fraction=None: must be given with an attack"),
        ({"byzantine_fraction": 0.3}, "byzantine_fraction=0.3: must be 0 or left out without an attack"),
        ({"num_byzantine": 2}, "num_byzantine=2: must be 0 or left out without an attack"),
    ],
)
def test_an_attack_and_a_number_go_together(settings, fedavg, changes, message):
    for call in (fd.simulate, fd.simulation.prepare):
        with pytest.raises(ValueError, match=message) as error:
            call(fedavg, **settings(**changes))
        assert "\n" not in str(error.value)


@pytest.mark.thorough
def test_an_explicit_zero_is_the_honest_baseline(settings, fedavg):
    honest = fd.simulate(fedavg, **settings())
    for zero in ({"byzantine_fraction": 0.0}, {"num_byzantine": 0}):
        attacked = fd.simulate(fedavg, **settings(attack=fd.attacks.sign_flip(), **zero))
        chex.assert_trees_all_equal(attacked.params, honest.params)


def sign_flip_of_ones_own(key, uplink, malicious, **_):
    return jax.tree.map(lambda x: jnp.where(tree.expand(malicious, x), -x, x), uplink)


def everybody_flips(key, uplink, malicious, **_):
    return jax.tree.map(lambda x: -x, uplink)


def drops_a_client(key, uplink, malicious, **_):
    return jax.tree.map(lambda x: x[1:], uplink)


@pytest.mark.thorough
@pytest.mark.optimised
def test_an_attack_of_ones_own_is_verified_once(settings, fedavg, monkeypatch):
    compared = []
    changed = fd.attacks._forgery.changed
    monkeypatch.setattr(fd.attacks._forgery, "changed", lambda *args: compared.append(1) or changed(*args))
    attack = Attack(forge=sign_flip_of_ones_own)
    own, again = (run(fedavg, settings, attack=attack).params for _ in range(2))
    assert len(compared) == 1
    chex.assert_trees_all_equal(own, again)
    chex.assert_trees_all_equal(own, run(fedavg, settings).params)


class numbered(Attack):
    needs = frozenset({"attacker_index"})

    def poison(self, key, batch, *, positions, num_examples, num_classes, attacker_index):
        return batch._replace(y=(batch.y + attacker_index) % num_classes)


def test_an_attack_that_numbers_its_clients_goes_with_root_data(settings):
    rule = fd.algorithms.from_aggregator(aggregators.fltrust())
    fd.simulation.prepare(rule, **settings(attack=numbered(), num_byzantine=3, root_size=20))


def test_an_attack_of_ones_own_is_verified_inside_others(settings, fedavg):
    for around in (fd.attacks.during, fd.attacks.stealth):
        with pytest.raises(ValueError, match="attack: forge changes delta"):
            fd.simulation.prepare(fedavg, **settings(attack=around(Attack(forge=everybody_flips)), num_byzantine=3))


@pytest.mark.parametrize(
    ("forge", "message"),
    [
        (
            everybody_flips,
            r"attack: forge changes delta\['Dense_0'\]\['bias'\] of benign clients; must return it bit for",
        ),
        (
            drops_a_client,
            r"attack: forge returns delta\['Dense_0'\]\['bias'\] with \(4, 10\) float32: must be \(5, 10\)",
        ),
    ],
)
def test_an_attack_that_changes_benign_messages_is_refused(settings, fedavg, forge, message):
    rounds = []
    with pytest.raises(ValueError, match=message) as error:
        run(fedavg, settings, attack=Attack(forge=forge), callbacks=[lambda event: rounds.append(event.round)])
    assert "\n" not in str(error.value)
    assert rounds == []


@pytest.mark.parametrize(
    ("attack", "message"),
    [
        (
            Attack(poison=lambda key, batch, **_: batch._replace(x=batch.x[:1])),
            r"poison returns x with \(1, 8, 8, 1\) float32: must be \(4, 8, 8, 1\) float32",
        ),
        (
            Attack(poison=lambda key, batch, **_: batch._replace(y=batch.y * 1.0)),
            r"poison returns y with \(4,\) float32: must be \(4,\) int32",
        ),
        (
            Attack(poison=fd.attacks.label_flip().poison, goal=lambda x, y, num_classes: (x, y[:1])),
            r"goal returns \[1\] with \(1,\) int32: must be \(\d+,\) int32",
        ),
        (
            Attack(forge=fd.attacks.sign_flip().forge, active=lambda r: 2),
            r"active returns \(\) int32: must be \(\) bool",
        ),
        (
            Attack(forge=fd.attacks.sign_flip().forge, active=lambda r: 1 < r < 5),
            "active: must take a round, int32 and traced, and return a bool; it fails with Tracer",
        ),
    ],
    ids=["inputs", "labels", "goal", "active", "traced"],
)
def test_an_attack_that_breaks_its_contract_is_refused(refused, fedavg, attack, message):
    """Shapes that broadcast, and numbers in place of bools, would change the results without a word."""
    refused(f"^attack: {message}", fedavg, attack=attack, num_byzantine=3)


def test_attacks_of_the_package_are_not_verified_again(settings, fedavg, monkeypatch):
    monkeypatch.setattr(compatibility, "check_forgery", lambda *_: pytest.fail("it was"))
    fd.simulation.prepare(fedavg, **settings(**UNDER_ATTACK))


def test_an_attack_of_ones_own_may_know_what_others_know(settings):
    def forge(key, uplink, malicious, *, last_update, root_delta, aggregate, **_):
        push = tree.add(tree.add(last_update, root_delta), aggregate(uplink))
        delta = jax.tree.map(lambda x, p: jnp.where(tree.expand(malicious, x), -p, x), uplink.delta, push)
        return uplink._replace(delta=delta)

    attack = Attack(forge=forge, needs=frozenset({"last_update", "root_delta", "aggregate"}))
    algorithm = fd.algorithms.from_aggregator(aggregators.fltrust())
    fd.simulation.prepare(algorithm, **settings(**UNDER_ATTACK | {"attack": attack}))


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [
        fd.algorithms.from_aggregator(aggregators.centered_clipping(radius=0.5)),
        fd.algorithms.scaffold(12, aggregator=aggregators.nnm(aggregators.median())),
    ],
    ids=["centered_clipping", "scaffold"],
)
def test_in_a_run_an_optimal_strength_is_at_least_as_harmful_as_a_fixed_one(settings, algorithm):
    """After the first round, in which the server is where it is in the other run."""
    whole = {"num_byzantine": 2, "byzantine_of": "cohort", "num_rounds": 1, "eval_every": 1}
    start = fd.simulate(algorithm, **settings(num_rounds=1, step_size=1e-30)).params

    def harm(attack):
        result = fd.simulate(algorithm, **settings(attack=attack, initial_params=start, **whole))
        length = tree.norm(tree.subtract(result.params, start))
        return -result.history["cosine_to_benign"][-1] * float(length)

    optimal = harm(fd.attacks.optimal_ipm(objective="against", starts=(0.0, 0.5, 2.0)))
    assert optimal >= harm(fd.attacks.ipm(2.0)) - 1e-5


@pytest.mark.slow
def test_a_sweep_of_an_optimal_attack_and_its_rounds_is_one_program():
    """Through a rule with random draws."""
    attack = {"name": "during", "attack": {"name": "optimal_alie", "evaluations": 4}}
    rule = {"name": "bucketing", "aggregator": "median"}
    config = TINY | {"aggregator": rule, "attack": attack, "num_byzantine": 1, "eval_every": 3}
    axes = {"attack.start": [0, 4], "attack.attack.step": [1.0, 10.0]}
    found = fd.sweep(config | {"axes": axes}, quiet=True)
    assert [cell.status for cell in found.cells] == 4 * ["done"]
    loss = np.array([cell.history["test_loss"] for cell in found.cells])
    alone = fd.run(config, ["attack.start=4", "attack.attack.step=10.0"], quiet=True)
    np.testing.assert_allclose(loss[3], alone.history["test_loss"], rtol=1e-4)
    np.testing.assert_allclose(loss[2, 0], loss[3, 0], rtol=1e-5)
    assert abs(loss[0, 0] - loss[2, 0]) > 1e-4


@dataclasses.dataclass
class Scaled:
    """A ``forge`` with fields, and so without a hash."""

    scale: float

    def __call__(self, key, uplink, malicious, **_):
        return uplink._replace(delta=jax.tree.map(lambda d: self.scale * d, uplink.delta))


def test_an_attack_that_has_no_hash_is_verified_too():
    like = fd.types.Uplink({"w": jax.ShapeDtypeStruct((4, 2), jnp.float32)})
    check_forgery(fd.types.Attack(forge=Scaled(1.0)), like)
    with pytest.raises(ValueError, match="forge changes delta"):
        check_forgery(fd.types.Attack(forge=Scaled(2.0)), like)
