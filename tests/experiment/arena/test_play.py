"""An arena goes on from where it was: rows are kept, those of another protocol refused, one's own defence entered."""

import dataclasses
import os
import sys
import threading
from io import StringIO

import numpy as np
import pytest
from standings import ARENA, stand_in

import fedjax_drag as fd
from fedjax_drag import stopping
from fedjax_drag.experiment.arena import changes, own_code, play, tables
from fedjax_drag.experiment.arena.protocol import load_arena
from fedjax_drag.experiment.arena.trials import Trials, key_of
from fedjax_drag.experiment.run import lock, results
from fedjax_drag.simulation import progress

TWO = ARENA | {
    "tasks": {"num_byzantine": [1, 2]},
    "attacks": {"scale_noise": {"strengths": {"attack.variance": [0.1, 10.0]}}},
    "entries": {"krum": None, "norm_clipping": {"settings": {"aggregator.max_norm": [0.1, 5.0]}}},
}
GRID = {"max_norm": [0.1, 1.0]}


def clipped(max_norm=1.0):
    return fd.aggregators.norm_clipping(max_norm)


@pytest.fixture
def played(monkeypatch):
    return stand_in(monkeypatch)


def labels(entries):
    return [entry.label for entry in entries]


def test_what_was_played_is_read_back(played, tmp_path):
    first = fd.arena.run(TWO, tmp_path)
    assert labels(played) == ["fedavg", "root_only", "krum", "norm_clipping"]
    assert fd.arena.read(tmp_path) == first
    assert fd.arena.run(TWO, tmp_path) == first
    assert len(played) == 4
    assert (tmp_path / play.TABLE).read_text() == tables.page(first)


def test_two_processes_that_play_in_one_folder_keep_each_other_s_rows(monkeypatch, tmp_path):
    def meanwhile(label):  # the other one begins and ends
        if label == "fedavg":
            fd.arena.run(TWO, tmp_path, entries=["krum"])

    stand_in(monkeypatch, meanwhile)
    fd.arena.run(TWO, tmp_path, entries=["fedavg"])
    assert set(fd.arena.read(tmp_path).rows) == {"fedavg", "krum"}


@pytest.mark.parametrize("name", [results.CONFIG, results.SWEEP])
def test_an_arena_is_not_put_beside_a_run_or_a_sweep(name, tmp_path):
    (tmp_path / name).touch()
    with pytest.raises(ValueError, match="holds a run or a sweep; choose another folder"):
        fd.arena.run(TWO, tmp_path)


def test_rows_of_another_protocol_are_not_mixed_in(monkeypatch, tmp_path):
    other = fd.arena.Standing("other", 1, ["only one"], ["none"], [0], {})
    stand_in(monkeypatch, lambda label: other.write(tmp_path))
    with pytest.raises(ValueError, match="holds a standing of another protocol"):
        fd.arena.run(TWO, tmp_path, entries=["fedavg"])


@pytest.mark.thorough
def test_what_has_changed_alone_is_played_again(played, tmp_path):
    fd.arena.run(TWO, tmp_path)
    changed = TWO["entries"] | {"krum": {"aggregator": {"name": "krum", "num_byzantine": 2}}}
    fd.arena.run(TWO | {"entries": changed}, tmp_path)
    assert labels(played[4:]) == ["krum"]
    with pytest.raises(ValueError, match=r"out='.*': holds a standing of another protocol"):
        fd.arena.run(TWO | {"seeds": [0, 1, 2]}, tmp_path)


@pytest.mark.thorough
def test_rows_of_another_base_do_not_stand_beside_the_new_ones(played, tmp_path):
    fd.arena.run(TWO, tmp_path)
    other = fd.arena.load(TWO | {"base": TWO["base"] | {"rounds": 2}})
    assert list(fd.arena.run(other, tmp_path, entries=["krum"]).rows) == ["krum"]
    assert list(fd.arena.read(tmp_path).rows) == ["krum"]
    again = fd.arena.run(other, tmp_path)
    assert labels(played[4:]) == ["krum", "fedavg", "root_only", "norm_clipping"]
    assert {row.key for row in again.rows.values()} == {key_of(other, one) for one in other.entries}


@pytest.mark.usefixtures("played")
def test_the_table_ranks_and_names_what_is_needed():
    table = tables.page(fd.arena.run(TWO))
    lines = [line for line in table.splitlines() if line.startswith("|")][2:6]
    assert [line.split(" |")[0].strip("| ") for line in lines] == ["norm_clipping", "root_only", "krum", "fedavg"]
    assert "root data" in lines[1]
    assert "number of attackers" in lines[2]
    assert "max_norm=0.1" in table
    assert "- krum: no data" in table


