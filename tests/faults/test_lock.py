"""Two processes and one results folder: the first is left alone, the second is refused in one line."""

import itertools
import os
import socket
import subprocess
import sys
import time

import pytest
import yaml
from small_runs import SMALL

from fedjax_drag.experiment.build.experiment import load_experiment
from fedjax_drag.experiment.run import lock
from fedjax_drag.experiment.run.errors import FolderError
from fedjax_drag.experiment.run.lock import FolderLock
from fedjax_drag.experiment.run.run import plan, run
from fedjax_drag.experiment.sweep.sweep import sweep

COMMAND = "from fedjax_drag.cli.main import main; main()"
HELD = "import sys, pathlib; from fedjax_drag.experiment.run.lock import FolderLock; "


def holder(folder, then="input()"):
    """Another process that holds the lock."""
    code = f"{HELD} held = FolderLock(pathlib.Path(sys.argv[1])); print('held', flush=True); {then}"
    process = subprocess.Popen([sys.executable, "-c", code, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"held\n"
    return process


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_second_process_is_refused_with_the_name_of_the_first(tmp_path):
    run(SMALL, out=tmp_path / "out")
    before = contents(tmp_path / "out")
    process = holder(tmp_path / "out")
    try:
        before |= {tmp_path / "out" / lock.HOLDER: (tmp_path / "out" / lock.HOLDER).read_bytes()}
        who = f"in use by process {process.pid} on {socket.gethostname()} since 20"
        for options in ({}, {"resume": True}, {"overwrite": True}):
            began = time.monotonic()
            with pytest.raises(ValueError, match=who) as error:
                run(SMALL, out=tmp_path / "out", **options)
            assert "\n" not in str(error.value)
            assert time.monotonic() - began < 5
        assert contents(tmp_path / "out") == before
    finally:
        process.kill()
        process.communicate()
    run(SMALL, out=tmp_path / "out", resume=True)  # the lock of a process that was killed is none


def test_released_with_the_run_and_with_its_failure(tmp_path, monkeypatch):
    out = tmp_path / "out"
    with plan(load_experiment(SMALL), out=out), pytest.raises(FolderError, match=f"in use by process {os.getpid()} on"):
        FolderLock(out)
    FolderLock(out).release()
    with pytest.raises(ValueError, match="cohort_size"):
        run(SMALL, ["cohort_size=99"], out=out, overwrite=True)
    FolderLock(out).release()


def test_a_folder_made_for_nothing_is_removed_again(tmp_path):
    with pytest.raises(ValueError, match="cohort_size"):
        run(SMALL, ["cohort_size=99"], out=tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_filled_while_the_lock_was_waited_for(tmp_path, monkeypatch):
    """What is allowed is looked at again once the lock is held."""
    out, taken = tmp_path / "out", FolderLock.__init__

    def late(self, folder):
        (folder / "config.yaml").parent.mkdir()
        (folder / "config.yaml").write_text("of another run")
        taken(self, folder)

    monkeypatch.setattr(FolderLock, "__init__", late)
    with pytest.raises(ValueError, match="already holds a run"):
        run(SMALL, out=out)
    assert (out / "config.yaml").read_text() == "of another run"


@pytest.mark.thorough
def test_a_cell_in_use_is_a_failed_cell(tmp_path):
    process = holder(tmp_path / "cells" / "seed-1")
    try:
        grid = SMALL | {"axes": {"seed": [0, 1, 2]}}
        (tmp_path / "sweep.yaml").touch()
        cells = sweep(grid, out=tmp_path, resume=True).cells
    finally:
        process.kill()
        process.communicate()
    assert [cell.status for cell in cells] == ["done", "failed", "done"]
    assert f"in use by process {process.pid}" in cells[1].message


@pytest.mark.thorough
def test_a_variant_of_a_comparison_has_a_lock_of_its_own(tmp_path):
    process = holder(tmp_path / "b")
    try:
        with pytest.raises(FolderError, match=f"in use by process {process.pid}"):
            run(SMALL | {"compare": {"A": {}, "B": {}}}, out=tmp_path)
    finally:
        process.kill()
        process.communicate()
    assert (tmp_path / "a" / "summary.json").is_file()


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(lock.FileLock, "acquire", refused)
    with pytest.raises(FolderError, match=r"cannot be written \(Permission denied\); choose another folder"):
        run(SMALL, out=tmp_path / "out")


# Pairs of commands.

KINDS = ("run", "run --resume", "run --overwrite", "sweep", "sweep --resume", "sweep --overwrite")
PAIRS = [pair for pair in itertools.product(KINDS, KINDS) if pair[0].split()[0] == pair[1].split()[0]] + [
    ("run", "sweep"),
    ("sweep", "run --overwrite"),
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def start(kind, out, cache, rounds):
    name, *options = kind.split()
    config = out.parent / f"{name}.yaml"
    axes = {"axes": {"seed": [0, 1]}} if name == "sweep" else {}
    config.write_text(yaml.safe_dump(SMALL | {"eval_every": 100} | axes))
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, name, str(config), f"rounds={rounds}", "--out", str(out), "--quiet", *options],
        env=os.environ | {"FEDJAX_DRAG_CACHE": str(cache)},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), PAIRS, ids=map(" and ".join, PAIRS))
def test_pairs_of_commands(tmp_path, cache, first, second):
    name, out, rounds = first.split()[0], tmp_path / "out", 20_000
    if "--" in first:  # there is something to resume or to overwrite
        earlier = start(name, out, cache, 100)
        assert (earlier.communicate()[1], earlier.returncode) == ("", 0)
    one = start(first, out, cache, rounds)
    while not (out / lock.HOLDER).exists() or f'"process": {one.pid},' not in (out / lock.HOLDER).read_text():
        assert one.poll() is None, one.stderr.read()
        time.sleep(0.01)
    two = start(second, out, cache, rounds)
    (line,) = two.communicate()[1].splitlines()
    assert one.poll() is None, "the first was still running"
    assert two.returncode == 2
    in_use = f"in use by process {one.pid} on {socket.gethostname()}"
    if second.split()[0] == name and "--" in second:
        assert in_use in line
    else:  # refused for what the folder holds, unless it holds nothing yet
        assert any(reason in line for reason in (in_use, "already holds", "holds something else", "is not overwritten"))
    assert (one.communicate()[1], one.returncode) == ("", 0), "the first was left alone"
    again = start(f"{name} --resume", out, cache, rounds)
    assert (again.communicate()[1], again.returncode) == ("", 0)
