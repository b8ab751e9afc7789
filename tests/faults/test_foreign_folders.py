"""Folders from somebody else: reading one runs, imports, fetches and writes nothing, and a run does not leave it."""

import json
import os
import shutil
import sys

import numpy as np
import pytest
import yaml
from small_runs import call
from tiny import TINY

from fedjax_drag.data import preparing
from fedjax_drag.data.sets import tfds
from fedjax_drag.experiment.run.checkpoints import load_params
from fedjax_drag.simulation.program.sampling import as_trace

SECRET = b"mine"
NAMES = (
    *("config.yaml", "environment.json", "metrics.jsonl", "summary.json", "accuracy.png", "report.html"),
    *(".lock", ".lock.json", "logs", "checkpoints", "checkpoints.damaged", "checkpoints/6"),
    *("checkpoints/6/default", "checkpoints/6/default/manifest.ocdbt", "logs/tensorboard", "cells", "cells/seed-0"),
)
PARTIAL = (
    *("config", "environment", "summary", "metrics", "report", "accuracy", ".lock"),
    *(".config.yaml", ".summary.json", ".metrics.jsonl", ".report.html", ".page.html", ".accuracy.png", ".page.png"),
)


@pytest.fixture
def foreign(finished, tmp_path):
    return shutil.copytree(finished[0], tmp_path / "foreign")


