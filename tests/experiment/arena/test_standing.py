"""A standing is kept, read back, refused where it is another's, and played on from where it was."""

import dataclasses
import json
import os
import re
import sys
import threading
from io import StringIO

import numpy as np
import pytest

import fedjax_drag as fd
from fedjax_drag import stopping
from fedjax_drag.experiment.arena import requirements, standing
from fedjax_drag.experiment.arena.choice import Choice
from fedjax_drag.experiment.arena.protocol import load_arena
from fedjax_drag.experiment.arena.trials import EntryOutcome, Trials, folder_of
from fedjax_drag.experiment.run import lock
from fedjax_drag.simulation import progress

PROTOCOL = {
    "base": {
        "data": {"name": "digits", "validation_fraction": 0.2},
        "partition": {"name": "iid", "num_clients": 6},
        "model": {"name": "mlp", "hidden": [4]},
        "rounds": 1,
        "cohort_size": 6,
        "local_steps": 1,
        "batch_size": 8,
        "step_size": 0.1,
        "num_byzantine": 1,
    },
    "tasks": {"num_byzantine": [1, 2]},
    "attacks": {"scale_noise": {"strengths": {"attack.variance": [0.1, 10.0]}}},
    "entries": {"krum": None, "norm_clipping": {"settings": {"aggregator.max_norm": [0.1, 5.0]}}},
    "seeds": [0, 1],
}
QUALITY = {"fedavg": 0.2, "root_only": 0.6, "krum": 0.5, "norm_clipping": 0.8}


@pytest.fixture
def arena():
    return load_arena(PROTOCOL)


@pytest.fixture
def played(monkeypatch):
    """Which entries were played, by a stand-in for the runs."""
    labels = []

    def play(self, arena, entry):
        labels.append(entry.label)
        first = tuple(values[0] for values in entry.settings.values())
        choice = Choice(first, {"none": (), "scale_noise": (10.0,)}, QUALITY[entry.label])
        table = np.full((2, 2, 2), QUALITY[entry.label]) + 0.01 * np.arange(2)
        return EntryOutcome({(1,): choice, (2,): choice}, table, ("no data",) if entry.label == "krum" else ())

    monkeypatch.setattr(Trials, "play", play)
    monkeypatch.setattr(requirements, "passes", lambda config, num_clients: 3.0)
    monkeypatch.setattr(fd.arena.Standing, "page", lambda self, path: path)
    return labels


def test_what_was_played_is_read_back(arena, played, tmp_path):
    first = standing.run(arena, Trials(tmp_path))
    assert played == ["fedavg", "root_only", "krum", "norm_clipping"]
    assert standing.read(tmp_path) == first
    again = standing.run(arena, Trials(tmp_path))
    assert again == first
    assert len(played) == 4


def test_two_processes_that_play_in_one_folder_keep_each_other_s_rows(arena, played, tmp_path, monkeypatch):
    alone = Trials.play

    def play(self, arena, entry):
        if entry.label == "fedavg":  # meanwhile the other one begins and ends
            standing.run(load_arena(PROTOCOL).only(["krum"]), Trials(tmp_path))
        return alone(self, arena, entry)

    monkeypatch.setattr(Trials, "play", play)
    standing.run(arena.only(["fedavg"]), Trials(tmp_path))
    assert set(standing.read(tmp_path).rows) == {"fedavg", "krum"}


def test_rows_of_another_protocol_are_not_mixed_in(arena, played, tmp_path, monkeypatch):
    alone = Trials.play

    def play(self, arena, entry):
        if entry.label == "fedavg":  # meanwhile the other one begins and ends
            fd.arena.Standing("other", 1, ["only one"], ["none"], [0], {}).write(tmp_path)
        return alone(self, arena, entry)

    monkeypatch.setattr(Trials, "play", play)
    with pytest.raises(ValueError, match="holds a standing of another protocol"):
        standing.run(arena.only(["fedavg"]), Trials(tmp_path))


@pytest.mark.thorough
def test_a_changed_entry_alone_is_played_again(arena, played, tmp_path):
    standing.run(arena, Trials(tmp_path))
    changed = PROTOCOL["entries"] | {"krum": {"aggregator": {"name": "krum", "num_byzantine": 2}}}
    standing.run(load_arena(PROTOCOL | {"entries": changed}), Trials(tmp_path))
    assert played[4:] == ["krum"]


@pytest.mark.thorough
def test_another_protocol_has_another_folder(arena, played, tmp_path):
    standing.run(arena, Trials(tmp_path))
    other = load_arena(PROTOCOL | {"seeds": [0, 1, 2]})
    with pytest.raises(ValueError, match=r"out='.*': holds a standing of another protocol"):
        standing.run(other, Trials(tmp_path))


@pytest.mark.thorough
def test_a_base_that_has_changed_is_played_again(arena, played, tmp_path):
    standing.run(arena, Trials(tmp_path))
    standing.run(load_arena(PROTOCOL | {"base": PROTOCOL["base"] | {"rounds": 2}}), Trials(tmp_path))
    assert len(played) == 8


@pytest.mark.thorough
def test_rows_of_another_base_do_not_stand_beside_the_new_ones(arena, played, tmp_path):
    standing.run(arena, Trials(tmp_path))
    other = load_arena(PROTOCOL | {"base": PROTOCOL["base"] | {"rounds": 2}})
    assert list(standing.run(other.only(["krum"]), Trials(tmp_path)).rows) == ["krum"]
    assert list(standing.read(tmp_path).rows) == ["krum"]
    again = standing.run(other, Trials(tmp_path))
    assert played[4:] == ["krum", "fedavg", "root_only", "norm_clipping"]
    assert {row.key for row in again.rows.values()} == {folder_of(other, one) for one in other.entries}


