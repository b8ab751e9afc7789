"""What malicious clients send, against NumPy, and what they train on."""

import functools
import inspect
from types import MappingProxyType

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import ATTACKS, parametrize
from reference import numpy_rules

from fedjax_drag.attacks import freeloader, label_flip, scale_noise, sign_flip
from fedjax_drag.testing._promises import assert_pure
from fedjax_drag.types import POISON_NEEDS, Batch, Uplink

COHORT = 6
MALICIOUS = np.array([True, False, True, False, False, True])
IDS = jnp.array([7, 1, 4, 0, 6, 2])
FORGING = [case for case in ATTACKS if case.build().forges]
VALID = np.array([True, True, True, False, True, False])
"""A benign client and a malicious one are absent."""
POISONING = [case for case in ATTACKS if case.build().poisons]


def uplink(seed=0, dtype=np.float32):
    """A message of two halves, with a vector and a scalar for each client."""
    rng = np.random.default_rng(seed)
    return Uplink(
        {"w": jnp.asarray(rng.normal(size=(COHORT, 4)), dtype), "b": jnp.asarray(rng.normal(size=COHORT), dtype)},
        {"c": jnp.asarray(rng.normal(size=(COHORT, 2, 3)), dtype)},
    )


LAST = {"w": jnp.array([2.0, -1.0, 0.5, 3.0]), "b": jnp.array(-4.0)}
"""Of the global parameters."""


def bits(tree, rows):
    return [np.asarray(leaf)[rows].tobytes() for leaf in jax.tree.leaves(tree)]


def mean_of_deltas(message):
    """What the simplest rule makes of a message."""
    return jax.tree.map(lambda x: x.mean(0), message.delta)


KNOWLEDGE = ("last_update", "aggregate", "memory")


def known_to(attack, aggregate=mean_of_deltas):
    """What the attack asks for; its memory after a round."""
    memory = attack.observe(attack.init(jax.random.key(9), LAST), LAST, jnp.int32(0))
    knowledge = {"last_update": LAST, "aggregate": aggregate, "memory": memory}
    return {name: knowledge[name] for name in attack.needs.difference(POISON_NEEDS)}


def forge(case, message, key=0, malicious=MALICIOUS, ids=IDS, changes=MappingProxyType({}), **knowledge):
    """Told no more than it must be, and ``knowledge``; the case's settings with ``changes``."""
    attack = case.build(**changes)
    knowledge |= known_to(attack)
    return attack.forge(jax.random.key(key), message, jnp.asarray(malicious), client_ids=ids, **knowledge)


compiled = jax.jit(forge, static_argnums=0, static_argnames="weather")


def is_variation(case):
    """Whether another case has the same builder, whose parts this one shares."""
    return "-" in case.label


@parametrize(ATTACKS)
def test_an_attack_acts_somewhere(case):
    attack = case.build()
    assert attack.forges or attack.forges_for_each or attack.poisons
    assert attack.needs <= {*KNOWLEDGE, *POISON_NEEDS}


@parametrize(FORGING, slow=is_variation)
@pytest.mark.parametrize(
    "dtype", [jnp.float32, pytest.param(jnp.bfloat16, marks=pytest.mark.thorough)], ids=["float32", "bfloat16"]
)
@pytest.mark.sample(3)
def test_benign_rows_keep_every_bit(case, dtype):
    """Negative zero, the smallest numbers and what is not finite included."""
    odd = jnp.array([-0.0, 1e-40, np.nan, -np.inf], dtype)
    message = uplink(dtype=dtype)
    message = message._replace(delta={**message.delta, "w": message.delta["w"].at[1].set(odd)})
    forged = compiled(case, message)
    assert bits(forged, ~MALICIOUS) == bits(message, ~MALICIOUS)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), forged) == jax.tree.map(lambda x: (x.shape, x.dtype), message)


@parametrize(FORGING, slow=is_variation)
@pytest.mark.sample(6)
def test_malicious_rows_change_in_the_forged_halves_only(case):
    message = uplink()
    forged = compiled(case, message, round=jnp.int32(3), weather="rain")
    for half in Uplink._fields:
        pairs = zip(jax.tree.leaves(getattr(message, half)), jax.tree.leaves(getattr(forged, half)), strict=True)
        for before, after in pairs:
            changed = np.asarray(before != after).reshape(COHORT, -1).all(axis=1)
            np.testing.assert_array_equal(changed, MALICIOUS & (half in case.forges))
            assert half in case.forges or bits(before, slice(None)) == bits(after, slice(None))
    honest = compiled(case, message, malicious=np.zeros(COHORT, bool))
    assert bits(honest, slice(None)) == bits(message, slice(None))


@pytest.mark.sample(3)
@parametrize(FORGING, slow=is_variation)
def test_traced_again_it_is_the_same_program(case):
    assert_pure(functools.partial(forge, case), uplink())


