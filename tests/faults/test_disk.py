"""A disk that is full, a folder that cannot be written or is gone: one line, and what was written is resumed."""

import errno
import os
import shutil
import subprocess

import pytest
import yaml
from small_runs import SMALL, assert_same
from typer.testing import CliRunner

from fedjax_drag.cli.app import app
from fedjax_drag.experiment.run import metrics_file
from fedjax_drag.experiment.run.checkpoints import Checkpoints
from fedjax_drag.experiment.run.recorder import Recorder
from fedjax_drag.experiment.run.run import run


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "out"
    run(SMALL, out=folder)
    return folder


@pytest.fixture
def command(tmp_path):
    """``command(out, ...)``: exit status and the last line on standard error of the tiny run into ``out``."""
    config = tmp_path / "tiny.yaml"
    config.write_text(yaml.safe_dump(SMALL | {"checkpoint_every_seconds": 0}))

    def call(out, *options):
        done = CliRunner().invoke(app, ["run", str(config), "--quiet", "--out", str(out), *options])
        lines = [line for line in done.stderr.splitlines() if line]
        assert len(lines) <= 1, lines
        return done.exit_code, "".join(lines)

    return call


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_on_the_way(self, line):
    self._stream.write(line[:9])
    full()


@pytest.mark.sample(1)
@pytest.mark.parametrize("place", ["line", "checkpoint", "summary"])
def test_disk_is_full(tmp_path, whole, command, monkeypatch, place):
    out, record = tmp_path / "out", Recorder.__call__

    def recording(self, event):
        with monkeypatch.context() as patch:
            if event.round == 4 and place == "line":
                patch.setattr(Recorder, "_append", full_on_the_way)
            if event.round == 4 and place == "checkpoint":
                patch.setattr(Checkpoints, "save", full)
            record(self, event)

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "__call__", recording)
        if place == "summary":
            patch.setattr(Recorder, "_conclude", full)
        status, line = command(out)
    stopped = 6 if place == "summary" else 4
    assert status == 1
    assert f"No space left on device at round {stopped} in {str(out)!r}; free space and run again with --resume" in line
    recorded = {"line": [2], "checkpoint": [2, 4], "summary": [2, 4, 6]}[place]
    assert metrics_file.read(out / "metrics.jsonl").history["round"].tolist() == recorded
    assert command(out, "--resume") == (0, "")
    assert_same(out, whole)


@pytest.mark.thorough
def test_folder_is_gone_and_comes_back(tmp_path, whole, command, monkeypatch):
    out, record = tmp_path / "out", Recorder.__call__

    def recording(self, event):
        if event.round == 4:
            out.rename(tmp_path / "elsewhere")
        record(self, event)

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "__call__", recording)
        status, line = command(out)
    assert status == 1
    assert f"{str(out)!r} is gone at round 4" in line
    assert not out.exists()
    shutil.move(tmp_path / "elsewhere", out)
    assert command(out, "--resume") == (0, "")
    assert_same(out, whole)


# A disk of its own.


@pytest.fixture
def disk(tmp_path):
    """A disk of 512 KiB, and what mounts it again with an option."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() or shutil.which("mount") is None:
        pytest.skip("only root can mount a disk")

    def mount(option):
        return subprocess.run(["mount", "-t", "tmpfs", "-o", option, "tmpfs", place], capture_output=True, check=False)

    if mount("size=512k").returncode:
        pytest.skip("no disk can be mounted here")
    yield place, mount
    subprocess.run(["umount", place], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("free", range(8, 160, 24))
def test_small_disk_is_full(disk, whole, command, free):
    place, _ = disk
    (place / "ballast").write_bytes(bytes(shutil.disk_usage(place).free - free * 1024))
    status, line = command(place / "out")
    assert status == 1
    assert "No space left on device" in line
    (place / "ballast").unlink()
    options = ["--resume"] if (place / "out" / "config.yaml").exists() else []
    anew = f"{str(place / 'out')!r}: no checkpoint to go on from; begins anew"
    status, line = command(place / "out", *options)
    assert status == 0
    assert line in ("", anew)  # it may have been full before the first checkpoint
    assert_same(place / "out", whole)


@pytest.mark.slow
def test_disk_cannot_be_written(disk, whole, command):
    place, mount = disk
    shutil.copytree(whole, place / "out")
    shutil.rmtree(place / "out" / "checkpoints" / "6")
    assert mount("remount,ro").returncode == 0
    status, line = command(place / "out", "--resume")
    assert status == 2
    assert "cannot be written (Read-only file system); choose another folder" in line
    assert mount("remount,rw").returncode == 0
    assert command(place / "out", "--resume") == (0, "")
    assert_same(place / "out", whole)
