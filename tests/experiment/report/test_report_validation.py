"""What the report says of a choice: by which accuracy, and the test figure of what was chosen."""

import pytest
from reports import write_run, write_sweep
from test_report import page

__all__ = ["page"]

ENDED = {"interrupted": False}


def test_a_run_s_best_round_is_chosen_by_validation(page, tmp_path):
    folder = write_run(tmp_path / "one", [0.2, 0.5, 0.7], ENDED, validation_accuracy=[0.3, 0.8, 0.6])
    found = page(folder, target=0.75)
    assert "test accuracy of the best round 50.0 % round 2, chosen by validation accuracy 80.0 %" in found.shown
    heads = ["final accuracy, %", "best validation accuracy, %", "test accuracy there, %", "rounds to 75 %"]
    assert ["what", "status", *heads] in found.rows()
    assert ["one", "done", "70.0", "80.0", "50.0", "2"] in found.rows()
    assert "Target: 75 % validation accuracy." in found.shown
    assert "the best setting are chosen by validation accuracy." in found.shown
    assert found.chart("validation accuracy")["data"][-1]["y"] == [0.3, 0.8, 0.6]


def test_without_a_split_the_page_says_that_the_choice_is_on_the_test_set(page, tmp_path):
    shown = page(write_run(tmp_path / "one", [0.2, 0.7, 0.6], ENDED)).shown
    assert "best test accuracy 70.0 % round 2, chosen on the test set" in shown
    assert "the best setting are chosen on the test set." in shown
    assert "validation" not in shown


@pytest.mark.parametrize("split", [False, True])
def test_the_best_setting_of_a_sweep_is_shown_with_its_test_figure(page, tmp_path, split):
    validation = [[0.5] * 3, [0.6] * 3, [0.9] * 3] if split else None
    curves = [[0.6] * 3, [0.8] * 3, [0.7] * 3]
    folder, _ = write_sweep(tmp_path / "sweep", {"step_size": [0.1, 0.2, 0.3]}, curves, validation=validation)
    shown = page(folder).shown
    if split:
        assert "final test accuracy of the best 70.0 % step_size=0.3, chosen by validation accuracy 90.0 %" in shown
    else:
        assert "highest final accuracy 80.0 % step_size=0.2, chosen on the test set" in shown


def test_a_matrix_is_by_validation(page, tmp_path):
    axes = {"aggregator": ["fedavg", "median"], "attack": [None, "sign_flip"]}
    validation = [[0.3] * 3, [0.4] * 3, [0.5] * 3, [0.6] * 3]
    folder, _ = write_sweep(
        tmp_path / "matrix",
        axes,
        [[0.9] * 3, [0.8] * 3, [0.7] * 3, [0.6] * 3],
        {"byzantine_fraction": 0.25},
        validation,
    )
    found = page(folder)
    assert "Final validation accuracy in %" in found.shown
    assert "best worst case, validation accuracy 50.0 % median, over 2 conditions" in found.shown
    assert ["median", "50.0", "50.0", "60.0"] in found.rows()


def test_a_validation_accuracy_without_that_on_the_test_set_leaves_the_loss(page, tmp_path):
    folder = write_run(tmp_path / "run", [0.5, 0.6], {"interrupted": False}, validation_accuracy=[0.8, 0.7])
    file = folder / "metrics.jsonl"
    file.write_text(file.read_text().replace("test_accuracy", "accuracy"))
    assert "final test loss 0.4" in page(folder).shown