@parametrize(FORGING, slow=is_variation)
@pytest.mark.sample(3)
def test_a_forged_message_depends_on_the_client_id_and_not_on_the_position(case):
    order = np.array([3, 5, 0, 4, 2, 1])
    message = uplink()
    permuted = compiled(case, jax.tree.map(lambda x: x[order], message), malicious=MALICIOUS[order], ids=IDS[order])
    expected = jax.tree.map(lambda x: x[order], compiled(case, message))
    summed = "knowledge" in inspect.signature(case.builder).parameters or "aggregate" in case.build().needs
    if summed:
        # What is forged from sums over clients is rounded as they come in turn.
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), permuted, expected)
    else:
        assert bits(permuted, slice(None)) == bits(expected, slice(None))


@pytest.mark.sample(1)
@parametrize([case for case in FORGING if case.sweeps], slow=is_variation)
def test_vmap_over_a_hyperparameter_equals_a_loop(case):
    for name, values in case.sweeps.items():

        @jax.jit
        def forged(value, name=name):
            return forge(case, uplink(), changes={name: value})

        swept = jax.jit(jax.vmap(forged))(jnp.asarray(values))
        for k, value in enumerate(values):
            for x, y in zip(jax.tree.leaves(swept), jax.tree.leaves(forged(value)), strict=True):
                np.testing.assert_allclose(x[k], y, rtol=1e-6)


@pytest.mark.parametrize("scale", [0.5, 1.0, 10.0])
def test_sign_flip_agrees_with_its_twin(scale):
    message = uplink()
    forged = sign_flip(scale=scale).forge(jax.random.key(0), message, jnp.asarray(MALICIOUS), client_ids=IDS)
    for before, after in zip(jax.tree.leaves(message), jax.tree.leaves(forged), strict=True):
        expected = numpy_rules.sign_flip(np.asarray(before, np.float64).reshape(COHORT, -1), MALICIOUS, scale)
        np.testing.assert_allclose(np.asarray(after).reshape(COHORT, -1), expected, rtol=1e-6)


def factors(variance, keys, clients):
    """``p`` of each key and client."""
    attack, ones = scale_noise(variance=variance), Uplink(jnp.ones((clients, 2)))

    def one(key):
        return attack.forge(key, ones, jnp.ones(clients, bool), client_ids=jnp.arange(clients)).delta

    return np.asarray(jax.vmap(one)(jax.random.split(jax.random.key(1), keys)), np.float64)


@pytest.mark.parametrize("variance", [3.0, 0.25])
def test_scale_noise_is_one_normal_factor_of_that_variance(variance):
    p = factors(variance, 500, 40)
    np.testing.assert_array_equal(p[..., 0], p[..., 1])
    p = p[..., 0]
    # Standard errors with 20,000 draws: sd/141 of the mean, 1 % of the variance, 0.035 of the fourth moment's 3.
    assert abs(p.mean()) < 4 * np.sqrt(variance) / np.sqrt(p.size)
    assert abs(p.var() / variance - 1) < 0.04
    assert abs((p**4).mean() / p.var() ** 2 - 3) < 0.15
    assert len(np.unique(p)) > 0.99 * p.size  # float32 has few enough values for some to repeat
    across = np.corrcoef(p.T)[np.triu_indices(40, 1)]
    assert abs(across.mean()) < 0.01
    assert abs(across).max() < 6 / np.sqrt(500)


def test_scale_noise_scales_a_whole_message_by_one_factor():
    message = uplink()
    attack = scale_noise()
    forged = attack.forge(jax.random.key(0), message, jnp.asarray(MALICIOUS), client_ids=IDS)
    ratios = jax.tree.leaves(jax.tree.map(lambda x, y: np.asarray(y / x).reshape(COHORT, -1), message, forged))
    ratios = np.concatenate(ratios, axis=1)
    np.testing.assert_allclose(ratios, np.tile(ratios[:, :1], ratios.shape[1]), rtol=1e-6)
    assert len(np.unique(ratios[MALICIOUS, 0])) == MALICIOUS.sum()
    np.testing.assert_array_equal(ratios[~MALICIOUS], 1)


@pytest.mark.parametrize(
    "dtype", [jnp.float32, pytest.param(jnp.bfloat16, marks=pytest.mark.thorough)], ids=["float32", "bfloat16"]
)
def test_a_freeloader_sends_the_last_update_as_it_is(dtype):
    forged = freeloader().forge(
        jax.random.key(0), uplink(dtype=dtype), jnp.asarray(MALICIOUS), client_ids=IDS, last_update=LAST
    )
    for name, last in LAST.items():
        sent = forged.delta[name][MALICIOUS]
        assert sent.dtype == dtype
        np.testing.assert_array_equal(sent, np.broadcast_to(last, sent.shape))


