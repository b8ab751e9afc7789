"""Attacks that learn from the rounds before, and those that stay near honest messages."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import numpy_directed_attacks as twin
from scipy.stats import binom

import fedjax_drag as fd
from fedjax_drag import attacks
from fedjax_drag.attacks._poisonedfl import follows
from fedjax_drag.types import Uplink

MALICIOUS = np.array([True, False, False, True, False, False])
SIZE = 40


def as_tree(vectors):
    return {"a": jnp.asarray(vectors[..., :30]).reshape(*vectors.shape[:-1], 5, 6), "b": jnp.asarray(vectors[..., 30:])}


def as_vectors(tree):
    return np.concatenate([np.asarray(tree["a"]).reshape(*tree["b"].shape[:-1], -1), tree["b"]], axis=-1)


def deltas(seed=0):
    return np.random.default_rng(seed).normal(size=(6, SIZE)).astype(np.float32) + 0.3


def sent(attack, G, **knowledge):
    uplink = Uplink(as_tree(G), {"c": jnp.ones((6, 2))})
    forge = jax.jit(lambda uplink: attack.forge(jax.random.key(0), uplink, jnp.asarray(MALICIOUS), **knowledge))
    forged = forge(uplink)
    np.testing.assert_array_equal(as_vectors(forged.delta)[~MALICIOUS], G[~MALICIOUS])
    return as_vectors(forged.delta)[MALICIOUS]


@pytest.mark.parametrize(
    "settings",
    [{}, {"radius": 0.7, "location": 0.4, "reference": 0.2, "angle": 150.0}, {"radius": 2.0, "angle": 180.0}],
    ids=["default", "turned", "against"],
)
def test_rop_agrees_with_its_twin(settings):
    G, last = deltas(), np.random.default_rng(1).normal(size=SIZE).astype(np.float32)
    every = {"radius": None, "location": 1.0, "reference": 0.9, "angle": 90.0} | settings
    for update in (last, 0 * last):
        expected = twin.rop_sends(G[~MALICIOUS].astype(np.float64), update.astype(np.float64), **every)
        found = sent(attacks.rop(**settings), G, last_update=as_tree(update))
        np.testing.assert_allclose(found, np.tile(expected, (2, 1)), rtol=2e-5, atol=2e-5)


def test_rop_is_orthogonal_to_its_reference_and_hidden_from_clipping_around_the_last_aggregate():
    G, last = deltas(), np.random.default_rng(2).normal(size=SIZE).astype(np.float32)
    (found, _) = sent(attacks.rop(radius=0.5), G, last_update=as_tree(last))
    u = 0.9 * last + 0.1 * G[~MALICIOUS].mean(axis=0)
    assert abs((found - last) @ u) < 1e-4 * np.linalg.norm(u)
    np.testing.assert_allclose(np.linalg.norm(found - last), 0.5, rtol=1e-5)
    state = fd.aggregators.centered_clipping(0.5).init(as_tree(last))._replace(center=as_tree(last))
    own = Uplink(as_tree(np.stack([found, G[1]]))).delta
    _, after = fd.aggregators.centered_clipping(0.5).apply(as_tree(0 * last), own, state)
    assert after.metrics["scale"][0] > 0.999 > after.metrics["scale"][1]


def test_poisonedfl_agrees_with_its_twin_over_rounds():
    settings = {"factor": 2.0, "period": 3, "shrink": 0.7, "least": 0.9}
    attack, rng = attacks.poisonedfl(**settings), np.random.default_rng(3)
    memory = attack.init(jax.random.key(4), as_tree(np.zeros(SIZE, np.float32)))
    s = as_vectors(memory.signs).astype(np.float64)
    assert set(s) == {-1.0, 1.0}
    # With the signs in rounds 4 to 6 and at random in the others.
    updates = [rng.normal(size=SIZE) * 10.0**-t for t in range(14)]
    updates[3:6] = [np.abs(update) * s for update in updates[3:6]]
    threshold = int(binom.isf(0.01, SIZE, 0.5))
    expected = twin.poisonedfl_sends(updates, s, **settings, threshold=threshold)
    observe = jax.jit(attack.observe)
    for t, update in enumerate(updates):
        message, factor = expected[t]
        G = deltas()
        found = sent(attack, G, memory=memory)
        np.testing.assert_allclose(found, np.tile(message, (2, 1)), rtol=2e-4, atol=1e-6 * np.abs(message).max())
        np.testing.assert_allclose(memory.factor, factor, rtol=1e-6)
        memory = observe(memory, as_tree(update.astype(np.float32)), jnp.int32(t))
    assert [round(factor, 3) for _, factor in expected[::3]] == [2.0, 1.4, 1.4, 0.98, 0.98]


@pytest.mark.parametrize(
    ("size", "count"), [(1_204_682, 603_618), (139_960, 70_415), (717_924, 359_948), (145_212, 73_049)]
)
def test_the_test_has_the_counts_of_the_authors_code(size, count):
    signs = {"x": jnp.ones(size, jnp.int8)}
    at = lambda number: follows({"x": jnp.where(jnp.arange(size) < number, 1.0, -1.0)}, signs, 0.01)
    assert at(count)
    assert not at(count - 1)


@pytest.mark.thorough
def test_poisonedfl_moves_a_run_along_its_signs_and_resumes():
    digits = fd.data.partition.iid(fd.data.load("digits"), num_clients=10, seed=0)
    settings = {
        "model": fd.models.mlp(num_classes=10, hidden=(8,)),
        "data": digits,
        "num_rounds": 24,
        "cohort_size": 10,
        "local_steps": 2,
        "batch_size": 8,
        "step_size": 0.1,
        "eval_every": 12,
        "time_clients": False,
    }
    attack = attacks.poisonedfl(period=5)
    attacked = {"attack": attack, "num_byzantine": 3}
    whole = fd.simulate(fd.aggregators.fedavg(), **attacked, **settings)
    honest = fd.simulate(fd.aggregators.fedavg(), **settings)
    memory = whole.state.attack
    assert honest.state.attack == ()
    agree = [
        (jnp.sign(end - start) == s).mean()
        for end, start, s in zip(
            *map(jax.tree.leaves, (whole.state.params, honest.state.params, memory.signs)), strict=True
        )
    ]
    assert np.mean(agree) > 0.9
    assert whole.history["test_accuracy"][-1] < honest.history["test_accuracy"][-1] - 0.2
    half = fd.simulate(fd.aggregators.fedavg(), **attacked, **settings | {"num_rounds": 12})
    rest = fd.simulate(fd.aggregators.fedavg(), **attacked, initial=half.state, **settings)
    for x, y in zip(jax.tree.leaves(whole.state), jax.tree.leaves(rest.state), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.sample(2)
@pytest.mark.parametrize(("norm", "cosine"), [(0.5, 0.9), (None, 0.6), (1.0, None), (2.0, -1.0), (0.01, 1.0)])
def test_stealth_agrees_with_its_twin_and_keeps_its_bounds(norm, cosine):
    G = deltas()
    benign = G[~MALICIOUS].astype(np.float64)
    for inner in (attacks.sign_flip(4.0), attacks.alie(z=3.0), attacks.label_flip()):
        attack = attacks.stealth(inner, norm=norm, cosine=cosine)
        before = sent(inner, G) if inner.forges else G[MALICIOUS]
        found = sent(attack, G)
        expected = [twin.hidden(v.astype(np.float64), benign, norm, cosine) for v in before]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
        lengths, mean = np.linalg.norm(found, axis=1), benign.mean(axis=0)
        if norm is not None:
            assert (lengths <= norm * np.linalg.norm(benign, axis=1).mean() * (1 + 1e-5)).all()
        if cosine is not None:
            assert (found @ mean / lengths / np.linalg.norm(mean) >= cosine - 1e-4).all()


def test_stealth_leaves_alone_what_is_within_the_bounds():
    G = deltas()
    np.testing.assert_array_equal(sent(attacks.stealth(attacks.label_flip(), norm=10.0, cosine=-1.0), G), G[MALICIOUS])
    against = G.copy()
    against[MALICIOUS] = -G[~MALICIOUS].mean(axis=0)
    for cosine, left in ((0.5, -0.5), (0.0, 0.0), (-0.5, 0.0), (-1.0, 1.0)):
        turned = sent(attacks.stealth(attacks.label_flip(), norm=None, cosine=cosine), against)
        np.testing.assert_allclose(turned, left * against[MALICIOUS], rtol=1e-4, atol=1e-4)


def test_model_replacement_under_a_bound_is_scaled_to_the_bound():
    """Whatever the boost, of a single trigger and of one in parts."""
    G = deltas()
    longest = np.linalg.norm(G[~MALICIOUS], axis=1).mean()
    for inner in (attacks.backdoor(boost=1e4), attacks.backdoor(boost=50.0), attacks.dba(boost=1e4)):
        found = sent(attacks.stealth(inner), G)
        own = G[MALICIOUS]
        np.testing.assert_allclose(found, own / np.linalg.norm(own, axis=1, keepdims=True) * longest, rtol=1e-5)
    attack = attacks.during(attacks.neurotoxin(attacks.stealth(attacks.dba())), start=2)
    assert (attack.poisons, attack.forges, attack.is_targeted) == (True, True, True)
    assert attack.needs == {"attacker_index", "last_update"}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: attacks.stealth(attacks.alie(), norm=None), "norm: must be a number, or cosine one"),
        (lambda: attacks.stealth(attacks.alie(), norm=0.0), "norm=0.0"),
        (lambda: attacks.stealth(attacks.alie(), cosine=1.5), "cosine=1.5"),
        (lambda: attacks.stealth("alie"), "attack='alie': must be an attack"),
        (lambda: attacks.rop(radius=-1.0), "radius=-1.0"),
        (lambda: attacks.rop(knowledge="all"), "knowledge='all'"),
        (lambda: attacks.poisonedfl(period=0), "period=0"),
        (lambda: attacks.poisonedfl(level=1.0), "level=1.0"),
    ],
)
def test_bad_arguments_of_these_are_named(build, message):
    with pytest.raises(ValueError, match=message) as error:
        build()
    assert "\n" not in str(error.value)
