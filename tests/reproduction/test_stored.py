import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from claim_cells import FAST, ROUNDS, cell, seeds
from pyarrow import parquet

from reproduction.judging.outcome import for_judging, level
from reproduction.storing import stored
from reproduction.storing.stored import Origin, Stored

HERE = Origin("1a2b3c", "0.10.2", "0.1.0", "cpu")


def results(*cells, origin=HERE, settings=None, **about):
    return Stored(tuple(cells), (origin,) * len(cells), {"": {"rounds": 100}} | (settings or {}), **about)


def test_what_is_stored_is_read_back(tmp_path):
    path = stored.path_of(tmp_path, "x")
    assert stored.read(path) is None
    diverged = cell("FedAvg", [0.1, 0.2, np.nan], status="diverged", beta=0.5)
    diverged.history["expelled"] = np.array([1.0, 0.25])
    written = results(cell("DRAG", FAST, beta=0.5), diverged, times={"DRAG": [1.0, 2.0]})
    stored.write(path, written)
    found = stored.read(path)
    assert dataclasses.replace(found, cells=()) == dataclasses.replace(written, cells=())
    for own, there in zip(found.cells, written.cells, strict=True):
        assert (own.values, own.status, list(own.history)) == (there.values, there.status, list(there.history))
        for name, values in there.history.items():
            np.testing.assert_array_equal(own.history[name], values.astype(np.float32))
    assert path.stat().st_size < 10_000
    assert pa.types.is_float32(parquet.read_schema(path).field("test_accuracy").type.value_type)


def test_results_that_were_stored_without_their_device_are_read(tmp_path):
    path = stored.path_of(tmp_path, "x")
    stored.write(path, results(cell("DRAG", FAST)))
    parquet.write_table(parquet.read_table(path).drop_columns(["device"]), path)
    found = stored.read(path)
    assert found.origins == (HERE._replace(device=""),)
    assert list(found.cells[0].history) == list(cell("DRAG", FAST).history)


def test_cells_are_stored_in_the_order_of_their_values(tmp_path):
    """By size, so that 15 is not before 3: it is the order of what is drawn."""
    cells = [cell(name, FAST, size=size) for name in ("FedAvg", "DRAG") for size in (15, 3, 6)]
    path = stored.path_of(tmp_path, "x")
    stored.write(path, results(*cells))
    found = [(one.values["method"], one.values["size"]) for one in stored.read(path).cells]
    assert found == [(name, size) for name in ("DRAG", "FedAvg") for size in (3, 6, 15)]


def test_a_file_of_something_else_is_refused(tmp_path):
    path = stored.path_of(tmp_path, "x")
    path.parent.mkdir()
    for write in (lambda: path.write_text("{"), lambda: parquet.write_table(pa.table({"a": [1]}), path)):
        write()
        with pytest.raises(ValueError, match=r"x\.parquet': must be results that this script stored"):
            stored.read(path)


def test_cells_join_by_their_axes_and_newer_ones_replace():
    earlier = results(*seeds("DRAG", 0.5, 0.6), times={"DRAG": [1.0], "FedAvg": [2.0]})
    later = results(cell("DRAG", 0.9, seed=1), cell("DRAG", 0.9, seed=2), origin=Origin())
    both = stored.merged(earlier, later, "x")
    ends = {one.values["seed"]: one.history["test_accuracy"][-1] for one in both.cells}
    assert ends == {0: 0.5, 1: 0.9, 2: 0.9}
    assert both.origins == (HERE, Origin(), Origin())
    assert both.times == {"DRAG": [1.0], "FedAvg": [2.0]}


def test_more_seeds_leave_the_others_as_they_are(tmp_path):
    path, drawn = stored.path_of(tmp_path, "x"), np.random.default_rng(0).random((3, 10))
    stored.write(path, results(*seeds("DRAG", *drawn[:2])))
    before = [{name: x.tobytes() for name, x in one.history.items()} for one in stored.read(path).cells]
    stored.write(path, stored.merged(stored.read(path), results(cell("DRAG", drawn[2], seed=2)), "x"))
    found = stored.read(path).cells
    assert [one.values["seed"] for one in found] == [0, 1, 2]
    assert [{name: x.tobytes() for name, x in one.history.items()} for one in found[:2]] == before


