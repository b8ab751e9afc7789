import numpy as np
import pytest

from fedjax_drag.experiment.intervals import estimate
from fedjax_drag.experiment.sweep.outcome_table import Cell
from reproduction.judging.outcome import MissingError, Outcome
from reproduction.showing import tuned
from reproduction.targets.all_targets import TARGETS

TARGET = TARGETS["tuned_step_sizes"]
SEEDS = 3


def cell(method, step, seed, validation, test, status="done"):
    values = {"method": method, "step_size": step, "partition.beta": 0.1, "seed": seed}
    history = {"round": np.arange(1, 11) * 60, "test_accuracy": np.full(10, test)}
    if validation is not None:
        history["validation_accuracy"] = np.full(10, validation)
    return Cell(values, status, "", history)


def outcome(seeds=SEEDS):
    """FedAvg is best at 0.1 on validation data, though 0.03 is better on test data; DRAG at 0.01, for 0.1 diverges."""
    levels = {
        "FedAvg": {0.01: (0.5, 0.5), 0.03: (0.6, 0.7), 0.1: (0.62, 0.61)},
        "DRAG": {0.01: (0.66, 0.65), 0.03: (0.6, 0.6), 0.1: (0.9, 0.9)},
    }
    diverging = ("DRAG", 0.1)
    cells = [
        cell(
            *(method, step, seed, validation + 0.01 * seed, test + 0.02 * seed * (method == "DRAG")),
            status="diverged" if (method, step) == diverging else "done",
        )
        for method, steps in levels.items()
        for step, (validation, test) in steps.items()
        for seed in range(seeds)
    ]
    return Outcome(tuple(cells))


def test_validation_chooses_and_a_diverged_value_does_not_win():
    choices = tuned.chosen(TARGET, outcome(), 0.01)
    assert {label: choice.value for label, choice in choices.items()} == {"FedAvg": 0.1, "DRAG": 0.01}
    np.testing.assert_allclose(choices["FedAvg"].accuracy, [0.61] * SEEDS)
    np.testing.assert_allclose(choices["FedAvg"].untuned, [0.5] * SEEDS)
    np.testing.assert_allclose(choices["DRAG"].accuracy, [0.65, 0.67, 0.69])


def test_the_table_has_the_choice_and_the_paired_gain():
    lines = tuned.table(TARGET, outcome())
    mean, half = estimate(100 * (np.array([0.65, 0.67, 0.69]) - 0.61))
    assert lines[2] == f"| DRAG | 67.0 % | 0.01 | 67.0 % | {mean:+.1f} \N{PLUS-MINUS SIGN} {half:.1f} |"
    assert lines[3] == "| FedAvg | 50.0 % | 0.1 | 61.0 % |  |"
    assert "Dirichlet(0.1)" in lines[0]
    assert "at 0.01" in lines[0]


def test_a_gain_of_one_seed_has_no_interval():
    lines = tuned.table(TARGET, outcome(seeds=1))
    assert lines[2] == "| DRAG | 65.0 % | 0.01 | 65.0 % | +4.0 |"


def test_a_seed_that_some_methods_lack_is_left_out():
    whole = outcome()
    without = [cell for cell in whole.cells if (cell.values["method"], cell.values["seed"]) != ("DRAG", 2)]
    choices = tuned.chosen(TARGET, Outcome(tuple(without)), 0.01)
    np.testing.assert_allclose(choices["DRAG"].accuracy, [0.65, 0.67])
    assert len(choices["FedAvg"].accuracy) == len(choices["FedAvg"].untuned) == 2
    with pytest.raises(MissingError, match="not measured"):
        tuned.table(TARGET, Outcome(whole.cells[1:2] + whole.cells[-1:]))


def test_cells_without_validation_accuracy_are_not_measured():
    bare = Outcome((cell("FedAvg", 0.01, 0, None, 0.5),))
    with pytest.raises(MissingError, match="not measured"):
        tuned.chosen(TARGET, bare, 0.01)
