"""What rules against backdoors and forged messages promise by their definitions, and what they do in training."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_drag as fd
from fedjax_drag import aggregators as a
from fedjax_drag.aggregators._foundationfl import from_extremes
from fedjax_drag.aggregators._lasa import without_smallest
from fedjax_drag.ops.kmeans import upper_cluster
from fedjax_drag.ops.lbfgs import change_along

COHORT, SIZE = 9, 12


def draw(seed=0):
    return np.random.default_rng(seed).normal(size=(COHORT, SIZE)).astype(np.float32)


def as_tree(G):
    G = np.asarray(G, np.float32)
    return {"matrix": G[..., :8].reshape(*G.shape[:-1], 4, 2), "bias": G[..., 8:]}


def as_vector(tree):
    return np.concatenate([np.asarray(tree[name]).ravel() for name in ("matrix", "bias")])


def play(rule, G, params=None, state=None, **extras):
    """One round; the change of the parameters, the state and its metrics."""
    params = as_tree(np.zeros(SIZE)) if params is None else params
    extras = {"key": jax.random.key(0), "round": jnp.asarray(0), "client_ids": np.arange(len(G)), **extras}
    moved, after = jax.jit(rule.apply)(params, as_tree(G), rule.init(params) if state is None else state, **extras)
    return as_vector(moved) - as_vector(params), after


def test_without_a_threshold_of_agreement_the_mean_and_above_all_clients_its_reverse():
    G = draw()
    np.testing.assert_allclose(play(a.robust_lr(0.0), G)[0], G.mean(0), rtol=1e-5, atol=1e-7)
    reversed_update, state = play(a.robust_lr(COHORT + 1.0), G)
    np.testing.assert_allclose(reversed_update, -G.mean(0), rtol=1e-5, atol=1e-7)
    assert float(state.metrics["reversed_share"]) == 1


def test_a_coordinate_that_one_client_decides_against_the_others_is_reversed():
    G = np.ones((COHORT, SIZE), np.float32)
    G[:, 3] = -0.1
    G[0, 3] = 50.0
    G[1:5, 4] = -1.0
    update, state = play(a.robust_lr(5.0), G)
    np.testing.assert_allclose(np.delete(update, [3, 4]), 1.0, rtol=1e-6)
    np.testing.assert_allclose(update[3], G[:, 3].mean(), rtol=1e-5)  # eight agree, whatever the mean
    np.testing.assert_allclose(update[4], -G[:, 4].mean(), rtol=1e-5)
    np.testing.assert_allclose(state.metrics["reversed_share"], 1 / SIZE, rtol=1e-6)


def test_the_parameters_themselves_are_clipped_as_the_schedule_says():
    G, params = draw(), as_tree(np.linspace(-2, 2, SIZE))
    aim = as_vector(params) + G.mean(0)
    for t in (0, 20, 10_000):
        rule = a.crfl(lambda t: jnp.minimum(0.5 + 0.1 * t, 15.0), sigma=0.0)
        change, state = play(rule, G, params, round=jnp.asarray(t))
        radius = min(0.5 + 0.1 * t, 15.0)
        scale = min(1.0, radius / np.linalg.norm(aim))
        np.testing.assert_allclose(as_vector(params) + change, scale * aim, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(state.metrics["parameter_scale"], scale, rtol=1e-5)
    assert play(a.crfl(1e6, 0.0), G)[0] == pytest.approx(G.mean(0), rel=1e-5, abs=1e-6)


@pytest.mark.thorough
def test_the_noise_on_the_parameters_is_that_of_the_key_and_has_its_deviation():
    G, rule = draw(), a.crfl(1.0, 0.05)
    apply, zero = jax.jit(rule.apply), as_tree(np.zeros(SIZE))
    exact = play(a.crfl(1.0, 0.0), G)[0]
    at = lambda seed: as_vector(apply(zero, as_tree(G), rule.init(zero), key=jax.random.key(seed))[0]) - exact
    noise = np.stack([at(seed) for seed in range(200)])
    assert noise.std() == pytest.approx(0.05, rel=0.05)
    assert abs(noise.mean()) < 4 * 0.05 / math.sqrt(noise.size)
    np.testing.assert_array_equal(at(3), noise[3])


@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.5, 0.99])
def test_of_the_matrices_of_each_client_the_largest_entries_are_kept(sparsity):
    G = draw()
    layers = [as_tree(G)["bias"], as_tree(G)["matrix"], draw(1).reshape(COHORT, 3, 4)]
    bias, *matrices = jax.jit(without_smallest)([jnp.asarray(layer) for layer in layers], sparsity)
    np.testing.assert_array_equal(bias, layers[0])
    entries = np.concatenate([layer.reshape(COHORT, -1) for layer in layers[1:]], axis=1)
    kept = np.concatenate([np.asarray(matrix).reshape(COHORT, -1) for matrix in matrices], axis=1)
    for before, after in zip(entries, kept, strict=True):
        assert (after != 0).sum() == math.floor((1 - sparsity) * 20 + 1e-9)
        np.testing.assert_array_equal(after[after != 0], before[after != 0])
        assert np.abs(before[after == 0]).max(initial=0) <= np.abs(after[after != 0]).min(initial=np.inf)


def test_layers_that_are_all_ordinary_are_clipped_and_averaged():
    G = draw() * np.linspace(0.5, 3, COHORT, dtype=np.float32)[:, None]
    length = np.linalg.norm(G, axis=1)
    clipped = G * np.minimum(1, np.median(length) / length)[:, None]
    update, state = play(a.lasa(0.0, 1e6, 1e6), G)
    np.testing.assert_allclose(update, clipped.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(state.metrics["selected"], 1.0)
    np.testing.assert_allclose(state.metrics["weight"] @ G, update, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_of_two_clients_neither_is_unusual():
    update, state = play(a.lasa(0.0), draw()[:2])
    np.testing.assert_array_equal(state.metrics["selected"], 1.0)
    assert np.isfinite(update).all()


def test_a_client_is_left_out_of_the_layer_in_which_it_is_unusual_only():
    G = np.abs(draw()) + 0.5
    G[4, 8:] *= -1
    _, state = play(a.lasa(0.0, 3.0, 2.0), G)
    np.testing.assert_allclose(state.metrics["selected"][4], 8 / SIZE, rtol=1e-6)
    np.testing.assert_allclose(np.delete(state.metrics["selected"], 4), 1.0, rtol=1e-6)


def test_a_step_whose_layers_are_of_different_clients_may_be_longer_than_a_clipped_delta():
    """Two clients have all their length in the matrix, two in the bias, and one half of its squares in each."""
    shares = np.sqrt([[1, 0], [1, 0], [0, 1], [0, 1], [0.5, 0.5]])  # of a length M = 1
    G = np.repeat(shares / np.sqrt([8, 4]), [8, 4], axis=1)
    update, state = play(a.lasa(0.0), G)
    np.testing.assert_allclose(np.linalg.norm(update), np.sqrt(2) * (2 + np.sqrt(0.5)) / 3, rtol=1e-5)  # 1.28 M
    np.testing.assert_allclose(state.metrics["scale"], 1.0, rtol=1e-6)
    assert "at most sqrt(L) M with L layers" in str(a.lasa.__doc__)


def test_copies_join_the_cohort_of_the_other_rule():
    G = draw()
    np.testing.assert_array_equal(play(a.foundationfl(a.median(), 0), G)[0], play(a.median(), G)[0])
    update, state = play(a.foundationfl(a.krum(2), 3), G)
    chosen = int(np.argmax(state.metrics["score"]))
    np.testing.assert_allclose(state.metrics["score"], from_extremes(as_tree(G), np.ones(COHORT, bool)), rtol=1e-6)
    np.testing.assert_array_equal(update, play(a.krum(2), np.vstack([G, *[G[chosen : chosen + 1]] * 3]))[0])
    update, state = play(a.foundationfl(a.fedavg(), COHORT), G)
    np.testing.assert_allclose(state.metrics["weight"], np.where(np.arange(COHORT) == chosen, 10, 1) / 18, rtol=1e-5)
    np.testing.assert_allclose(update, state.metrics["weight"] @ G, rtol=1e-5, atol=1e-6)


def test_there_are_no_copies_of_a_client_that_does_not_count():
    update, state = play(a.foundationfl(a.fedavg(), 3), draw(), valid=np.zeros(COHORT, bool))
    assert not update.any()
    assert not state.metrics["weight"].any()


@pytest.mark.thorough
def test_copies_have_the_numbers_of_examples_of_their_client():
    G, number = draw(), np.arange(1, COHORT + 1)
    rule = a.foundationfl(a.fedavg(weighting="examples"), 2)
    update, state = play(rule, G, num_examples=number)
    chosen = int(np.argmax(state.metrics["score"]))
    weight = number + np.where(np.arange(COHORT) == chosen, 2 * number[chosen], 0)
    np.testing.assert_allclose(update, weight / weight.sum() @ G, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_the_last_change_is_predicted_along_the_last_step(seed):
    """The secant equation of BFGS: B s = y for the last pair, whatever the others are."""
    rng = np.random.default_rng(seed)
    updates = rng.normal(size=(5, SIZE))
    updates[-1] = 2.5 * updates[-2]  # parallel to the last step
    expected = 2.5 * (updates[-1] - updates[-2])
    np.testing.assert_allclose(as_vector(change_along(as_tree(updates))), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("updates", [np.zeros((4, SIZE)), np.ones((4, SIZE)), np.eye(4, SIZE) * 1e20])
def test_a_change_that_cannot_be_known_is_a_number(updates):
    change = as_vector(change_along(as_tree(updates)))
    assert np.isfinite(change).all()
    if (updates == updates[0]).all():
        assert not change.any()


def test_numbers_that_are_equal_few_or_uniform_are_one_cluster():
    key, everybody, found = jax.random.key(0), np.ones(40, bool), jax.jit(upper_cluster)
    uniform = np.linspace(0, 1, 40, dtype=np.float32)
    assert not found(uniform, everybody, key).any()
    assert not found(np.full(40, 0.3, np.float32), everybody, key).any()
    two = np.where(np.arange(40) < 12, 1.0, 0.1).astype(np.float32)
    np.testing.assert_array_equal(found(two, everybody, key), np.arange(40) < 12)
    assert not found(two, np.isin(np.arange(40), [0, 30]), key).any()


def quadratics(rule, malicious, num_rounds, seed=0):
    """Clients that pull towards their own points, with little noise, and attackers that send noise of that length."""
    rng = np.random.default_rng(seed)
    points, curvature = rng.normal(size=(20, SIZE)), np.linspace(0.2, 1.0, SIZE)
    params, apply = as_tree(np.zeros(SIZE)), jax.jit(rule.apply)
    state = rule.init(params)
    for t in range(num_rounds):
        G = -0.3 * curvature * (as_vector(params) - points)
        G += 0.03 * rng.normal(size=G.shape)
        noise = rng.normal(size=G.shape)
        G[malicious] = (noise / np.linalg.norm(noise, axis=1)[:, None] * np.linalg.norm(G, axis=1)[:, None])[malicious]
        order = rng.permutation(20)
        extras = {"client_ids": order, "key": jax.random.key(t)}
        params, state = apply(params, as_tree(G[order]), state, **extras)
        yield as_vector(params), state, points


@pytest.mark.thorough
def test_the_detector_removes_attackers_only_and_then_the_mean_of_the_others_is_reached():
    malicious = np.arange(20) < 5
    rounds = list(quadratics(a.fldetector(a.fedavg(), window=5, num_clients=20), malicious, 60))
    removed = np.stack([np.asarray(state.removed) for _, state, _ in rounds])
    assert not removed[:10].any()  # the (2 N + 1)-th round is the first in which somebody can be removed
    assert (removed[15:] == malicious).all()
    decisive = rounds[np.argmax(removed.any(1))][1].metrics
    assert np.unique(decisive["score"]).size == 20, "those who were removed by them among them"
    assert not removed[:, ~malicious].any()
    params, state, points = rounds[-1]
    np.testing.assert_allclose(params, points[~malicious].mean(0), atol=0.03)
    assert state.metrics["weight"].sum() == pytest.approx(1)
    plain = list(quadratics(a.fedavg(), malicious, 60))[-1][0]
    assert np.linalg.norm(plain - points[~malicious].mean(0)) > 2 * np.linalg.norm(params - points[~malicious].mean(0))


@pytest.mark.parametrize("rule", [a.rfl_bat(), a.fldetector(a.median(), window=1, num_clients=1)], ids=lambda r: r.name)
def test_a_client_alone_is_the_update(rule):
    G, params = draw()[:1], as_tree(np.zeros(SIZE, np.float32))
    moved, _ = rule.apply(params, as_tree(G), rule.init(params), key=jax.random.key(0), client_ids=jnp.arange(1))
    np.testing.assert_array_equal(as_vector(moved), G[0])


@pytest.mark.thorough
def test_until_somebody_is_removed_the_detector_is_the_other_rule():
    update, state = play(a.fldetector(a.median(), window=5, num_clients=COHORT), draw())
    np.testing.assert_array_equal(update, play(a.median(), draw())[0])
    assert set(state.metrics) == {"weight", "cosine", "num_rejected", "score", "selected"}


@pytest.mark.thorough
def test_divide_and_conquer_at_the_size_of_its_paper():
    """50 clients with f = 10 that collude, 10,000 of many coordinates."""
    rng = np.random.default_rng(0)
    G = rng.normal(size=(50, 40_000)).astype(np.float32)
    malicious = rng.permutation(50) < 10
    G[malicious] = G[~malicious].mean(0) - 0.7 * G[~malicious].std(0) + 0.1 * G[malicious]
    deltas = {"w": G}
    rule = a.dnc(10)
    _, state = jax.jit(rule.apply)(
        {"w": np.zeros(40_000, np.float32)}, deltas, rule.init(deltas), key=jax.random.key(1)
    )
    np.testing.assert_array_equal(state.metrics["selected"], ~malicious)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: a.robust_lr(-1.0), "threshold=-1.0"),
        (lambda: a.crfl(0.0), "clip=0.0: must be"),
        (lambda: a.crfl(1.0, sigma=-0.1), "sigma=-0.1"),
        (lambda: a.lasa(1.0), r"sparsity=1.0: must be in \[0, 1\)"),
        (lambda: a.lasa(lambda_norm=-1.0), "lambda_norm=-1.0"),
        (lambda: a.lasa(lambda_sign=-1.0), "lambda_sign=-1.0"),
        (lambda: a.foundationfl(a.median(), -1), "num_synthetic=-1"),
        (lambda: a.foundationfl("median"), "aggregator='median'"),
        (lambda: a.foundationfl(a.foolsgold(20)), "aggregator with needs=.*client_ids.*: must not need client_ids"),
        (lambda: a.fldetector(a.median(), window=0), "window=0"),
        (lambda: a.fldetector(a.median(), max_removals=0), "max_removals=0"),
        (lambda: a.fldetector(a.median(), num_clients=0), "num_clients=0"),
    ],
)
def test_bad_arguments_of_defences(build, message):
    with pytest.raises(ValueError, match=message) as error:
        build()
    assert "\n" not in str(error.value)


@functools.cache
def digits(num_clients):
    return fd.data.partition.iid(fd.data.load("digits"), num_clients=num_clients, seed=0)


def train(rule, num_clients=10, **changes):
    settings = {
        "model": fd.models.mlp(num_classes=10, hidden=(32,)),
        "data": digits(num_clients),
        "num_rounds": 30,
        "cohort_size": num_clients,
        "local_steps": 5,
        "batch_size": 10,
        "step_size": 0.1,
        "eval_every": 30,
        "time_clients": False,
    }
    return fd.simulate(fd.algorithms.from_aggregator(rule), **settings | changes).history


TRAINED = {
    "robust_lr": lambda: a.robust_lr(4.0),
    "crfl": lambda: a.crfl(lambda t: jnp.minimum(8 + 0.2 * t, 15.0), 0.01),
    "lasa": lambda: a.lasa(),
    "foundationfl": lambda: a.foundationfl(a.median(), 2),
    "fldetector": lambda: a.fldetector(a.median(), window=5),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_without_an_attack_it_trains(name):
    assert train(TRAINED[name]())["test_accuracy"][-1] > 0.8


def attacked(rule, attack, num_byzantine):
    return train(rule, num_rounds=40, eval_every=5, attack=attack, num_byzantine=num_byzantine)


@pytest.mark.slow
def test_a_backdoor_that_the_mean_learns_is_not_learnt_where_signs_must_agree():
    """As in its paper: one of ten clients, half of whose examples have the trigger, and a threshold of four."""
    backdoor = fd.attacks.backdoor(target=3, boost=1.0, fraction=0.5)
    mean, robust = (attacked(rule, backdoor, 1) for rule in (a.fedavg(), a.robust_lr(4.0)))
    assert mean["attack_success_rate"][-1] > 0.5
    assert robust["attack_success_rate"][-1] < 0.3
    assert robust["test_accuracy"][-1] > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lasa", "foundationfl", "fldetector"])
def test_reversed_deltas_of_three_in_ten_stop_the_mean_and_not_it(name):
    """The detector is around the mean, which learns nothing before the attackers are removed."""
    rule = a.fldetector(a.fedavg(), window=5) if name == "fldetector" else TRAINED[name]()
    sign_flip = fd.attacks.sign_flip(5.0)
    assert attacked(a.fedavg(), sign_flip, 3)["test_accuracy"][-1] < 0.2
    assert attacked(rule, sign_flip, 3)["test_accuracy"][-1] > 0.7
