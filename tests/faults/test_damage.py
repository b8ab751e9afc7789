"""Results folders in which something is damaged: what is intact is kept, and what is not is named.

Each kind of damage is done to a copy of a finished run. ``--resume`` must end with the files of the undamaged run, bit
for bit, or refuse in one line with status 2 that says what can be done, and change nothing.
"""

import shutil

import jax
import numpy as np
import pytest
import yaml
from small_runs import SMALL, assert_same, call, figures

from fedjax_drag.experiment.run.checkpoints import load_params

pytestmark = pytest.mark.optimised

RUN = SMALL | {"keep_checkpoints": 3}
NEWEST = "checkpoints/6"


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "tiny.yaml"
    path.write_text(yaml.safe_dump(RUN))
    return path


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "out"
    assert call("run", config, "--quiet", "--out", folder) == (0, [])
    return folder


@pytest.fixture
def copy(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "out")


def lines(change):
    """Changes the list of the lines of metrics.jsonl."""

    def damage(folder):
        path = folder / "metrics.jsonl"
        path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))

    return damage


def content(name, change):
    def damage(folder):
        path = folder / name
        path.write_bytes(change(path.read_bytes()))

    return damage


def removed(name):
    def damage(folder):
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return damage


def flipped(data):
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 128]) + data[middle + 1 :]


def numbers(change, place=NEWEST):
    """Changes the files of a checkpoint that hold its numbers."""

    def damage(folder):
        for path in (folder / place / "default").glob("**/d/*"):
            path.write_bytes(change(path.read_bytes()))

    return damage


def several(*damages):
    def damage(folder):
        for one in damages:
            one(folder)

    return damage


def added(name, data=b"?"):
    def damage(folder):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)

    return damage


RESTORED = "metrics.jsonl': was damaged; written anew from the checkpoint"
BEFORE = "set aside in checkpoints.damaged, going on from round 4"

METRICS = {
    "is missing": (removed("metrics.jsonl"), RESTORED),
    "is empty": (lines(lambda _: []), RESTORED),
    "begins with a byte order mark": (content("metrics.jsonl", b"\xef\xbb\xbf".__add__), RESTORED),
    "has its last line twice": (lines(lambda rows: [*rows, rows[-1]]), ""),
    "has a line twice": (lines(lambda rows: [rows[0], *rows]), RESTORED),
    "lacks its first line": (lines(lambda rows: rows[1:]), RESTORED),
    "lacks a line": (lines(lambda rows: [rows[0], rows[2]]), RESTORED),
    "lacks its last line": (lines(lambda rows: rows[:2]), RESTORED),
    "lacks the end of its last line": (lines(lambda rows: [*rows[:2], rows[2][:40]]), RESTORED),
    "has lines in another order": (lines(lambda rows: [rows[1], rows[0], rows[2]]), RESTORED),
    "has a flipped bit": (lines(lambda rows: [rows[0], flipped(rows[1]), rows[2]]), RESTORED),
    "has another digit": (lines(lambda rows: [rows[0], rows[1].replace(b"0.", b"1.", 1), rows[2]]), RESTORED),
    "has another round": (lines(lambda rows: [rows[0], rows[1].replace(b": 4,", b": 9,", 1), rows[2]]), RESTORED),
    "has a line of something else": (lines(lambda rows: [rows[0], b'{"round": 3, "a": 1}\n', *rows[1:]]), RESTORED),
    "has a line that is no UTF-8": (lines(lambda rows: [rows[0], b"\xff\xfe\n", *rows[1:]]), RESTORED),
    "has null bytes at its end": (lines(lambda rows: [*rows, bytes(4096), b"\n"]), ""),
    "has line ends of Windows": (lines(lambda rows: [row.replace(b"\n", b"\r\n") for row in rows]), RESTORED),
}

