"""The figures of a run for its summary, and the table at the end of runs."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedjax_drag.data.skew import aligned
from fedjax_drag.simulation.criterion import ACCURACY, ROUNDING, VALIDATION, Criterion

_TARGETS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)  # of shares, of which the highest is best


def summary(
    history: Mapping[str, np.ndarray],
    seconds: float,
    compile_seconds: float | None,
    criterion: Criterion = ACCURACY,
) -> dict[str, Any]:
    """The figures of a run for ``summary.json``.

    Args:
      history: the run's history.
      seconds: running time, in seconds.
      compile_seconds: the part of it that was compilation, if known.
      criterion: of the run.

    Returns:
      Final and best accuracy on the test examples, and times; accuracies are None if nothing was evaluated. With
      validation examples the best accuracy is the test accuracy of the round with the highest validation accuracy,
      which are ``best_round`` and ``best_validation_accuracy``. In the place of ``accuracy`` is the criterion's name.
    """
    by = criterion.among(history)
    values, on_test = (np.asarray(history.get(column, ())) for column in (by.column, by.test))
    best = by.last_best(values) if np.isfinite(values).any() else None
    chosen = {} if by.on != VALIDATION else {"best_round": None, f"best_{by.column}": None}
    if chosen and best is not None:
        chosen = {"best_round": int(history["round"][best]), f"best_{by.column}": values[best]}
    return {
        "rounds": int(history["round"][-1]) if on_test.size else 0,
        f"final_{by.name}": on_test[-1] if on_test.size else None,
        f"best_{by.name}": None if best is None else on_test[best],
        **chosen,
        "seconds": round(seconds, 3),
        "compile_seconds": None if compile_seconds is None else round(compile_seconds, 3),
    }


def table(
    rows: Mapping[str, tuple[Mapping[str, np.ndarray], Mapping[str, Any]]], criterion: Criterion = ACCURACY
) -> str:
    """A plain table of runs.

    Args:
      rows: history and summary of each run, by label.
      criterion: of the runs.

    Returns:
      Aligned lines: final and best accuracy, or what else the criterion is, the first round at up to three accuracies
      that the best run reached, and seconds. Where all runs have validation examples, their best rounds and those
      targets are by validation accuracy.
    """
    by = criterion.among(*(history for history, _ in rows.values()))
    best = max((by.merits(x.get(by.column, ())).max(initial=-np.inf) for x, _ in rows.values()), default=-np.inf)
    has_targets = by.is_share and by.higher_is_better
    targets = [target for target in _TARGETS if has_targets and target <= best + ROUNDING][-3:]
    of = f" {by.label}" * (by.name != ACCURACY.name)
    heads = [f"final{of}", f"best{of}{' by validation' if by.on == VALIDATION else ''}"]
    lines = [["", *heads, *(f"round at {target:.0%}" for target in targets), "rounds/s", "seconds"]]
    for label, (history, figures) in rows.items():
        rounds = [by.round_reached(history, target) for target in targets]
        reached = ["-" if number is None else str(number) for number in rounds]
        rate = figures.get("rounds_per_second")
        speed = "-" if rate is None else f"{rate:.1f}"
        values, on_test = (np.asarray(history.get(column, ())) for column in (by.column, by.test))
        chosen = on_test[by.last_best(values)] if np.isfinite(values).any() else None
        shown = [by.text(on_test[-1] if len(on_test) else None), by.text(chosen)]
        lines.append([label, *shown, *reached, speed, f"{figures['seconds']:.1f}"])
    return "\n".join(aligned(lines))
