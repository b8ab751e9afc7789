"""The standings that come with the package belong to the configurations of the same name."""

from pathlib import Path

import pytest

import fedjax_drag as fd
from fedjax_drag.experiment.arena import play
from fedjax_drag.experiment.arena.standing import SHIPPED
from fedjax_drag.experiment.arena.trials import Trials, key_of
from fedjax_drag.experiment.sweep.summary_page import markdown

CONFIGS = Path(__file__).parents[3] / "configs" / "arena"
DOCS = Path(__file__).parents[3] / "docs"
NAMES = sorted(path.stem for path in SHIPPED.glob("*.json"))


def test_there_is_one():
    assert "digits" in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_it_was_played_by_its_configuration(name):
    standing, arena = fd.arena.read(name), fd.arena.load(CONFIGS / f"{name}.yaml")
    known = {entry.label: entry for entry in arena.entries}
    assert set(standing.rows) <= set(known)
    assert [row.key for row in standing.rows.values()] == [key_of(arena, known[label]) for label in standing.rows]
    begun = play.begin(arena.only(["fedavg"]), Trials(), standing)
    assert begun == standing
    assert all(row.passes is not None and not row.is_own for row in standing.rows.values())
    assert fd.arena.load(name).protocol() == arena.protocol()


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("fashion_mnist", "robustness.md"),
        ("fashion_mnist_cnn", "robustness_cnn.md"),
        ("adult_v2", "robustness_v2.md"),
        ("fashion_mnist_v2", "robustness_backdoors.md"),
    ],
)
def test_the_page_has_the_table_of_the_standing(name, page):
    text = (DOCS / "results" / page).read_text(encoding="utf-8")
    assert markdown(fd.arena.read(name).lines()) in text


def test_an_unknown_name_is_told_the_known_ones():
    with pytest.raises(FileNotFoundError, match=r"'nowhere': no such file.*and the package has .*'digits'"):
        fd.arena.read("nowhere")
