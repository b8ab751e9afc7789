"""Runs and cells that end early, and what ``resume`` makes of them."""

import json

import numpy as np
import pytest
from tiny import SYNTHETIC, TINY

from fedjax_drag.experiment.run.run import run
from fedjax_drag.experiment.sweep.sweep import sweep

FLAT = TINY | SYNTHETIC | {"eval_every": 1, "step_size": 1e-9}
"""Its accuracy never rises."""


def lines(folder):
    return (folder / "metrics.jsonl").read_bytes()


def told(folder):
    return json.loads((folder / "summary.json").read_text()).get("ended_early")


def test_a_run_that_has_ended_is_finished_and_goes_on_with_more_patience(tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "out"
    run(FLAT, out=whole)
    result = run(FLAT | {"patience": 2}, out=out)
    assert result.history["round"].tolist() == [1, 2, 3]
    assert told(out) == result.ended_early != None  # noqa: E711
    before = lines(out)
    again = run(FLAT | {"patience": 2}, out=out, resume=True)
    assert (again.ended_early, lines(out)) == (result.ended_early, before)
    assert again.history["round"].tolist() == [1, 2, 3]
    more = run(FLAT | {"patience": 4}, out=out, resume=True)
    assert more.history["round"].tolist() == [1, 2, 3, 4, 5]
    run(FLAT, out=out, resume=True)
    assert told(out) is None
    assert lines(out) == lines(whole)


def test_a_resumed_run_counts_what_was_before(tmp_path, interrupt_after):
    out = tmp_path / "out"
    with interrupt_after(2), pytest.raises(KeyboardInterrupt):
        run(FLAT | {"patience": 2}, out=out)
    assert run(FLAT | {"patience": 2}, out=out, resume=True).history["round"].tolist() == [1, 2, 3]


@pytest.mark.thorough
@pytest.mark.parametrize("interrupted", [False, True])
def test_cells_of_one_program_end_one_by_one(tmp_path, interrupt_after, interrupted):
    grid = FLAT | {"patience": 2, "axes": {"step_size": [1e-9, 0.5]}}
    if interrupted:
        with (
            interrupt_after(7),
            pytest.raises(KeyboardInterrupt),
        ):  # both have had three evaluations, one a fourth
            sweep(grid, out=tmp_path)
    cells = sweep(grid, out=tmp_path, resume=interrupted).cells
    assert [cell.status for cell in cells] == ["done", "done"]
    for cell, step_size in zip(cells, (1e-9, 0.5), strict=True):
        alone = run(FLAT | {"patience": 2, "step_size": step_size})
        assert list(cell.history["round"]) == alone.history["round"].tolist()
        np.testing.assert_allclose(cell.history["test_accuracy"], alone.history["test_accuracy"], rtol=1e-6)
    flat = next((tmp_path / "cells").glob("*1e-09*"))
    assert told(flat) is not None
    assert sorted(path.name for path in (flat / "checkpoints").iterdir())[-1] == "3"
    assert json.loads((flat / "summary.json").read_text())["interrupted"] is False