@pytest.fixture
def outside(tmp_path):
    """A folder and a file of the user's, and a check that nobody has touched them."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "file").write_bytes(SECRET)
    yield folder
    assert [path.name for path in folder.iterdir()] == ["file"]
    assert (folder / "file").read_bytes() == SECRET


def change(folder, **keys):
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | keys))


@pytest.mark.parametrize("to", ["file", "."])
def test_a_run_does_not_go_on_in_a_folder_with_links(foreign, outside, to, tmp_path):
    shutil.copy(foreign / "config.yaml", tmp_path / "run.yaml")
    (tmp_path / "sweep.yaml").write_text((foreign / "config.yaml").read_text() + "axes: {seed: [0, 1]}")
    for name in NAMES:
        path, aside = foreign / name, foreign.with_name("aside")
        path.parent.mkdir(exist_ok=True)
        is_there = path.exists()
        if is_there:
            path.rename(aside)
        path.symlink_to(outside / to)
        for command in ("run", "sweep") if name in ("cells", "cells/seed-0") else ("run",):
            config = tmp_path / f"{command}.yaml"
            status, (line,) = call(command, config, "--out", foreign, "--resume", "--quiet")
            assert status == 2, name
            assert name in line
        path.unlink()
        if is_there:
            aside.rename(path)


def test_a_run_does_not_go_on_where_a_pipe_or_a_folder_is_in_place_of_a_file(foreign):
    for name in ("metrics.jsonl", "summary.json", "environment.json", ".lock.json", "accuracy.png"):
        (foreign / name).unlink(missing_ok=True)
        for make in (os.mkfifo, os.mkdir):
            make(foreign / name)
            status, (line,) = call("run", foreign / "config.yaml", "--out", foreign, "--resume", "--quiet")
            assert status == 2, name
            assert name in line
            readable = call("report", foreign, "--no-skew", "--out", foreign / "page.html")[0]
            assert readable in (0, 2), name
            (os.remove if make is os.mkfifo else os.rmdir)(foreign / name)


@pytest.mark.parametrize("command", ["report", "plot"])
def test_what_is_read_is_written_beside_links(foreign, outside, command):
    for name in (*(f"{name}.partial" for name in PARTIAL), "report.html", "page.html", "page.png"):
        (foreign / name).unlink(missing_ok=True)
        (foreign / name).symlink_to(outside / "file")
    before = sorted(foreign.rglob("*"))
    calls = [("--no-skew",), ("--no-skew", "--out", foreign / "page.html")]
    for arguments in calls if command == "report" else [("-o", foreign / "page.png")]:
        assert call(command, foreign, *arguments) == (0, [])
    named = {foreign / ".report.html.partial", foreign / ".page.html.partial", foreign / ".page.png.partial"}
    assert set(before) - set(foreign.rglob("*")) <= named
    out = [foreign / "report.html", foreign / "page.html"] if command == "report" else [foreign / "page.png"]
    assert not any(path.is_symlink() for path in out)


def test_reading_writes_nothing(foreign, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDJAX_DRAG_CACHE", str(tmp_path / "cache"))
    before = {path: path.stat().st_mtime_ns for path in foreign.rglob("*")}
    assert call("report", foreign, "--out", tmp_path / "page.html") == (0, [])
    assert call("plot", foreign, "-o", tmp_path / "page.png") == (0, [])
    for which in ("latest", "best", 6):
        load_params(foreign, which)
    assert {path: path.stat().st_mtime_ns for path in foreign.rglob("*")} == before
    assert not (tmp_path / "cache").exists()


def test_reading_runs_no_code_and_looks_nothing_up(foreign, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(foreign))
    (foreign / "own.py").write_text("raise SystemExit('ran')\n")
    for keys in (
        {"aggregator": f"{foreign}/own.py:rule"},
        {"aggregator": "own:rule"},
        {"model": {"path": f"{foreign}/own.py", "name": "rule"}},
        {"data": "own:rule"},
        {"name": "${oc.env:HOME}"},
        {"name": "${oc.decode:1}"},
    ):
        shutil.copy(foreign / "config.yaml", tmp_path / "kept")
        change(foreign, **keys)
        assert call("report", foreign, "--out", tmp_path / "page.html")[0] == 2 * ("name" in keys)
        assert call("plot", foreign, "-o", tmp_path / "page.png")[0] == 2 * ("name" in keys)
        assert call("run", foreign / "config.yaml", "--out", foreign, "--resume", "--quiet")[0] == 2
        shutil.copy(tmp_path / "kept", foreign / "config.yaml")
    assert "own" not in sys.modules


@pytest.mark.parametrize("key", ["pythonClassName", "python_class_name", "type", "proto_cls"])
def test_features_of_data_name_no_module(foreign, tmp_path, monkeypatch, key):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FEDJAX_DRAG_DATA", str(tmp_path / "none"))
    (tmp_path / "named_by_features.py").write_text("")
    folder = tmp_path / "data" / "mnist" / "9.8.7"
    folder.mkdir(parents=True)
    info = {"name": "mnist", "version": "9.8.7", "fileFormat": "array_record", "splits": []}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    inner = {key: "named_by_features.Image", "content": {}}
    features = {
        "pythonClassName": "tensorflow_datasets.core.features.features_dict.FeaturesDict",
        "featuresDict": {"features": {"image": inner}},
    }
    for content in (features, inner, {"type": features["pythonClassName"], "content": json.dumps(features)}):
        (folder / "features.json").write_text(json.dumps(content))
        with pytest.raises(ValueError, match=r"features\.json has .* must be one that TFDS writes; delete"):
            tfds.load("mnist", tmp_path / "data")
        change(foreign, data={"name": "mnist", "source": "tfds", "data_dir": str(tmp_path / "data")})
        assert call("report", foreign, "--out", tmp_path / "page.html") == (0, [])
    assert "named_by_features" not in sys.modules


def test_reading_downloads_nothing(foreign, tmp_path, monkeypatch):
    monkeypatch.setattr(preparing, "prepare", lambda *_, **__: pytest.fail("downloads"))
    for source in ("tfds", "auto"):
        data = {"name": "svhn", "source": source, "data_dir": str(tmp_path / "none"), "allow_download": True}
        change(foreign, data=data)
        assert call("report", foreign, "--out", tmp_path / "page.html") == (0, [])


def test_a_file_of_availabilities_is_a_file_of_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: pytest.fail("opens an address"))
    for name, values in (
        ("complex", np.ones(8, complex)),
        ("text", np.full(8, "0.5")),
        ("structured", np.zeros(8, [("a", "f4")])),
        ("object", np.array([0.5] * 8, object)),
        ("date", np.zeros(8, "M8[s]")),
    ):
        np.save(tmp_path / f"{name}.npy", values)
        with pytest.raises(ValueError, match=r"\.npy'.*: must be a file of numbers; ValueError"):
            as_trace(tmp_path / f"{name}.npy", 8)
        with pytest.raises(ValueError, match="must be numbers"):
            as_trace(values, 8)
    with (tmp_path / "long.npy").open("wb") as stream:
        header = {"descr": "<f8", "fortran_order": False, "shape": (10**8, 8)}
        np.lib.format.write_array_header_1_0(stream, header)
    (tmp_path / "folder.csv").mkdir()
    os.mkfifo(tmp_path / "pipe.csv")
    here = (tmp_path / name for name in ("long.npy", "folder.csv", "pipe.csv"))
    for path in (*map(str, here), "http://localhost/a.csv", "https://localhost/a.npy", "file:///a.csv"):
        with pytest.raises(ValueError, match="must be a file of numbers"):
            as_trace(path, 8)


def test_a_configuration_is_bounded(tmp_path, bounded):
    path = tmp_path / "long.yaml"
    deep = "a: " * 30 + "1"
    for text in ("axes:\n  seed:\n" + "  - 1\n" * 170_000, "seed: [" + "0," * 500_000 + "]", deep, "[" * 10_000):
        path.write_text(text)
        with bounded(seconds=5, megabytes=300):
            assert call("run", path)[0] == 2


def test_a_safetensors_file_has_no_name_twice(tmp_path):
    pytest.importorskip("safetensors")
    one = '"w": {"dtype": "F32", "shape": [1], "data_offsets": [%d, %d]}'
    header = ("{" + one % (0, 4) + ", " + one % (4, 8) + "}").encode()
    (tmp_path / "twice.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY | {"initial_params": str(tmp_path / "twice.safetensors")}))
    status, (line,) = call("run", path, "--quiet", "--out", tmp_path / "out")
    assert status == 2
    assert "invalid offset for tensor `w`" in line
