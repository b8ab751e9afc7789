import csv
import dataclasses
import json
import sys

import chex
import numpy as np
import pytest
import yaml
from pyarrow import parquet
from run_fixtures import optimised
from tiny import TINY

import fedjax_drag as fd
from fedjax_drag.experiment.build.own_parts import Code
from fedjax_drag.experiment.config.config import CONDITIONS, Config
from fedjax_drag.experiment.run import lock
from fedjax_drag.experiment.run.checkpoints import Checkpoints, load_params
from fedjax_drag.experiment.run.recorder import Recorder
from fedjax_drag.experiment.run.run import run
from fedjax_drag.experiment.sweep import choice, one_program, outcome_table, sweep_folder
from fedjax_drag.experiment.sweep.grid import _labels, load_grid
from fedjax_drag.experiment.sweep.outcome_table import Cell
from fedjax_drag.experiment.sweep.summary_page import summary
from fedjax_drag.experiment.sweep.sweep import Sweep, plan, sweep
from fedjax_drag.simulation import progress
from fedjax_drag.simulation.criterion import Criterion

SMALL = TINY | {"name": "small", "rounds": 2, "eval_every": 1, "attack": "sign_flip", "byzantine_fraction": 0.5}
GRID = {"aggregator": ["fedavg", "krum"], "attack": [None, "sign_flip"], "seed": [0, 1]}
"""Krum cannot be had with two malicious clients of four, attack or not."""


def small(**given):
    return SMALL | {"axes": given}


