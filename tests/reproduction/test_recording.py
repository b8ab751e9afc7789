import json

import numpy as np
import pyarrow as pa
import pytest
import yaml
from pyarrow import parquet
from tiny import TINY

import reproduce
from fedjax_drag.experiment.sweep import sweep_folder
from fedjax_drag.experiment.sweep.grid import load_grid
from fedjax_drag.experiment.sweep.outcome_table import Cell, table, write_parquet
from reproduction import running
from reproduction.publishing import verdicts
from reproduction.storing import recording, settings, stored
from reproduction.targets import all_targets, target
from reproduction.targets.target import Scale, Target

SWEEP = {key: TINY[key] for key in ("name", "data", "cohort_size", "rounds", "eval_every")} | {
    "partition": {"name": "iid", "num_clients": 4},
    "compare": {"FedAvg": {"aggregator": "fedavg"}, "TACO": {"algorithm": {"name": "taco", "max_strikes": 2}}},
    "axes": {"attack": [None, {"name": "gaussian", "sigma": 0.1}]},
}


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper" / "tiny.yaml").write_text(yaml.safe_dump(SWEEP))
    monkeypatch.setattr(target, "CONFIGS", tmp_path)
    return Target("tiny", "A paper", "Fig. 1", "method", (), 1, medium=("rounds=4",))


