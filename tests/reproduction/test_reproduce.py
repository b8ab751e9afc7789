import json
import re
import sys
import threading
from io import StringIO

import pytest
import typer
import yaml
from tiny import TINY
from typer.testing import CliRunner

import reproduce
from fedjax_drag.experiment.sweep import sweep
from fedjax_drag.experiment.sweep.grid import load_grid
from fedjax_drag.simulation import progress
from reproduction import running
from reproduction.judging import questions
from reproduction.judging.claims import Claim
from reproduction.publishing import published, verdicts
from reproduction.storing import stored
from reproduction.targets import all_targets, target
from reproduction.targets.target import Scale, Target

SWEEP = TINY | {
    "name": "tiny_here",
    "partition": {"name": "dirichlet", "num_clients": 8, "beta": 0.1},
    "local_steps": 2,
    "compare": {"FedAvg": {"aggregator": "fedavg"}, "DRAG": {"aggregator": {"name": "drag", "c": 0.1}}},
    "axes": {"partition.beta": [0.1, 1.0], "seed": [0, 1]},
}


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """Two targets, the second of which lacks its data, with a claim each."""
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper" / "tiny_here.yaml").write_text(yaml.safe_dump(SWEEP))
    nowhere = SWEEP | {"name": "tiny_absent", "data": {"name": "mnist", "data_dir": str(tmp_path / "nowhere")}}
    (tmp_path / "paper" / "tiny_absent.yaml").write_text(yaml.safe_dump(nowhere))
    monkeypatch.setattr(target, "CONFIGS", tmp_path)
    question = questions.highest("method", "DRAG", {"partition.beta": 0.1})
    claims = []
    for name in ("tiny_here", "tiny_absent"):
        made = Target(name, "A paper", "Fig. 1", "method", ("partition.beta",), 1, turns=3)
        monkeypatch.setitem(all_targets.TARGETS, name, made)
        claims.append(Claim("A paper", "Fig. 1", f"DRAG is first in {name}", "90 %", name, question))
    monkeypatch.setattr(verdicts, "CLAIMS", tuple(claims))
    return tmp_path / "out"


@pytest.mark.slow
def test_from_configurations_to_figures_and_verdicts_and_again_without_running(tiny, capsys):
    reproduce.main("tiny", Scale.FULL, tiny, quiet=True)
    printed = capsys.readouterr().out
    assert "Fig. 1: DRAG is first in tiny_here: undecided, " in printed, "two seeds"
    assert "not all of it ran: " in printed
    assert "nowhere" in printed
    assert (tiny / "figures" / "tiny_here.png").stat().st_size > 10_000
    first, second = json.loads((tiny / published.JSON).read_text())
    assert (first["verdict"], second["verdict"]) == ("undecided", "not measured")
    assert (first["seeds"], first["scale"]) == (2, "full")
    assert "FedAvg" in first["ours"]

    times = json.loads((tiny / "tiny_here" / running.TIMES).read_text())
    assert {label: len(turns) for label, turns in times.items()} == {"FedAvg": 3, "DRAG": 3}
    assert all(milliseconds > 0 for turns in times.values() for milliseconds in turns)

    metrics = {path: path.stat().st_mtime_ns for path in tiny.glob("tiny_here/cells/*/metrics.jsonl")}
    assert len(metrics) == 8
    reproduce.main("tiny", Scale.FULL, tiny, resume=True, quiet=True)
    assert {path: path.stat().st_mtime_ns for path in metrics} == metrics
    assert json.loads((tiny / published.JSON).read_text())[0] == first
    assert json.loads((tiny / "tiny_here" / running.TIMES).read_text()) == times

    record = tiny.parent / "record"
    reproduce.main("tiny_here", record=record, sources=[tiny / "tiny_here"])
    assert "tiny_here: 8 cells in " in capsys.readouterr().out
    assert (record / "figures" / "tiny_here.png").stat().st_size > 10_000
    (record / published.JSON).unlink()
    reproduce.main(judge=record)
    assert json.loads((record / published.JSON).read_text())[0] == first

    with pytest.raises(typer.Exit):
        reproduce.main("tiny", Scale.FULL, tiny, quiet=True)
    assert "already holds a sweep" in capsys.readouterr().out

    before = stored.read(stored.path_of(record, "tiny_here"))
    reproduce.main("tiny_here", Scale.FULL, tiny.parent / "more", record=record, seeds="2", quiet=True)
    after = stored.read(stored.path_of(record, "tiny_here"))
    assert {cell.values["seed"] for cell in after.cells} == {0, 1, 2}
    kept = {stored.key(cell.values): cell.history for cell in after.cells}
    for cell in before.cells:
        for name, values in cell.history.items():
            assert values.tobytes() == kept[stored.key(cell.values)][name].tobytes()
    assert after.times == before.times
    assert json.loads((record / published.JSON).read_text())[0]["seeds"] == 3


