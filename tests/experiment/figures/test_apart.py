"""Figures drawn by a process of their own are those drawn here, and that process never outlives the command."""

import subprocess
import sys

import numpy as np
import pytest

from fedjax_drag.experiment.figures import apart, drawing
from fedjax_drag.experiment.figures.contents import Contents, Curve

ROUNDS = np.arange(1, 4)
LINE = Curve("drag", ROUNDS, ROUNDS / 10, ROUNDS / 20, ROUNDS / 5, num_runs=3)
CONTENTS = Contents([LINE], "test_accuracy", "Test accuracy", "Test accuracy on digits", "3 seeds")

COMMAND = """
import pathlib, sys
from fedjax_drag.experiment.figures import apart
with apart.ready():
    import numpy as np
    from fedjax_drag.experiment.figures.contents import Contents, Curve
    rounds = np.arange(1, 4)
    line = Curve("drag", rounds, rounds / 10, rounds / 20, rounds / 5, num_runs=3)
    contents = Contents([line], "test_accuracy", "Test accuracy", "Test accuracy on digits", "3 seeds")
    apart.save(contents, pathlib.Path("apart.png"))
    print("matplotlib" in sys.modules)
    apart.save(contents, pathlib.Path("here.png"))
    print("matplotlib" in sys.modules)
"""


@pytest.mark.thorough
def test_the_first_figure_is_drawn_without_importing_matplotlib_here(tmp_path):
    done = subprocess.run([sys.executable, "-c", COMMAND], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\nTrue\n", "")
    assert (tmp_path / "apart.png").read_bytes() == (tmp_path / "here.png").read_bytes()


@pytest.fixture
def without_matplotlib(monkeypatch):
    monkeypatch.setattr(apart, "_is_imported", lambda: False)


@pytest.mark.usefixtures("without_matplotlib")
@pytest.mark.parametrize("serve", ["raise SystemExit(1)", "import os; os.kill(os.getpid(), 9)"])
def test_what_fails_there_is_drawn_here(serve, monkeypatch, tmp_path):
    monkeypatch.setattr(apart, "_SERVE", serve)
    with apart.ready():
        apart.save(CONTENTS, tmp_path / "a.png")
    drawing.save(CONTENTS, tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.mark.usefixtures("without_matplotlib")
def test_where_no_process_can_be_started_it_is_drawn_here(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with apart.ready():
        apart.save(CONTENTS, tmp_path / "a.png")
    assert (tmp_path / "a.png").is_file()


@pytest.mark.usefixtures("without_matplotlib")
def test_a_process_that_is_not_needed_is_ended(monkeypatch):
    monkeypatch.setattr(apart, "_SERVE", "import time; time.sleep(600)")
    with apart.ready():
        (process,) = apart._waiting
    assert process.returncode is not None
    assert not apart._waiting


def test_where_matplotlib_is_there_no_process_is_started():
    with apart.ready():
        assert not apart._waiting
