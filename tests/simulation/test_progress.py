import sys
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pytest

from fedjax_drag.simulation import progress
from fedjax_drag.simulation.progress import Progress, unless_quiet, watched


class Terminal(StringIO):
    def isatty(self):
        return True


def shown(monkeypatch, stream, quiet=None):
    monkeypatch.setattr(sys, "stderr", stream)
    bar = unless_quiet("DRAG", 20, 0, quiet)
    bar.update(10, {"test_accuracy": np.float32(0.5)})
    bar.update(20, {"test_accuracy": np.float32(0.75)})
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


def test_lines_now_and_then_without_a_terminal(monkeypatch):
    now = iter([0.0, 29.0, 31.0, 31.0, 60.0, 62.0, 62.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    log = StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    bar = Progress("DRAG", num_rounds=40, every=30.0)
    for round_number in (10, 20, 30, 40):
        bar.update(round_number, {"test_accuracy": np.float32(round_number / 50)})
    bar.close()
    assert log.getvalue() == "DRAG: round 20/40, accuracy 40.0%\nDRAG: round 40/40, accuracy 80.0%\n"


def test_no_lines_when_quiet_nor_beside_a_bar(monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    assert shown(monkeypatch, StringIO(), quiet=True) == ""
    assert "DRAG: round" not in shown(monkeypatch, Terminal())
    assert shown(monkeypatch, StringIO()).count("DRAG: round") == 2


@pytest.mark.parametrize(
    ("stream", "progress", "lines"), [(StringIO(), None, 0), (StringIO(), True, 2), (StringIO(), False, 0)]
)
def test_a_line_for_each_evaluation_where_there_is_no_terminal_on_request_only(monkeypatch, stream, progress, lines):
    monkeypatch.setattr(sys, "stderr", stream)
    with watched("DRAG", 20, 0, progress) as show:
        for number in (10, 20):
            show(SimpleNamespace(round=number, metrics={"test_accuracy": number / 40}))
    assert (
        stream.getvalue().splitlines()
        == ["DRAG: round 10/20, accuracy 25.0%", "DRAG: round 20/20, accuracy 50.0%"][:lines]
    )


def test_a_bar_in_a_terminal_unless_it_is_refused(monkeypatch):
    for wanted, drawn in ((None, True), (True, True), (False, False)):
        monkeypatch.setattr(sys, "stderr", stream := Terminal())
        with watched("DRAG", 20, 0, wanted) as show:
            show(SimpleNamespace(round=20, metrics={"test_accuracy": 0.5}))
        assert ("round 20/20" in stream.getvalue()) is drawn


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
