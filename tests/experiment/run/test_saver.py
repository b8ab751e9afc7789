"""Which states are written, and when; the checkpoints themselves are a list."""

import threading

import numpy as np
import pytest

from fedjax_drag.experiment.run import saver
from fedjax_drag.experiment.run.saver import Held, Saver

ACCURACIES = [0.1, 0.5, 0.5, 0.2, np.nan, 0.3]


class Written:
    """Stands for the checkpoints of a folder: what was written, and in which thread."""

    def __init__(self, fails_at=None):
        self.rounds, self.threads, self.contents, self._fails_at = [], set(), {}, fails_at

    def save(self, round_number, state, accuracy, history, dtypes):
        if round_number == self._fails_at:
            raise OSError("disk full")
        self.rounds.append(round_number)
        self.threads.add(threading.current_thread())
        self.contents[round_number] = float(state["w"][0]), accuracy, history


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves on: ``clock[0] += seconds``."""
    now = [0.0]
    monkeypatch.setattr(saver.time, "monotonic", lambda: now[0])
    return now


def evaluations(saves, clock=None, seconds=1.0):
    """A run with these accuracies after rounds 1, 2, ..., that reuses the buffers of its state."""
    state = {"w": np.zeros(3)}
    for round_number, accuracy in enumerate(ACCURACIES, start=1):
        state["w"][:] = round_number
        saves.hold(Held(round_number, state, accuracy, lambda end=round_number: b"line" * end, {}))
        if clock is not None:
            clock[0] += seconds


@pytest.mark.parametrize(
    ("keep", "keep_best", "best", "left"),
    [
        (2, True, -np.inf, [3, 5, 6]),
        (2, False, -np.inf, [5, 6]),
        (1, True, -np.inf, [3, 6]),
        (9, True, -np.inf, [1, 2, 3, 4, 5, 6]),
        (1, True, 0.9, [6]),  # worse than the best checkpoint
    ],
)
@pytest.mark.parametrize("every_seconds", [10, np.inf])
def test_what_is_kept_is_written_at_the_end(clock, keep, keep_best, best, left, every_seconds):
    written = Written()
    saves = Saver(written, keep, keep_best, every_seconds, best)
    evaluations(saves)
    assert written.rounds == []
    saves.finish()
    saves.finish()
    assert written.rounds == left
    assert all(round_number == value for round_number, (value, *_) in written.contents.items()), "not what came later"
    assert written.contents[6][1:] == (0.3, b"line" * 6)
    assert threading.main_thread() not in written.threads


def test_what_is_held_is_written_when_it_is_time(clock):
    written = Written()
    saves = Saver(written, 1, True, every_seconds=2.5)
    for _ in range(2):
        evaluations(saves, clock)
    saves._wait()
    assert written.rounds[:2] == [3, 4], "the best and the newest, after three seconds"
    saves.finish()
    assert written.rounds[-1] == 6


@pytest.mark.parametrize(("every_seconds", "largest"), [(0, saver.LARGEST), (10, 2 * np.zeros(3).nbytes)])
def test_each_is_on_disk_at_once_with_zero_seconds_and_where_states_are_large(
    clock, monkeypatch, every_seconds, largest
):
    monkeypatch.setattr(saver, "LARGEST", largest)
    written = Written()
    evaluations(Saver(written, 9, True, every_seconds))
    assert written.rounds == [1, 2, 3, 4, 5, 6]


def test_a_fault_in_the_thread_is_raised_by_the_next_call_and_nothing_is_written_after_it(clock):
    written = Written(fails_at=2)
    saves = Saver(written, 9, True, every_seconds=1)

    def whole_run():
        evaluations(saves, clock)
        saves.finish()

    with pytest.raises(OSError, match="disk full"):
        whole_run()
    count = len(written.rounds)
    saves.finish()
    assert (len(written.rounds), 2 in written.rounds) == (count, False)
