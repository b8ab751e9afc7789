"""Attackers whose local passes minimise a loss of their own, in runs against NumPy and on the contract's seam."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reference import numpy_directed_attacks as twin

import fedjax_drag as fd
from fedjax_drag import attacks
from fedjax_drag.testing import check_attack
from fedjax_drag.types import Batch, Examined

SIDE, CLASSES, CLIENTS, STEPS, STEP_SIZE, TARGET = 4, 3, 4, 5, 0.4, 2
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(24, SIDE, SIDE, 1)).astype(np.float32), RNG.integers(0, CLASSES, 24)
DATA = fd.data.partition.iid(fd.data.from_arrays(X, Y, X, Y, CLASSES, mean=(0.0,), std=(1.0,)), num_clients=CLIENTS)
PLAIN = {"target": TARGET, "trigger_size": 2, "trigger_value": 3.0, "fraction": 1.0}


@functools.cache
def run(attack, **changes):
    """Everybody takes part, on all examples: the result, and the parameters at first and after each of two rounds."""
    settings = {
        "model": fd.models.mlp(num_classes=CLASSES, hidden=()),
        "data": DATA,
        "num_rounds": 2,
        "cohort_size": CLIENTS,
        "local_steps": STEPS,
        "batch_size": "full",
        "step_size": STEP_SIZE,
        "eval_every": 1,
        "time_clients": False,
        "attack": attack,
        "num_byzantine": 2,
    }
    simulation = fd.simulation.prepare(fd.algorithms.from_aggregator(fd.aggregators.fedavg()), **settings | changes)
    state = simulation.initial_state()
    trajectory = [flat(state.params)]
    result = simulation.run([lambda evaluation: trajectory.append(flat(evaluation.state.params))], state)
    return result, trajectory


def flat(params):
    """Bias and kernel side by side, in float64."""
    return np.concatenate([np.array(x, np.float64).reshape(-1) for x in jax.tree.leaves(params)])


def slope(x, y):
    """The gradient ``w -> grad L(w)`` of softmax regression on some images."""
    x, truth = x.reshape(len(x), -1).astype(np.float64), np.eye(CLASSES)[y]

    def at(w):
        scores = x @ w[CLASSES:].reshape(-1, CLASSES) + w[:CLASSES]
        likelihood = np.exp(scores - scores.max(axis=1, keepdims=True))
        excess = (likelihood / likelihood.sum(axis=1, keepdims=True) - truth) / len(x)
        return np.concatenate([excess.sum(axis=0), (x.T @ excess).ravel()])

    return at


def expected(malicious, G, forged):
    """The parameters after a round in which attacker number k sends ``forged(k, true, x)``."""
    deltas, number = [], 0
    for client in range(CLIENTS):
        mine = DATA.rows[client][: DATA.counts[client]]
        true = slope(X[mine], Y[mine])
        if malicious[client]:
            deltas.append(forged(number, true, X[mine]))
            number += 1
            continue
        w = G
        for _ in range(STEPS):
            w = w - STEP_SIZE * true(w)
        deltas.append(w - G)
    return G + np.mean(deltas, axis=0)


def poisoned(x, part=0, parts=1):
    marked = twin.trigger_part(x, 2, 3.0, part, parts)
    return slope(marked, np.full(len(x), TARGET))


def agrees(result, trajectory, forged):
    """Both rounds, the second from where the first has ended and with its change."""
    last = np.zeros_like(trajectory[0])
    for t, (G, after) in enumerate(itertools.pairwise(trajectory)):
        malicious = np.zeros(CLIENTS, bool)
        malicious[result.history["client_ids"][t]] = result.history["malicious"][t]
        assert malicious.sum() == 2
        by_hand = expected(malicious, G, functools.partial(forged, G, last))
        assert np.abs(by_hand - G).max() > 0.1
        np.testing.assert_allclose(after, by_hand, rtol=0, atol=1e-5)
        last = after - G


@pytest.mark.parametrize("anomaly", ["distance", "cosine"])
def test_constrain_and_scale_agrees_with_its_twin(anomaly):
    """Around a backdoor, and around one whose trigger is divided."""
    parts = {"distance": 1, "cosine": 2}[anomaly]
    inside = attacks.backdoor(**PLAIN, boost=3.0) if parts == 1 else attacks.dba(**PLAIN, boost=3.0, parts=2)
    found = run(attacks.constrain_and_scale(inside, alpha=0.3, anomaly=anomaly))

    def forged(G, last, number, true, x):
        gradients = [poisoned(x, number % parts, parts)] * STEPS
        return 3.0 * twin.constrained_pass(G, gradients, STEP_SIZE, 0.3, anomaly)

    agrees(*found, forged)


def test_alternating_minimisation_agrees_with_its_twin():
    found = run(attacks.alter_min(attacks.backdoor(**PLAIN, boost=1.0), boost=4.0, stealth_steps=2, rho=0.5))

    def forged(G, last, number, true, x):
        return twin.alternating_pass(G, STEPS, true, poisoned(x), last, STEP_SIZE, (4.0, 2, 0.5))

    agrees(*found, forged)


def test_the_cosine_pulls_along_the_derivative_of_its_definition():
    w, G = ({"a": jnp.asarray(RNG.normal(size=(2, 3))), "b": jnp.asarray(RNG.normal(size=4))} for _ in range(2))
    zero = jax.tree.map(jnp.zeros_like, w)
    joined = lambda tree: jnp.concatenate([x.reshape(-1) for x in jax.tree.leaves(tree)])
    found = attacks.constrain_and_scale(alpha=0.0, anomaly="cosine").gradient(zero, w, G)
    by_definition = jax.grad(lambda w: optax.losses.cosine_distance(joined(w), joined(G)))(w)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), found, by_definition)
    at_start = attacks.constrain_and_scale(alpha=0.25).gradient(w, G, G)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, 0.25 * y, rtol=1e-6), at_start, w)


@pytest.mark.parametrize("padded", [0, 2])
def test_the_contrast_of_features_agrees_with_its_twin(padded):
    """Weighted for the target, in the first steps only; padding and an example without features count for nothing."""
    z, y = RNG.normal(size=(9, 4)), np.array([2, 0, 2, 1, 0, 0, 2, 2, 0])
    real = np.arange(9) < 9 - padded
    attack = attacks.chameleon(attacks.backdoor(target=2), "head", contrastive_steps=2, weight=3.0, temperature=0.5)
    batch = Batch(jnp.zeros((9, 1)), jnp.asarray(y), jnp.asarray(real) if padded else None)
    features = z * np.logspace(-30, 30, 9)[:, None]  # their lengths do not count
    examined = Examined(z, jnp.asarray(features, jnp.float32), jnp.subtract, lambda params: params)
    before = jnp.arange(9.0)
    found = [attack.loss(before, examined, batch, local_step=jnp.int32(step)) for step in range(3)]
    unit = (z / np.linalg.norm(z, axis=1, keepdims=True))[real]
    by_hand = np.where(y[real] == 2, 3.0, 1.0) * twin.contrasts(unit, y[real], 0.5)
    np.testing.assert_allclose(found[0][real], by_hand, rtol=1e-5)
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], before)

    alone = Examined(z, jnp.zeros((1, 4)), jnp.subtract, lambda params: params)
    lost = lambda z: attack.loss(before, alone._replace(representation=z), batch._replace(y=y[:1]), local_step=0).sum()
    assert np.isfinite(jax.grad(lost)(jnp.zeros((1, 4)))).all()


@pytest.mark.thorough
@pytest.mark.parametrize(("contrastive_steps", "moves"), [(STEPS, "features"), (0, "head"), (2, "both")])
def test_first_the_features_move_and_then_the_head(contrastive_steps, moves):
    inside = attacks.backdoor(**PLAIN | {"fraction": 0.5}, boost=1.0)
    attack = attacks.chameleon(inside, "Dense_1", contrastive_steps=contrastive_steps, temperature=0.5)
    model = fd.models.mlp(num_classes=CLASSES, hidden=(6,))
    _, (before, after, _) = run(attack, model=model, num_byzantine=CLIENTS)
    changed = after != before
    features = 6 + 6 * SIDE**2
    assert changed[:features].any() == (moves != "head")
    assert changed[features:].any() == (moves != "features")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["constrain_and_scale", "alter_min", "chameleon"])
def test_their_backdoors_are_learnt(kind):
    inside = attacks.backdoor(target=3, fraction=0.5, boost=3.0)
    attack = {
        "constrain_and_scale": lambda: attacks.constrain_and_scale(inside, alpha=0.8),
        "alter_min": lambda: attacks.alter_min(
            attacks.backdoor(target=3, fraction=1.0, boost=1.0), boost=5.0, stealth_steps=4
        ),
        "chameleon": lambda: attacks.chameleon(inside, "Dense_1", contrastive_steps=5, temperature=0.5),
    }[kind]()
    result = fd.simulate(
        fd.aggregators.fedavg(),
        model=fd.models.mlp(num_classes=10, hidden=(32,)),
        data=fd.data.partition.iid(fd.data.load("digits"), num_clients=20),
        num_rounds=40,
        cohort_size=20,
        local_steps=10,
        batch_size=16,
        step_size=0.1,
        eval_every=20,
        time_clients=False,
        attack=attack,
        num_byzantine=4,
    )
    assert result.history["attack_success_rate"][-1] > 0.5
    assert result.history["test_accuracy"][-1] > 0.8


@pytest.mark.thorough
def test_without_its_own_part_each_is_the_attack_inside():
    inside = attacks.backdoor(**PLAIN, boost=1.0)
    whole = run(inside)[1]
    np.testing.assert_allclose(run(attacks.constrain_and_scale(inside, alpha=1.0))[1], whole, rtol=0, atol=1e-6)
    np.testing.assert_allclose(run(attacks.alter_min(inside, boost=1.0, stealth_steps=0))[1], whole, rtol=0, atol=1e-6)


@pytest.mark.thorough
def test_whoever_does_not_attack_follows_its_own_gradient():
    attack = attacks.during(attacks.constrain_and_scale(Broken()), start=5)
    plain = run(None, num_byzantine=None)[1]
    np.testing.assert_allclose(run(attack)[1], plain, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(run(attack.attack)[0].history["num_rejected"], [2, 2])


class Broken(attacks.backdoor):
    """An attack that follows nothing finite."""

    def gradient(self, gradient, w, start, **_):
        return jax.tree.map(lambda g: g * jnp.nan, gradient)


class Short(Broken):
    """An attack whose gradient has lost a leaf."""

    def gradient(self, gradient, w, start, **_):
        return {}


@pytest.mark.thorough
def test_personal_layers_are_none_of_the_attackers():
    """The half of a client's parameters that it keeps takes the step of its own gradient."""
    method = fd.algorithms.fedper(layers="Dense_1/*")
    settings = {"num_rounds": 1, "eval_every": 1, "cohort_size": CLIENTS, "local_steps": 1, "batch_size": "full"}
    settings |= {"model": fd.models.mlp(num_classes=CLASSES, hidden=(4,)), "data": DATA, "step_size": 0.1}
    attack = attacks.alter_min(attacks.backdoor(**PLAIN, boost=1.0), stealth_steps=0, boost=50.0)
    attacked = fd.simulate(method, **settings, attack=attack, num_byzantine=4)
    plain = fd.simulate(method, **settings, attack=attack.inner, num_byzantine=4)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-6),
        attacked.state.clients.own.rows,
        plain.state.clients.own.rows,
    )
    assert np.abs(flat(attacked.params) - flat(plain.params)).max() > 0.01


