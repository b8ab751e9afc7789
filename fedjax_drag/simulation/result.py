"""What a run returns: the final parameters and the history."""

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from fedjax_drag import checks, notebook
from fedjax_drag.simulation.planning.outline import ClientCost
from fedjax_drag.simulation.program.programs import Totals
from fedjax_drag.types import Params

VALIDATION, TEST = "validation_accuracy", "test_accuracy"
"""Metrics by which rounds and settings can be chosen."""

ROUNDING = 1e-6
"""Of accuracies, which are float32: one that is equal to a target, such as 80 %, may be so much below it."""


def choice_metric(*histories: Container[str]) -> str:
    """The metric by which rounds and settings are chosen: validation accuracy where all have it, else test accuracy.

    Where there is no accuracy it is the loss.

    Args:
      *histories: of the runs that are compared, or the names of their metrics.
    """
    in_all = lambda name: bool(histories) and all(name in history for history in histories)
    return next((name for name in (VALIDATION, TEST, *_LOSSES) if in_all(name)), TEST)


_LOSSES = "validation_loss", "test_loss"


def is_loss(metric: str) -> bool:
    """Whether a metric by which rounds are chosen is better where it is lower."""
    return metric in _LOSSES


class Result(NamedTuple):
    """A finished run.

    Attributes:
      params: final global parameters, those that were not trained included.
      history: dict of NumPy arrays, one entry (row) for each evaluation: ``round``, ``test_accuracy``, ``test_loss``,
        ``train_loss`` (mean over the rounds since the last evaluation), ``num_rejected`` (sum over them), and of the
        evaluated round the rule's own metrics, per client ``[E, S]``. Where the data have a validation split,
        ``validation_accuracy`` and ``validation_loss`` are those on its examples. Where the algorithm's output is
        another model than its parameters, ``output_accuracy``, ``output_loss``, ``output_validation_accuracy`` and
        ``output_validation_loss`` are that model's. Under attack, of the evaluated round: ``cosine_to_benign``,
        ``malicious_weight``, ``detection_tpr`` and ``detection_fpr`` of
        :func:`~fedjax_drag.simulation.program.evaluation.attack_metrics`, and ``attack_success_rate`` on the test
        set where the attack has a goal.
        With ``evaluate_clients``: ``client_accuracy_mean``, ``client_accuracy_worst_tenth`` and ``client_accuracy_std``
        of :func:`~fedjax_drag.simulation.program.evaluation.over_clients`, ``client_accuracy`` ``[E, M]``, NaN for
        clients that do not count, and ``class_accuracy`` ``[E, C]`` on the test set, NaN for classes without examples;
        of a method that gives clients models of their own also ``own_accuracy_mean`` and so on, of these models.
        Of the clients, summed over the rounds since the last evaluation: ``participants`` (those that answered),
        ``local_steps``, ``slowest_steps`` (of each round's client with most), ``gradient_evaluations``,
        ``vector_operations``, ``bytes_down`` and ``bytes_up``; where clients may be absent also ``drawn`` (those that
        received the parameters and worked) and ``silent_rounds`` (in which no benign client answered; ``train_loss`` is
        the mean over the others), and of the evaluated round ``valid`` ``[E, S]``, who answered.
        ``epsilon``, of a method with differential privacy and a ``delta``: what all rounds so far have spent.
        ``client_seconds``, since the start of the run, is what the slowest clients would have needed, each by itself on
        this device.
      state: the whole final state, from which a run can be continued.
      seconds: running time without compilation, evaluations included.
      compile_seconds: time spent compiling and timing a client.
      cost: what the method asks of one client, a :class:`~fedjax_drag.simulation.planning.outline.ClientCost`.
      seconds_per_step: measured time of a client's local step; None if it was not measured.
      diverged_at: the first round after which a parameter was not finite; None if there is none. With
        ``stop_on_divergence``, the history ends with the evaluation that follows it.
      ended_early: why and after which round ``patience``, ``stop_when`` or a callback has ended the run; None if they
        have not.
    """

    params: Params
    history: dict[str, np.ndarray]
    state: Any
    seconds: float
    compile_seconds: float
    cost: ClientCost
    seconds_per_step: float | None
    diverged_at: int | None = None
    ended_early: str | None = None

    def __repr__(self) -> str:
        figures = ", ".join(f"{name}: {value}" for name, value in self._figures().items())
        return f"Result({figures})"

    def _repr_html_(self) -> str:
        accuracy = self.history.get("test_accuracy", np.zeros(0))
        shown = notebook.curve("test accuracy", self.history.get("round", accuracy), accuracy)
        return notebook.beside(shown, notebook.table("Result", self._figures()))

    def _figures(self) -> dict[str, Any]:
        """The final figures as they are shown."""
        history, figures = self.history, {}
        if self.diverged_at is not None:
            figures["diverged at round"] = self.diverged_at
        if (since := rejected_since(history)) is not None:
            figures["every message rejected"] = f"since round {since}"
        if "round" in history:
            figures["rounds"] = int(history["round"][-1])
        if "test_accuracy" in history:
            accuracy = history["test_accuracy"]
            figures["test accuracy"] = f"{accuracy[-1]:.1%}"
            by = history[choice_metric(history)]
            if np.isfinite(by).any():
                best = last_highest(by)
                chosen = f", chosen by validation accuracy {by[best]:.1%}" if VALIDATION in history else ""
                figures["best"] = f"{accuracy[best]:.1%} at round {int(history['round'][best])}{chosen}"
        for name in ("output_accuracy", "client_accuracy_worst_tenth", "own_accuracy_mean", "attack_success_rate"):
            if name in history:
                share = history[name][-1]  # NaN where no example counts, as of classes that are not in the test set
                figures[name.replace("_", " ")] = "-" if np.isnan(share) else f"{share:.1%}"
        for name in ("test_loss", "train_loss"):
            if name in history:
                figures[name.replace("_", " ")] = f"{history[name][-1]:.4g}"
        figures["parameters"] = f"{sum(np.size(leaf) for leaf in jax.tree.leaves(self.params)):,}"
        figures["seconds"] = f"{self.seconds:.1f} and {self.compile_seconds:.1f} of compilation"
        if self.ended_early is not None:
            figures["ended early"] = self.ended_early
        return figures

    @property
    def variables(self) -> dict[str, Any]:
        """What a linen module's ``apply`` takes: the parameters and the server's statistics, by collection."""
        return {"params": self.params, **self.state.model.statistics}

    def rounds_to(self, accuracy: float, on: Literal["validation", "test"] | None = None) -> int | None:
        """First evaluated round whose accuracy reaches ``accuracy``, or None.

        Args:
          accuracy: in [0, 1].
          on: which examples; default the validation examples where the data have any, so that settings that are chosen
            by it are not chosen on the test set, else the test examples.

        Raises:
          ValueError: ``on`` is something else, there are no validation examples, or no accuracy was measured.
        """
        return self._first("round", accuracy, on, int)

    def time_to(self, accuracy: float, on: Literal["validation", "test"] | None = None) -> float | None:
        """``client_seconds`` at the first evaluated round whose accuracy reaches ``accuracy``, or None.

        Args:
          accuracy: in [0, 1].
          on: as for :meth:`rounds_to`.

        Raises:
          ValueError: as for :meth:`rounds_to`, or the clients were not timed.
        """
        if "client_seconds" not in self.history:
            raise ValueError("time_to: the clients of this run were not timed; set time_clients=True")
        return self._first("client_seconds", accuracy, on, float)

    def _first(self, name: str, accuracy: float, on: str | None, kind: Callable[[Any], Any]) -> Any:
        if on is not None:
            checks.one_of("on", on, ("validation", "test"))
        metric = choice_metric(self.history) if on is None else f"{on}_accuracy"
        if on == "validation" and metric not in self.history:
            raise ValueError(f"on={on!r}: this run has no validation examples; set validation_fraction of its data")
        if is_loss(metric) or metric not in self.history:
            raise ValueError(f"{metric}: this run has no accuracy; fd.metrics.accuracy() must be among its metrics")
        place = first_reached(self.history[metric], accuracy)
        return None if place is None else kind(self.history[name][place])


