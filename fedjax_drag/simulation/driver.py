"""The loop from evaluation to evaluation, for one run and for many, and what ends it.

NaNs are sought (``jax.debug_nans``) in what the programs of a run return: JAX's own search looks at the first call of a
program compiled ahead of time alone, and takes an undefined share for an error.
"""

import contextlib
import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_drag import stopping
from fedjax_drag.ops.paths import joined, path_of
from fedjax_drag.simulation.criterion import ACCURACY, Criterion
from fedjax_drag.simulation.planning.outline import ClientCost
from fedjax_drag.simulation.planning.spending import Spent
from fedjax_drag.simulation.program.evaluation import OF_CLIENTS, UNDEFINED, by_client_and_class
from fedjax_drag.simulation.program.programs import Totals
from fedjax_drag.simulation.result import Result, history_row, stack_history, with_client_seconds
from fedjax_drag.simulation.run import RunState
from fedjax_drag.types import Metric


def are_sought() -> bool:
    """Whether JAX is configured to search, for all or for this thread."""
    return bool(jax.config.jax_debug_nans)  # pyright: ignore[reportAttributeAccessIssue]


def unchecked() -> contextlib.AbstractContextManager[Any]:
    """Leaves out JAX's own search, in place of which :func:`check_nans` stands."""
    return jax.debug_nans(False) if are_sought() else contextlib.nullcontext()


def check_nans(done: int, returned: Any) -> None:
    """Refuses a NaN, if NaNs are sought; metrics of :data:`UNDEFINED` may be NaN.

    Args:
      done: rounds after which the programs have returned.
      returned: pytree of what they have returned.

    Raises:
      FloatingPointError: one line with the round and the place of the first NaN.
    """
    if not are_sought():
        return
    for path, leaf in jax.tree.leaves_with_path(returned):
        names = {str(getattr(entry, "key", "")) for entry in path}
        if names.isdisjoint(UNDEFINED) and jnp.issubdtype(leaf.dtype, jnp.inexact) and bool(jnp.isnan(leaf).any()):
            raise FloatingPointError(f"a NaN after round {done} in {path_of(path)}")


class Reason(str):
    """Why a run ends, in one line; a callback that returns it ends the run, as one that returns True does."""


def reason(history: Mapping[str, Any], asked: Any, criterion: Criterion = ACCURACY) -> Reason | None:
    """Why a run with this history ends, by its criterion alone; None if it goes on.

    Args:
      history: ``round`` and metrics of all evaluations so far.
      asked: what has the fields of :class:`~fedjax_drag.simulation.option_groups.EarlyStopping`.
      criterion: of the run.
    """
    if not history or (asked.patience is None and asked.stop_when is None):
        return None
    by, rounds = criterion.among(history), [int(done) for done in history["round"]]
    values = np.asarray(history[by.column], np.float32)  # a file has other bits than memory
    best = int(np.argmax(by.merits(values)))
    stop_when = asked.stop_when
    if not (stop_when is None or callable(stop_when)) and by.first_reached(values[-1:], float(stop_when)) == 0:
        return Reason(f"{by.column} has reached stop_when={float(stop_when):g} after round {rounds[-1]}")
    if asked.patience is not None and len(values) - 1 - best >= asked.patience:
        ended = f"after round {rounds[-1]} with patience={asked.patience}"
        bettered = "risen above" if by.higher_is_better else "fallen below"
        value = f"{values[best]:{'.4f' if by.is_share else '.4g'}}"
        return Reason(f"{by.column} has not {bettered} {value} since round {rounds[best]}, {ended}")
    return None


class Stopper:
    """A callback that ends a run when it is asked to.

    Args:
      asked: what has the fields of :class:`~fedjax_drag.simulation.option_groups.EarlyStopping`.
      history: of the evaluations before the first call, where a run goes on.
      criterion: of the run.
    """

    def __init__(
        self,
        asked: Any,
        history: Mapping[str, Any] = types.MappingProxyType({}),
        criterion: Criterion = ACCURACY,
    ):
        self._asked, self._criterion = asked, criterion
        names = ("round", criterion.among(history).column) if history else ()
        self._history = {name: list(history[name]) for name in names}

    def __call__(self, event: Any) -> Reason | None:
        """The reason to end after this evaluation, if there is one."""
        for name in ("round", self._criterion.among(event.metrics).column):
            self._history.setdefault(name, []).append(event.metrics[name])
        if callable(self._asked.stop_when) and _is_true(self._asked.stop_when(event)):
            return Reason(f"stop_when is true after round {event.round}")
        return reason(self._history, self._asked, self._criterion)


