"""Backdoors in an arena: their strength chosen by success on validation examples, success then and after they stop."""

import dataclasses
import json

import numpy as np
import pytest
from reports import Page
from standings import ARENA, PROTOCOL, standing

import fedjax_drag as fd
from fedjax_drag.experiment.arena import changes, page, tables
from fedjax_drag.experiment.arena.protocol import load_arena
from fedjax_drag.experiment.arena.standing import FILE, REACHED
from fedjax_drag.experiment.arena.trials import SUCCESS, Trials, key_of, strongest
from fedjax_drag.experiment.sweep.outcome_table import Cell

DOOR = {"attack": {"name": "during", "stop": 2, "attack": {"name": "backdoor"}}}
TWO = ARENA | {
    "base": ARENA["base"] | {"rounds": 3, "eval_every": 3},
    "tasks": {"num_byzantine": [1, 2]},
    "backdoors": {"door": DOOR | {"strengths": {"attack.attack.boost": [1.0, 2.0, 4.0]}}},
    "entries": {"norm_clipping": {"settings": {"aggregator.max_norm": [0.1, 5.0]}}},
}


def made_up():
    """Two entries, two tasks, three seeds: the backdoor succeeds with 0.8 and 0.1, and loses a half after its end."""
    one = standing(
        {"median": 0.6, "krum": 0.5}, protocol=PROTOCOL | {"tasks": {}, "seeds": [0, 1, 2], "backdoors": {"door": DOOR}}
    )
    for label, success in (("median", 0.8), ("krum", 0.1)):
        by_seed = np.array([[success - 0.05, success, success + 0.05]] * 2)
        figures = dict(zip(REACHED, (by_seed, by_seed / 2, np.full((2, 3), 0.7)), strict=True))
        reached = {"door": {name: values.tolist() for name, values in figures.items()}}
        one.rows[label] = dataclasses.replace(one.rows[label], backdoors=reached)
    return one


def test_a_backdoor_takes_the_most_successful_strength_that_leaves_the_accuracy():
    success = np.array([[0.2, 0.7, 0.9], [0.2, 0.7, 0.9], [0.5, 0.5, 0.5], [0.0, 0.0, 1.0]])
    kept = np.array([[0.8, 0.8, 0.8], [0.8, 0.73, 0.5], [0.1, 0.2, 0.3], [0.1, 0.8, 0.1]])
    assert strongest(success, kept, np.full(4, 0.8)) == [2, 1, 0, 1]


def test_it_is_tuned_against_the_chosen_settings_and_read_when_it_stops_and_at_the_end(monkeypatch):
    played, fails = {}, False

    def run(self, arena, entry, phase, opponent, grid):
        """Clipping at 0.1 is the better setting; boosts up to 2 leave the accuracy."""
        cells = []
        for point in grid.points:
            boost, seed = point.values.get("attack.attack.boost", 0.0), point.values["seed"]
            accuracy = [0.5 if boost > 2.0 else 0.8, 0.8 if point.values["aggregator.max_norm"] == 0.1 else 0.4]
            success = np.array([boost / 5 + seed / 100, boost / 10])
            history = {f"{on}_accuracy": np.array(accuracy) for on in ("validation", "test")}
            if opponent.label == "door":
                history |= {SUCCESS: success, f"validation_{SUCCESS}": success}
                assert (point.config.eval_every, point.config.rounds) == (2, 3)
            status = "diverged" if fails and (phase, opponent.label) == ("final", "door") else "done"
            cells.append(Cell(point.values, status, "", history))
        played[phase, opponent.label] = grid.points
        return cells

    monkeypatch.setattr(Trials, "_run", run)
    arena = load_arena(TWO)
    found = Trials().play(arena, arena.entries[-1])
    assert [choice["strengths"]["door"] for choice in found.choices] == [{"attack.attack.boost": 2.0}] * 2
    assert {point.values["aggregator.max_norm"] for point in played["tuning", "door"]} == {0.1}
    assert [len(played[phase, "door"]) for phase in ("tuning", "final")] == [2 * 3, 2 * 2]
    assert found.accuracy.shape == (2, 2, 2)
    expected = {"success": [0.4, 0.41], "after": [0.2, 0.2], "accuracy": [0.8, 0.8]}
    assert list(found.backdoors) == ["door"]
    for name, by_seed in expected.items():
        np.testing.assert_allclose(found.backdoors["door"][name], [by_seed] * 2, rtol=1e-6)
    fails = True
    worst = {"success": [[1.0, 1.0]] * 2, "after": [[1.0, 1.0]] * 2, "accuracy": [[0.0, 0.0]] * 2}
    assert Trials().play(arena, arena.entries[-1]).backdoors["door"] == worst, "a broken model is no defence"