def test_what_is_no_result_of_learning_is_said_first(played, monkeypatch):
    alone, doubt = Trials.play, "scale_noise: 2 of 4 runs not finite"
    monkeypatch.setattr(Trials, "play", lambda self, arena, entry: alone(self, arena, entry)._replace(doubts=(doubt,)))
    first = tables.page(fd.arena.run(TWO, entries=["krum"])).splitlines()[0]
    assert first.startswith("Not to be taken at face value (a model that is not finite counts as 0")
    assert first.endswith(f": krum against {doubt}.")
    assert labels(played) == ["krum"]


@pytest.mark.usefixtures("played")
def test_an_arena_tells_how_far_it_is_where_there_is_no_terminal(monkeypatch):
    log, alone, wrote = StringIO(), Trials.play, threading.Event()
    monkeypatch.setattr(log, "flush", wrote.set, raising=False)
    monkeypatch.setattr(sys, "stderr", log)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 1e-3)

    def slowly(self, arena, entry):
        self.ended()
        wrote.clear()
        assert wrote.wait(60)
        return alone(self, arena, entry)

    monkeypatch.setattr(Trials, "play", slowly)
    fd.arena.run(TWO, entries=["krum", "norm_clipping"])
    said = {line.split(";")[0] for line in log.getvalue().splitlines()}
    assert {"arena tiny: sweep 1/8", "arena tiny: sweep 5/8"} <= said


@pytest.mark.usefixtures("played")
def test_a_process_that_waits_for_the_lock_says_so(tmp_path, monkeypatch, capsys):
    held = lock.FolderLock(tmp_path)
    monkeypatch.setattr(lock, "_SILENT_TRIES", 0)
    monkeypatch.setattr(stopping, "check", lambda seconds=0.0: held.release() if seconds else None)
    fd.arena.run(TWO, tmp_path, entries=["krum"], quiet=True)
    said = capsys.readouterr().err
    assert f"in use by process {os.getpid()} on" in said
    assert said.endswith("; waiting\n")
    assert list(fd.arena.read(tmp_path).rows) == ["krum"]


@pytest.mark.sample(2)
@pytest.mark.usefixtures("played")
@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"seeds": [0, 2]}, "seeds"),
        ({"tasks": {"num_byzantine": [1]}}, "tasks"),
        ({"attacks": {"sign_flip": None}}, "opponents"),
        ({"base": TWO["base"] | {"rounds": 2}}, "base, attacks, tuning seeds or version"),
        ({"version": 2}, "base, attacks, tuning seeds or version"),
    ],
)
def test_rows_of_another_protocol_are_refused(change, differs):
    given = fd.arena.run(TWO, entries=["krum"])
    with pytest.raises(ValueError, match=f"^standing='tiny': was played by another protocol.*the same {differs}$"):
        fd.arena.run(TWO | change, standing=given)


def test_rows_that_were_all_given_are_written_too(played, tmp_path):
    standing = fd.arena.run(ARENA)
    before = len(played)
    fd.arena.run(ARENA, tmp_path, standing=standing)
    assert len(played) == before
    assert list(fd.arena.read(tmp_path).rows) == list(standing.rows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"entries": ["krum"]}, r"^entries=\['krum'\]: must be a mapping from labels"),
        ({"name": "--"}, "^name='--': must have at least one letter"),
        ({"version": "2"}, "^version='2': must be an integer"),
    ],
)
def test_what_is_wrong_in_a_protocol_is_one_line(change, message):
    with pytest.raises(ValueError, match=message):
        load_arena(ARENA | change)


def test_beside_a_standing_the_new_entry_alone_is_played(played):
    standing = fd.arena.run(ARENA)
    found = fd.arena.enter(clipped, GRID, arena=standing)
    assert labels(played) == ["fedavg", "root_only", "median", "clipped"]
    assert played[3].settings == {"aggregator.max_norm": [0.1, 1.0]}
    assert list(found.rows) == labels(played)
    assert found.own == ["clipped"]
    assert "clipped" not in standing.rows