def rows_of(folder):
    with (folder / "table.csv").open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def times(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name not in lock.FILES}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder and the outcome of a sweep half of whose cells cannot be run; nobody may change them."""
    folder = tmp_path_factory.mktemp("sweep") / "out"
    return folder, sweep(SMALL | {"axes": GRID}, out=folder)


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    """Those of its cells that can be run, compiled as for users: other ways to them give the same bits."""
    folder = tmp_path_factory.mktemp("exact") / "out"
    with optimised():
        return folder, sweep(SMALL | {"axes": GRID | {"aggregator": ["fedavg"]}}, out=folder)


# What a configuration means.


def test_cells_are_the_product_the_last_axis_fastest():
    grid = load_grid(small(**{"aggregator": ["median", "drag"], "partition": ["iid"], "model.hidden": [[4], [5]]}))
    assert [point.label for point in grid.points] == [
        "median, iid, hidden=[4]",
        "median, iid, hidden=[5]",
        "drag, iid, hidden=[4]",
        "drag, iid, hidden=[5]",
    ]
    assert [point.config.model.arguments["hidden"] for point in grid.points] == [[4], [5], [4], [5]]
    assert [point.config.aggregator.name for point in grid.points] == ["median", "median", "drag", "drag"]
    assert grid.points[0].folder == "median-iid-hidden-4"


@pytest.mark.parametrize(
    ("axis", "values", "labels"),
    [
        ("aggregator", ["drag", "median"], ["drag", "median"]),
        ("aggregator", [{"name": "drag", "c": 0.1}, "median"], ["drag", "median"]),
        ("aggregator", [{"name": "drag", "c": 0.1, "alpha": 0.5}, {"name": "drag", "c": 0.2, "alpha": 0.5}], None),
        ("aggregator", ["drag", {"name": "drag", "c": 0.1}], ["drag", "drag c=0.1"]),
        ("attack", [None, "sign_flip", {"name": "sign_flip", "scale": 2}], ["none", "sign_flip", "sign_flip scale=2"]),
        ("byzantine_fraction", [0, 0.25], [0, 0.25]),
        ("diagnostics", [True, False], ["true", "false"]),
        ("step_size", [0.1, {"name": "linear_schedule", "init_value": 1}], [0.1, "linear_schedule"]),
    ],
)
def test_labels_are_short_and_tell_values_apart(axis, values, labels):
    assert _labels(axis, values) == (labels or ["drag c=0.1", "drag c=0.2"])


def test_labels_reach_into_components_inside_components():
    nnm = [{"name": "nnm", "aggregator": {"name": "drag", "c": c}} for c in (0.1, 0.2)] + [
        {"name": "nnm", "aggregator": "median"}
    ]
    assert _labels("aggregator", nnm) == [
        "nnm aggregator=drag aggregator.c=0.1",
        "nnm aggregator=drag aggregator.c=0.2",
        "nnm aggregator=median",
    ]


def test_folders_differ_where_labels_differ_only_in_signs():
    grid = load_grid(small(**{"attack.scale": [-1.0, 1.0]}))
    first, second = (point.folder for point in grid.points)
    assert first != second
    assert first.startswith("scale-1.0-")
    long = load_grid(small(**{"model.hidden": [[4] * 100, [5] * 100]}))
    assert all(len(point.folder) < 120 for point in long.points)


def test_axes_are_written_dotted_or_nested_and_overridden():
    dotted = load_grid(small(**{"partition.num_clients": [8, 9], "seed": [0]}))
    nested = load_grid(small(partition={"num_clients": [8, 9]}, seed=[0]))
    assert dotted.points == nested.points
    changed = load_grid(small(seed=[0]), ["axes.partition.num_clients=[8, 9]", "rounds=3"])
    assert {point.config.partition.arguments["num_clients"] for point in changed.points} == {8, 9}
    assert {point.config.rounds for point in changed.points} == {3}


def test_whole_components_are_set_before_their_arguments():
    grid = load_grid(small(**{"aggregator.c": [0.1, 0.2], "aggregator": ["drag", "br_drag"]}))
    assert [(p.config.aggregator.name, p.config.aggregator.arguments["c"]) for p in grid.points] == [
        ("drag", 0.1),
        ("br_drag", 0.1),
        ("drag", 0.2),
        ("br_drag", 0.2),
    ]


def test_runs_that_differ_by_seed_have_the_same_name_in_plots():
    grid = load_grid(small(aggregator=["median"], seed=[0, 1]))
    assert [point.config.name for point in grid.points] == ["median", "median"]
    assert len({point.folder for point in grid.points}) == 2


def test_what_a_configuration_compares_is_the_first_axis():
    compare = {"Mean": None, "DRAG": {"aggregator": {"name": "drag", "c": 0.1}, "client": "fedprox"}}
    grid = load_grid(small(**{"partition.num_clients": [8], "seed": [0, 1]}) | {"compare": compare}, ["rounds=3"])
    assert grid.labels == {"method": ["Mean", "DRAG"], "partition.num_clients": [8], "seed": [0, 1]}
    assert [point.label for point in grid.points][1:3] == ["Mean, num_clients=8, seed=1", "DRAG, num_clients=8, seed=0"]
    last = grid.points[-1].config
    assert (last.aggregator.name, last.client.name, last.rounds, last.seed) == ("drag", "fedprox", 3, 1)
    assert (last.name, last.compare) == ("DRAG, num_clients=8", None)
    again = load_grid(grid.to_mapping())
    assert again.points == grid.points


@pytest.mark.parametrize(
    ("given", "overrides", "message"),
    [
        ({}, [], "axes={}: must be a mapping from keys to the lists"),
        ([1], [], r"axes=\[1\]: must be a mapping"),
        ({"seed": 1}, [], "axes.seed=1: must be a list of values"),
        ({"seed": []}, [], r"axes.seed=\[\]: must be a list of values, at least one"),
        ({"step_size": np.ones(3)}, [], r"axes.step_size=array float64\[3\]: must be a list of values"),
        (
            {"aggregator": [fd.aggregators.drag(c) for c in (0.1, 0.2)]},
            [],
            "drag is there twice; .*; give objects labels",
        ),
        ({"agregator": ["drag"]}, [], "unknown key 'agregator' of axes; did you mean 'aggregator'"),
        ({"name": ["a"]}, [], "unknown key 'name' of axes"),
        ({"seed": [0, 1, 0]}, [], "axes.seed: 0 is there twice"),
        ({"local_epochs": [1, 2, 1.0]}, [], "axes.local_epochs: 1 is there twice"),
        ({"attack": ["sign_flip", {"name": "sign_flip"}]}, [], "axes.attack: sign_flip is there twice"),
        ({"aggregator": ["drga"]}, [], "axes: drga: aggregator.name='drga': must be one of"),
        ({"aggregator": [{"name": "drag", "d": 1}]}, [], "axes: drag: unknown key 'd' of aggregator drag"),
        ({"aggregator": ["drag", "median"], "aggregator.c": [0.1]}, [], "median, c=0.1: unknown key 'c'"),
        ({"byzantine_fraction": [1.5]}, [], r"byzantine_fraction=1.5: must be in \[0, 1\]"),
        ({"seed": [0]}, ["seed=1"], "seed: an override and axes.seed both set it"),
        ({"partition.beta": [0.1]}, ["partition.beta=1"], "partition.beta: an override and axes.partition.beta"),
        ({"byzantine_fraction": [0.1], "num_byzantine": [1]}, [], "both set it; leave out one"),
        ({"step_size": [0.1]}, ["compare={A: {step_size: 1}}"], "step_size: compare.A and axes.step_size both set it"),
        ({"aggregator": ["median"]}, ["aggregator={name: krum}"], "aggregator: an override and axes.aggregator both"),
        ({"aggregator": ["median"]}, ["aggregator.name=krum"], "aggregator: an override and axes.aggregator both"),
        ({"aggregator": ["median"]}, ["compare={A: {aggregator: {name: krum}}}"], "aggregator: compare.A and axes.agg"),
        ({"aggregator": ["median"], "aggregator.name": ["krum"]}, [], "aggregator: axes.aggregator and axes.agg"),
        ({"rounds": [1, 2]}, ["num_rounds=3"], "rounds: an override and axes.rounds both set it"),
        ({"seed": [0]}, ["compare={A: {rund: 1}}"], "compare.A: unknown key 'rund'"),
        ({"data": [{"name": "mnist", "data_dir": "nowhere"}]}, [], "nowhere"),
    ],
)
def test_wrong_axes_are_refused_before_anything_is_written(tmp_path, given, overrides, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        sweep(SMALL | {"axes": given}, overrides, out=tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ({"aggregator": "krumm"}, "aggregator.name='krumm': must be one of"),
        ({"byzantine_fraction": None}, "byzantine_fraction=None: must be given with an attack"),
        ({"local_epochs": 1, "local_steps": 1}, "local_steps=1, local_epochs=1.0: must be exactly one"),
        ({"late": "drop"}, "late='drop': needs deadline"),
        ({"initial_params": "nowhere"}, "initial_params='nowhere': no such file"),
    ],
)
def test_what_is_wrong_with_the_base_alone_is_said_without_a_cell(base, message):
    with pytest.raises(ValueError) as caught:
        sweep(SMALL | base | {"axes": {"seed": [0, 1]}})
    assert str(caught.value).startswith(message)


def test_an_axis_may_give_what_the_base_needs():
    local = {"local_steps": [1, 5], "late": "drop", "axes": {"deadline": [2, 5]}}
    assert [point.config.deadline for point in load_grid(SMALL | local, code=Code()).points] == [2, 5]
    epochs = {"epoch_order": "fixed", "compare": {"A": None}, "axes": {"local_epochs": [1, 2]}}
    assert len(load_grid(SMALL | epochs, code=Code()).points) == 2


@pytest.mark.parametrize("key", ["initial_params", "availability"])
def test_a_file_that_is_not_there_is_refused_before_anything_is_written(tmp_path, key):
    with pytest.raises(ValueError, match=rf"^axes: {key}=nowhere.npy: {key}='nowhere.npy': .*[Nn]o such file"):
        sweep(small(**{key: [None, "nowhere.npy"]}), out=tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("key", "suffix"), [("initial_params", ".safetensors"), ("availability", ".npy")])
def test_a_file_that_cannot_be_read_is_refused_before_anything_is_written(tmp_path, key, suffix):
    damaged = tmp_path / f"damaged{suffix}"
    damaged.write_bytes(b"no such format")
    with pytest.raises(ValueError, match=rf"^axes: {key}=.*: {key}='.*damaged.*': must be a ") as caught:
        sweep(small(**{key: [None, str(damaged)]}), out=tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == [damaged]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"attack": [None, "alie"]}, "axes: alie: byzantine_fraction=None: must be given with an attack"),
        ({"attack": ["alie"], "num_byzantine": [None, 1]}, "axes: alie, num_byzantine=none: byzantine_fraction=None"),
        ({"num_byzantine": [1]}, "axes: num_byzantine=1: num_byzantine=1: must be 0 or left out without an attack"),
    ],
)
def test_attacks_and_malicious_clients_belong_together(given, message):
    with pytest.raises(ValueError, match=message):
        sweep(TINY | {"axes": given})
    assert load_grid(TINY | {"axes": given}).points  # results that are there can be read
    for baseline in {"attack": None, "axes": {"seed": [0]}}, {"axes": {"attack": [None]}}:
        assert load_grid(TINY | {"num_byzantine": 1} | baseline, code=Code()).points


def test_axes_are_refused_by_a_run_and_missed_by_a_sweep():
    with pytest.raises(ValueError, match="axes: belong to a sweep"):
        run(small(seed=[0]))
    with pytest.raises(ValueError, match="axes: belong to a sweep"):
        run(SMALL, ["axes.seed=[0]"])
    for play in run, sweep:
        with pytest.raises(ValueError, match="base, attacks: belong to an arena"):
            play({"name": "arena", "base": SMALL, "attacks": {"alie": None}, "entries": {"krum": None}})
    with pytest.raises(ValueError, match="axes: missing"):
        sweep(SMALL)


# What comes out.


def test_cells_that_cannot_be_run_do_not_stop_the_others(finished):
    _, found = finished
    assert isinstance(found, Sweep)
    assert [cell.values for cell in found.cells][:3] == [
        {"aggregator": "fedavg", "attack": "none", "seed": 0},
        {"aggregator": "fedavg", "attack": "none", "seed": 1},
        {"aggregator": "fedavg", "attack": "sign_flip", "seed": 0},
    ]
    assert [cell.status for cell in found.cells] == ["done"] * 4 + ["failed"] * 4
    assert all("num_byzantine=2: must be at most S - 3 = 1" in cell.message for cell in found.cells[4:])
    assert all(cell.history == {} for cell in found.cells[4:])


@pytest.mark.optimised
@pytest.mark.thorough
def test_a_cell_is_the_run_of_its_configuration(exact):
    alone, cell = run(SMALL, ["attack=sign_flip", "seed=1"]).history, exact[1].cells[3]
    assert alone.keys() == cell.history.keys()
    for name, column in alone.items():
        np.testing.assert_array_equal(cell.history[name], column)


def test_the_table_has_the_histories_of_its_cells(finished):
    folder, found = finished
    alone, table = found.cells[3].history, found.table
    mine = (table["aggregator"] == "fedavg") & (table["attack"] == "sign_flip") & (table["seed"] == 1)
    written = [
        row
        for row in rows_of(folder)
        if (row["aggregator"], row["attack"], row["seed"]) == ("fedavg", "sign_flip", "1")
    ]
    scalars = {name for name, column in alone.items() if column.ndim == 1}
    assert set(table) == {"aggregator", "attack", "seed", "status", "message"} | scalars
    for name in scalars:
        np.testing.assert_array_equal(table[name][mine].astype(alone[name].dtype), alone[name])
        read = [float(row[name]) if row[name] else np.nan for row in written]
        np.testing.assert_array_equal(read, table[name][mine])
    assert list(table)[3:8] == ["status", "message", "round", "test_accuracy", "test_loss"]


@pytest.mark.slow
def test_concentrations_over_labels_share_a_program():
    partition = {"name": "dirichlet", "num_clients": 4, "beta": 5.0, "over": "labels"}
    base = SMALL | {"data": {"name": "digits", "normalize": "unit"}, "partition": partition}
    losses = [cell.history["test_loss"] for cell in sweep(base | {"axes": {"partition.beta": [0.1, 5.0]}}).cells]
    assert not np.array_equal(*losses)
    np.testing.assert_array_equal(run(base).history["test_loss"], losses[1])


def test_table_has_a_row_for_each_evaluation_and_one_for_a_failed_cell(finished):
    folder, found = finished
    rows = rows_of(folder)
    assert [row["round"] for row in rows] == ["1", "2"] * 4 + [""] * 4
    assert [row["status"] for row in rows] == ["done"] * 8 + ["failed"] * 4
    assert rows[-1]["test_accuracy"] == ""
    assert rows[-1]["message"] == found.cells[-1].message
    assert rows[0]["cosine_to_benign"] == "", "no attack, and so no such figure"
    stored = parquet.read_table(folder / "table.parquet").to_pydict()
    assert list(stored) == list(rows[0])
    assert stored["aggregator"] == [row["aggregator"] for row in rows]
    assert stored["seed"] == [int(row["seed"]) for row in rows]
    assert stored["test_loss"] == [float(row["test_loss"]) if row["test_loss"] else None for row in rows]
    assert {len(column) for column in found.table.values()} == {12}


def test_a_sweep_is_shown_in_a_line(finished):
    found = finished[1]
    assert repr(found._replace(best=None)) == "Sweep(cells: 4 done, 4 failed)"
    assert repr(found._replace(best=choice.Best({"step_size": 0.1}, Criterion("accuracy", True, True), 0.5, 0.5))) == (
        "Sweep(cells: 4 done, 4 failed; best: step_size=0.1: test accuracy 50.0 %, chosen on the test set)"
    )
    assert "history" not in repr(found.cells[0])


def test_worst_case_is_the_minimum_of_the_means_over_seeds(finished):
    folder, found = finished
    finals = [float(cell.history["test_accuracy"][-1]) for cell in found.cells[:4]]
    means = [np.mean(finals[:2]), np.mean(finals[2:])]
    assert list(found.worst_case) == ["fedavg", "krum"]
    assert found.worst_case["fedavg"] == pytest.approx(min(means))
    assert np.isnan(found.worst_case["krum"])

    head, _, first, second = (folder / "summary.md").read_text(encoding="utf-8").splitlines()[4:8]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (head, first, second)]
    assert cells[0] == ["aggregator", "attack=none", "sign_flip", "worst case"]
    spread = 100 * np.std(finals[:2], ddof=1)
    assert cells[1][:2] == ["fedavg", f"{100 * means[0]:.1f} ± {spread:.1f}"]
    assert cells[1][3] == f"{100 * min(means):.1f}"
    assert cells[2] == ["krum", "failed", "failed", "-"]


def test_heat_map_is_drawn(finished):
    image = (finished[0] / "heatmap.png").read_bytes()
    assert image.startswith(b"\x89PNG")
    assert len(image) > 5000


def test_folder_can_be_run_again_and_cells_are_runs(finished, command):
    folder, _ = finished
    assert load_grid(folder / "sweep.yaml").points == load_grid(SMALL | {"axes": GRID}).points
    assert sorted(path.name for path in (folder / "cells").iterdir()) == [
        "fedavg-attack-none-seed-0",
        "fedavg-attack-none-seed-1",
        "fedavg-sign_flip-seed-0",
        "fedavg-sign_flip-seed-1",
    ]
    assert command("plot", *(folder / "cells").iterdir(), "-o", "a.png").exit_code == 0


def test_resume_leaves_finished_cells_alone(finished):
    folder, found = finished
    table, before = (folder / "table.csv").read_text(), times(folder / "cells")
    again = sweep(SMALL | {"axes": GRID}, out=folder, resume=True)
    assert times(folder / "cells") == before
    assert (folder / "table.csv").read_text() == table
    assert [cell.status for cell in again.cells] == [cell.status for cell in found.cells]
    for name, column in found.table.items():
        np.testing.assert_array_equal(again.table[name], column)


@pytest.mark.optimised
@pytest.mark.thorough
def test_interrupted_sweep_goes_on_to_the_same_end(exact, tmp_path, interrupt_after):
    folder, _ = exact
    given, out = SMALL | {"axes": GRID | {"aggregator": ["fedavg"], "attack": ["sign_flip"]}}, tmp_path / "out"
    with interrupt_after(3), pytest.raises(KeyboardInterrupt):
        sweep(given, out=out, cells_per_program=1)
    assert [(row["seed"], row["round"], row["status"]) for row in rows_of(out)] == [
        ("0", "1", "done"),
        ("0", "2", "done"),
        ("1", "1", "interrupted"),
    ]
    assert "1 of 2 cells have run so far." in (out / "summary.md").read_text(encoding="utf-8")
    before = times(out / "cells" / "fedavg-sign_flip-seed-0")
    resumed = sweep(given, out=out, resume=True)
    assert times(out / "cells" / "fedavg-sign_flip-seed-0") == before
    assert [cell.status for cell in resumed.cells] == ["done", "done"]
    assert rows_of(out) == rows_of(folder)[4:8]
    stored = json.loads((out / "cells" / "fedavg-sign_flip-seed-1" / "summary.json").read_text())
    assert stored["resumed_from_round"] == 1


@pytest.mark.optimised
@pytest.mark.thorough
@pytest.mark.parametrize("seconds", [0.0, 60.0], ids=["saved before", "saved when stopped"])
def test_interrupted_program_of_many_cells_goes_on_to_the_same_end(
    exact, tmp_path, monkeypatch, interrupt_after, seconds
):
    folder, _ = exact
    given, out = SMALL | {"axes": GRID | {"aggregator": ["fedavg"], "attack": ["sign_flip"]}}, tmp_path / "out"
    monkeypatch.setattr(one_program, "SECONDS_BETWEEN_CHECKPOINTS", seconds)
    with interrupt_after(2), pytest.raises(KeyboardInterrupt):
        sweep(given, out=out)
    rows = [(row["seed"], row["round"], row["status"]) for row in rows_of(out)]
    assert rows == [("0", "1", "interrupted"), ("1", "1", "interrupted")]
    resumed = sweep(given, out=out, resume=True)
    assert [cell.status for cell in resumed.cells] == ["done", "done"]
    assert rows_of(out) == rows_of(folder)[4:8]
    for seed in (0, 1):
        stored = json.loads((out / "cells" / f"fedavg-sign_flip-seed-{seed}" / "summary.json").read_text())
        assert stored["resumed_from_round"] == 1


def test_resume_and_overwrite_look_at_the_folder_first(finished, tmp_path):
    folder, _ = finished
    given, before = SMALL | {"axes": GRID}, times(folder)
    with pytest.raises(ValueError, match="already holds a sweep"):
        sweep(given, out=folder)
    with pytest.raises(ValueError, match=r"step_size=0\.2: the run to resume in .*step_size=0\.1"):
        sweep(given, ["step_size=0.2"], out=folder, resume=True)
    with pytest.raises(ValueError, match="must be one of"):
        sweep(given, ["axes.aggregator=[drga]"], out=folder, overwrite=True)
    with pytest.raises(ValueError, match="something else than a sweep"):
        sweep(given, out=folder / "cells" / "fedavg-attack-none-seed-0", overwrite=True)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds no sweep to resume"):
        sweep(given, out=tmp_path, resume=True)
    for new in ("absent", "empty"):
        with plan(load_grid(given, code=Code()), tmp_path / new, resume=True) as planned:
            assert len(planned.grid.points) == 8
            (tmp_path / "empty" / "jobs").mkdir(parents=True, exist_ok=True)  # which the launcher of jobs makes first
    with pytest.raises(ValueError, match="need the results folder"):
        sweep(given, resume=True)
    assert times(folder) == before


def test_a_sweep_is_not_put_into_the_folder_of_an_arena(tmp_path):
    (tmp_path / "arena.json").touch()
    with pytest.raises(ValueError, match="holds something else than a sweep"):
        sweep(small(aggregator=["krum"], seed=[1]), out=tmp_path)


def test_overwrite_removes_what_the_sweep_wrote_and_nothing_else(tmp_path):
    out = tmp_path / "out"
    sweep(small(aggregator=["krum"]), out=out)
    (out / "notes.txt").write_text("mine")
    sweep(small(aggregator=["krum"], seed=[1]), out=out, overwrite=True)
    assert {path.name for path in out.iterdir()} == {
        "notes.txt",
        "sweep.yaml",
        "table.csv",
        "table.parquet",
        "summary.md",
        lock.LOCK,
    }


@pytest.mark.thorough
def test_failure_and_divergence_on_the_way_are_noted(tmp_path, monkeypatch):
    record = Recorder.__call__

    def spoiled(self, event):
        if self._folder.name == "seed-0":
            raise OSError("disk full\nand more")
        event.metrics["test_loss"] = np.float32(np.nan if event.round == 2 else 2.0)
        record(self, event)

    monkeypatch.setattr(Recorder, "__call__", spoiled)
    found = sweep(small(seed=[0, 1]), out=tmp_path / "out")
    assert [(cell.status, cell.message) for cell in found.cells] == [
        ("failed", "OSError: disk full"),
        ("diverged", "test_loss is not finite from round 2 on"),
    ]
    assert np.isnan(found.table["test_loss"][-1])
    assert not (tmp_path / "out" / "heatmap.png").exists(), "one axis is no matrix"


def test_a_heat_map_that_nobody_could_read_is_not_drawn(tmp_path):
    grid = load_grid(small(attack=[None, "sign_flip"], step_size=[*range(1, 102)]))
    (tmp_path / "heatmap.png").write_text("of fewer cells")
    sweep_folder.draw(tmp_path, grid, [])
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_cells_that_do_not_fit_the_memory_together_run_in_parts(monkeypatch):
    needed = []

    def check(programs, on_host, ways_out):
        (advice,) = ways_out
        needed.append(int(advice.removeprefix("width below ")))
        if needed[-1] > 2:
            raise MemoryError("not enough")

    monkeypatch.setattr("fedjax_drag.simulation.batch.memory.check", check)
    found = sweep(small(seed=[0, 1, 2, 3, 4]))
    assert needed == [6, 4, 2], "multiples of the two devices"
    assert [cell.status for cell in found.cells] == ["done"] * 5


@pytest.mark.slow
def test_the_best_state_of_a_cell_is_kept_as_if_it_ran_alone(tmp_path):
    given = SMALL | {"rounds": 12, "step_size": 1.0, "data": {"name": "digits", "validation_fraction": 0.25}}
    sweep(given | {"axes": {"aggregator": ["fedavg"], "seed": [0, 1, 2]}}, out=tmp_path / "cells")
    before_the_end = 0
    for seed in range(3):
        folder = tmp_path / "cells" / "cells" / f"fedavg-seed-{seed}"
        run(given | {"aggregator": "fedavg", "seed": seed}, out=tmp_path / str(seed))
        summary = json.loads((folder / "summary.json").read_text())
        cell, alone = Checkpoints(folder), Checkpoints(tmp_path / str(seed))
        assert cell.best() == alone.best() == summary["best_round"]
        assert cell.rounds() == alone.rounds()
        before_the_end += summary["best_round"] < 12
        own, other = (load_params(place, "best") for place in (folder, tmp_path / str(seed)))
        chex.assert_trees_all_close(own, other, rtol=1e-4, atol=1e-5)
    assert before_the_end


@pytest.mark.slow
def test_a_program_has_no_more_cells_than_folders_that_can_be_open(tmp_path, monkeypatch):
    widths, usual = [], one_program.prepare_batch
    monkeypatch.setattr(
        one_program, "prepare_batch", lambda *a, width, **o: widths.append(width) or usual(*a, width=width, **o)
    )
    monkeypatch.setattr(one_program, "_OTHER_FILES", 0)
    monkeypatch.setattr(one_program.resource, "getrlimit", lambda which: (5, 5))  # of any cell, metrics and lock
    found = sweep(small(seed=[0, 1, 2, 3, 4]), out=tmp_path / "out")
    sweep(small(seed=[0, 1, 2, 3, 4]))
    assert widths == [2, 5]
    assert [cell.status for cell in found.cells] == ["done"] * 5


@pytest.mark.thorough
def test_a_sweep_tells_how_far_it_is_where_there_is_no_terminal(monkeypatch, capsys):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 1e-3)
    sweep(small(seed=[0, 1]))
    lines = capsys.readouterr().err.splitlines()
    assert any(line.startswith("small: cell 0/2; 2 cells, compiling: round 0/2") for line in lines)


@pytest.mark.thorough
def test_what_fails_together_is_run_one_by_one(tmp_path, monkeypatch, capsys):
    def broken(self, which, *given):
        raise RuntimeError("the compiler gave up")

    monkeypatch.setattr("fedjax_drag.simulation.batch.BatchSimulation.run", broken)
    found = sweep(small(seed=[0, 1]), out=tmp_path / "out")
    assert "2 cells run one by one: RuntimeError: the compiler gave up" in capsys.readouterr().err
    assert [cell.status for cell in found.cells] == ["done", "done"]
    assert [row["round"] for row in rows_of(tmp_path / "out")] == ["1", "2"] * 2


@pytest.mark.thorough
def test_a_cell_without_enough_data_does_not_part_the_others(capsys):
    found = sweep(small(aggregator=["fltrust"], attack=[None], root_size=[8, 5000], seed=[0, 1]))
    assert [cell.status for cell in found.cells] == ["done", "done", "failed", "failed"]
    assert "root_size=5000: " in found.cells[2].message
    assert "one by one" not in capsys.readouterr().err


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = sweep(small(aggregator=["krum"], seed=[0]))
    assert found.cells[0].status == "failed"
    assert list(tmp_path.iterdir()) == []


# The matrix, from cells that did not run.


def cells_of(grid, finals):
    """Cells with these final accuracies in the order of the grid; None failed."""
    return [
        Cell(point.values, "failed", "why", {})
        if final is None
        else Cell(point.values, "done", "", {"round": np.array([2]), "test_accuracy": np.array([final])})
        for point, final in zip(grid.points, finals, strict=False)
    ]


def test_an_axis_named_like_a_figure_keeps_its_column_in_the_table():
    grid = load_grid(small(local_steps=[1, 5], seed=[0]))
    cells = cells_of(grid, [0.5, 0.6])
    for cell, steps in zip(cells, (4, 20), strict=True):
        cell.history["local_steps"] = np.array([steps])
    columns = outcome_table.table(grid, cells)
    assert columns["local_steps"].tolist() == [1, 5]
    assert columns["history.local_steps"].tolist() == [4, 20]


def test_rows_are_rules_wherever_their_axis_stands_and_the_safest_is_first():
    grid = load_grid(small(byzantine_fraction=[0.1, 0.2], seed=[0, 1], aggregator=["fedavg", "median", "drag"]))
    # Of each share and seed the three rules.
    cells = cells_of(grid, [0.9, 0.5, 0.7, 0.7, 0.5, 0.7, 0.2, 0.6, None, 0.4, 0.4, 0.8])
    found = outcome_table.matrix(grid, cells)
    assert (found.axis, found.rows) == ("aggregator", ("drag", "median", "fedavg"))
    assert found.columns == ("byzantine_fraction=0.1", "byzantine_fraction=0.2")
    np.testing.assert_allclose(found.mean, [[0.7, 0.8], [0.5, 0.5], [0.8, 0.3]])
    np.testing.assert_allclose(found.worst, [0.7, 0.5, 0.3])
    assert found.texts[0] == ("70.0 ± 0.0", "80.0 (1 of 2)")
    assert not any("failed" in row for row in found.texts)


def test_a_row_without_one_of_its_figures_has_no_worst_case_and_is_last():
    grid = load_grid(small(step_size=[0.1, 0.2], dropout_rate=[0.0, 0.3]))
    found = outcome_table.matrix(grid, cells_of(grid, [0.9, None, 0.1, 0.2]))
    assert (found.axis, found.rows) == ("step_size", ("0.2", "0.1"))
    np.testing.assert_array_equal(found.worst, [0.1, np.nan])
    assert [[text == "failed" for text in row] for row in found.texts] == [[False, False], [False, True]]
    partial = outcome_table.matrix(grid, cells_of(grid, [0.9]))
    assert partial.texts == (("90.0", "-"), ("-", "-"))


def test_seeds_alone_are_the_rows():
    grid = load_grid(small(seed=[0, 1]))
    found = outcome_table.matrix(grid, cells_of(grid, [0.5, 0.6]))
    assert (found.rows, found.columns) == (("0", "1"), ("test accuracy",))


def test_worst_cases_are_over_conditions_and_the_best_setting_over_all_else():
    rates = [0.1, 0.35000000000000003]
    grid = load_grid(small(step_size=rates, aggregator=["fedavg", "krum"], attack=[None, "sign_flip"], seed=[0, 1]))
    cells = cells_of(grid, [0.9, 0.9, 0.1, 0.3, 0.5, 0.5, 0.6, 0.6, 0.8, 0.8, 0.3, 0.3, 0.7, 0.7, 0.4, 0.4])
    found = outcome_table.matrix(grid, cells)
    rows = ["step_size=0.1, krum", "step_size=0.35, krum", "step_size=0.35, fedavg", "step_size=0.1, fedavg"]
    assert (found.axis, list(found.rows)) == ("step_size, aggregator", rows)
    np.testing.assert_allclose(found.worst, [0.5, 0.4, 0.3, 0.2])
    assert list(outcome_table.worst_cases(grid, cells)) == rows
    best = choice.best(grid, cells)
    assert (best.values, best.accuracy) == ({"step_size": 0.1, "aggregator": "krum"}, pytest.approx(0.5))
    assert "step_size=0.1, krum: worst-case test accuracy 50.0 %" in str(best), "not 0.9 without an attack"
    for axes in (
        {"step_size": rates, "batch_size": [2, 4]},
        {"attack": [None, "sign_flip"], "dropout_rate": [0.0, 0.3]},
    ):
        alike = load_grid(small(**axes))
        cells = cells_of(alike, [0.9, 0.2, 0.3, 0.4])
        assert outcome_table.matrix(alike, cells).worst is None, "no choice is weighed against conditions"
        assert list(outcome_table.worst_cases(alike, cells).values()) == [0.9, 0.4, 0.3, 0.2]
        assert "worst case" not in summary(alike, cells)


def test_every_condition_is_a_key_and_numbers_have_the_digits_that_tell_them_apart():
    assert {field.name for field in dataclasses.fields(Config)} > CONDITIONS
    texts = outcome_table.texts([0.35000000000000003, 1.0, 0.001, 0.3333333333333333, 1000])
    assert list(texts.values()) == ["0.35", "1", "0.001", "0.3333", "1000"]
    assert list(outcome_table.texts([0.12345, 0.12346]).values()) == ["0.12345", "0.12346"]


def test_summary_names_a_reason_once():
    grid = load_grid(small(aggregator=["fedavg", "krum"], seed=[0, 1, 2]))
    page = summary(grid, cells_of(grid, [0.5, 0.6, 0.7, None, None, None]))
    assert page.count("why") == 1
    assert "failed: why (krum, seed=0; krum, seed=1; krum, seed=2)" in page


# The command.


def test_command(command, tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(SMALL | {"axes": {"aggregator": ["fedavg", "krum"]}}))
    wrong = command("sweep", path, "axes.agregator=[drag]")
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert wrong.stderr == "fedjax-drag: error: unknown key 'agregator' of axes; did you mean 'aggregator'?\n"
    assert list(tmp_path.iterdir()) == [path]

    done = command("sweep", path)
    krum = "krum: num_byzantine=2"
    assert done.exit_code == 1
    assert done.stderr.startswith(f"fedjax-drag: error: 1 of 2 cells failed; {krum}")
    assert (tmp_path / "runs" / "small" / "summary.md").read_text(encoding="utf-8") in done.stdout
    assert command("sweep", path).exit_code == 2
    again = command("sweep", path, "--resume", "--quiet")
    assert (again.exit_code, again.stdout) == (1, "")


@pytest.mark.thorough
def test_command_says_how_to_go_on(command, tmp_path, monkeypatch, interrupt_after):
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(small(seed=[0])))
    monkeypatch.setattr(sys, "argv", ["fedjax-drag", "sweep", str(path)])
    with interrupt_after(1):
        result = command(*sys.argv[1:])
    assert result.exit_code == 130
    assert result.stderr == f"stopped; to go on: fedjax-drag sweep {path} --resume\n"


def test_help_teaches_with_examples(command):
    text = command("sweep", "--help").output
    assert "aggregator: [fedavg, krum, {name: trimmed_mean, trim_fraction: 0.3}]" in text
    assert "  fedjax-drag sweep " in text.partition("Examples")[2]
