"""A run's history as a table of pandas."""

import sys

import numpy as np
import pytest

from fedjax_drag.simulation import frames

HISTORY = {
    "round": np.array([2, 4]),
    "test_accuracy": np.float32([0.25, 0.5]),
    "client_accuracy": np.float32([[0.1, 0.2, np.nan], [0.3, 0.4, 0.5]]),
    "class_accuracy": np.float32([[0.0, 1.0], [0.5, 0.5]]),
    "own_accuracy": np.float32([[0.6, 0.7, np.nan], [0.8, 0.9, 1.0]]),
    "mixture": np.float32([[0.2, 0.3, 0.5], [0.1, 0.1, 0.8]]),
    "weight": np.float32([[0.5, 0.5], [1.0, 0.0]]),
    "client_ids": np.int32([[2, 0], [1, 2]]),
}


def test_one_row_for_each_evaluation():
    pytest.importorskip("pandas", reason="needs pandas")
    table = frames.of_history(HISTORY)
    assert (table.index.name, table.index.tolist(), list(table.columns)) == ("round", [2, 4], ["test_accuracy"])
    np.testing.assert_array_equal(table["test_accuracy"], HISTORY["test_accuracy"])
    assert frames.of_history({}).empty


@pytest.mark.parametrize(
    ("each", "unit", "members"),
    [
        ("client_accuracy", "client", [0, 1, 2, 0, 1, 2]),
        ("own_accuracy", "client", [0, 1, 2, 0, 1, 2]),
        ("mixture", "client", [0, 1, 2, 0, 1, 2]),
        ("class_accuracy", "class", [0, 1, 0, 1]),
        ("weight", "client", [2, 0, 1, 2]),
    ],
)
def test_one_row_for_each_client_or_class(each, unit, members):
    pytest.importorskip("pandas", reason="needs pandas")
    table = frames.of_history(HISTORY, each)
    assert table.reset_index().columns.tolist() == ["round", unit, each]
    assert table[unit].tolist() == members
    assert table.index.tolist() == sorted([2, 4] * (len(members) // 2))
    np.testing.assert_array_equal(table[each], HISTORY[each].ravel())


def test_what_is_not_there_is_named(monkeypatch):
    with pytest.raises(
        ValueError, match="each='test_accuracy': must be one of client_accuracy, class_accuracy, own_accuracy"
    ):
        frames.of_history(HISTORY, "test_accuracy")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="to_pandas needs pandas; pip install pandas"):
        frames.of_history(HISTORY)