@pytest.mark.thorough
def test_what_was_entered_is_found_again_until_its_code_changes(played, tmp_path):
    own = {"arena": fd.arena.run(ARENA), "label": "mine", "out": tmp_path}

    def mine(max_norm=1.0):
        return clipped(max_norm)

    first = fd.arena.enter(mine, GRID, **own)
    assert fd.arena.enter(mine, GRID, **own) == first
    assert labels(played[3:]) == ["mine"]
    fd.arena.enter(lambda max_norm=1.0: clipped(2 * max_norm), GRID, **own)
    assert labels(played[4:]) == ["mine"]
    assert list(fd.arena.read(tmp_path).rows) == ["fedavg", "root_only", "median", "mine"]


def test_what_the_code_of_a_rule_has_computed_is_played_again_once_it_changes(played, monkeypatch, tmp_path):
    first = fd.arena.run(TWO, tmp_path)
    assert len({row.code for row in first.rows.values()}) == 4
    checksum = own_code.sha256
    monkeypatch.setattr(own_code, "sha256", lambda file: "other" if file.name == "_krum.py" else checksum(file))
    second = fd.arena.run(TWO, tmp_path)
    assert labels(played[4:]) == ["krum"]
    assert changes.changes(first, second)[0] == "Code changed: krum."
    older = {label: dataclasses.replace(row, code="") for label, row in second.rows.items()}
    fd.arena.run(TWO, standing=dataclasses.replace(second, rows=older))
    assert len(played) == 5


@pytest.mark.thorough
def test_without_a_standing_all_are_played_once_and_an_own_row_of_another_base_is_left_out(played, tmp_path):
    fd.arena.enter(clipped, arena=ARENA, out=tmp_path)
    fd.arena.enter(fd.aggregators.geometric_median, arena=ARENA, out=tmp_path)
    assert labels(played) == ["fedavg", "root_only", "median", "clipped", "geometric_median"]
    other = ARENA | {"base": ARENA["base"] | {"rounds": 2}}
    assert list(fd.arena.run(other, tmp_path, entries=["median"]).rows) == ["median"]


@pytest.mark.thorough
@pytest.mark.usefixtures("played")
def test_a_standing_is_named_by_its_file(tmp_path):
    fd.arena.run(ARENA, tmp_path)
    for place in (tmp_path, str(tmp_path / "arena.json")):
        assert list(fd.arena.enter(clipped, arena=place).rows)[-1] == "clipped"
    assert fd.arena.load(tmp_path) == fd.arena.load(ARENA)
    assert list(fd.arena.enter(clipped, arena=ARENA, standing=tmp_path).rows)[-1] == "clipped"


@pytest.mark.sample(3)
@pytest.mark.usefixtures("played")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": "median"}, "label='median': is that of another entry"),
        ({"label": "--"}, "label='--': must have at least one letter"),
        ({"grid": {"max_norm": [1.0, 2.0, 3.0]}}, "entries.clipped.settings: are 3; must be at most most_settings=2"),
        ({"grid": {"radius": [1.0]}}, "radius"),
        ({"part": "algorithm"}, "algorithm"),
        ({"part": "rule"}, "part='rule': must be one of aggregator, algorithm, client"),
        ({"arena": {**ARENA, "seeds": [3]}}, "standing='tiny': was played by another protocol"),
    ],
    ids=["label", "slug", "most", "argument", "part", "kind", "protocol"],
)
def test_what_is_wrong_is_one_line(change, message):
    standing = fd.arena.run(ARENA)
    with pytest.raises(ValueError, match=message) as error:
        fd.arena.enter(**({"builder": clipped, "grid": GRID, "arena": ARENA, "standing": standing} | change))
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.slow
def test_a_defence_is_played_and_timed(tmp_path):
    protocol = fd.arena.load(ARENA).protocol()
    nobody = fd.arena.Standing("tiny", 1, ["tiny"], ["none", "sign_flip"], [0, 1], {}, protocol)
    rule = lambda max_norm=1.0: clipped(max_norm)
    found = fd.arena.enter(rule, GRID, arena=nobody, label="mine", out=tmp_path, quiet=True)
    (row,) = found.rows.values()
    assert np.asarray(row.accuracy).shape == (1, 2, 2)
    assert not row.failures
    assert row.choices[0]["setting"]["aggregator.max_norm"] in (0.1, 1.0)
    summaries = list(tmp_path.glob(f"{row.key}-{row.code}/*/*/cells/*/summary.json"))
    assert len(summaries) == 2 * 2 + 2 * 2  # two opponents: two settings tuned, two seeds tested
    seconds = [results.read_summary(path.parent)["seconds"] for path in summaries]
    assert row.seconds == pytest.approx(sum(seconds))
