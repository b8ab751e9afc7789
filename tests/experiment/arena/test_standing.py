"""A standing is kept and read back, what is no standing is refused, and it shows itself in a notebook."""

import dataclasses
import json
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from standings import standing

import fedjax_drag as fd
from fedjax_drag.experiment.arena.standing import FILE


def test_it_is_kept_as_plain_values_and_read_back(tmp_path):
    one = standing({"krum": 0.6, "mine": 0.5}, protocol=None)
    one.write(tmp_path)
    assert fd.arena.read(tmp_path) == fd.arena.read(tmp_path / FILE) == one
    plain = dataclasses.asdict(one)
    assert json.loads((tmp_path / FILE).read_text()) == json.loads(json.dumps(plain)) == plain


def test_what_is_not_a_standing_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="'fedjax-drag arena run' writes it"):
        fd.arena.read(tmp_path)
    standing({"krum": 0.6}, protocol=None).write(tmp_path)
    path = tmp_path / FILE
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
        "accuracy": ([[[7.0, 0.5, 0.5]] * 3] * 2, "rows.krum.accuracy=7.0: must be in [0, 1]"),
        "label": ("other", "rows.krum.label='other': must be 'krum'"),
        "choices": ([{}, {}], "rows.krum.choices: must be one mapping a task"),
        "seconds": (True, "rows.krum.seconds=True: must be a finite number"),
        "passes": ("3", "rows.krum.passes='3': must be a finite number"),
        "other": (3, "rows.krum: 'other' is unknown or missing"),
    }
    for key, (value, message) in changes.items():
        wrong[json.dumps({**content, "rows": {"krum": {**row, key: value}}})] = message
    wrong[json.dumps({**content, "rows": {"krum": {**row, "accuracy": [[[0.5], []]]}}})] = "has shape"
    for text, message in wrong.items():
        path.write_text(text)
        with pytest.raises(ValueError, match=f"is not a standing of an arena: .*{re.escape(message)}") as caught:
            fd.arena.read(tmp_path)
        assert "\n" not in str(caught.value)


def test_accuracies_by_attack_are_of_all_tasks_or_of_one():
    one = standing({"krum": 0.4, "median": 0.2})
    one.rows["median"].accuracy[1] = (np.asarray(one.rows["median"].accuracy[1]) + 0.05).tolist()
    labels, values = one.by_attack()
    assert labels == ["krum", "median"]
    np.testing.assert_allclose(values, [[0.9, 0.4, 0.9, 0.4], [0.925, 0.225, 0.925, 0.225]])
    np.testing.assert_allclose(one.by_attack(1)[1][1], [0.95, 0.25, 0.95, 0.25])


def test_it_says_who_leads():
    pair = "krum 60.0 \N{PLUS-MINUS SIGN} 2.5, median 60.0 \N{PLUS-MINUS SIGN} 2.5"
    shown = repr(standing({"krum": 0.6, "median": 0.6, "fedavg": 0.1}))
    assert shown == f"Standing(tiny: 3 entries, 2 tasks, 2 attacks, best worst case in %: {pair})"
    assert repr(standing({})).endswith("best worst case in %: none)")
    assert "none has been played" in standing({})._repr_html_()


def test_a_notebook_shows_the_own_row_marked():
    page = ElementTree.fromstring(f"<html>{standing({'mine': 0.4, '<other>': 0.3})._repr_html_()}</html>")
    cells = {cell.text: cell.get("style") for cell in page.iter() if cell.tag == "th"}
    assert "bold" in cells["mine"]
    assert "bold" not in cells["<other>"]
    assert {"worst case", "ipm"} <= set(page.itertext())