CHECKPOINTS = {
    "a flipped bit": (numbers(flipped), BEFORE),
    "a file cut short": (numbers(lambda data: data[:100]), BEFORE),
    "no description": (removed(f"{NEWEST}/default/_METADATA"), BEFORE),
    "no state": (removed(f"{NEWEST}/default"), BEFORE),
    "a damaged manifest": (content(f"{NEWEST}/default/manifest.ocdbt", flipped), BEFORE),
    "no manifest": (removed(f"{NEWEST}/default/manifest.ocdbt"), BEFORE),
    "a flipped bit in its state's commit marker": (content(f"{NEWEST}/default/commit_success.txt", flipped), ""),
    "no commit marker": (removed(f"{NEWEST}/default/commit_success.txt"), ""),
    "a damaged record of Orbax": (content(f"{NEWEST}/default/_CHECKPOINT_METADATA", flipped), ""),
    "a damaged record": (content(f"{NEWEST}/record.json", flipped), BEFORE),
    "another digit in its record": (content(f"{NEWEST}/record.json", lambda data: data.replace(b"0.", b"9.")), BEFORE),
    "gone": (removed(NEWEST), ""),
    "two of three damaged": (
        several(numbers(flipped), numbers(flipped, "checkpoints/4")),
        "set aside in checkpoints.damaged, going on from round 2",
    ),
    "damaged, and a line as well": (
        several(numbers(flipped), METRICS["has a flipped bit"][0]),
        RESTORED,
    ),
    "half written by Orbax": (added("checkpoints/8.partial/x"), ""),
}

OTHERS = {
    "summary.json is missing": (removed("summary.json"), ""),
    "summary.json is damaged": (content("summary.json", flipped), ""),
    "environment.json is missing": (removed("environment.json"), ""),
    "environment.json is damaged": (content("environment.json", flipped), ""),
    "config.yaml is missing": (removed("config.yaml"), ""),
    "accuracy.png is missing": (removed("accuracy.png"), ""),
    "accuracy.png is damaged": (content("accuracy.png", flipped), ""),
    "a file half written": (added(".summary.json.partial", b'{"rou'), ""),
    "the lock of a process that was killed": (added(".lock.json", b'{"host": "h", "process": 1, "since": "s"}'), ""),
    "a damaged lock": (added(".lock.json", b"\xff{"), ""),
}

QUICK = ("is missing", "has a flipped bit", "a flipped bit", "summary.json is missing")
MENDED = METRICS | CHECKPOINTS | OTHERS


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("damage", "said"),
    [pytest.param(*MENDED[name], id=name, marks=[] if name in QUICK else pytest.mark.slow) for name in MENDED],
)
def test_resume_ends_as_the_undamaged_run(config, whole, copy, damage, said):
    damage(copy)
    status, told = call("run", config, "--quiet", "--out", copy, "--resume")
    assert status == 0, told
    assert any(said in line for line in told) if said else not told, told
    assert_same(copy, whole)
    assert (copy / "accuracy.png").read_bytes() == (whole / "accuracy.png").read_bytes()
    assert sorted(path.name for path in copy.iterdir() if "damaged" not in path.name and path.suffix != ".partial") == (
        sorted(path.name for path in whole.iterdir())
    )


def all_checkpoints(folder):
    for number in (2, 4, 6):
        numbers(flipped, f"checkpoints/{number}")(folder)


REFUSED = {
    "no checkpoint can be read": (
        all_checkpoints,
        "no checkpoint can be read; to begin anew, remove that folder and resume",
    ),
    "config.yaml is empty": (
        content("config.yaml", lambda _: b""),
        "config.yaml': must be a mapping of keys to values; to go on under",
    ),
    "config.yaml is damaged": (
        content("config.yaml", flipped),
        "to go on under the configuration that is given, remove",
    ),
    "config.yaml is another run's": (
        content("config.yaml", lambda data: data.replace(b"seed: 0", b"seed: 1")),
        "seed=0",
    ),
}