def finished(folder, *overrides, source=SWEEP, accuracy=0.5, left_out=0, diverged=(), commit="1a2b3c"):
    """The results folder of a sweep, as if it had run, but for the last cells; some methods diverged at once."""
    grid = load_grid(source, overrides)
    folder.mkdir()
    (folder / sweep_folder.CONFIG).write_text(yaml.safe_dump(grid.to_mapping(), sort_keys=False))
    history = {"round": np.array([2, 4, 6]), "test_accuracy": np.full(3, accuracy), "train_loss": np.ones(3)}
    history["client_accuracy_worst_tenth"] = np.full(3, 0.2)
    cells = []
    for number, point in enumerate(grid.points):
        status = "done" if number < len(grid.points) - left_out else "failed"
        of_taco = {"output_accuracy": np.full(3, 0.6), "num_expelled": np.ones(3)}
        own = history | (of_taco if point.values["method"] == "TACO" else {})
        own |= {"validation_accuracy": np.full(3, 0.4)} if "validation_fraction" in source["data"] else {}
        if point.values["method"] in diverged:
            status, own = "diverged", own | {"test_loss": np.full(3, np.nan)}
        cells.append(Cell(point.values, status, "", own if status != "failed" else {}))
        place = folder / sweep_folder.CELLS / point.folder
        place.mkdir(parents=True)
        packages = {"jax": "0.10.2", "fedjax-drag": "0.1.0"}
        about = {"git_commit": commit, "packages": packages, "device_kind": "cpu"}
        (place / "environment.json").write_text(json.dumps(about))
        of_clients = {"alpha": [0.1, 0.1, 0.2, 0.2, 0.3, 0.8], "strikes": [0, 0, 0, 0, 0, 3]}
        of_clients |= {"client_ids": [0, 1, 2, 3, 4, 5], "valid": [1] * 6, "malicious": [0, 0, 0, 0, 0, 1]}
        of_clients |= {"test_accuracy": accuracy, "test_loss": 1.0}
        lines = [json.dumps({"round": n, **of_clients}) for n in (2, 4, 6)]
        (place / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    write_parquet(folder / sweep_folder.PARQUET, table(grid, cells))
    return folder


def test_a_results_folder_is_recorded(tiny, tmp_path):
    folder = finished(tmp_path / "run", left_out=1)
    (folder / running.TIMES).write_text('{"FedAvg": [1.0]}')
    assert recording.record(tiny, [folder], tmp_path / "record") == 3
    found = stored.read(stored.path_of(tmp_path / "record", "tiny"))
    assert settings.scale_of(tiny, found.settings) == ("full", [])
    assert found.times == {"FedAvg": [1.0]}
    assert set(found.origins) == {stored.Origin("1a2b3c", "0.10.2", "0.1.0", "cpu")}
    by_method = {one.values["method"]: one for one in found.cells}
    assert by_method["FedAvg"].values.keys() == {"method", "attack", "seed"}, "the seed, too"
    assert list(by_method["FedAvg"].history) == ["round", "test_accuracy"]
    np.testing.assert_allclose(by_method["TACO"].history["group_alpha"], [0.1, 0.2, 0.3, 0.8], rtol=1e-6)
    np.testing.assert_allclose(by_method["TACO"].history["output_accuracy"], 0.6, rtol=1e-6)


@pytest.mark.thorough
def test_what_a_question_without_claims_draws_compares_or_chooses_by_is_stored_and_shown(tmp_path, monkeypatch, capsys):
    source = SWEEP | {"data": {"name": "digits", "validation_fraction": 0.1}, "step_size": 0.01}
    source["axes"] = {"step_size": [0.01, 0.1]}
    (tmp_path / "why").mkdir()
    (tmp_path / "why" / "tiny.yaml").write_text(yaml.safe_dump(source))
    monkeypatch.setattr(target, "CONFIGS", tmp_path)
    monkeypatch.setattr(verdicts, "CLAIMS", ())
    asked = Target(
        "tiny", target.WHY, "which?", "method", (), 1, folder="why", y="client_accuracy_worst_tenth", tuned="step_size"
    )
    monkeypatch.setitem(all_targets.TARGETS, "tiny", asked)
    record = tmp_path / "record"
    for seed in (0, 1):
        folder = finished(tmp_path / f"run-{seed}", f"axes.seed=[{seed}]", source=source, accuracy=0.5 + 0.1 * seed)
        reproduce.main("tiny", sources=[folder], record=record)
    kept = [
        {"round", "test_accuracy", "validation_accuracy", asked.y} <= cell.history.keys()
        for cell in stored.read(stored.path_of(record, "tiny")).cells
    ]
    assert kept == [True] * 8
    assert (record / "figures" / "tiny.png").stat().st_size > 10_000
    assert "| FedAvg | 55.0 % | 0.01 | 55.0 % |  |" in capsys.readouterr().out, "the mean of both seeds"


def test_a_run_that_diverged_before_its_first_evaluation_has_accuracy_0_throughout(tiny, tmp_path):
    recording.record(tiny, [finished(tmp_path / "run", diverged=["FedAvg"])], tmp_path / "record")
    found = stored.read(stored.path_of(tmp_path / "record", "tiny")).outcome()
    ends = {method: found.at({"method": method}).level() for method in ("FedAvg", "TACO")}
    assert ends == {"FedAvg": 0.0, "TACO": 0.5}


@pytest.mark.thorough
def test_parts_and_seeds_of_several_folders_join(tiny, tmp_path):
    one = finished(tmp_path / "one", "axes.seed=[1]", "axes.attack=[null]", "mesh=null")
    fewer = SWEEP | {"compare": {"FedAvg": SWEEP["compare"]["FedAvg"]}, "axes": {**SWEEP["axes"], "seed": [2, 3]}}
    two = finished(tmp_path / "two", source=fewer)
    assert recording.record(tiny, [one, two], tmp_path / "record") == 2 + 4
    three = finished(tmp_path / "three", "axes.seed=[1]", accuracy=0.9)
    assert recording.record(tiny, [three], tmp_path / "record") == 4
    found = stored.read(stored.path_of(tmp_path / "record", "tiny"))
    assert len(found.cells) == 4 + 4
    assert all((one.history["test_accuracy"][0] > 0.8) == (one.values["seed"] == 1) for one in found.cells)
    assert recording.record(tiny, [two], tmp_path / "record", anew=True) == 4
    assert len(stored.read(stored.path_of(tmp_path / "record", "tiny")).cells) == 4


def test_cells_of_other_versions_join_with_a_warning(tiny, tmp_path):
    recording.record(tiny, [finished(tmp_path / "one", "axes.seed=[1]")], tmp_path / "record")
    later = finished(tmp_path / "two", "axes.seed=[2]", commit="4d5e6f7a8b")
    message = r"^tiny: cells of 0\.1\.0 \(1a2b3c, jax 0\.10\.2 on cpu\), 0\.1\.0 \(4d5e6f7, jax .*\), whose defaults"
    with pytest.warns(UserWarning, match=message):
        assert recording.record(tiny, [later], tmp_path / "record") == 4
    assert len(stored.read(stored.path_of(tmp_path / "record", "tiny")).cells) == 8


def test_a_table_of_something_else_is_refused(tiny, tmp_path):
    folder = finished(tmp_path / "run", "axes.seed=[1]")
    grid = load_grid(SWEEP, ("axes.seed=[2]",))
    (folder / sweep_folder.CONFIG).write_text(yaml.safe_dump(grid.to_mapping(), sort_keys=False))
    with pytest.raises(ValueError, match=r"sweep\.yaml must have all cells of the table, also .*'seed': 1"):
        recording.record(tiny, [folder], tmp_path / "record")
    parquet.write_table(pa.table({"a": [1]}), folder / sweep_folder.PARQUET)
    with pytest.raises(ValueError, match="must be the table of a sweep, with its status, message and round"):
        recording.record(tiny, [folder], tmp_path / "record")
    assert not (tmp_path / "record").exists()


def test_other_settings_are_refused_before_and_after_a_run(tiny, tmp_path):
    recording.check(tiny, Scale.FULL, tmp_path / "record")
    recording.record(tiny, [finished(tmp_path / "medium", "rounds=4")], tmp_path / "record")
    found = stored.read(stored.path_of(tmp_path / "record", "tiny"))
    assert settings.scale_of(tiny, found.settings) == ("medium", ["rounds=4"])
    recording.check(tiny, Scale.MEDIUM, tmp_path / "record")
    with pytest.raises(ValueError, match="tiny: results with rounds=6 cannot join others"):
        recording.check(tiny, Scale.FULL, tmp_path / "record")
    with pytest.raises(ValueError, match="tiny: results with rounds=5 cannot join others"):
        recording.record(tiny, [finished(tmp_path / "shorter", "rounds=5")], tmp_path / "record")
    stronger = SWEEP | {"axes": {"attack": [{"name": "gaussian", "sigma": 9.0}]}}
    other = finished(tmp_path / "stronger", "rounds=4", source=stronger)
    with pytest.raises(ValueError, match=r"attack=gaussian\.sigma=9\.0 cannot"):
        recording.record(tiny, [other], tmp_path / "record")
    assert settings.scale_of(tiny, recording.of_folder(tiny, other).settings)[0] == settings.OTHER


@pytest.mark.thorough
def test_a_folder_of_something_else_is_refused(tiny, tmp_path):
    with pytest.raises(ValueError, match=r"must be the results folder of a sweep; it has no sweep\.yaml"):
        recording.record(tiny, [tmp_path], tmp_path / "record")
    other = finished(tmp_path / "other", source=SWEEP | {"axes": {"cohort_size": [2, 4]}})
    with pytest.raises(ValueError, match="must be a sweep of tiny, over attack, method, not cohort_size, m"):
        recording.record(tiny, [other], tmp_path / "record")
    tuned = finished(tmp_path / "tuned", source=SWEEP | {"compare": {"tuned": {"aggregator": "fedavg"}}})
    with pytest.raises(ValueError, match="method=tuned: tiny has only FedAvg, TACO"):
        recording.record(tiny, [tuned], tmp_path / "record")
    nothing = finished(tmp_path / "nothing", left_out=4)
    assert recording.record(tiny, [nothing], tmp_path / "record") == 0
    assert not (tmp_path / "record").exists()
