"""Runs and sweeps that are stopped at any moment, and resumed, end as if nothing had been."""

import itertools
import os
import random
import shutil
import subprocess
import sys
import time

import pytest
import yaml
from small_runs import SMALL, assert_same

from fedjax_drag.experiment import results
from fedjax_drag.experiment import run as running
from fedjax_drag.experiment.checkpoints import Checkpoints
from fedjax_drag.experiment.run import run


class Killed(BaseException):
    """What nothing expects."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "out"
    run(SMALL, out=folder)
    return folder


def test_stops_between_and_inside_writes(tmp_path, whole, monkeypatch):
    out, save, append = tmp_path / "out", Checkpoints.save, results.append_metrics

    def before_the_checkpoint(self, round_number, *given):
        if round_number == 4:
            raise Killed
        save(self, round_number, *given)

    def inside_the_checkpoint(self, round_number, *given):
        save(self, round_number, *given)
        if round_number == 6:  # as it is before its folder gets its name
            (self._path / "6").rename(self._path / "6.orbax-checkpoint-tmp")
            raise Killed

    def inside_the_line(stream, metrics):
        if metrics["round"] == 6:
            stream.write('{"round": 6, "test_acc')
            raise Killed
        append(stream, metrics)

    stops = [
        (Checkpoints, "save", before_the_checkpoint, ["2"]),
        (Checkpoints, "save", inside_the_checkpoint, ["4", "6.orbax-checkpoint-tmp"]),
        (running.results, "append_metrics", inside_the_line, ["4"]),
    ]
    for owner, name, stopping, left in stops:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, stopping)
            with pytest.raises(Killed):
                run(SMALL, out=out, resume=out.exists())
        assert sorted(path.name for path in (out / "checkpoints").iterdir()) == left
    run(SMALL, out=out, resume=True)
    assert_same(out, whole)


# Processes that are killed.

LONG = SMALL | {"rounds": 40, "eval_every": 1, "byzantine_fraction": 0.25, "attack": "sign_flip"}
SWEEP = LONG | {"rounds": 60, "eval_every": 3, "axes": {"aggregator": ["fedavg", "median", "drag"], "seed": [0, 1]}}
COMMAND = "from fedjax_drag.experiment.cli import main; main()"
LINES = {"run": "metrics.jsonl", "sweep": "cells/*/metrics.jsonl"}


def start(kind, config, out, cache):
    resume = ["--resume"] if (out / ("config.yaml" if kind == "run" else "sweep.yaml")).exists() else []
    environment = {
        "FEDJAX_DRAG_CACHE": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    command = [sys.executable, "-c", COMMAND, kind, str(config), "--out", str(out), "--quiet", *resume]
    return subprocess.Popen(command, env=os.environ | environment, stderr=subprocess.PIPE, text=True)


def written(kind, out):
    return sum(path.read_bytes().count(b"\n") for path in out.glob(LINES[kind]))


def wait(process, until):
    """Waits until then, or for the end of the process."""
    while process.poll() is None and not until():
        time.sleep(0.005)


def killed(process, kind, out, chance, most):
    """Whether the process was stopped before its end: as it starts, or up to ``most`` seconds after its first line."""
    before = written(kind, out)
    early = time.monotonic() + (chance.uniform(0, 10) if chance.random() < 0.2 else 400)
    wait(process, lambda: written(kind, out) != before or time.monotonic() > early)
    late = time.monotonic() + chance.uniform(0, most)
    wait(process, lambda: time.monotonic() > late)
    process.kill()
    said = process.communicate()[1]
    assert process.returncode in (0, -9), said
    return process.returncode != 0


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "content", "wanted", "share"), [("run", LONG, 20, 0.2), ("sweep", SWEEP, 14, 0.6)])
def test_killed_and_resumed_equals_uninterrupted(tmp_path, kind, content, wanted, share):
    config, cache, whole = tmp_path / "config.yaml", tmp_path / "cache", tmp_path / "whole"
    config.write_text(yaml.safe_dump(content))
    process = start(kind, config, whole, cache)
    wait(process, lambda: written(kind, whole))
    began = time.monotonic()
    said = process.communicate()[1]
    assert process.returncode == 0, said
    most = share * (time.monotonic() - began)

    chance, kills = random.Random(0), 0
    for attempt in itertools.count():
        out, before = tmp_path / f"out{attempt}", kills
        while killed(start(kind, config, out, cache), kind, out, chance, most):
            kills += 1
        print(f"{kind} {attempt}: killed {kills - before} times")
        check(kind, out, whole)
        if kills >= wanted:
            break
        shutil.rmtree(out)
    size = sum(path.stat().st_size for path in whole.rglob("metrics.jsonl"))
    print(f"{kind}: {kills} kills survived; of {size:,} bytes of results 0 lost")


def check(kind, out, whole):
    if kind == "run":
        assert_same(out, whole)
        return
    assert (out / "table.csv").read_bytes() == (whole / "table.csv").read_bytes()
    assert (out / "summary.md").read_bytes() == (whole / "summary.md").read_bytes()
    cells = sorted(path.name for path in (whole / "cells").iterdir())
    assert sorted(path.name for path in (out / "cells").iterdir()) == cells
    for cell in cells:
        assert_same(out / "cells" / cell, whole / "cells" / cell)