@pytest.mark.parametrize(("damage", "said"), REFUSED.values(), ids=REFUSED)
def test_refused_with_what_can_be_done(config, copy, damage, said):
    damage(copy)
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file() and path.name != ".lock.json"}
    if said.startswith("no checkpoint"):
        del before[copy / "environment.json"]  # written anew by every start
    status, told = call("run", config, "--quiet", "--out", copy, "--resume")
    assert status == 2
    (line,) = told
    assert said in line
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.slow
def test_the_ways_out_that_are_named(config, whole, copy):
    all_checkpoints(copy)
    assert call("run", config, "--quiet", "--out", copy, "--resume")[0] == 2
    shutil.rmtree(copy / "checkpoints")
    anew = f"{str(copy)!r}: no checkpoint to go on from; begins anew"
    assert call("run", config, "--quiet", "--out", copy, "--resume") == (0, [anew])
    assert_same(copy, whole)
    assert call("run", config, "--quiet", "--out", copy, "--overwrite") == (0, [])
    assert_same(copy, whole)
    (copy / "config.yaml").write_bytes(b"\xff")
    assert call("run", config, "--quiet", "--out", copy, "--resume")[0] == 2
    (copy / "config.yaml").unlink()
    assert call("run", config, "--quiet", "--out", copy, "--resume") == (0, [])
    assert_same(copy, whole)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", METRICS)
def test_readers_show_what_can_be_read(copy, tmp_path, name):
    METRICS[name][0](copy)
    status, told = call("plot", copy, "-o", tmp_path / "accuracy.png")
    assert status == 0
    assert (tmp_path / "accuracy.png").is_file()
    assert len(told) <= 1
    assert call("report", copy, "--no-skew", "--out", tmp_path / "report.html") == (0, [])


# Sweeps.

CELL = "cells/seed-0"
SWEEP = {
    "a cell's lines": content(f"{CELL}/metrics.jsonl", flipped),
    "a digit in a cell's lines": content(f"{CELL}/metrics.jsonl", lambda data: data.replace(b"0.", b"1.", 1)),
    "a cell's last line": content(f"{CELL}/metrics.jsonl", lambda data: data[: data.rindex(b"{")]),
    "a cell's summary": content(f"{CELL}/summary.json", lambda _: b"[]"),
    "a cell": removed(CELL),
    "the table": several(removed("table.csv"), content("table.parquet", flipped), removed("summary.md")),
    "the configuration": removed("sweep.yaml"),
}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "tiny.yaml").write_text(yaml.safe_dump(RUN | {"axes": {"seed": [0, 1]}}))
    assert call("sweep", folder / "tiny.yaml", "--quiet", "--out", folder / "out") == (0, [])
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize(
    "damage", [pytest.param(SWEEP[name], id=name, marks=[] if name == "a cell" else pytest.mark.slow) for name in SWEEP]
)
def test_a_sweep_is_mended_by_resume(sweep, tmp_path, damage):
    out, whole = shutil.copytree(sweep / "out", tmp_path / "out"), sweep / "out"
    intact = {path: path.stat().st_mtime_ns for path in (out / "cells" / "seed-1").rglob("*")}
    damage(out)
    status, _ = call("sweep", sweep / "tiny.yaml", "--quiet", "--out", out, "--resume")
    assert status == 0
    for name in ("table.csv", "summary.md", "sweep.yaml", "cells/seed-0/metrics.jsonl"):
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name
    assert figures(out / CELL) == figures(whole / CELL)
    for one, other in zip(*(jax.tree.leaves(load_params(place / CELL)) for place in (out, whole)), strict=True):
        np.testing.assert_array_equal(one, other)
    assert {path: path.stat().st_mtime_ns for path in intact} == intact, "the other cell is left alone"


@pytest.mark.thorough
def test_a_cell_whose_checkpoint_cannot_be_read_fails_and_says_what_can_be_done(sweep, tmp_path):
    out = shutil.copytree(sweep / "out", tmp_path / "out")
    checkpoints = [path.name for path in (out / CELL / "checkpoints").iterdir()]  # the last and the best
    several(removed(f"{CELL}/summary.json"), *(numbers(flipped, f"{CELL}/checkpoints/{one}") for one in checkpoints))(
        out
    )
    assert call("sweep", sweep / "tiny.yaml", "--quiet", "--out", out, "--resume")[0] == 1
    said = (out / "summary.md").read_text()
    assert "no checkpoint can be read; to begin anew, remove that folder and resume" in said
