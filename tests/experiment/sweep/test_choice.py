"""Which setting of a sweep is best, by validation accuracy where there is one."""

import csv
import dataclasses

import numpy as np
import pytest
from tiny import SYNTHETIC, TINY

from fedjax_drag.experiment.run import metrics_file
from fedjax_drag.experiment.run.run import run
from fedjax_drag.experiment.sweep import choice, heatmap, outcome_table
from fedjax_drag.experiment.sweep.grid import load_grid
from fedjax_drag.experiment.sweep.outcome_table import Cell
from fedjax_drag.experiment.sweep.summary_page import summary
from fedjax_drag.experiment.sweep.sweep import sweep


def grid_of(**axes):
    return load_grid(TINY | {"axes": axes})


def cells_of(grid, test, validation=None):
    """Cells with these final accuracies; None failed."""
    cells = []
    for place, point in enumerate(grid.points):
        history = {"round": np.array([2]), "test_accuracy": np.array([test[place]])}
        if validation is not None:
            history["validation_accuracy"] = np.array([validation[place]])
        failed = test[place] is None
        cells.append(Cell(point.values, "failed" if failed else "done", "", {} if failed else history))
    return cells


def test_the_best_setting_by_validation_is_reported_with_its_test_figure():
    grid = grid_of(step_size=[0.1, 0.2, 0.3], seed=[0, 1])
    test, validation = [0.5, 0.5, 0.9, 0.7, 0.6, 0.6], [0.5, 0.5, 0.6, 0.6, 0.6, 0.8]
    cells = cells_of(grid, test, validation)
    best = choice.best(grid, cells)
    assert (best.values, best.criterion.column) == ({"step_size": 0.3}, "validation_accuracy")
    assert (best.accuracy, best.test_accuracy) == pytest.approx((0.7, 0.6))
    page = summary(grid, cells)
    assert "Validation accuracy in % at the end of the run" in page
    assert "Best setting: step_size=0.3: test accuracy 60.0 %, chosen by validation accuracy (70.0 %)." in page
    assert "| step_size | validation accuracy |" in page
    shown = outcome_table.matrix(grid, cells)
    assert (shown.rows, shown.worst, shown.worst_on_test) == (("0.1", "0.2", "0.3"), None, None)
    attacked = grid_of(aggregator=["fedavg", "krum"], byzantine_fraction=[0.1, 0.2])
    shown = outcome_table.matrix(attacked, cells_of(attacked, [0.9, 0.5, 0.7, 0.8], [0.2, 0.3, 0.4, 0.5]))
    assert shown.rows == ("krum", "fedavg")
    np.testing.assert_allclose(shown.worst_on_test, [0.7, 0.5])

    on_test = summary(grid, cells_of(grid, test))
    assert "Best setting: step_size=0.2: test accuracy 80.0 %, chosen on the test set." in on_test
    assert "| step_size | test accuracy |" in on_test


def test_settings_that_did_not_come_to_a_good_end_are_not_best():
    grid = grid_of(step_size=[0.1, 0.2, 0.3])
    cells = cells_of(grid, [0.5, 0.9, None])
    assert choice.best(grid, [cells[0], cells[1]]).values == {"step_size": 0.2}
    diverged = Cell(cells[1].values, "diverged", "", cells[1].history)
    assert choice.best(grid, [cells[0], diverged, cells[2]]).values == {"step_size": 0.1}
    assert choice.best(grid, cells[2:]) is None
    seeds = grid_of(seed=[0, 1])
    assert choice.best(seeds, cells_of(seeds, [0.5, 0.6])) is None
    assert "Best setting" not in summary(seeds, cells_of(seeds, [0.5, 0.6]))


def test_cells_of_which_one_has_no_validation_are_compared_on_the_test_set():
    grid = grid_of(step_size=[0.1, 0.2])
    (first, _), (_, second) = cells_of(grid, [0.5, 0.6]), cells_of(grid, [0.5, 0.6], [0.9, 0.2])
    assert choice.best(grid, [first, second]).criterion.column == "test_accuracy"


