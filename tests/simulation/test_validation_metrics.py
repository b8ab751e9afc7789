"""Evaluation on the validation split, beside that on the test examples."""

import dataclasses

import chex
import jax
import numpy as np
import pytest

import fedjax_drag as fd
from fedjax_drag.simulation.criterion import ACCURACY
from fedjax_drag.simulation.result import Result


@pytest.fixture(scope="module")
def split():
    fed = fd.data.load("digits", validation_fraction=0.2)
    return fd.data.partition.dirichlet(fed, num_clients=12, beta=0.3, seed=0)


@pytest.mark.thorough
@pytest.mark.optimised
def test_a_split_adds_its_metrics_and_changes_no_others(settings, split, fedavg):
    both, test = (
        fd.simulate(fedavg, **settings(data=data)) for data in (split, dataclasses.replace(split, validation=None))
    )
    chex.assert_trees_all_equal(both.params, test.params)
    for name, column in test.history.items():
        np.testing.assert_array_equal(both.history[name], column)
    assert set(both.history) - set(test.history) == {"validation_accuracy", "validation_loss"}

    layer = both.params["Dense_0"]
    x, y = np.asarray(split.preprocess(split.validation.x), np.float64).reshape(288, -1), split.validation.y
    logits = x @ np.float64(layer["kernel"]) + np.float64(layer["bias"])
    loss = (np.log(np.exp(logits).sum(1)) - logits[np.arange(288), y]).mean()
    assert both.history["validation_accuracy"][-1] == pytest.approx((logits.argmax(1) == y).mean(), abs=1e-6)
    assert both.history["validation_loss"][-1] == pytest.approx(loss, rel=1e-5)


@pytest.mark.slow
def test_a_model_handed_out_and_an_attack_are_evaluated_on_both(settings, split):
    def run(**held_out):
        data = dataclasses.replace(split, **held_out)
        attack = {"attack": fd.attacks.backdoor(target=0), "byzantine_fraction": 0.2}
        return fd.simulate(fd.algorithms.taco(12), **settings(data=data, **attack)).history

    both, exchanged = run(), run(validation=None, test=split.validation)
    for name in ("accuracy", "loss"):
        np.testing.assert_array_equal(both[f"validation_{name}"], exchanged[f"test_{name}"])
        np.testing.assert_array_equal(both[f"output_validation_{name}"], exchanged[f"output_{name}"])
    np.testing.assert_array_equal(both["validation_attack_success_rate"], exchanged["attack_success_rate"])
    assert not np.array_equal(both["attack_success_rate"], exchanged["attack_success_rate"])


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["mesh", pytest.param("host", marks=pytest.mark.slow)])
def test_devices_and_state_on_the_host_give_the_same(settings, split, way):
    mesh = jax.sharding.Mesh(jax.devices()[:2], ("clients",))
    other = {"mesh": mesh} if way == "mesh" else {"client_state": "host"}
    given = settings(data=split, cohort_size=4, num_rounds=3)
    histories = [fd.simulate(fd.algorithms.scaffold(12), **given | changes).history for changes in ({}, other)]
    for name in ("validation_accuracy", "validation_loss", "test_loss"):
        np.testing.assert_allclose(*(history[name] for history in histories), rtol=1e-5, atol=2e-3)


# What is chosen by it.


def result(**history):
    columns = {name: np.array(column) for name, column in history.items()}
    return Result({}, columns, None, 1.0, 1.0, None, None)


def test_targets_and_the_best_round_are_by_validation_unless_asked_otherwise():
    columns = {"round": [2, 4, 6], "client_seconds": [0.1, 0.2, 0.3], "test_accuracy": [0.5, 0.8, 0.7]}
    by_test, by_both = result(**columns), result(**columns, validation_accuracy=[0.7, 0.6, 0.4])
    assert (by_test.rounds_to(0.6), by_both.rounds_to(0.6)) == (4, 2)
    assert (by_both.rounds_to(0.6, on="test"), by_both.rounds_to(0.75)) == (4, None)
    assert (by_both.time_to(0.6), by_both.time_to(0.6, on="test"), by_test.time_to(0.6)) == (0.1, 0.2, 0.2)
    assert "best: 80.0% at round 4, p" in repr(by_test)
    assert "best: 50.0% at round 2, chosen by validation accuracy 70.0%" in repr(by_both)
    with pytest.raises(ValueError, match="on='validation': this run has no validation examples; set validation_frac"):
        by_test.rounds_to(0.6, on="validation")
    with pytest.raises(ValueError, match="on='train': must be one of validation, test"):
        by_both.rounds_to(0.6, on="train")


@pytest.mark.parametrize(("count", "target"), [(7000, 0.7), (8000, 0.8)])
def test_an_accuracy_equal_to_the_target_reaches_it_in_float32_too(count, target):
    share = np.asarray(jax.jit(lambda correct: correct / 10_000)(count))  # 0.79999995 for 8,000
    assert result(round=[5], test_accuracy=[share]).rounds_to(target) == 5
    read_back = result(round=[5], test_accuracy=[np.float64(np.nextafter(np.float32(target), np.float32(0)))])
    assert read_back.rounds_to(target) == 5
    assert read_back.rounds_to(target + 1e-4) is None, "one example more"
    assert result().rounds_to(target) is None, "of a run that had nothing left to do"
    assert read_back.rounds_to(np.inf) is None


def test_runs_are_compared_by_what_all_have():
    both, test = {"test_accuracy", "validation_accuracy"}, {"test_accuracy"}
    assert ACCURACY.among(both, both).column == "validation_accuracy"
    assert ACCURACY.among(both, test).column == ACCURACY.among().column == "test_accuracy"
