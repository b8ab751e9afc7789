"""Sweeps in several jobs: the same folder as in one process."""

import contextlib
import csv
import os
import signal
import sys
import threading
import time

import psutil
import pytest
import submitit  # noqa: F401 - here: its first import sets up logging, which capsys does not survive
import yaml
from tiny import TINY

from fedjax_drag.experiment.build.own_parts import Code
from fedjax_drag.experiment.sweep import cluster, sweep
from fedjax_drag.experiment.sweep.grid import load_grid

SMALL = TINY | {
    "rounds": 2,
    "eval_every": 1,
    "byzantine_fraction": 0.5,
    "attack": "sign_flip",
    "axes": {"aggregator": ["fedavg", "krum"], "seed": [0, 1]},
}
"""Krum cannot be had with two malicious clients of four."""


class Job:
    """One that has run at once, or died."""

    job_id, state = "7", "FINISHED"

    def __init__(self, share, dies):
        self.share, self.dies, self.cancelled = share, dies, False
        self.paths = self
        self.folder = share.folder

    def done(self):
        return True

    def result(self):
        if self.dies:
            raise self.dies
        return self.share()

    def cancel(self):
        self.cancelled = True


class Executor:
    """Runs jobs in this process; ``deaths`` says of which number how it dies."""

    def __init__(self, deaths=None):
        self.jobs, self.deaths = [], deaths or {}

    def batch(self):
        return contextlib.nullcontext()

    def submit(self, share):
        self.jobs.append(Job(share, self.deaths.get(len(self.jobs))))
        return self.jobs[-1]


def statuses(folder):
    with (folder / "table.csv").open(encoding="utf-8", newline="") as stream:
        return [
            (row["aggregator"], row["seed"], row["status"]) for row in csv.DictReader(stream) if row["round"] != "1"
        ]


@pytest.mark.slow
def test_jobs_write_what_one_process_does(tmp_path):
    executor = Executor()
    with sweep.plan(load_grid(SMALL, code=Code()), tmp_path / "jobs") as planned:
        found = cluster.execute(planned, executor, 2, quiet=True)
    alone = sweep.sweep(SMALL, out=tmp_path / "alone", quiet=True)
    assert [[point.label for point in job.share.grid.points] for job in executor.jobs] == [
        ["fedavg, seed=0", "fedavg, seed=1"],
        ["krum, seed=0", "krum, seed=1"],
    ]
    assert [cell.status for cell in found.cells] == ["done", "done", "failed", "failed"]
    for name in ("table.csv", "summary.md", "sweep.yaml"):
        assert (tmp_path / "jobs" / name).read_text() == (tmp_path / "alone" / name).read_text()
    made = [sorted(path.name for path in (tmp_path / side / "cells").iterdir()) for side in ("jobs", "alone")]
    assert made[0] == made[1] == ["fedavg-seed-0", "fedavg-seed-1"]
    assert found.worst_case["fedavg"] == pytest.approx(alone.worst_case["fedavg"], rel=1e-6)  # files have float32


@pytest.mark.slow
def test_a_job_that_died_is_recorded_and_run_again_on_resume(tmp_path):
    deaths = dict.fromkeys((0, 4), RuntimeError("trace\nout of memory\n"))  # the fifth job is the first one again
    with sweep.plan(load_grid(SMALL, code=Code()), tmp_path) as planned:
        cluster.execute(planned, Executor(deaths), 4, quiet=True)
    assert statuses(tmp_path)[:2] == [("fedavg", "0", "failed"), ("fedavg", "1", "done")]
    assert "job 7: out of memory (fedavg, seed=0)" in (tmp_path / "summary.md").read_text()
    written = (tmp_path / "cells" / "fedavg-seed-1" / "metrics.jsonl").stat().st_mtime_ns

    with sweep.plan(load_grid(SMALL, code=Code()), tmp_path, resume=True) as planned:
        cluster.execute(planned, Executor(), 2, quiet=True)
    assert statuses(tmp_path)[:2] == [("fedavg", "0", "done"), ("fedavg", "1", "done")]
    assert (tmp_path / "cells" / "fedavg-seed-1" / "metrics.jsonl").stat().st_mtime_ns == written


@pytest.mark.thorough
def test_ctrl_c_cancels_the_jobs_and_leaves_what_can_be_resumed(tmp_path):
    executor = Executor({1: KeyboardInterrupt()})
    with sweep.plan(load_grid(SMALL, code=Code()), tmp_path) as planned, pytest.raises(KeyboardInterrupt):
        cluster.execute(planned, executor, 3, quiet=True)
    assert [job.cancelled for job in executor.jobs] == [False, True, True]
    with sweep.plan(load_grid(SMALL, code=Code()), tmp_path, resume=True):
        pass


