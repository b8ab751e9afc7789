import sys
import threading
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pytest

import fedjax_drag as fd
from fedjax_drag.simulation import progress
from fedjax_drag.simulation.criterion import ACCURACY
from fedjax_drag.simulation.progress import Progress


class Terminal(StringIO):
    def isatty(self):
        return True


def shown(monkeypatch, stream, quiet=None):
    monkeypatch.setattr(sys, "stderr", stream)
    bar = Progress("DRAG", 20, quiet=quiet)
    bar.update(10, ACCURACY.said({"test_accuracy": np.float32(0.5)}))
    bar.update(20, ACCURACY.said({"test_accuracy": np.float32(0.75)}))
    bar.close()
    return stream.getvalue()


def test_bar_tells_round_accuracy_and_speed(monkeypatch):
    first, *_, last = shown(monkeypatch, Terminal()).strip("\r\n").split("\r")
    assert "compiling" in first
    assert "DRAG" in last
    assert "round 20/20" in last
    assert "accuracy 75.0%" in last
    assert "rounds/s" in last


@pytest.mark.parametrize(("stream", "quiet"), [(StringIO(), None), (Terminal(), True)])
def test_no_bar_without_a_terminal_or_when_quiet(monkeypatch, stream, quiet):
    assert shown(monkeypatch, stream, quiet) == ""


class Log(StringIO):
    """A stream that tells when a line was written."""

    def __init__(self):
        super().__init__()
        self.wrote = threading.Event()

    def flush(self):
        self.wrote.set()


def test_lines_come_without_an_evaluation(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Log())
    bar = Progress("DRAG", 40, every=0.001)
    assert sys.stderr.wrote.wait(60)
    bar.close()
    assert sys.stderr.getvalue().startswith("DRAG: round 0/40\n")


def test_a_line_tells_what_runs_inside_and_the_time_left_without_what_was_done_before(monkeypatch):
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    monkeypatch.setattr(sys, "stderr", StringIO())
    with Progress("grid", 10, unit="cell", every=1e6) as sweep:
        assert sweep.line(now) == "grid: cell 0/10"
        sweep.update(4, before=True)
        with Progress("3 cells", 20, every=1e6, share=3) as cells:
            assert sweep.line(130.0) == "grid: cell 4/10; 3 cells: round 0/20"
            cells.update(10, ACCURACY.said({"test_accuracy": np.float32(0.5)}))
            line = "grid: cell 4/10; 3 cells: round 10/20, accuracy 50.0%; about 3 min left"
            assert sweep.line(160.0) == line, "a quarter of six cells in a minute"
        sweep.advance(3)
        assert sweep.line(3700.0) == "grid: cell 7/10; about 60 min left"
        with Progress("one", 20, start=10, every=1e6) as cell:
            cell.update(15, ACCURACY.said({"validation_accuracy": 0.25, "test_accuracy": 0.5}))
            assert sweep.line(3700.0) == (
                "grid: cell 7/10; one: round 15/20, validation accuracy 25.0%; about 42 min left"
            )


def test_no_lines_when_quiet_nor_beside_a_bar(monkeypatch):
    for stream, quiet in ((StringIO(), True), (Terminal(), None)):
        monkeypatch.setattr(sys, "stderr", stream)
        before = set(threading.enumerate())
        with Progress("DRAG", 20, quiet=quiet, every=1e-3) as bar:
            bar.update(10)
            assert not any(thread.name == "progress" for thread in set(threading.enumerate()) - before)


def simulated(monkeypatch, settings, stream, wanted):
    """What a run of two evaluations writes, and what it should say of them."""
    monkeypatch.setattr(sys, "stderr", stream)
    given = settings(num_rounds=2, eval_every=1, progress=wanted)
    accuracies = fd.simulate(fd.aggregators.fedavg(), **given).history["test_accuracy"]
    return stream.getvalue(), [f"fedavg: round {n}/2, accuracy {value:.1%}" for n, value in enumerate(accuracies, 1)]


@pytest.mark.parametrize(("wanted", "lines"), [(None, 0), (True, 2), (False, 0)])
def test_a_line_for_each_evaluation_where_there_is_no_terminal_on_request_only(monkeypatch, settings, wanted, lines):
    written, told = simulated(monkeypatch, settings, StringIO(), wanted)
    assert written.splitlines() == told[:lines]


@pytest.mark.parametrize(("wanted", "drawn"), [(None, True), (True, True), (False, False)])
def test_a_bar_in_a_terminal_unless_it_is_refused(monkeypatch, settings, wanted, drawn):
    written, _ = simulated(monkeypatch, settings, Terminal(), wanted)
    assert ("round 2/2" in written) is drawn


def test_bars_are_turned_off_by_the_environment(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert progress.has_bars()
    monkeypatch.setenv("TQDM_DISABLE", "1")
    assert not progress.has_bars()


def test_nothing_is_drawn_where_there_is_no_standard_error(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    assert not progress.has_bars()


def test_a_kernel_is_a_notebook(monkeypatch):
    assert not progress.in_notebook()
    for shell, expected in ((None, False), (object(), False), (SimpleNamespace(kernel=1), True)):
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda shell=shell: shell))
        assert progress.in_notebook() is expected
