"""When a run that has come far enough, or comes no further, ends before its last round."""

import types
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedjax_drag.simulation.result import ROUNDING, TEST, VALIDATION, choice_metric


class Reason(str):
    """Why a run ends, in one line; a callback that returns it ends the run, as one that returns True does."""


def reason(history: Mapping[str, Any], asked: Any) -> Reason | None:
    """Why a run with this history ends, by accuracies alone; None if it goes on.

    Args:
      history: ``round`` and accuracies of all evaluations so far.
      asked: what has the fields of :class:`~fedjax_drag.simulation.option_groups.EarlyStopping`.
    """
    if not history or (asked.patience is None and asked.stop_when is None):
        return None
    metric, rounds = choice_metric(history), [int(done) for done in history["round"]]
    accuracies = np.nan_to_num(np.asarray(history[metric], np.float32), nan=-1.0)  # a file has other bits than memory
    best = int(np.argmax(accuracies))
    if isinstance(asked.stop_when, float | int) and accuracies[-1] >= asked.stop_when - ROUNDING:
        return Reason(f"{metric} has reached stop_when={asked.stop_when:g} after round {rounds[-1]}")
    if asked.patience is not None and len(accuracies) - 1 - best >= asked.patience:
        ended = f"after round {rounds[-1]} with patience={asked.patience}"
        return Reason(f"{metric} has not risen above {accuracies[best]:.4f} since round {rounds[best]}, {ended}")
    return None


class Stopper:
    """A callback that ends a run when it is asked to.

    Args:
      asked: what has the fields of :class:`~fedjax_drag.simulation.option_groups.EarlyStopping`.
      history: of the evaluations before the first call, where a run goes on.
    """

    def __init__(self, asked: Any, history: Mapping[str, Any] = types.MappingProxyType({})):
        self._asked = asked
        self._history = {name: list(history[name]) for name in ("round", TEST, VALIDATION) if name in history}

    def __call__(self, event: Any) -> Reason | None:
        """The reason to end after this evaluation, if there is one."""
        for name in ("round", choice_metric(event.metrics)):
            self._history.setdefault(name, []).append(event.metrics[name])
        if callable(self._asked.stop_when) and _is_true(self._asked.stop_when(event)):
            return Reason(f"stop_when is true after round {event.round}")
        return reason(self._history, self._asked)


def said(answer: Any, done: int) -> Reason | None:
    """The reason to end after so many rounds, if that is what a callback has returned."""
    if _is_true(answer):
        return Reason(f"a callback has returned True after round {done}")
    return answer if isinstance(answer, Reason) else None


def _is_true(answer: Any) -> bool:
    return isinstance(answer, bool | np.bool_) and bool(answer)