def poisoned_labels(attack, y, positions, num_classes=10, key=0):
    """Labels after the attack; inputs must come back as they were."""
    batch = Batch(jnp.arange(len(y), dtype=jnp.float32)[:, None], jnp.asarray(y, jnp.int32))
    after = attack.poison(
        jax.random.key(key),
        batch,
        positions=jnp.asarray(positions, jnp.int32),
        num_examples=jnp.asarray(np.max(positions) + 1, jnp.int32),
        num_classes=num_classes,
    )
    np.testing.assert_array_equal(after.x, batch.x)
    assert after.y.dtype == batch.y.dtype
    return np.asarray(after.y)


@pytest.mark.sample(1)
@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0])
def test_label_flip_flips_exactly_the_floor_of_its_fraction(fraction):
    """Ten classes, so that no label is its own opposite and each flip shows."""
    attack = label_flip(fraction=fraction)
    for n in (1, 2, 3, 7, 10, 30, 100, 997):
        y = np.random.default_rng(n).integers(0, 10, n)
        after = poisoned_labels(attack, y, np.arange(n))
        flipped = after != y
        # Whole tenths of n, so the floor in exact arithmetic.
        assert flipped.sum() == round(fraction * 10) * n // 10, n
        np.testing.assert_array_equal(after, numpy_rules.label_flip(y, flipped, 10))


def test_label_flip_takes_the_same_examples_in_every_batch_and_round():
    attack, rng = label_flip(fraction=0.5), np.random.default_rng(0)
    y = rng.integers(0, 10, 41)
    whole = poisoned_labels(attack, y, np.arange(41))
    for key in range(5):
        rows = np.append(rng.integers(0, 41, 9), 40)
        np.testing.assert_array_equal(poisoned_labels(attack, y[rows], rows, key=key), whole[rows])


def test_label_flip_of_an_odd_number_of_classes_leaves_the_middle_one():
    after = poisoned_labels(label_flip(fraction=1.0), [0, 1, 2, 3, 4], np.arange(5), num_classes=5)
    np.testing.assert_array_equal(after, [4, 3, 2, 1, 0])


@pytest.mark.thorough
def test_label_flip_works_under_jit_and_vmap_over_clients_and_its_fraction():
    y = jnp.tile(jnp.arange(10, dtype=jnp.int32), (3, 1))

    @jax.jit
    def poison(fraction, counts):
        def one(y, n):
            batch = Batch(jnp.zeros((10, 1)), y)
            attack = label_flip(fraction=fraction)
            return attack.poison(jax.random.key(0), batch, positions=jnp.arange(10), num_examples=n, num_classes=10).y

        return jax.vmap(one)(y, counts)

    flips = jax.vmap(poison, (0, None))(jnp.array([0.0, 0.5, 1.0]), jnp.array([10, 6, 1])) != y
    np.testing.assert_array_equal(flips.sum(-1), [[0, 0, 0], [5, 3, 0], [10, 6, 1]])


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: label_flip(fraction=1.5), "fraction=1.5"),
        (lambda: label_flip(fraction=-0.1), "fraction=-0.1"),
        (lambda: scale_noise(variance=-3.0), "variance=-3.0"),
        (lambda: sign_flip(scale=float("nan")), "scale=nan"),
        (lambda: sign_flip(scale="1"), "scale='1'"),
    ],
)
def test_bad_arguments_are_named_with_their_value(build, name):
    with pytest.raises(ValueError, match=name) as error:
        build()
    assert "\n" not in str(error.value)


@pytest.mark.sample(1)
@parametrize(FORGING, fast=lambda case: case.label in ("alie", "krum_attack"))
def test_absent_clients_are_as_if_not_there(case):
    """What those present forge is what they forge in a cohort of their own."""
    attack = case.build()

    def forge(message, malicious, ids, present, **absence):
        mean = lambda messages: jax.tree.map(lambda x: x[present].mean(0), messages.delta)
        return attack.forge(jax.random.key(0), message, malicious, client_ids=ids, **absence, **known_to(attack, mean))

    together = jax.jit(lambda message: forge(message, jnp.asarray(MALICIOUS), IDS, VALID, valid=jnp.asarray(VALID)))
    few = jax.tree.map(lambda x: x[VALID], uplink())
    alone = jax.jit(lambda message: forge(message, jnp.asarray(MALICIOUS[VALID]), IDS[VALID], np.ones(4, bool)))
    found = jax.tree.map(lambda x: x[VALID], together(uplink()))
    chex.assert_trees_all_close(found, alone(few), rtol=1e-4, atol=1e-5)
    assert bits(found, ~MALICIOUS[VALID]) == bits(few, ~MALICIOUS[VALID])
