"""The run as a whole: its results, and settings that must not change their bits."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import fedjax_drag as fd
from fedjax_drag.data.batching import draw_positions
from fedjax_drag.experiment.build.optimizers import local_sgd
from fedjax_drag.selection._uniform import draw_uniformly
from fedjax_drag.simulation.program import keys
from fedjax_drag.types import Attack


def numpy_softmax_step(w, b, x, y, step_size):
    """One SGD step of softmax regression, from the closed form of its gradient."""
    z = x @ w + b
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return w - step_size * x.T @ p / len(y), b - step_size * p.mean(0)


def test_two_rounds_equal_a_numpy_twin(digits, settings, fedavg):
    simulation = fd.simulation.prepare(fedavg, **settings(num_rounds=2, eval_every=2))
    key, start = simulation.key, simulation.initial_state().params["Dense_0"]
    w, b = (np.asarray(start[name], np.float64) for name in ("kernel", "bias"))
    images = np.asarray(digits.preprocess(digits.train.x), np.float64).reshape(len(digits.train.y), -1)
    for index in range(2):
        ids = draw_uniformly(keys.round_key(key, "cohort", index), 12, 5)
        ends = []
        for m in np.asarray(ids):
            places_key = jax.random.fold_in(keys.round_key(key, "batches", index), m)
            end = (w, b)
            for places in np.asarray(draw_positions(places_key, digits.counts[m], 3, 4)):
                assert places.max() < digits.counts[m]
                chosen = digits.rows[m][places]
                end = numpy_softmax_step(*end, images[chosen], digits.train.y[chosen], 0.1)
            ends.append(end)
        w, b = (np.mean([end[i] for end in ends], axis=0) for i in (0, 1))
    result = simulation.run()
    np.testing.assert_allclose(result.params["Dense_0"]["kernel"], w, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(result.params["Dense_0"]["bias"], b, rtol=1e-5, atol=1e-6)

    test = np.asarray(digits.preprocess(digits.test.x), np.float64).reshape(len(digits.test.y), -1)
    z = test @ w + b
    loss = (np.log(np.exp(z).sum(1)) - z[np.arange(len(z)), digits.test.y]).mean()
    assert result.history["test_accuracy"][-1] == pytest.approx((z.argmax(1) == digits.test.y).mean(), abs=1e-6)
    assert result.history["test_loss"][-1] == pytest.approx(loss, rel=1e-5)


IDLE = [
    {"eval_every": 1},
    {"eval_every": 4},
    {"eval_every": 6, "rounds_per_compile": 4},
    {"diagnostics": False},
    {"local_optimizer": local_sgd()},
    {"attack": fd.attacks.sign_flip(), "byzantine_fraction": 0.0},
    {"attack": fd.attacks.scale_noise(), "byzantine_fraction": 0.0},
    {"attack": fd.attacks.label_flip(), "byzantine_fraction": 0.0},
    {"algorithm": fd.algorithms.from_aggregator(fd.aggregators.fedavg(), client=fd.clients.fedprox(mu=0.0))},
]


@pytest.mark.optimised
@pytest.mark.thorough
def test_bits_do_not_depend_on_what_is_measured_and_on_what_is_idle(settings, fedavg):
    """Stretches of rounds, zero momentum and decay, attacks by nobody, no proximal term."""
    plain = fd.simulate(fedavg, **settings())
    for changes in IDLE:
        found = fd.simulate(**settings(**{"algorithm": fedavg} | changes))
        chex.assert_trees_all_equal(found.params, plain.params, custom_message=str(changes))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "changes",
    [{"clients_axis": "vmap"}, pytest.param({"clients_axis": "map", "clients_per_chunk": 2}, marks=pytest.mark.slow)],
)
def test_clients_axes_agree(settings, changes):
    algorithm = fd.algorithms.scaffold(12)
    one_by_one = fd.simulate(algorithm, **settings(clients_axis="map"))
    other = fd.simulate(algorithm, **settings(**changes))
    for a, b in zip(jax.tree.leaves(one_by_one.state), jax.tree.leaves(other.state), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_seed_decides_everything(settings, fedavg):
    first, again, other = (fd.simulate(fedavg, **settings(seed=seed)) for seed in (3, 3, 4))
    chex.assert_trees_all_equal(first.params, again.params)
    assert not np.array_equal(first.params["Dense_0"]["kernel"], other.params["Dense_0"]["kernel"])


@pytest.mark.optimised
@pytest.mark.thorough
@pytest.mark.parametrize(
    "algorithm", [fd.algorithms.scaffold(12), fd.algorithms.from_aggregator(fd.aggregators.drag())]
)
def test_continued_equals_uninterrupted(refused, settings, algorithm):
    half = fd.simulate(algorithm, **settings(num_rounds=3))
    resumed = fd.simulate(algorithm, initial=half.state, **settings(num_rounds=6))
    refused(
        r"^num_rounds=3: counts from the start; must be more than the 3 of initial",
        algorithm,
        initial=half.state,
        num_rounds=3,
    )
    whole = fd.simulate(algorithm, **settings(num_rounds=6))
    chex.assert_trees_all_equal(resumed.state, whole.state)
    assert resumed.history["round"].tolist() == [6]
    assert whole.history["round"].tolist() == [3, 6]


def test_nothing_is_traced_after_the_start(settings, fedavg):
    traces = []

    class Counting(nn.Module):
        @nn.compact
        def __call__(self, x):
            traces.append(1)
            return nn.Dense(10)(x.reshape(x.shape[0], -1))

    simulation = fd.simulation.prepare(fedavg, **settings(model=Counting(), num_rounds=7, rounds_per_compile=2))
    initial = simulation.initial_state()
    at_start = len(traces)
    counts = []
    simulation.run(callbacks=[lambda event: counts.append(len(traces))], initial=initial)
    assert counts == [at_start] * 3  # rounds 3, 6 and 7, in stretches of two and one


@pytest.mark.thorough
def test_history(settings, fedavg):
    events = []
    result = fd.simulate(fedavg, callbacks=[events.append], **settings(num_rounds=7))
    assert result.history["round"].tolist() == [3, 6, 7] == [event.round for event in events]
    assert result.history["weight"].shape == (3, 5)
    np.testing.assert_allclose(result.history["weight"], 0.2)
    assert result.rounds_to(0.0) == 3
    assert result.rounds_to(1.01) is None
    assert all(0 < loss < 3 for loss in result.history["train_loss"])
    quiet = fd.simulate(fedavg, diagnostics=False, **settings())
    of_clients = {"participants", "local_steps", "slowest_steps", "gradient_evaluations", "vector_operations"}
    traffic = {"bytes_down", "bytes_up"}
    figures = {"round", "test_accuracy", "test_loss", "train_loss", "num_rejected"}
    assert figures | of_clients | traffic == set(quiet.history)


def test_a_callback_that_changes_its_metrics_changes_no_history(settings, fedavg):
    def change(event):
        if event.round == 3:
            event.metrics["own"] = event.metrics.pop("test_loss")

    seen = []
    history = fd.simulate(fedavg, callbacks=[change, seen.append], **settings()).history
    assert "own" not in history
    assert len(history["test_loss"]) == 2
    assert "own" not in seen[0].metrics


@pytest.mark.thorough
def test_a_client_smaller_than_a_batch_trains_on_its_own_examples(settings, fedavg):
    x = np.eye(6, dtype=np.float32)
    y = np.array([0, 0, 1, 1, 1, 1])
    data = fd.data.from_arrays(x, y, x, y, num_classes=2)
    data = fd.data.partition.label_affinity(data, num_clients=2, q=1.0)
    result = fd.simulate(
        fedavg, **settings(data=data, model=nn.Dense(2), cohort_size=2, batch_size=4, num_rounds=1, eval_every=1)
    )
    start = fd.simulation.prepare(
        fedavg, **settings(data=data, model=nn.Dense(2), cohort_size=2, batch_size=4)
    ).initial_state()
    moved = np.asarray(result.params["kernel"] - start.params["kernel"])
    assert (moved[:2, 0] > 0).all()  # class 0 rises on client 0's inputs only ...
    assert (moved[2:, 0] < 0).all()  # ... and falls on client 1's


def broken(value):
    """Malicious clients send ``value`` in one entry of their delta."""

    def forge(key, uplink, malicious, **_):
        def leaf(x):
            flat = x.reshape(x.shape[0], -1)
            return flat.at[:, 0].set(jnp.where(malicious, value, flat[:, 0])).reshape(x.shape)

        return uplink._replace(delta=jax.tree.map(leaf, uplink.delta))

    return Attack(forge=forge)


@pytest.mark.optimised
@pytest.mark.thorough
@pytest.mark.parametrize("value", [np.nan, pytest.param(np.inf, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "algorithm",
    [
        fd.algorithms.scaffold(12),
        pytest.param(fd.algorithms.from_aggregator(fd.aggregators.drag()), marks=pytest.mark.slow),
    ],
)
def test_nonfinite_messages_are_rejected_and_counted(settings, value, algorithm):
    attacked = settings(attack=broken(value), byzantine_fraction=0.5)
    result = fd.simulate(algorithm, **attacked)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.state.params))
    assert result.history["test_accuracy"][-1] > 0.2
    rounds = fd.simulate(algorithm, **attacked | {"eval_every": 1})
    assert rounds.history["num_rejected"].tolist() == rounds.history["malicious"].sum(1).tolist()
    assert result.history["num_rejected"].sum() == rounds.history["num_rejected"].sum() > 0
    spread = fd.simulate(algorithm, nonfinite="propagate", **attacked)
    assert not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(spread.params))


@pytest.mark.optimised
@pytest.mark.thorough
def test_if_all_clients_are_rejected_nothing_moves(settings):
    algorithm = fd.algorithms.scaffold(12)
    everybody = settings(attack=broken(np.nan), byzantine_fraction=1.0)
    simulation = fd.simulation.prepare(algorithm, **everybody)
    start = jax.tree.map(np.asarray, simulation.initial_state())
    after = simulation.run().state
    chex.assert_trees_all_equal(start.params, after.params)
    chex.assert_trees_all_equal(start.algorithm.client_controls, after.algorithm.client_controls)


def test_a_state_that_changes_its_dtype_is_refused(refused):
    rule = fd.aggregators.drag()

    def apply(params, deltas, state, **extras):
        params, state = rule.apply(params, deltas, state, **extras)
        return params, state._replace(round=state.round.astype(jnp.float32))

    algorithm = fd.algorithms.from_aggregator(rule._replace(apply=apply))
    refused(r"round with \(\) float32: must stay \(\) int32", algorithm)


def test_without_compilation_nothing_runs(settings, fedavg):
    simulation = fd.simulation.prepare(fedavg, **settings(num_rounds=1))
    with jax.disable_jit():
        for call in (simulation.run, lambda: fd.simulate(fedavg, **settings(num_rounds=1))):
            with pytest.raises(ValueError, match=r"^jax_disable_jit=True: must be False"):
                call()
