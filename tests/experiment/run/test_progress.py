import sys
from io import StringIO

import numpy as np
import pytest

from fedjax_drag.experiment.run import progress
from fedjax_drag.experiment.run.progress import Progress, summary, table


class Terminal(StringIO):
    def isatty(self):
        return True


def shown(monkeypatch, stream, quiet=None):
    monkeypatch.setattr(sys, "stderr", stream)
    bar = Progress("DRAG", num_rounds=20, quiet=quiet)
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
    bar = Progress("DRAG", num_rounds=40)
    for round_number in (10, 20, 30, 40):
        bar.update(round_number, {"test_accuracy": np.float32(round_number / 50)})
    bar.close()
    assert log.getvalue() == "DRAG: round 20/40, accuracy 40.0%\nDRAG: round 40/40, accuracy 80.0%\n"


def test_no_lines_when_quiet_nor_beside_a_bar(monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    assert shown(monkeypatch, StringIO(), quiet=True) == ""
    assert "DRAG: round" not in shown(monkeypatch, Terminal())
    assert shown(monkeypatch, StringIO()).count("DRAG: round") == 2


def row(accuracies, **more):
    history = {"round": np.arange(1, len(accuracies) + 1), "test_accuracy": np.array(accuracies)}
    return history, summary(history, seconds=2.5, compile_seconds=None) | more


def test_table_is_aligned_and_has_telling_targets():
    text = table({"FedAvg": row([0.3, 0.65, 0.6]), "long label": row([0.5, 0.85, 0.84], rounds_per_second=7.25)})
    head, first, second = text.splitlines()
    assert len(head) == len(first) == len(second)
    assert " ".join(head.split()) == "final best round at 60% round at 70% round at 80% rounds/s seconds"
    assert first.split() == ["FedAvg", "60.0%", "65.0%", "2", "-", "-", "-", "2.5"]
    assert second.split() == ["long", "label", "84.0%", "85.0%", "2", "2", "2", "7.2", "2.5"]


def test_summary_of_a_run_that_diverged_or_never_began():
    _, figures = row([0.5, np.nan])
    assert figures["best_accuracy"] == 0.5
    assert np.isnan(figures["final_accuracy"])
    assert row([])[1]["final_accuracy"] is None
    assert "-" in table({"x": row([np.nan])})