def test_wrappers_hand_a_gradient_on():
    attack = attacks.during(attacks.neurotoxin(attacks.alter_min(attacks.dba())), start=2)
    assert (attack.has_gradient, attacks.during(attacks.dba()).has_gradient) == (True, False)
    assert attack.needs == {"attacker_index", "last_update", "local_step"}
    one = jnp.ones(3)
    found = attack.gradient(one, one, 0 * one, last_update=one, local_step=jnp.int32(0))
    np.testing.assert_array_equal(found, 10 * one)


def test_steps_of_stealth_follow_the_true_loss():
    one, known = jnp.ones(1), {"last_update": jnp.zeros(1), "memory": (), "attacker_index": 0}
    attack = attacks.alter_min(attacks.constrain_and_scale(alpha=0.5), rho=0.0, boost=10.0, stealth_steps=1)
    adversarial, stealth = (attack.gradient(2 * one, one, 0 * one, local_step=step, **known) for step in (0, 1))
    np.testing.assert_array_equal(adversarial, 10 * 1.5 * one)
    np.testing.assert_array_equal(stealth, 2 * one)
    attack = attacks.alter_min(attacks.chameleon(attacks.backdoor(target=0), "head"), stealth_steps=1)
    batch = Batch(jnp.zeros((2, 3)), jnp.zeros(2, jnp.int32))
    examined = Examined(jnp.eye(2), jnp.eye(2), lambda *_: given["losses"], lambda params: params)
    given = {"losses": jnp.array([1.0, 3.0]), "examined": examined, "batch": batch}
    np.testing.assert_array_equal(attack.loss(**given, local_step=jnp.int32(1)), given["losses"])
    assert (attack.loss(**given, local_step=jnp.int32(0)) != given["losses"]).all()