def test_no_more_jobs_than_cells(tmp_path):
    assert cluster.divided("abcd", 3) == ["a", "b", "cd"]
    assert cluster.divided("abcd", 9) == ["a", "b", "c", "d"]
    with (
        sweep.plan(load_grid(SMALL, code=Code()), tmp_path) as planned,
        pytest.raises(ValueError, match="jobs=0: must be an integer >= 1"),
    ):
        cluster.execute(planned, Executor(), 0)


def test_a_job_runs_so_many_cells_in_a_program(tmp_path, monkeypatch):
    asked = []
    outcomes = sweep.outcomes
    monkeypatch.setattr(sweep, "outcomes", lambda *given: asked.append(given[2]) or outcomes(*given))
    with sweep.plan(load_grid(SMALL, code=Code()), tmp_path) as planned:
        cluster.execute(planned, Executor(), 1, quiet=True, most=1)
    assert asked == [1, None], "the job, and this process, which has nothing left to run"


def test_what_cannot_be_launched(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="launcher='pbs': must be one of local, slurm"):
        cluster.executor("pbs", tmp_path)
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ValueError, match=r"needs submitit; pip install 'fedjax-drag\[cluster\]'"):
        cluster.executor("local", tmp_path)


def test_options_go_to_submitit(tmp_path):
    local = cluster.executor("local", tmp_path, ["timeout_min=5", "name=mine"])
    assert local.parameters["timeout_min"] == 5
    assert cluster.executor("local", tmp_path).parameters["timeout_min"] == 24 * 60
    with pytest.raises(ValueError, match=r"launcher='local': .*foo") as error:
        cluster.executor("local", tmp_path, ["foo=1"])
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_the_command_with_local_jobs(command, tmp_path):
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SMALL))
    result = command("sweep", "small.yaml", "--launcher", "local", "--jobs", "2", "--out", "out", "--quiet")
    assert result.exit_code == 1
    assert "fedjax-drag: error: 2 of 4 cells failed; krum, seed=0: num_byzantine=2" in result.output
    assert statuses(tmp_path / "out") == [
        ("fedavg", "0", "done"),
        ("fedavg", "1", "done"),
        ("krum", "0", "failed"),
        ("krum", "1", "failed"),
    ]
    assert (tmp_path / "out" / "cells" / "fedavg-seed-1" / "summary.json").is_file()


@pytest.mark.parametrize("options", [["--jobs", "2"], ["--job", "mem_gb=4"]])
def test_jobs_need_a_launcher(command, tmp_path, options):
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(SMALL))
    result = command("sweep", "small.yaml", *options)
    assert result.exit_code == 2
    assert "--jobs, --job: go with --launcher" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGTERM, signal.SIGUSR2], ids=["kill", "term", "time limit"])
def test_a_local_job_that_is_killed_is_submitted_again(tmp_path, capsys, kind):
    """What submitit sends before the time limit, or when a job is preempted, is USR2; it lets TERM pass."""
    changes = {"rounds": 300, "eval_every": 30, "attack": None, "byzantine_fraction": None}
    longer = SMALL | changes | {"axes": {"aggregator": ["fedavg", "median"], "seed": [0, 1]}}
    killed = []

    def kill():
        while not killed:
            time.sleep(0.05)
            if any(path.stat().st_size for path in (tmp_path / "jobs").glob("cells/median-*/metrics.jsonl")):
                alive = [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]
                tasks = [p for p in alive if "submitit.core._submit" in p.cmdline()]
                victim = max(tasks, key=lambda process: process.pid)
                os.kill(victim.pid, kind)
                killed.append(victim.pid)

    thread = threading.Thread(target=kill)
    with sweep.plan(load_grid(longer, code=Code()), tmp_path / "jobs") as planned:
        thread.start()
        found = cluster.execute(planned, cluster.executor("local", tmp_path / "jobs" / "jobs"), 2, quiet=True)
        thread.join()
    assert [cell.status for cell in found.cells] == ["done"] * 4
    assert all(cell.history["round"].tolist() == list(range(30, 301, 30)) for cell in found.cells)
    told = capsys.readouterr().err
    assert ("ended without a result; submitted again with" in told) == (kind == signal.SIGKILL), told
