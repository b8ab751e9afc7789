"""Runs that end before their last round, and what an exception of a callback leaves."""

from types import SimpleNamespace

import chex
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_drag as fd
from fedjax_drag.simulation.criterion import Criterion
from fedjax_drag.simulation.driver import Stopper, reason, said


def asked(patience=None, stop_when=None):
    return SimpleNamespace(patience=patience, stop_when=stop_when)


def history(*accuracies, metric="test_accuracy"):
    return {"round": np.arange(1, len(accuracies) + 1) * 10, metric: np.float32(accuracies)}


def test_reasons():
    assert reason({}, asked(1, 0.1)) is None
    assert reason(history(0.1, 0.9, 0.8), asked()) is None
    assert reason(history(0.1, 0.5, 0.5), asked(2)) is None
    told = "test_accuracy has not risen above 0.5000 since round 20, after round 40 with patience=2"
    assert reason(history(0.1, 0.5, 0.5, 0.4), asked(2)) == told
    assert reason(history(np.nan, np.nan), asked(1)) is not None, "a model that is not finite does not rise"
    assert reason(history(0.1, 0.8), asked(stop_when=0.8)) == "test_accuracy has reached stop_when=0.8 after round 20"
    assert reason(history(0.1, 0.8), asked(stop_when=np.float32(0.8))) is not None
    assert reason(history(0.8, 0.1), asked(stop_when=0.8)) is None
    both = history(0.5, 0.6) | history(0.7, 0.6, metric="validation_accuracy")
    assert reason(both, asked(1)).startswith("validation_accuracy has not risen above 0.7")
    told = "test_mse has not fallen below 2.5e-06 since round 10, after round 20 with patience=1"
    assert reason(history(2.5e-6, 3e-6, metric="test_mse"), asked(1), Criterion("mse", False, False)) == told


def test_a_history_from_a_file_counts_with_what_follows():
    whole = history(0.3, 0.7, 0.7, 0.6)
    stopper = Stopper(asked(2), {name: np.float64(values[:2].tolist()) for name, values in whole.items()})
    events = [
        SimpleNamespace(round=10 * (i + 1), metrics={name: values[i] for name, values in whole.items()})
        for i in range(2, 4)
    ]
    assert [stopper(event) for event in events] == [None, reason(whole, asked(2))]


def test_each_way_to_end_a_run(settings):
    rule = fd.aggregators.fedavg()
    whole = fd.simulate(rule, **settings(eval_every=1))
    assert whole.ended_early is None
    seen = []
    ways = {
        "a callback has returned True after round 2": {
            "callbacks": [lambda e: seen.append(e.round), lambda e: e.round == 2]
        },
        "stop_when is true after round 2": {"stop_when": lambda e: e.state.round == 2},  # an array of JAX
    }
    accuracy = float(whole.history["test_accuracy"][:2].max())
    first = whole.rounds_to(accuracy)
    ways[f"test_accuracy has reached stop_when={accuracy:g} after round {first}"] = {"stop_when": accuracy}
    for told, options in ways.items():
        result = fd.simulate(rule, **settings(eval_every=1), **options)
        assert result.ended_early == told
        end = len(result.history["round"])
        assert end == (first if "reached" in told else 2)
        for name, values in result.history.items():
            np.testing.assert_array_equal(values, whole.history[name][:end], err_msg=name)
    assert seen == [1, 2]
    assert "ended early" in repr(result)
    last = fd.simulate(rule, **settings(eval_every=1), callbacks=[lambda e: e.round == e.num_rounds])
    assert last.ended_early is None, "all rounds are done"
    rest = fd.simulate(rule, **settings(eval_every=1), initial=result.state)
    chex.assert_trees_all_equal(rest.params, whole.params)
    patient = fd.simulate(rule, **settings(eval_every=1, step_size=1e-9), patience=2)
    assert patient.history["round"].tolist() == [1, 2, 3]
    assert patient.ended_early.endswith("since round 1, after round 3 with patience=2")


@pytest.mark.parametrize("answer", [True, np.bool_(True), np.array(True), jnp.array(True)])
def test_a_callback_says_true_in_any_of_its_forms(answer):
    assert said(answer, 3) == "a callback has returned True after round 3"


@pytest.mark.parametrize("answer", [None, False, 1, "no", [True], np.array([True]), jnp.array(False), np.float32(1)])
def test_nothing_else_ends_a_run(answer):
    assert said(answer, 3) is None


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_an_exception_of_a_callback_carries_the_result_so_far(settings, kind):
    def failing(event):
        if event.round == 3:
            raise kind("mine")

    rule = fd.aggregators.fedavg()
    with pytest.raises(kind, match="mine") as error:
        fd.simulate(rule, **settings(eval_every=1), callbacks=[failing])
    result = error.value.result
    assert result.history["round"].tolist() == [1, 2, 3]
    assert error.value.__notes__ == ["The run up to round 3 is this exception's attribute 'result'."]
    rest = fd.simulate(rule, **settings(eval_every=1), initial=result.state)
    chex.assert_trees_all_equal(rest.params, fd.simulate(rule, **settings(eval_every=1)).params)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"patience": 0}, "patience=0: must be"),
        ({"stop_when": np.float32(90)}, "must be an accuracy"),
        ({"stop_when": 90}, r"stop_when=90: must be an accuracy in \(0, 1\], or for fd.simulate a function"),
    ],
)
def test_refused(settings, option, message):
    with pytest.raises(ValueError, match=message):
        fd.simulate(fd.aggregators.fedavg(), **settings(), **option)
