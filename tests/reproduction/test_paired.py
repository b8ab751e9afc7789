import dataclasses

import numpy as np
import pytest

from fedjax_drag.experiment.sweep.outcome_table import Cell
from reproduction.judging.outcome import MissingError, Outcome
from reproduction.showing import paired
from reproduction.targets.all_targets import TARGETS


def steady(accuracy):
    return {"round": np.arange(10.0, 110.0, 10.0), "test_accuracy": np.full(10, accuracy)}


def test_paired_differences_are_over_the_seeds():
    finals = {"FedAvg": (0.5, 0.6, 0.7), "DRAG": (0.52, 0.64, 0.76)}
    cells = [
        Cell({"method": method, "seed": seed}, "done", "", steady(accuracy))
        for method, own in finals.items()
        for seed, accuracy in enumerate(own)
    ]
    target = dataclasses.replace(TARGETS["worst_clients"], paired=("test_accuracy",))
    lines = paired.table(target, Outcome(tuple(reversed(cells))))
    assert lines[2:4] == ["| DRAG | 64.0 |", "| FedAvg | 60.0 (-4.0 \N{PLUS-MINUS SIGN} 5.0) |"]
    assert lines[-1] == "| DRAG | 64.0 |", "FedAvg is never as accurate"
    for fewer in (cells[:5], [*cells[:5], Cell(cells[5].values, "failed", "", {})], cells[::3]):
        with pytest.raises((MissingError, ValueError)):
            paired.table(target, Outcome(tuple(fewer)))


def test_a_metric_is_compared_at_the_same_test_accuracy():
    cells = [Cell({"method": "DRAG", "seed": s}, "done", "", steady(0.5) | {"worst": np.arange(10.0)}) for s in (0, 1)]
    for shift, one in enumerate(cells):
        one.history["test_accuracy"] = np.arange(10) / 10 + shift / 10
    # Running means over five evaluations: of the accuracy 0.2, 0.3, ... in the first seed, 0.3, 0.4, ... in the second.
    found = paired.when_as_accurate(Outcome(tuple(cells)), np.array([0.29, 0.59]), "worst")
    np.testing.assert_allclose(found, [3.0, 5.0])
    with pytest.raises(MissingError):
        paired.when_as_accurate(Outcome(tuple(cells)), np.array([0.29, 0.99]), "worst")
