"""Runs and sweeps that are stopped at any moment, and resumed, end as if nothing had been."""

import itertools
import random
import shutil
import time

import numpy as np
import pytest
import yaml
from small_runs import LINES, LONG, SMALL, SWEEP, assert_same, assert_same_results, start, wait
from typer.testing import CliRunner

from fedjax_drag.cli.app import app
from fedjax_drag.experiment.figures import plotting
from fedjax_drag.experiment.run import results
from fedjax_drag.experiment.run.checkpoints import Checkpoints
from fedjax_drag.experiment.run.recorder import Recorder
from fedjax_drag.experiment.run.run import run
from fedjax_drag.experiment.sweep.sweep import sweep


class Killed(BaseException):
    """What nothing expects."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "out"
    run(SMALL, out=folder)
    return folder


def test_stops_between_and_inside_writes(tmp_path, whole, monkeypatch):
    out, save, append = tmp_path / "out", Checkpoints.save, Recorder._append
    at_once = SMALL | {"checkpoint_every_seconds": 0}

    def before_the_checkpoint(self, round_number, *given):
        if round_number == 4:
            raise Killed
        save(self, round_number, *given)

    def inside_the_checkpoint(self, round_number, *given):
        save(self, round_number, *given)
        if round_number == 6:  # as it is before its folder gets its name
            (self._path / "6").rename(self._path / "6.partial")
            raise Killed

    def inside_the_line(self, line):
        if line.startswith(b'{"round": 6'):
            self._stream.write(line[:20])
            raise Killed
        append(self, line)

    stops = [
        (Checkpoints, "save", before_the_checkpoint, ["2"]),
        (Checkpoints, "save", inside_the_checkpoint, ["4", "6.partial"]),
        (Recorder, "_append", inside_the_line, ["4"]),
    ]
    for owner, name, stopping, left in stops:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, stopping)
            with pytest.raises(Killed):
                run(at_once, out=out, resume=out.exists())
        assert sorted(path.name for path in (out / "checkpoints").iterdir()) == left
    run(SMALL, out=out, resume=True)
    assert_same(out, whole)


@pytest.mark.thorough
@pytest.mark.parametrize("place", ["before the summary", "before the picture"])
def test_stops_after_the_last_evaluation(tmp_path, whole, monkeypatch, place):
    """A run that has nothing left to do but to say so is finished by ``--resume``."""
    out, config = tmp_path / "out", tmp_path / "tiny.yaml"
    config.write_text(yaml.safe_dump(SMALL | {"time_clients": True}))

    def killed(*_):
        raise Killed

    owner, name = (Recorder, "finish") if place == "before the summary" else (plotting, "plot")
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, killed)
        with pytest.raises(Killed):
            CliRunner().invoke(app, ["run", str(config), "--quiet", "--out", str(out)], catch_exceptions=False)
    assert not (out / "accuracy.png").exists()
    done = CliRunner().invoke(app, ["run", str(config), "--quiet", "--out", str(out), "--resume"])
    assert (done.exit_code, done.stderr) == (0, "")
    assert (out / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    said = results.read_summary(out)
    assert said["interrupted"] is False
    assert said["dtypes"] == results.read_summary(whole)["dtypes"]
    assert (out / "accuracy.png").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("most", [None, 1])
def test_cells_stop_after_their_last_evaluation(tmp_path, monkeypatch, most):
    grid = SMALL | {"time_clients": True, "axes": {"seed": [0, 1]}}

    def killed(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "finish", killed)
        with pytest.raises(Killed):
            sweep(grid, out=tmp_path, cells_per_program=most)
    cells = sweep(grid, out=tmp_path, cells_per_program=most, resume=True).cells
    assert [(cell.status, cell.message) for cell in cells] == [("done", "")] * 2
    for cell, other in zip(cells, sweep(grid).cells, strict=True):
        accuracies = [np.float32(one.history["test_accuracy"]) for one in (cell, other)]  # a file has no float32
        np.testing.assert_array_equal(*accuracies)


# Processes that are killed.


def at_its_end(kind, out, rounds):
    """Whether every run in the folder has recorded its last evaluation."""
    paths = list(out.glob(LINES[kind]))
    cells = len(SWEEP["axes"]["aggregator"]) * len(SWEEP["axes"]["seed"]) if kind == "sweep" else 1
    return len(paths) == cells and all(f'{{"round": {rounds},'.encode() in path.read_bytes() for path in paths)


def killed(process, until, seconds):
    """Whether the process was stopped before its end: so many seconds after it has come to a point."""
    wait(process, until)
    late = time.monotonic() + seconds
    wait(process, lambda: time.monotonic() > late)
    process.kill()
    said = process.communicate()[1]
    assert process.returncode in (0, -9), said
    return process.returncode != 0


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "content"), [("run", LONG), ("sweep", SWEEP)])
def test_killed_and_resumed_equals_uninterrupted(tmp_path, kind, content):
    """Fifteen times at any moment, also as it starts, and fifteen times after the last evaluation."""
    config, cache, whole = tmp_path / "config.yaml", tmp_path / "cache", tmp_path / "whole"
    config.write_text(yaml.safe_dump(content))
    assert start(kind, config, tmp_path / "compiles", cache).communicate()[1] == ""
    began = time.monotonic()
    process = start(kind, config, whole, cache)
    wait(process, lambda: at_its_end(kind, whole, content["rounds"]))
    reached = time.monotonic()
    assert process.communicate()[1] == ""
    on_the_way, at_the_end = reached - began, time.monotonic() - reached

    chance, kills = random.Random(0), {"on the way": 0, "at the end": 0}
    for attempt in itertools.count():
        out = tmp_path / f"out{attempt}"
        alive = True
        while alive:
            again = at_its_end(kind, out, content["rounds"])  # killed there before: any moment is as good
            last = not again and (kills["on the way"] >= 15 or chance.random() < 0.5)
            until = (lambda out=out: at_its_end(kind, out, content["rounds"])) if last else (lambda: True)
            seconds = chance.uniform(0, at_the_end if last else on_the_way + again * at_the_end)
            alive = killed(start(kind, config, out, cache), until, seconds)
            kills["at the end" if at_its_end(kind, out, content["rounds"]) else "on the way"] += alive
        assert_same_results(kind, out, whole)
        if min(kills.values()) >= 15:
            break
        shutil.rmtree(out)
    size = sum(path.stat().st_size for path in whole.rglob("metrics.jsonl"))
    print(f"{kind}: killed {kills}, {attempt + 1} runs; of {size:,} bytes of results 0 lost")
