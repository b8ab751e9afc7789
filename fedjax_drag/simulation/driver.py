"""The loop from evaluation to evaluation, for one run and for many."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_drag import stopping
from fedjax_drag.simulation.devices import nans
from fedjax_drag.simulation.every_client.accuracies import by_client_and_class
from fedjax_drag.simulation.model.trainable import joined
from fedjax_drag.simulation.planning.early_stopping import Reason
from fedjax_drag.simulation.planning.privacy import Spent
from fedjax_drag.simulation.program.attack_metrics import UNDEFINED
from fedjax_drag.simulation.program.client_cost import ClientCost
from fedjax_drag.simulation.program.programs import Totals
from fedjax_drag.simulation.result import Result, history_row, stack_history, with_client_seconds
from fedjax_drag.simulation.run import RunState

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
    at_once = 1 if nans.are_sought() else schedule.at_once
    goes_on = True
    while goes_on and done < schedule.num_rounds:
        before, target = done, min(schedule.num_rounds, (done // schedule.eval_every + 1) * schedule.eval_every)
        metrics, sums = {}, totals
        while done < target:
            stopping.check()
            done = min(target, done + at_once)
            with nans.unchecked():
                state, metrics, sums = step(state, sums, np.int32(done))
            nans.check(done, {"state": state, "metrics": metrics, "totals": sums}, UNDEFINED)
        with nans.unchecked():
            evaluated = evaluate(state)
        nans.check(done, {"evaluation": evaluated})
        goes_on = record(state, before, done, jax.device_get((metrics, sums, evaluated)))
    return state


class Track:
    """What is kept of a run while it goes on.

    Args:
      cost: what the method asks of one client.
      spent: privacy spent after some rounds.
      reports_clients: whether the history keeps the accuracy of each client.
      stop_on_divergence: whether the run ends where its parameters are not finite.
    """

    def __init__(self, cost: ClientCost, spent: Spent, reports_clients: bool, stop_on_divergence: bool) -> None:
        self._cost, self._spent, self._reports_clients = cost, spent, reports_clients
        self._stop_on_divergence = stop_on_divergence
        self._history: list[dict[str, Any]] = []
        self.diverged_at: int | None = None
        self.ended: Reason | None = None

    @property
    def is_over(self) -> bool:
        """Whether the run ends before its last round."""
        return self.ended is not None or bool(self.diverged_at and self._stop_on_divergence)

    def add(self, before: int, done: int, measured: tuple[Any, Totals, Mapping[str, Any]]) -> dict[str, Any]:
        """The row of the history after an evaluation, which is kept."""
        metrics, totals, evaluated = measured
        evaluated = by_client_and_class(evaluated, self._reports_clients)
        row = history_row(done, done - before, metrics, totals, evaluated, self._cost, self._spent(done))
        self._history.append(row)
        self.diverged_at = self.diverged_at or int(totals.diverged_at) or None
        return row

    def result(self, state: RunState, seconds: float, compile_seconds: float, seconds_per_step: float | None) -> Result:
        """The run as it has come to an end with ``state``."""
        return Result(
            params=joined(state.params, state.model.frozen),
            history=with_client_seconds(stack_history(self._history), seconds_per_step),
            state=state,
            seconds=seconds,
            compile_seconds=compile_seconds,
            cost=self._cost,
            seconds_per_step=seconds_per_step,
            diverged_at=self.diverged_at,
            ended_early=self.ended,
        )
