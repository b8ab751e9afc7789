"""A standing is kept, read back, refused where it is another's, and played on from where it was."""

import dataclasses
import json

import numpy as np
import pytest

import fedjax_drag as fd
from fedjax_drag.experiment.arena import demands, standing
from fedjax_drag.experiment.arena.choice import Choice
from fedjax_drag.experiment.arena.protocol import load_arena
from fedjax_drag.experiment.arena.trials import Outcome, Trials, folder_of

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
        return Outcome({(1,): choice, (2,): choice}, table, ("no data",) if entry.label == "krum" else ())

    monkeypatch.setattr(Trials, "play", play)
    monkeypatch.setattr(demands, "passes", lambda config, num_clients: 3.0)
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
    for wrong in ("[]", "{", json.dumps({**content, "rows": {"krum": {}}})):
        path.write_text(wrong)
        with pytest.raises(ValueError, match="is not a standing of an arena"):
            standing.read(path)


def test_a_configuration_that_is_not_valid_stops_before_anything_is_played(played):
    broken = load_arena(PROTOCOL | {"entries": {"krun": None}})
    with pytest.raises(ValueError, match="krun"):
        standing.run(broken, Trials())
    assert not played


def test_a_file_of_an_older_version_is_read_and_completed(arena, played, tmp_path):
    arena = arena.only(["krum"])
    first = standing.run(arena, Trials(tmp_path))
    path = tmp_path / standing.FILE
    older = json.loads(path.read_text())
    del older["protocol"]
    for row in older["rows"].values():
        del row["passes"]
    path.write_text(json.dumps(older))
    assert standing.read(tmp_path).rows["krum"].passes is None
    assert " - |" in standing.read(tmp_path).table()
    with pytest.raises(ValueError, match="standing='arena': does not hold its protocol"):
        standing.arena_of(standing.read(tmp_path))
    assert standing.run(arena, Trials(tmp_path)) == first
    assert standing.read(tmp_path) == first
    assert played == ["krum"]


def test_a_standing_holds_its_arena(arena, played, tmp_path):
    standing.run(arena, Trials(tmp_path))
    again = standing.arena_of(standing.read(tmp_path))
    assert again == arena
    assert [folder_of(again, one) for one in again.entries] == [folder_of(arena, one) for one in arena.entries]


def test_rows_of_another_standing_are_not_played_again(arena, played):
    given = standing.run(arena.only(["krum"]), Trials())
    again = standing.run(arena.only(["fedavg", "krum"]), Trials(), given)
    assert played == ["krum", "fedavg"]
    assert again.rows["krum"] == given.rows["krum"]


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
