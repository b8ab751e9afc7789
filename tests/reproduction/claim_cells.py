"""Cells of sweeps for the tests of claims."""

import numpy as np
import pytest

from fedjax_drag.experiment.sweep.outcome_table import Cell
from reproduction.judging.outcome import for_judging

ROUNDS = np.arange(10.0, 110.0, 10.0)


def cell(method, accuracy, status="done", seed=0, **values):
    """A cell whose accuracy goes from a tenth to ``accuracy`` in ten evaluations, or is as given."""
    curve = np.linspace(0.1, accuracy, 10) if np.ndim(accuracy) == 0 else np.asarray(accuracy, float)
    history = {"round": ROUNDS[: len(curve)], "test_accuracy": curve}
    return Cell({"method": method, **values, "seed": seed}, status, "", history if status != "failed" else {})


def seeds(method, *accuracies, **values):
    """A cell for each accuracy, of seeds 0, 1, ..."""
    return [cell(method, accuracy, seed=seed, **values) for seed, accuracy in enumerate(accuracies)]


def steady(*accuracies):
    """Runs of equal accuracy throughout."""
    return [[accuracy] * 10 for accuracy in accuracies]


def answer(question, *cells, times=None, wanted=None):
    return question(for_judging(cells, times, wanted))


def m(label, **where):
    return {"method": label, **where}


FAST = [0.1, 0.7, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8]
SLOW = [0.1, 0.2, 0.3, 0.7, 0.7, 0.75, 0.75, 0.75, 0.75, 0.76]
LATER = [0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.75, 0.75, 0.75, 0.76]


def same(found, expected, to=1e-9):
    """Whether rows of figures are equal, numbers to ``to``."""
    assert len(found) == len(expected)
    for own, other in zip(found, expected, strict=True):
        assert own.keys() == other.keys()
        numbers = [name for name in own if isinstance(own[name], float)]
        assert {name: own[name] for name in own if name not in numbers} == {
            name: other[name] for name in other if name not in numbers
        }
        assert [own[name] for name in numbers] == pytest.approx([other[name] for name in numbers], rel=0, abs=to)
    return True