def test_a_gradient_of_another_shape_is_refused():
    with pytest.raises(AssertionError, match="gradient returns"):
        check_attack(Short())
    with pytest.raises(ValueError, match="attack: gradient returns"):
        run(Short())


def test_a_head_that_the_model_does_not_have_is_named():
    with pytest.raises(ValueError, match=r"head='nothing': matches no parameter; there are Dense_0/bias"):
        run(attacks.chameleon(attacks.backdoor(**PLAIN), "nothing"))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: attacks.constrain_and_scale(alpha=1.5), "alpha=1.5"),
        (lambda: attacks.constrain_and_scale(anomaly="norm"), "anomaly='norm': must be one of distance, cosine"),
        (lambda: attacks.constrain_and_scale("dba"), "attack='dba': must be an attack"),
        (lambda: attacks.alter_min(boost=0.0), "boost=0.0"),
        (lambda: attacks.alter_min(stealth_steps=-1), "stealth_steps=-1"),
        (lambda: attacks.alter_min(rho=-1.0), "rho=-1.0"),
        (
            lambda: attacks.chameleon(attacks.label_flip(), "head"),
            "attack=label_flip.*: must be a backdoor with a target",
        ),
        (lambda: attacks.chameleon(attacks.dba(), ()), "head=.*: must be a pattern of parameter paths"),
        (lambda: attacks.chameleon(attacks.dba(), "head", weight=0.0), "weight=0.0"),
        (lambda: attacks.chameleon(attacks.dba(), "head", temperature=0.0), "temperature=0.0"),
        (lambda: attacks.chameleon(attacks.dba(), "head", contrastive_steps=-1), "contrastive_steps=-1"),
        (lambda: attacks.alter_min(attacks.dba), "attack=.*: must be an attack.*; call it"),
    ],
)
def test_bad_arguments_of_them_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()