def said(answer: Any, done: int) -> Reason | None:
    """The reason to end after so many rounds, if that is what a callback has returned."""
    if _is_true(answer):
        return Reason(f"a callback has returned True after round {done}")
    return answer if isinstance(answer, Reason) else None


def _is_true(answer: Any) -> bool:
    return answer is True or (getattr(answer, "shape", None) == () and answer.dtype == np.bool_ and bool(answer))


Step = Callable[[Any, Totals, Any], tuple[Any, Any, Totals]]
"""``(state, totals, stop) -> (state, metrics, totals)``: rounds up to ``stop``."""

Record = Callable[[Any, int, int, tuple[Any, Totals, Any]], bool]
"""``(state, before, done, measured) -> goes_on``; ``measured`` are the last round's metrics, the totals since round
``before`` and the evaluation, on the host."""


class Schedule(NamedTuple):
    """When a run comes to the host.

    Attributes:
      num_rounds: rounds of the run.
      eval_every: rounds between evaluations.
      at_once: most rounds between two visits to the host.
    """

    num_rounds: int
    eval_every: int
    at_once: int


def drive(
    schedule: Schedule,
    state: Any,
    done: int,
    totals: Totals,
    step: Step,
    evaluate: Callable[[Any], Any],
    record: Record,
) -> Any:
    """Rounds and evaluations up to the last round, or to the first evaluation after which ``record`` ends the run.

    Args:
      schedule: when the run is evaluated.
      state: of the run, or of several.
      done: rounds done.
      totals: those of no rounds.
      step: computes rounds.
      evaluate: computes an evaluation.
      record: takes what was measured.

    Returns:
      The state at the end.
    """
    at_once = 1 if are_sought() else schedule.at_once
    goes_on = True
    while goes_on and done < schedule.num_rounds:
        before, target = done, min(schedule.num_rounds, (done // schedule.eval_every + 1) * schedule.eval_every)
        metrics, sums = {}, totals
        while done < target:
            stopping.check()
            done = min(target, done + at_once)
            with unchecked():
                state, metrics, sums = step(state, sums, np.int32(done))
            check_nans(done, {"state": state, "metrics": metrics, "totals": sums})
        with unchecked():
            evaluated = evaluate(state)
        of_all = {name: value for name, value in evaluated.items() if not name.startswith(OF_CLIENTS)}
        losses = {name: value for name, value in of_all.items() if name.endswith("_loss")}
        check_nans(done, {"evaluation": losses})  # metrics of too few examples, such as auc of one class, are NaN
        goes_on = record(state, before, done, jax.device_get((metrics, sums, evaluated)))
    return state


@dataclasses.dataclass
class Track:
    """What is kept of a run while it goes on.

    Attributes:
      cost: what the method asks of one client.
      spent: privacy spent after some rounds.
      metrics: of the model.
      reports_clients: whether the history keeps the accuracy of each client.
      stop_on_divergence: whether the run ends where its parameters are not finite.
      criterion: of the run.
      diverged_at: the first round after which a parameter was not finite, or None.
      ended: why the run ends before its last round, or None.
      history: a row for each evaluation.
    """

    cost: ClientCost
    spent: Spent
    metrics: Sequence[Metric]
    reports_clients: bool
    stop_on_divergence: bool
    criterion: Criterion
    diverged_at: int | None = None
    ended: Reason | None = None
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Whether the run ends before its last round."""
        return self.ended is not None or bool(self.diverged_at and self.stop_on_divergence)

    def add(self, before: int, done: int, measured: tuple[Any, Totals, Mapping[str, Any]]) -> dict[str, Any]:
        """The row of the history after an evaluation, which is kept."""
        metrics, totals, evaluated = measured
        evaluated = by_client_and_class(evaluated, self.metrics, self.reports_clients)
        row = history_row(done, done - before, metrics, totals, evaluated, self.cost, self.spent(done))
        self.history.append(row)
        self.diverged_at = self.diverged_at or int(totals.diverged_at) or None
        return row

    def result(self, state: RunState, seconds: float, compile_seconds: float, seconds_per_step: float | None) -> Result:
        """The run as it has come to an end with ``state``."""
        return Result(
            params=joined(state.params, state.model.frozen),
            history=with_client_seconds(stack_history(self.history), seconds_per_step),
            state=state,
            seconds=seconds,
            compile_seconds=compile_seconds,
            cost=self.cost,
            seconds_per_step=seconds_per_step,
            diverged_at=self.diverged_at,
            ended_early=self.ended,
            criterion=self.criterion,
        )
