"""What a run returns: the final parameters and the history."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import numpy as np

from fedjax_drag import checks, notebook
from fedjax_drag.simulation import frames
from fedjax_drag.simulation.criterion import ACCURACY, TEST, VALIDATION, Criterion
from fedjax_drag.simulation.planning.outline import ClientCost
from fedjax_drag.simulation.program.programs import SUMMED, Totals
from fedjax_drag.types import Params

if TYPE_CHECKING:
    import pandas  # pyright: ignore[reportMissingImports]

_COUNTED = {*SUMMED, "gradient_evaluations", "vector_operations", "bytes_down", "bytes_up"} - {"train_loss"}
"""Columns of a history that count since the evaluation before."""


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
        ``vector_operations``, ``bytes_down`` and ``bytes_up``; with a ``clock`` also ``seconds``, what the rounds
        lasted, and with :func:`~fedjax_drag.selection.asynchronous` ``num_too_stale``, the messages that were too stale
        to count, and of the evaluated round ``staleness`` ``[E, S]``; where clients may be absent also ``drawn`` (those
        that received the parameters and worked), and of the evaluated round ``valid`` ``[E, S]``, who answered; there
        and under attack ``silent_rounds`` (in which no benign client answered; ``train_loss`` is the mean over the
        others).
        ``epsilon``, of a method with differential privacy and a ``delta``: what all rounds so far have spent.
        ``client_seconds``, since the start of the history, is what the slowest clients would have needed, each by
        itself on this device.
      state: the whole final state, from which a run can be continued.
      seconds: running time without compilation, evaluations included.
      compile_seconds: time spent compiling and timing a client.
      cost: what the method asks of one client, a :class:`~fedjax_drag.simulation.planning.outline.ClientCost`.
      seconds_per_step: measured time of a client's local step; None if it was not measured.
      diverged_at: the first round after which a parameter was not finite; None if there is none. With
        ``stop_on_divergence``, the history ends with the evaluation that follows it.
      ended_early: why and after which round ``patience``, ``stop_when`` or a callback has ended the run; None if they
        have not.
      criterion: by what rounds are chosen, see ``metric``.
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
    criterion: Criterion = ACCURACY

    def __repr__(self) -> str:
        figures = ", ".join(f"{name}: {value}" for name, value in self._figures().items())
        return f"Result({figures})"

    def _repr_html_(self) -> str:
        by = self.criterion.among(self.history)
        values = self.history.get(by.test, np.zeros(0))
        form = ".0%" if by.is_share else ".4g"
        shown = notebook.curve(f"test {by.label}", self.history.get("round", values), values, form)
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
        by = self.criterion.among(history)
        if by.test in history:
            on_test, values = history[by.test], history[by.column]
            figures[f"test {by.label}"] = by.text(on_test[-1])
            if np.isfinite(values).any():
                best = by.last_best(values)
                chosen = f", chosen by validation {by.label} {by.text(values[best])}" if by.on == VALIDATION else ""
                figures["best"] = f"{by.text(on_test[best])} at round {int(history['round'][best])}{chosen}"
        for name in (f"output_{by.name}", f"client_{by.name}_worst_tenth", f"own_{by.name}_mean"):
            if name in history:
                figures[name.replace("_", " ")] = by.text(history[name][-1])
        if "attack_success_rate" in history:  # NaN where no example counts, as of classes that are not in the test set
            figures["attack success rate"] = ACCURACY.text(history["attack_success_rate"][-1])
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

    def to_pandas(self, each: str | None = None) -> "pandas.DataFrame":
        """The history as a table of pandas with the index ``round``.

        Args:
          each: default all metrics with one number for each evaluation, a column for each. Or the name of a metric with
            one for each client or class, such as ``"client_accuracy"`` or ``"weight"``: then a row for each evaluation
            and client or class, with the columns ``client`` (its id, where the history has them) or ``class``, and the
            metric.

        Raises:
          ImportError: pandas is not installed.
          ValueError: there is no such metric.
        """
        return frames.of_history(self.history, each)

    def rounds_to(self, target: float, on: Literal["validation", "test"] | None = None) -> int | None:
        """First evaluated round whose accuracy reaches ``target``, or None.

        Where the run is judged by another metric (:attr:`criterion`), it is that one, at least or at most ``target``.

        Args:
          target: an accuracy in [0, 1], or a value of the other metric.
          on: which examples; default the validation examples where the data have any, so that settings that are chosen
            by it are not chosen on the test set, else the test examples.

        Raises:
          ValueError: ``on`` is something else, or there are no validation examples.
        """
        return self._first("round", target, on, int)

    def time_to(self, target: float, on: Literal["validation", "test"] | None = None) -> float | None:
        """``client_seconds`` at the first evaluated round that reaches ``target``, or None.

        Args:
          target: as for :meth:`rounds_to`.
          on: as for :meth:`rounds_to`.

        Raises:
          ValueError: as for :meth:`rounds_to`, or the clients were not timed.
        """
        if "client_seconds" not in self.history:
            raise ValueError("time_to: the clients of this run were not timed; set time_clients=True")
        return self._first("client_seconds", target, on, float)

    def cost_to(
        self, target: float, cost: str = "seconds", on: Literal["validation", "test"] | None = None
    ) -> float | None:
        """What the rounds up to the first evaluated one that reaches ``target`` have cost together, or None.

        Args:
          target: as for :meth:`rounds_to`.
          cost: a column that counts since the evaluation before: ``"seconds"`` of the run's clock, ``"bytes_up"``,
            ``"bytes_down"``, ``"local_steps"`` or ``"gradient_evaluations"``, ...
          on: as for :meth:`rounds_to`.

        Raises:
          ValueError: as for :meth:`rounds_to`, or the history has no such column.
        """
        if cost == "seconds" and cost not in self.history:
            raise ValueError("cost='seconds': is not in the history; set a clock, such as clock=fd.clocks.log_normal()")
        checks.one_of("cost", cost, [name for name in self.history if name in _COUNTED])
        spent = np.cumsum(np.asarray(self.history[cost], np.float64))
        place = self._place(target, on)
        return None if place is None else float(spent[place])

    def _first(self, name: str, target: float, on: str | None, kind: Callable[[Any], Any]) -> Any:
        place = self._place(target, on)
        return None if place is None else kind(self.history[name][place])

    def _place(self, target: float, on: str | None) -> int | None:
        """Which evaluation is the first that reaches the target."""
        by = self.criterion.among(self.history)
        if on is not None:
            checks.one_of("on", on, (VALIDATION, TEST))
            by = by._replace(on=on)
        if on == VALIDATION and by.column not in self.history:
            raise ValueError(f"on={on!r}: this run has no validation examples; set validation_fraction of its data")
        return by.first_reached(self.history.get(by.column, ()), target)


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
    """The history with ``client_seconds``, where the clients were timed and their steps counted."""
    if seconds_per_step is None or "slowest_steps" not in history:
        return dict(history)
    so_far = np.cumsum(history["slowest_steps"], dtype=np.float64)  # steps of the slowest client of every round
    return {**history, "client_seconds": so_far * seconds_per_step}
