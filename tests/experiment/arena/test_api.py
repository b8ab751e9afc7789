"""A defence of one's own is entered from Python: it alone is played, and its row stands beside the others."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import fedjax_drag as fd
from fedjax_drag.experiment.arena import requirements
from fedjax_drag.experiment.arena.choice import Choice
from fedjax_drag.experiment.arena.trials import EntryOutcome, Trials
from fedjax_drag.experiment.run import results

PROTOCOL = {
    "name": "tiny",
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
        "eval_every": 1,
    },
    "attacks": {"sign_flip": None},
    "entries": {"median": None},
    "seeds": [0, 1],
    "most_settings": 2,
}
GRID = {"max_norm": [0.1, 1.0]}


def clipped(max_norm=1.0):
    return fd.aggregators.norm_clipping(max_norm)


@pytest.fixture
def played(monkeypatch):
    """Labels and settings of what was played, by a stand-in for the runs."""
    entries = []

    def play(self, arena, entry):
        self.grids(arena, entry)
        entries.append((entry.label, entry.settings))
        choice = Choice(tuple(values[0] for values in entry.settings.values()), {"none": (), "sign_flip": ()}, 0.5)
        return EntryOutcome({(): choice}, np.array([[[0.9, 0.8], [0.5, 0.6]]]), ())

    monkeypatch.setattr(Trials, "play", play)
    monkeypatch.setattr(requirements, "passes", lambda config, num_clients: 3.0)
    monkeypatch.setattr(fd.arena.Standing, "page", lambda self, path: path)
    return entries


def test_beside_a_standing_the_new_entry_alone_is_played(played):
    standing = fd.arena.run(PROTOCOL)
    assert [label for label, _ in played] == ["fedavg", "root_only", "median"]
    found = fd.arena.enter(clipped, GRID, arena=standing)
    assert played[3:] == [("clipped", {"aggregator.max_norm": [0.1, 1.0]})]
    assert list(found.rows) == ["fedavg", "root_only", "median", "clipped"]
    assert {label for label, row in found.rows.items() if row.is_own} == {"clipped"}
    assert "clipped" not in standing.rows


@pytest.mark.thorough
def test_what_was_entered_is_found_again_until_its_code_changes(played, tmp_path):
    standing = fd.arena.run(PROTOCOL)
    own = {"arena": standing, "label": "mine", "out": tmp_path}

    def mine(max_norm=1.0):
        return clipped(max_norm)

    first = fd.arena.enter(mine, GRID, **own)
    assert fd.arena.enter(mine, GRID, **own) == first
    assert [label for label, _ in played[3:]] == ["mine"]
    fd.arena.enter(lambda max_norm=1.0: clipped(2 * max_norm), GRID, **own)
    assert [label for label, _ in played[4:]] == ["mine"]
    assert list(fd.arena.read(tmp_path).rows) == ["fedavg", "root_only", "median", "mine"]


@pytest.mark.thorough
def test_without_a_standing_all_are_played_once(played, tmp_path):
    fd.arena.enter(clipped, arena=PROTOCOL, out=tmp_path)
    fd.arena.enter(fd.aggregators.geometric_median, arena=PROTOCOL, out=tmp_path)
    labels = [label for label, _ in played]
    assert labels == ["fedavg", "root_only", "median", "clipped", "geometric_median"]


@pytest.mark.thorough
@pytest.mark.usefixtures("played")
def test_an_own_row_of_another_base_is_left_out(tmp_path):
    fd.arena.enter(clipped, arena=PROTOCOL, out=tmp_path)
    other = PROTOCOL | {"base": PROTOCOL["base"] | {"rounds": 2}}
    assert list(fd.arena.run(other, tmp_path, entries=["median"]).rows) == ["median"]


@pytest.mark.thorough
@pytest.mark.usefixtures("played")
def test_a_standing_is_named_by_its_file(tmp_path):
    fd.arena.run(PROTOCOL, tmp_path)
    for place in (tmp_path, str(tmp_path / "arena.json")):
        assert list(fd.arena.enter(clipped, arena=place).rows)[-1] == "clipped"
    assert fd.arena.load(tmp_path) == fd.arena.load(PROTOCOL)
    assert list(fd.arena.enter(clipped, arena=PROTOCOL, standing=tmp_path).rows)[-1] == "clipped"


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
        ({"arena": {**PROTOCOL, "seeds": [3]}}, "standing='tiny': was played by another protocol"),
    ],
    ids=["label", "slug", "most", "argument", "part", "protocol"],
)
def test_what_is_wrong_is_one_line(change, message):
    standing = fd.arena.run(PROTOCOL)
    with pytest.raises(ValueError, match=message) as error:
        fd.arena.enter(**({"builder": clipped, "grid": GRID, "arena": PROTOCOL, "standing": standing} | change))
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.thorough
@pytest.mark.usefixtures("played")
def test_a_notebook_shows_the_own_row_marked():
    standing = fd.arena.enter(clipped, arena=fd.arena.run(PROTOCOL), label="<mine>")
    page = ElementTree.fromstring(f"<html>{standing._repr_html_()}</html>")
    cells = {cell.text: cell.get("style") for cell in page.iter() if cell.tag == "th"}
    assert "bold" in cells["<mine>"]
    assert "bold" not in cells["median"]
    text = " ".join(page.itertext())
    assert "worst case" in text
    assert "sign_flip" in text


@pytest.mark.slow
def test_a_defence_is_played_and_timed(tmp_path):
    nobody = fd.arena.Standing(
        "tiny", 1, ["tiny"], ["none", "sign_flip"], [0, 1], {}, fd.arena.load(PROTOCOL).protocol()
    )
    rule = lambda max_norm=1.0: clipped(max_norm)
    found = fd.arena.enter(rule, GRID, arena=nobody, label="mine", out=tmp_path, quiet=True)
    (row,) = found.rows.values()
    assert np.asarray(row.accuracy).shape == (1, 2, 2)
    assert not row.failures
    assert row.choices[0]["setting"]["aggregator.max_norm"] in (0.1, 1.0)
    summaries = list((tmp_path / row.key).glob("*/*/cells/*/summary.json"))
    assert len(summaries) == 2 * 2 + 2 * 2  # two opponents: two settings tuned, two seeds tested
    seconds = [results.read_summary(path.parent)["seconds"] for path in summaries]
    assert row.seconds == pytest.approx(sum(seconds))