def test_the_table_ranks_and_names_what_is_needed(arena, played):
    table = standing.run(arena, Trials()).table()
    assert [line.split(" |")[0].strip("| ") for line in table.splitlines() if line.startswith("|")][2:6] == [
        "norm_clipping",
        "root_only",
        "krum",
        "fedavg",
    ]
    assert "root data" in next(line for line in table.splitlines() if line.startswith("| root_only"))
    assert "number of attackers" in next(line for line in table.splitlines() if line.startswith("| krum"))
    assert "max_norm=0.1" in table
    assert "- krum: no data" in table


@pytest.mark.usefixtures("played")
def test_what_is_not_a_standing_is_refused(arena, tmp_path):
    with pytest.raises(FileNotFoundError, match="'fedjax-drag arena run' writes it"):
        standing.read(tmp_path)
    standing.run(arena, Trials(tmp_path))
    path = tmp_path / standing.FILE
    content = json.loads(path.read_text())
    row = content["rows"]["krum"]
    wrong = {
        "[]": "the file=[]: must be a mapping",
        "{": "Expecting property name",
        "[" * 100_000: "nested too deeply",
        json.dumps({**content, "rows": {"krum": {}}}): "rows.krum: 'label' is unknown or missing",
        json.dumps({**content, "seeds": 3}): "seeds=3: must be a list",
        json.dumps({**content, "protocol": {}}): "protocol: has no base",
    }
    changes = {
        "accuracy": ([[[7.0, 0.5]] * 2] * 2, "rows.krum.accuracy=7.0: must be in [0, 1]"),
        "label": ("other", "rows.krum.label='other': must be 'krum'"),
        "choices": ([{}, {}], "rows.krum.choices: must be one mapping a task"),
        "seconds": (True, "rows.krum.seconds=True: must be a finite number"),
        "passes": ("3", "rows.krum.passes='3': must be a finite number"),
    }
    for key, (value, message) in changes.items():
        wrong[json.dumps({**content, "rows": {"krum": {**row, key: value}}})] = message
    wrong[json.dumps({**content, "rows": {"krum": {**row, "accuracy": [[[0.5], []]]}}})] = "has shape"
    for text, message in wrong.items():
        path.write_text(text)
        with pytest.raises(ValueError, match=f"is not a standing of an arena: .*{re.escape(message)}") as caught:
            standing.read(tmp_path)
        assert "\n" not in str(caught.value)


def test_what_is_no_result_of_learning_is_said_first(arena, played, monkeypatch):
    alone = Trials.play
    doubt = "scale_noise: 2 of 4 runs not finite"
    monkeypatch.setattr(Trials, "play", lambda self, arena, entry: alone(self, arena, entry)._replace(doubts=(doubt,)))
    first = standing.run(arena.only(["krum"]), Trials()).table().splitlines()[0]
    assert first.startswith("Not to be taken at face value (a model that is not finite counts as chance")
    assert first.endswith(f": krum against {doubt}.")


@pytest.mark.usefixtures("played")
def test_an_arena_tells_how_far_it_is_where_there_is_no_terminal(arena, monkeypatch):
    log, alone, wrote = StringIO(), Trials.play, threading.Event()
    monkeypatch.setattr(log, "flush", wrote.set, raising=False)
    monkeypatch.setattr(sys, "stderr", log)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 1e-3)

    def play(self, arena, entry):
        self.ended()
        wrote.clear()
        assert wrote.wait(60)
        return alone(self, arena, entry)

    monkeypatch.setattr(Trials, "play", play)
    standing.run(arena.only(["krum", "norm_clipping"]), Trials())
    assert {"arena arena: sweep 1/8", "arena arena: sweep 5/8"} <= {
        line.split(";")[0] for line in log.getvalue().splitlines()
    }


@pytest.mark.usefixtures("played")
def test_a_process_that_waits_for_the_lock_says_so(arena, tmp_path, monkeypatch, capsys):
    held = lock.FolderLock(tmp_path)
    monkeypatch.setattr(lock, "_SILENT_TRIES", 0)
    monkeypatch.setattr(stopping, "check", lambda seconds=0.0: held.release() if seconds else None)
    standing.run(arena.only(["krum"]), Trials(tmp_path))
    said = capsys.readouterr().err
    assert f"in use by process {os.getpid()} on" in said
    assert said.endswith("; waiting\n")
    assert list(standing.read(tmp_path).rows) == ["krum"]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"seeds": [0, 2]}, "seeds"),
        ({"tasks": {"num_byzantine": [1]}}, "tasks"),
        ({"attacks": {"sign_flip": None}}, "opponents"),
        ({"base": PROTOCOL["base"] | {"rounds": 2}}, "base, attacks, tuning seeds or version"),
        ({"version": 2}, "base, attacks, tuning seeds or version"),
    ],
)
def test_rows_of_another_protocol_are_refused(arena, played, change, differs):
    given = standing.run(arena.only(["krum"]), Trials())
    with pytest.raises(ValueError, match=f"^standing='arena': was played by another protocol.*the same {differs}$"):
        standing.run(load_arena(PROTOCOL | change), Trials(), given)


def test_rows_are_plain(arena, played):
    row = standing.run(arena, Trials()).rows["norm_clipping"]
    assert json.loads(json.dumps(dataclasses.asdict(row))) == dataclasses.asdict(row)