def test_another_reading_has_the_cells_of_the_methods_that_it_did_not_run():
    under = {"compare.DRAG": {"aggregator.c": 0.1}, "compare.FedAvg": {"aggregator": "fedavg"}}
    known = results(*seeds("DRAG", 0.5, 0.6), *seeds("FedAvg", 0.4), settings=under, times={"FedAvg": [1.0]})
    own = results(*seeds("DRAG", 0.9), origin=Origin(), settings={"compare.DRAG": {"aggregator.c": 1.0}})
    both = stored.completed(own, known)
    assert [(one.values["method"], one.history["test_accuracy"][-1]) for one in both.cells] == [
        ("DRAG", 0.9),
        ("FedAvg", 0.4),
    ]
    assert both.origins == (Origin(), HERE)
    assert both.settings["compare.DRAG"] == {"aggregator.c": 1.0}
    shorter = dataclasses.replace(known, settings=under | {"": {"rounds": 5}})
    assert stored.completed(own, shorter) == own
    assert both.times == {"FedAvg": [1.0]}


def test_times_are_of_one_measurement():
    """Methods that were timed on two days, or for other numbers of turns, cannot be compared turn by turn."""
    both, alone = {"DRAG": [1.0], "FedAvg": [2.0]}, {"DRAG": [3.0, 3.0]}
    for earlier, later, kept in ((both, alone, both), (alone, both, both), (both, {}, both), ({}, alone, alone)):
        parts = (results(cell("DRAG", 0.5), times=times) for times in (earlier, later))
        assert stored.merged(*parts, "x").times == kept


def test_cells_of_other_settings_do_not_join():
    earlier = results(cell("DRAG", 0.5), settings={"compare.DRAG": {"aggregator.c": 0.1}})
    shorter = results(cell("DRAG", 0.5, seed=1), settings={"": {"rounds": 5}})
    with pytest.raises(ValueError, match=r"x: results with rounds=5 cannot .* have rounds=100; remove measured/x"):
        stored.merged(earlier, shorter, "x")
    stronger = results(cell("DRAG", 0.5, seed=1), settings={"compare.DRAG": {"aggregator.c": 0.2}})
    with pytest.raises(ValueError, match=r"compare\.DRAG\.aggregator\.c=0\.2 cannot"):
        stored.merged(earlier, stronger, "x")
    more = results(cell("DRAG", 0.5, seed=1, beta=0.5))
    with pytest.raises(
        ValueError, match="x: results over beta, method, seed cannot join others, over method, seed; re"
    ):
        stored.merged(earlier, more, "x")
    other = results(cell("FedAvg", 0.5), settings={"compare.FedAvg": {"aggregator": "fedavg"}})
    assert set(stored.merged(earlier, other, "x").settings) == {"", "compare.DRAG", "compare.FedAvg"}


def test_judging_counts_what_follows_a_divergence_as_0():
    curve, loss = [0.1, 0.6, 0.7, 0.7], np.array([1.0, 1.0, np.inf, np.nan])
    gone, early, fine = (cell("DRAG", curve, status="diverged", seed=seed) for seed in (0, 1, 2))
    gone.history["test_loss"] = loss
    outcome = for_judging([gone, early, dataclasses.replace(fine, status="done"), cell("FedAvg", FAST)])
    accuracy = [one.history["test_accuracy"].tolist() for one in outcome.cells]
    assert accuracy[0] == [0.1, 0.6, *[0.0] * 8], "from the first loss that is not finite"
    assert accuracy[1] == [0.1, 0.6, 0.7, *[0.0] * 7], "or from the last evaluation"
    assert accuracy[2] == curve
    np.testing.assert_array_equal(outcome.cells[0].history["round"], ROUNDS)
    assert level(outcome.cells[0]) == 0
    assert gone.history["test_accuracy"].tolist() == curve, "the given cell is unchanged"
