"""The page and the figures of a standing: complete, loading nothing, the same for the same standing."""

import dataclasses
import re
import urllib.parse
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from reports import Page
from standings import standing

from fedjax_drag.experiment.arena import figures, page
from fedjax_drag.experiment.arena.standing import read
from fedjax_drag.experiment.figures.style import spread

WORST = {"root_only": 0.5, "krum": 0.62, "median": 0.61, "mine": 0.3, "fedavg": 0.1}


def test_the_page_shows_all_and_loads_nothing(tmp_path):
    new, old = standing(WORST), standing(WORST | {"krum": 0.2})
    path = page.write(new, tmp_path / "new" / "arena.html", old)
    found = Page(path)
    for text in ("root data", "number of attackers", "beta=0.1", "worst case", "c=0.5", "Since version 1", "rounds: 3"):
        assert text in found.shown
    assert re.search(r"krum: ranks \S+ to 1\S*, worst case 20.0", found.shown)
    assert [a for t, a in found.tags if a.get("src") or (t == "link" and not a["href"].startswith("data:"))] == []
    assert path.stat().st_size < 100_000
    assert len([a for t, a in found.tags if t == "tr" and a.get("class") == "own"]) == 1 + 3  # ranks, mean, two tasks
    assert len([t for t, _ in found.tags if t == "table"]) == 4
    assert {a["title"] for t, a in found.tags if t == "th" and "title" in a} == {"worst case", "none", "ipm", "alie"}


def test_the_order_is_that_of_the_worst_case_with_the_ranks_that_seeds_leave_open_beside_it(tmp_path):
    one = standing({"median": 0.606, "fedavg": 0.1, "signguard": 0.443})
    wide = np.asarray(one.rows["signguard"].accuracy)
    wide[:, 1] += [-0.3, 0.0, 0.3]
    one.rows["signguard"] = dataclasses.replace(one.rows["signguard"], accuracy=wide.tolist())
    _, *lines = one.lines()
    assert [line[:3] for line in lines] == [
        ["median", "1", "1\N{EN DASH}2"],
        ["signguard", "2", "1\N{EN DASH}3"],
        ["fedavg", "3", "2\N{EN DASH}3"],
    ]
    found = Page(page.write(one, tmp_path / "a.html"))
    head, *rows = found.file("standing")
    assert head[:4] == ["entry", "place", "rank", "last_rank"]
    assert [row[:4] for row in rows] == [
        ["median", "1", "1", "2"],
        ["signguard", "2", "1", "3"],
        ["fedavg", "3", "2", "3"],
    ]
    assert [float(row[head.index("worst")]) for row in rows] == [one.scores()[row[0]].worst.mean for row in rows]


def test_the_page_names_papers_sources_days_and_how_to_enter(tmp_path):
    one = standing({"krum": 0.6, "mine": 0.5})
    nested = {"aggregator": {"name": "nnm", "aggregator": "median"}}
    one.rows["krum"] = dataclasses.replace(one.rows["krum"], method=nested, played="2026-11-24", package="0.1.0")
    one.rows["mine"] = dataclasses.replace(one.rows["mine"], played="2026-11-26", package="0.2.0")
    found = Page(page.write(one, tmp_path / "a.html"))
    for text in (
        "2026-11-24 to 2026-11-26, fedjax_drag 0.1.0 and fedjax_drag 0.2.0",
        "Fixing by mixing",
        "fedjax_drag/aggregators/_nnm.py",
        "fedjax_drag/aggregators/_median.py",
        "of the user's own parts",
        'arena="arena.json"',
    ):
        assert text in found.shown
    addresses = [a["href"] for tag, a in found.tags if tag == "a"]
    inside = ("#entry-", "data:text/csv;", "data:application/json;")
    assert all(address.startswith(inside) for address in addresses), "elsewhere, no file is near"
    shipped = Path(figures.__file__).parents[3] / "docs" / "arena" / "digits.html"
    for address in (a["href"] for tag, a in Page(shipped).tags if tag == "a"):
        assert address.startswith(("#", "data:")) or (shipped.parent / address).is_file()


def test_entries_have_badges_are_filtered_by_knowledge_and_all_is_in_a_file(tmp_path):
    one = standing({"krum": 0.82, "root_only": 0.3, "mine": 0.8}, protocol=None)
    found = Page(page.write(one, tmp_path / "a.html"))
    rows = {a["data-words"].split()[0]: a["data-needs"] for tag, a in found.tags if tag == "tr" and "data-needs" in a}
    assert rows == {"krum": "number of attackers", "root_only": "root data", "mine": ""}
    assert any("Blanchard" in a.get("data-words", "") for _, a in found.tags)
    boxes = [a["value"] for tag, a in found.tags if tag == "input" and a["type"] == "checkbox"]
    assert boxes == ["number of attackers", "root data"]
    titles = [a["title"] for tag, a in found.tags if tag == "td" and "title" in a]
    assert titles == ["ipm, alie", "alie", "alie"], "0.82 and 0.8 of 0.9 without an attack"
    assert "Withstands alie; not ipm. Most harm: ipm, which leaves 30.0 %." in " ".join(found.shown.split())
    (link,) = [a for tag, a in found.tags if tag == "a" and a.get("download") == "arena.json"]
    (tmp_path / "arena.json").write_text(urllib.parse.unquote(link["href"].partition(",")[2]))
    assert read(tmp_path) == one


def test_text_is_escaped(tmp_path):
    path = page.write(standing({"<script>alert(1)</script>": 0.5}), tmp_path / "a.html")
    assert "<script>alert" not in path.read_text()


def test_of_one_task_there_is_one_map(tmp_path):
    found = Page(page.write(standing(WORST, tasks=["tiny"]), tmp_path / "a.html"))
    assert len([t for t, _ in found.tags if t == "table"]) == 2
    assert "Since" not in found.shown


def test_what_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(ValueError, match="standing='tiny': has no entry"):
        page.write(standing({}), tmp_path / "a.html")
    with pytest.raises(ValueError, match="must be a file"):
        page.write(standing(WORST), tmp_path)
    with pytest.raises(ValueError, match=r"must end in \.html"):
        page.write(standing(WORST), tmp_path / "a.json")


@pytest.mark.thorough
def test_figures_are_written_and_reproducible(tmp_path):
    paths = figures.write(standing(WORST), tmp_path)
    names = ["heat_map.svg", "knowledge.svg", "heat_map-beta-1.0.svg", "heat_map-beta-0.1.svg"]
    assert [path.name for path in paths] == names
    texts = {path.name: " ".join(ElementTree.parse(path).getroot().itertext()) for path in paths}
    assert all(label in texts[name] for label in WORST for name in names)
    assert "number of attackers" in texts["knowledge.svg"]
    before = [path.read_text() for path in paths]
    assert [path.read_text() for path in figures.write(standing(WORST), tmp_path)] == before


def test_names_in_a_figure_are_apart():
    heights = spread([10.0, 10.1, 10.2, 50.0, 52.0, 90.0], 3.4)
    assert min(np.diff(heights)) > 3.4 - 1e-9
    assert np.mean(heights[:3]) == pytest.approx(10.1)
    assert heights[-1] == 90.0