def test_a_damaged_record_is_told_before_anything_runs(tiny):
    path = stored.path_of(tiny, "tiny_here")
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(typer.BadParameter, match="must be results that this script stored"):
        reproduce.main("tiny", Scale.FULL, tiny, record=tiny, quiet=True)
    assert not (tiny / "tiny_here").exists()


def test_what_cannot_be_stored_or_judged_is_one_line(tiny):
    for message, options in {
        "--from: must be with --record and one target, not 1": {"sources": [tiny]},
        "--from: must be with --record and one target, not 2": {"name": "tiny", "sources": [tiny], "record": tiny},
        "must be the results folder of a sweep": {"sources": [tiny], "record": tiny},
        "--judge: runs nothing and judges all claims; must be without tiny_here": {"judge": tiny},
        "all claims; must be without --from, --record": {
            "judge": tiny,
            "name": None,
            "sources": [tiny],
            "record": tiny,
        },
        "must be a folder with results in measured": {"judge": tiny, "name": None},
        "--record and --from: must be with NAME": {"name": None, "sources": [tiny], "record": tiny},
        "--seeds 5-6: must be integers with commas between them": {"out": tiny, "seeds": "5-6"},
        "must be another folder than the results folder of the runs": {"out": tiny, "record": tiny / ".." / tiny.name},
    }.items():
        with pytest.raises(typer.BadParameter, match=re.escape(message)):
            reproduce.main(**{"name": "tiny_here", **options})


def test_a_sweep_without_a_finished_cell_is_not_recorded(tiny, tmp_path):
    folder = tmp_path / "started"
    folder.mkdir()
    (folder / sweep.CONFIG).write_text(yaml.safe_dump(load_grid(SWEEP).to_mapping(), sort_keys=False))
    with pytest.raises(typer.BadParameter, match="started: must have a cell that ran to the end"):
        reproduce.main("tiny_here", record=tmp_path / "record", sources=[folder])
    assert not (tmp_path / "record").exists()


@pytest.mark.parametrize("option", ["--out", "--record"])
def test_a_file_in_place_of_a_folder_is_told_before_anything_runs(tiny, tmp_path, option):
    file = tmp_path / "results.json"
    file.write_text("{}")
    app = typer.Typer()
    app.command()(reproduce.main)
    found = CliRunner().invoke(app, ["tiny_here", option, str(file)])
    assert found.exit_code == 2
    assert "is a file" in found.output


def test_quick_leaves_one_seed(tiny):
    assert "axes.seed=[0]" in all_targets.TARGETS["tiny_here"].overrides(Scale.QUICK)
    assert all_targets.TARGETS["tiny_here"].overrides(Scale.FULL) == ()


def test_a_target_that_takes_hours_is_not_run_at_a_smaller_scale(tmp_path):
    target = all_targets.TARGETS["brdrag003_fig9_17_cifar10"]
    assert running.run(target, Scale.MEDIUM, tmp_path, False, True) == "only at full scale"
    assert not list(tmp_path.iterdir())


def test_names_stand_for_targets():
    assert [one.name for one in all_targets.matching("brdrag003_fig7")] == ["brdrag003_fig7_alpha"]
    assert len(all_targets.matching("all")) == len(all_targets.TARGETS)
    papers, why = all_targets.matching("paper"), all_targets.matching("why")
    assert {one.name for one in why} == {path.stem for path in (target.CONFIGS / "why").glob("*.yaml")}
    assert not set(papers) & set(why)
    assert len(papers) + len(why) == len(all_targets.TARGETS)
    with pytest.raises(ValueError, match="'fig3': must be all, paper, why, or the beginning of one of drag000_"):
        all_targets.matching("fig3")


def test_listing_has_every_target_with_its_time():
    lines = all_targets.listing().splitlines()
    assert len(lines) == len(all_targets.TARGETS) + 1
    assert lines[-1].split()[-1] == "min"


def test_targets_are_counted_where_there_is_no_terminal(monkeypatch):
    log, wrote = StringIO(), threading.Event()
    monkeypatch.setattr(log, "flush", wrote.set, raising=False)
    monkeypatch.setattr(sys, "stderr", log)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 1e-3)
    for _ in reproduce._announced(list(all_targets.TARGETS.values())[:2], Scale.QUICK, quiet=False):
        wrote.clear()
        assert wrote.wait(60)
    lines = [line.split(";")[0] for line in log.getvalue().splitlines()]
    assert {"reproduce: target 0/2", "reproduce: target 1/2"} <= set(lines)
