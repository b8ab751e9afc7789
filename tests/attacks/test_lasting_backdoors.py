"""Distributed and edge-case backdoors, those kept out of the coordinates of others, and attacks that end."""

import dataclasses
import itertools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import numpy_directed_attacks as twin

import fedjax_drag as fd
from fedjax_drag import attacks
from fedjax_drag.ops.largest import floor_of, smallest_of_top
from fedjax_drag.simulation.program.federation import Federation
from fedjax_drag.simulation.program.round import attacker_indices
from fedjax_drag.types import Attack, Batch, Uplink

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(9, 8, 8, 1)).astype(np.float32), RNG.integers(0, 10, 9)
PLACES = np.array([*range(8), 3])
BOTH = jnp.asarray(X), jnp.asarray(Y)
MALICIOUS = np.array([True, False, False, True, False])


def poisoned(attack, num_examples=8, key=0, **needs):
    about = {"positions": jnp.asarray(PLACES), "num_examples": jnp.asarray(num_examples), "num_classes": 10}
    return attack.poison(jax.random.key(key), Batch(jnp.asarray(X), jnp.asarray(Y)), **about, **needs)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("size", "parts"), [(4, 4), (5, 3), (3, 1), (2, 2)])
def test_parts_of_the_trigger_agree_with_their_twin_and_are_together_that_of_a_backdoor(size, parts):
    attack = attacks.dba(target=7, trigger_size=size, trigger_value=2.5, parts=parts)
    whole = attacks.backdoor(target=7, trigger_size=size, trigger_value=2.5)
    carries = (PLACES < 4)[:, None, None, None]
    together = X.copy()
    changed = np.zeros(X.shape, int)
    for client in range(parts + 1):
        after = poisoned(attack, attacker_index=jnp.int32(client))
        expected = twin.trigger_part(X, size, 2.5, client % parts, parts)
        np.testing.assert_array_equal(after.x, np.where(carries, expected, X))
        np.testing.assert_array_equal(after.y, np.where(PLACES < 4, 7, Y))
        if client < parts:
            changed += expected != X
            together = np.where(expected != X, expected, together)
    assert changed.max() == 1
    for ours, theirs in zip(attack.goal(*BOTH, 10), whole.goal(*BOTH, 10), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(attack.goal(*BOTH, 10)[0], together)
    np.testing.assert_array_equal(poisoned(whole).x, np.where(carries, together, X))


def test_malicious_clients_are_numbered():
    """Of the federation in its order; of a cohort where each has its own."""
    rows = np.zeros((6, 1), np.int32)
    federation = Federation(Batch(X, Y), rows, rows[:, 0], np.array([0, 1, 0, 1, 1, 0], bool), rows[0], rows[0, 0])
    ids = jnp.array([4, 0, 1, 3])
    malicious = jnp.array([True, False, True, True])
    found = attacker_indices(federation, malicious, ids)
    np.testing.assert_array_equal(found[malicious], [2, 0, 1])
    drawn = federation._replace(malicious_per_cohort=jnp.int32(3))
    np.testing.assert_array_equal(attacker_indices(drawn, malicious, ids)[malicious], [0, 1, 2])


def deltas(seed=1, size=40):
    """Messages of five clients, and the last update, with ties and zeros."""
    rng = np.random.default_rng(seed)
    last = np.where(rng.uniform(size=size) < 0.3, np.round(rng.normal(size=size)), rng.normal(size=size))
    return rng.normal(size=(5, size)).astype(np.float32), last.astype(np.float32)


def as_tree(vectors):
    return {"a": jnp.asarray(vectors[..., :30]).reshape(*vectors.shape[:-1], 5, 6), "b": jnp.asarray(vectors[..., 30:])}


def as_matrix(tree):
    return np.concatenate([np.asarray(tree["a"]).reshape(*tree["b"].shape[:-1], -1), tree["b"]], axis=-1)


def test_neurotoxin_leaves_out_the_coordinates_that_changed_most():
    G, last = deltas()
    inner = attacks.backdoor(boost=3.0)

    @jax.jit
    def sent(share, uplink, last):
        attack = attacks.neurotoxin(inner, share=share)
        return attack.forge(
            jax.random.key(0), uplink, jnp.asarray(MALICIOUS), last_update=last, client_ids=jnp.arange(5)
        )

    for share in (0.0, 0.05, 0.3, 0.9, 1.0):
        for update in (last, 0 * last):
            found = as_matrix(sent(share, Uplink(as_tree(G), {"c": jnp.ones((5, 2))}), as_tree(update)).delta)
            expected = [
                twin.outside_top(3 * g, update, share) if bad else g for g, bad in zip(G, MALICIOUS, strict=True)
            ]
            np.testing.assert_array_equal(found, expected)
            top = np.argsort(-abs(update))[: int(share * len(update) + 1e-9)]
            assert not found[MALICIOUS][:, top[update[top] != 0]].any()


@pytest.mark.thorough
def test_the_smallest_of_the_top_is_exact():
    values = np.concatenate([[0.0, -0.0, 1e-42, -3e38, np.inf], np.random.default_rng(2).normal(size=200)])
    update = {"x": jnp.asarray(values[:90], jnp.float32), "y": jnp.asarray(values[90:], jnp.float32).reshape(5, 23)}
    ordered = np.sort(abs(values.astype(np.float32)))[::-1]
    found = jax.jit(jax.vmap(lambda share: smallest_of_top(update, share)))(np.arange(206) / 205)
    assert found[0] > np.float32(np.inf).view(np.uint32)
    np.testing.assert_array_equal(found[1:], np.maximum(ordered.view(np.uint32), 1))


@pytest.mark.thorough
def test_the_smallest_of_the_top_is_exact_in_double_precision():
    """Values that float32 cannot tell apart, in a leaf beside one of float32; ties would all be left out."""
    close = 1 + np.arange(60) * 1e-12
    with jax.enable_x64(True):
        update = {"x": jnp.asarray(close[::-1]), "y": jnp.linspace(2, 3, 40, dtype=jnp.float32)}
        for share, expected in ((0.05, np.float32(update["y"][-5])), (0.5, close[50]), (1.0, 1.0)):
            found = jax.jit(smallest_of_top)(update, share)
            assert found.dtype == np.uint64
            np.testing.assert_array_equal(np.asarray(found).view(np.float64), np.float64(expected))
        uplink = Uplink(jax.tree.map(lambda x: jnp.stack([x, x]), update))
        malicious = jnp.array([True, False])
        attack = attacks.neurotoxin(attacks.backdoor(boost=1.0), share=0.5)
        forged = attack.forge(jax.random.key(0), uplink, malicious, client_ids=jnp.arange(2), last_update=update)
        np.testing.assert_array_equal(forged.delta["x"][0], np.where(np.arange(60) < 10, 0, update["x"]))
        assert not forged.delta["y"][0].any()


@pytest.mark.parametrize("size", [3, 10, 100, 997, 1003, 20_971_539, 25_557_032, 10**7, 10**9])
def test_a_share_of_coordinates_or_examples_is_the_floor_of_the_decimal(size):
    """As it is written; where it is swept, as far as float32 tells products apart."""
    shares = ["0", "0.05", "0.1", "0.29", "0.3", "0.333", "0.57", "0.7", "0.9", "0.999", "1"]
    for share in shares:
        exact = Fraction(share) * size
        assert floor_of(float(share), size) == int(exact), share
        swept = int(jax.jit(floor_of, static_argnums=1)(jnp.float32(share), size))
        assert abs(swept - int(exact)) <= exact / 10**6, share
        if size < 10**4:
            assert int(floor_of(float(share), jnp.int32(size))) == int(exact), share
    assert [floor_of(k / size, size) for k in (0, 1, 2, size - 1, size)] == [0, 1, 2, size - 1, size]


@pytest.fixture(scope="module")
def digits():
    return fd.data.load("digits")


def test_edge_cases_are_the_rarest_of_a_class(digits):
    attack = attacks.edge_case(digits, source=7, target=1, share=0.1, fraction=0.5)
    x = np.asarray(digits.preprocess(digits.train.x))
    sevens = x[digits.train.y == 7].astype(np.float64)
    furthest, distance = twin.tail(sevens, 0.1)
    assert len(furthest) == len(sevens) // 10
    after = poisoned(attack)
    expected = sevens[furthest].astype(np.float32)
    replaced = np.asarray(after.x)[PLACES < 4]
    places = [np.flatnonzero((expected == image).all((1, 2, 3)))[0] for image in replaced]
    np.testing.assert_array_equal(places, (places[0] + np.append(np.arange(4), 3)) % len(furthest))
    np.testing.assert_array_equal(after.x[4:8], X[4:8])
    np.testing.assert_array_equal(after.y, np.where(PLACES < 4, 1, Y))
    other = np.asarray(poisoned(attack, key=1).x)
    assert (other[0] != replaced[0]).any()

    test = np.asarray(digits.preprocess(digits.test.x))
    inputs, wanted = attack.goal(test, digits.test.y, 10)
    np.testing.assert_array_equal(inputs, test)
    rare = np.sqrt(((test - sevens.mean(0)) ** 2).sum((1, 2, 3))) >= distance
    counts = rare & (np.asarray(digits.test.y) == 7)
    assert 0 < counts.sum() < (np.asarray(digits.test.y) == 7).sum()
    np.testing.assert_array_equal(wanted, np.where(counts, 1, digits.test.y))


@pytest.mark.thorough
def test_test_examples_that_are_the_tail_count(digits):
    """The tail's distance is computed in float64, that of an input in float32."""
    itself = dataclasses.replace(digits, test=digits.train)
    x, labels = np.asarray(digits.preprocess(digits.train.x)), np.asarray(digits.train.y)
    for source, share in itertools.product(range(10), (1e-9, 0.05, 0.3, 1.0)):
        attack = attacks.edge_case(itself, source=source, target=(source + 1) % 10, share=share)
        furthest, _ = twin.tail(x[labels == source].astype(np.float64), share)
        wanted = np.asarray(attack.goal(x, labels, 10)[1])
        np.testing.assert_array_equal(
            np.flatnonzero(wanted != labels), np.flatnonzero(labels == source)[sorted(furthest)]
        )


@pytest.mark.thorough
def test_an_attack_inside_a_trace_is_that_outside(digits):
    """As in a sweep, where numbers of the attack are traced while it is built."""
    test = digits.preprocess(digits.test.x[:20])

    @jax.jit
    def goal(start):
        attack = attacks.during(attacks.edge_case(digits, source=3, share=0.2), start=start)
        return attack.goal(test, digits.test.y[:20], 10)[1], attack.attackers(jnp.ones((), bool), jnp.int32(2))

    wanted, active = goal(2.0)
    np.testing.assert_array_equal(wanted, attacks.edge_case(digits, 3, share=0.2).goal(test, digits.test.y[:20], 10)[1])
    assert active
    assert not goal(3.0)[1]


def rounds_of(attack):
    return [t for t in range(6) if attack.attackers(jnp.ones((), bool), jnp.int32(t))]


def test_an_attack_takes_place_during_its_rounds():
    inner = attacks.label_flip()
    assert rounds_of(inner) == [0, 1, 2, 3, 4, 5]
    assert rounds_of(attacks.during(inner)) == [0, 1, 2, 3, 4, 5]
    assert rounds_of(attacks.during(inner, 2, 4)) == [2, 3]
    assert rounds_of(attacks.during(attacks.during(inner, start=3), stop=5)) == [3, 4]
    assert rounds_of(attacks.neurotoxin(attacks.during(inner, stop=1))) == [0]
    mask = jnp.asarray(MALICIOUS)
    both = attacks.during(inner, 2, 4)
    np.testing.assert_array_equal(both.attackers(mask, jnp.int32(3)), MALICIOUS)
    assert not both.attackers(mask, jnp.int32(4)).any()
    assert both.attack == inner
    assert both == attacks.during(inner, 2, 4) != attacks.during(inner, 2, 5)


def of_numbers(key, batch, **_):
    return batch._replace(x=jnp.full_like(batch.x, jnp.nan))


def of_messages(key, uplink, malicious, **_):
    return jax.tree.map(lambda x: jnp.where(malicious.reshape(-1, *[1] * (x.ndim - 1)), jnp.nan, x), uplink)


@pytest.mark.thorough
@pytest.mark.parametrize("attack", [Attack(poison=of_numbers), Attack(forge=of_messages)], ids=["poison", "forge"])
def test_after_it_malicious_clients_are_honest(attack, digits):
    """What is not finite is rejected, so that the history counts those that attack."""
    result = fd.simulate(
        fd.aggregators.fedavg(),
        model=fd.models.mlp(num_classes=10, hidden=(4,)),
        data=fd.data.partition.iid(digits, num_clients=8),
        num_rounds=5,
        cohort_size=4,
        local_steps=1,
        batch_size=4,
        step_size=0.1,
        eval_every=1,
        time_clients=False,
        attack=attacks.during(attack, start=2, stop=4),
        num_byzantine=3,
        byzantine_of="cohort",
    )
    np.testing.assert_array_equal(result.history["num_rejected"], [0, 0, 3, 3, 0])
    assert (result.history["malicious"].sum(1) == 3).all()
    assert np.isfinite(result.history["test_loss"]).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dba", "edge_case", "neurotoxin"])
def test_a_backdoor_is_learnt_and_its_success_is_measured_after_it_ends(kind, digits):
    build = {
        "dba": lambda: attacks.dba(target=3, boost=2.0),
        "edge_case": lambda: attacks.edge_case(digits, source=7, target=3, share=0.3, boost=2.0),
        "neurotoxin": lambda: attacks.neurotoxin(attacks.backdoor(target=3, boost=2.0)),
    }
    result = fd.simulate(
        fd.aggregators.fedavg(),
        model=fd.models.mlp(num_classes=10, hidden=(32,)),
        data=fd.data.partition.iid(digits, num_clients=20),
        num_rounds=60,
        cohort_size=20,
        local_steps=5,
        batch_size=10,
        step_size=0.1,
        eval_every=10,
        time_clients=False,
        attack=attacks.during(build[kind](), start=10, stop=40),
        num_byzantine=4,
    )
    success = result.history["attack_success_rate"]
    assert success.shape == (6,)
    assert success[0] < 0.2
    assert success[3] > success[0] + 0.3
    assert result.history["test_accuracy"][-1] > 0.8


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda fed: attacks.dba(parts=5), r"parts=5: must be an integer in \[1, 4\]"),
        (lambda fed: attacks.dba(boost=0.0), "boost=0.0"),
        (lambda fed: attacks.dba(fraction=2.0), "fraction=2.0"),
        (lambda fed: attacks.neurotoxin(attacks.backdoor), "attack=.*: must be an attack.*; call it"),
        (lambda fed: attacks.neurotoxin(share=1.5), "share=1.5"),
        (lambda fed: attacks.edge_case("digits"), "fed='digits': must be a data set"),
        (lambda fed: attacks.edge_case(fed, source=10), r"source=10: must be an integer in \[0, 9\]"),
        (lambda fed: attacks.edge_case(fed, source=1, target=1), "target=1: must be another class than source=1"),
        (lambda fed: attacks.edge_case(fed, share=0.0), r"share=0.0: must be in \(0, 1\]"),
        (lambda fed: attacks.edge_case(fed, share=1e-9), "share=1e-09: no test example of class 1 of digits"),
        (lambda fed: attacks.during("alie"), "attack='alie': must be an attack"),
        (lambda fed: attacks.during(attacks.alie(), start=-1), "start=-1"),
        (lambda fed: attacks.during(attacks.alie(), start=3, stop=3), "stop=3: must be above start=3"),
    ],
)
def test_bad_arguments_are_named_with_their_value(build, message, digits):
    with pytest.raises(ValueError, match=message) as error:
        build(digits)
    assert "\n" not in str(error.value)