def test_of_a_grid_some_cells_may_be_left_out():
    whole = grid_of(step_size=[0.1, 0.2], cohort_size=[2, 3], seed=[0, 1])
    chosen = [
        point
        for point in whole.points
        if (point.values["step_size"], point.values["cohort_size"]) in ((0.1, 2), (0.2, 3))
    ]
    grid = dataclasses.replace(whole, points=tuple(chosen))
    cells = cells_of(grid, [0.5, 0.7, 0.8, 0.8])
    found = outcome_table.matrix(grid, cells)
    shown = dict(zip(found.rows, found.texts, strict=True))
    assert {row: texts.count("-") for row, texts in shown.items()} == {"0.1": 1, "0.2": 1}
    assert found.worst is None
    assert not any("failed" in row for row in found.texts)
    assert choice.best(grid, cells).values == {"step_size": 0.2, "cohort_size": 3}
    assert "80.0" in summary(grid, cells)
    heatmap.draw(found, "some cells")


def test_heat_map_names_what_it_shows():
    grid = grid_of(step_size=[0.1, 0.2], batch_size=[2, 4])
    for validation, name in ((None, "test"), ([0.1, 0.2, 0.3, 0.4], "validation")):
        figure = heatmap.draw(outcome_table.matrix(grid, cells_of(grid, [0.4, 0.3, 0.2, 0.1], validation)), "title")
        assert f"final {name} accuracy in %" in [text.get_text() for text in figure.axes[0].texts]


@pytest.mark.slow
def test_cells_with_a_split_run_as_one_program_as_they_do_alone(tmp_path):
    base = TINY | SYNTHETIC | {"data": SYNTHETIC["data"] | {"validation_fraction": 15}, "rounds": 2}
    found = sweep(base | {"axes": {"step_size": [0.1, 1.0], "seed": [0, 1]}}, out=tmp_path / "out", quiet=True)
    alone = run(base, ["step_size=1.0", "seed=1"]).history
    for name, column in alone.items():
        np.testing.assert_allclose(found.cells[3].history[name], column, rtol=1e-5)
    finals = {}
    for cell in found.cells:
        finals.setdefault(cell.values["step_size"], []).append(cell.history["validation_accuracy"][-1])
    means = {step_size: np.mean(values) for step_size, values in finals.items()}
    assert found.best.values == {"step_size": max(means, key=means.get)}
    assert found.worst_case == pytest.approx({f"{step_size:g}": mean for step_size, mean in means.items()})
    with (tmp_path / "out" / "table.csv").open() as lines:
        heads = next(csv.reader(lines))
    assert heads[6:9] == ["test_loss", "validation_accuracy", "validation_loss"]


def test_a_tie_is_a_tie_in_memory_and_in_files_and_the_first_wins():
    grid = grid_of(step_size=[0.1, 0.2], seed=[0, 1, 2])
    finals = np.float32([0.1, 0.2, 0.3, 0.3, 0.1, 0.2])
    cells = cells_of(grid, finals)
    chosen = choice.best(grid, cells)
    assert chosen.values == {"step_size": 0.1}
    ends = ({name: x[-1] for name, x in cell.history.items()} for cell in cells)
    content = b"".join(metrics_file.line_of(end | {"test_loss": 1.0}) for end in ends)
    read = metrics_file.parse(content.replace(b'"round": 2', b'"round": %d') % tuple(range(1, 7))).history
    from_files = cells_of(grid, np.asarray(read["test_accuracy"], np.float64))
    mixed = [*cells[:3], *from_files[3:]]
    assert choice.best(grid, from_files) == choice.best(grid, mixed) == chosen
    assert outcome_table.matrix(grid, from_files).rows == outcome_table.matrix(grid, mixed).rows == ("0.1", "0.2")