def rejected_since(history: Mapping[str, np.ndarray]) -> int | None:
    """The evaluated round after which every message was rejected; 0 if all were, None if the last ones were not.

    Also None where rejected messages are not counted.

    Args:
      history: of a run, with ``round``, ``num_rejected`` and ``participants`` ``[E]``.
    """
    if "num_rejected" not in history or "participants" not in history:
        return None
    sent = np.asarray(history["participants"])
    gone = (sent > 0) & (np.asarray(history["num_rejected"]) >= sent)
    counted = np.flatnonzero(~gone)
    if not gone.size or not gone[-1]:
        return None
    return int(history["round"][counted[-1]]) if counted.size else 0


def rejection(history: Mapping[str, np.ndarray]) -> str:
    """What is to be said of a run whose last messages were all rejected; empty of any other."""
    since = rejected_since(history)
    return "" if since is None else f"every message since round {since} was rejected, as not finite or too long"


def first_reached(accuracy: np.ndarray, target: float) -> int | None:
    """The first place at which an accuracy is at least ``target``, up to its rounding; None if there is none."""
    reached = np.flatnonzero(np.asarray(accuracy, np.float64) >= target - ROUNDING)
    return int(reached[0]) if reached.size else None


def last_highest(accuracy: np.ndarray) -> int:
    """The place of the highest accuracy, of equal ones the last, as of checkpoints; what is not finite counts least."""
    return len(accuracy) - 1 - int(np.argmax(np.where(np.isfinite(accuracy), accuracy, -np.inf)[::-1]))


def history_row(
    done: int,
    rounds: int,
    metrics: Mapping[str, Any],
    totals: Totals,
    evaluated: Mapping[str, Any],
    cost: ClientCost,
    spent: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """One evaluation's row of the history.

    Args:
      done: rounds done.
      rounds: how many of them since the row before.
      metrics: of the last of them.
      totals: accumulated over them, also for metrics that the method does not have.
      evaluated: on the test examples, and on the validation examples where there are any.
      cost: what the method asks of one client.
      spent: of the privacy budget; None for nothing.
    """
    sums = {name: total for name, total in totals.sums.items() if name in metrics}
    number = np.float32(rounds - int(sums.get("silent_rounds", 0)))
    if "train_loss" in sums:
        sums["train_loss"] = sums["train_loss"] / number if number else np.float32(np.nan)
    return {"round": done, **metrics, **sums, **cost.of(sums), **evaluated, **(spent or {})}


def stack_history(entries: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Turns one dict for each evaluation into a dict of arrays with a leading axis ``[E]``."""
    return {name: np.stack([np.asarray(entry[name]) for entry in entries]) for name in entries[0]} if entries else {}


def with_client_seconds(history: Mapping[str, np.ndarray], seconds_per_step: float | None) -> dict[str, np.ndarray]:
    """The history with ``client_seconds``, where the clients were timed and there is an evaluation."""
    if seconds_per_step is None or not history:
        return dict(history)
    return {**history, "client_seconds": client_seconds(history["slowest_steps"], seconds_per_step)}


def client_seconds(slowest_steps: np.ndarray, seconds_per_step: float) -> np.ndarray:
    """What the slowest client of every round would have needed so far, summed over the rounds ``[E]``."""
    return np.cumsum(slowest_steps, dtype=np.int64) * seconds_per_step