@pytest.mark.slow
def test_it_is_played(tmp_path):
    one_task = TWO | {"tasks": {}, "entries": {}, "seeds": [0]}
    found = fd.arena.run(one_task, tmp_path, entries=["fedavg"], quiet=True)
    assert fd.arena.read(tmp_path) == found
    row = found.rows["fedavg"]
    assert not row.failures
    boost = row.choices[0]["strengths"]["door"]["attack.attack.boost"]
    same = fd.simulate(
        fd.aggregators.fedavg(),
        model=fd.models.mlp(num_classes=10, hidden=(4,)),
        data=fd.data.partition.iid(fd.data.load("digits", validation_fraction=0.2), num_clients=6, seed=0),
        attack=fd.attacks.during(fd.attacks.backdoor(boost=boost), stop=2),
        num_byzantine=1,
        num_rounds=3,
        cohort_size=6,
        local_steps=1,
        batch_size=8,
        step_size=0.1,
        eval_every=2,
    ).history
    for name, column, evaluation in (("success", SUCCESS, 0), ("after", SUCCESS, 1), ("accuracy", "test_accuracy", 0)):
        np.testing.assert_allclose(row.backdoors["door"][name], [[same[column][evaluation]]], atol=1e-6)


def test_the_table_the_page_and_the_file_have_it(tmp_path):
    one = made_up()
    plus = "\N{PLUS-MINUS SIGN}"
    assert [[str(cell) for cell in line] for line in tables.backdoors(one)] == [
        ["entry", "door", "door, after", "door, accuracy"],
        ["median", f"80.0 {plus} 12.4", f"40.0 {plus} 6.2", f"70.0 {plus} 0.0"],
        ["krum", f"10.0 {plus} 12.4", f"5.0 {plus} 6.2", f"70.0 {plus} 0.0"],
    ]
    text = tables.page(one)
    assert text.index("## Backdoors") < text.index(f"80.0 {plus} 12.4") < text.index("## beta=1.0")
    found = Page(page.write(one, tmp_path / "a.html"))
    assert "Success of each backdoor in %" in found.shown
    head, *rows = found.file("backdoors")
    assert head == ["entry", "door", "door, after", "door, accuracy"]
    assert [label for label, *_ in rows] == ["median", "krum"]
    np.testing.assert_allclose(np.array([values for _, *values in rows], float), [[0.8, 0.4, 0.7], [0.1, 0.05, 0.7]])
    one.write(tmp_path)
    assert fd.arena.read(tmp_path).rows == one.rows
    none = standing({"median": 0.6})
    assert "Backdoors" not in tables.page(none) + Page(page.write(none, tmp_path / "b.html")).shown


def test_places_do_not_depend_on_it_and_a_protocol_with_it_is_another():
    one, none = made_up(), standing({"median": 0.6, "krum": 0.5})
    assert one.scores() == none.scores()
    assert "Protocol: backdoors.door.attack.stop=2, before left out." in changes.changes(none, one)
    assert changes.changes(one, one) == [changes.NOTHING]
    arena, weaker = load_arena(TWO), load_arena(TWO | {"backdoors": {"door": DOOR}})
    assert len({key_of(one, arena.entries[0]) for one in (arena, weaker)}) == 2
    assert load_arena(arena.protocol() | {"entries": TWO["entries"]}) == arena


def test_rows_that_do_not_fit_are_refused(tmp_path):
    one = made_up()
    one.write(tmp_path)
    content = json.loads((tmp_path / FILE).read_text())
    reached = content["rows"]["krum"]["backdoors"]["door"]
    for change, message in (
        ({}, "rows.krum.backdoors: must be those of the protocol"),
        ({"door": {"success": reached["success"]}}, "with success, after, accuracy by task and seed"),
        ({"door": reached | {"after": [[0.1, 0.2]] * 2}}, "rows.krum.backdoors: must be"),
        ({"door": reached | {"after": [[0.1, 0.2, 1.3]] * 2}}, r"rows.krum.backdoors=1.3: must be in \[0, 1\]"),
    ):
        rows = content["rows"] | {"krum": content["rows"]["krum"] | {"backdoors": change}}
        (tmp_path / FILE).write_text(json.dumps(content | {"rows": rows}))
        with pytest.raises(ValueError, match=message):
            fd.arena.read(tmp_path)


@pytest.mark.parametrize(
    ("backdoors", "message"),
    [
        ({}, r"backdoors=\{\}: must be a mapping with at least one"),
        ({"backdoor": None}, "backdoors.backdoor.attack='backdoor': must be during with a stop, which is fixed"),
        ({"door": DOOR | {"strengths": {"attack.stop": [1, 2]}}}, "must be during with a stop, which is fixed"),
        ({"sign_flip": DOOR}, "label 'sign_flip', which shares the folder of 'sign_flip'"),
        (
            {"door": {"attack": DOOR["attack"] | {"stop": 3}}},
            "must have a goal, as backdoor, and a stop before the last of 3",
        ),
        ({"door": {"attack": DOOR["attack"] | {"attack": "sign_flip"}}}, "backdoors.door.attack=.*: must have a goal"),
        (
            {"door": DOOR | {"strengths": {"num_byzantine": [1]}}},
            "^num_byzantine: backdoors.door.strengths and tasks both",
        ),
    ],
)
def test_what_is_wrong_is_named_before_anything_is_played(backdoors, message):
    with pytest.raises(ValueError, match=message):
        fd.arena.run(TWO | {"backdoors": backdoors})
