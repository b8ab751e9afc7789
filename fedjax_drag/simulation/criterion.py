"""By what rounds, settings and methods are chosen: a metric of the predictions, or the loss."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_drag import checks
from fedjax_drag.types import Metric

ROUNDING = 1e-6
"""Of metrics, which are float32: one that is equal to a target, such as 80 %, may be this share of it away from it."""

VALIDATION, TEST = "validation", "test"
"""The examples on which it is measured."""


class Criterion(NamedTuple):
    """A metric by which is chosen; the fields but the last are those of :class:`~fedjax_drag.types.Metric`.

    Attributes:
      name: of the metric, or ``loss``.
      higher_is_better: whether the best has the highest value.
      is_share: whether it is in [0, 1], and shown in percent.
      on: ``validation`` or ``test``, the examples that it is chosen on.
    """

    name: str = "accuracy"
    higher_is_better: bool = True
    is_share: bool = True
    on: str = TEST

    @classmethod
    def of(cls, metrics: Sequence[Metric], name: str | None = None) -> "Criterion":
        """That of a run with these metrics.

        Args:
          metrics: of the run.
          name: of one of them, or ``loss``; default ``accuracy`` where it is one of them, else the first, else the
            loss.

        Raises:
          ValueError: ``name`` is something else.
        """
        known = {one.name: cls(one.name, one.higher_is_better, one.is_share) for one in metrics} | {LOSS.name: LOSS}
        name = name or next((one for one in known if one == ACCURACY.name), next(iter(known)))
        checks.one_of("metric", name, known, otherwise="add others to metrics")
        return known[name]

    @property
    def label(self) -> str:
        """Its name in words."""
        return self.name.replace("_", " ")

    @property
    def column(self) -> str:
        """Its column of a history."""
        return f"{self.on}_{self.name}"

    @property
    def test(self) -> str:
        """Its column on the test examples."""
        return f"{TEST}_{self.name}"

    @property
    def scale(self) -> float:
        """What its values are multiplied by where they are shown."""
        return 100.0 if self.is_share else 1.0

    @property
    def worst(self) -> Callable[..., Any]:
        """The worst of an array's values, NaN if one is."""
        return np.min if self.higher_is_better else np.max

    def among(self, *histories: Container[str]) -> "Criterion":
        """The same on the validation examples where all histories have it there, else on the test examples.

        It is the loss, which all evaluations have, where one of them does not have the metric on the test examples.

        Args:
          *histories: of the runs that are compared, or the names of their columns.
        """
        wanted = [one._replace(on=on) for one in (self, LOSS) for on in (VALIDATION, TEST)]
        has = lambda one: all(column in history for history in histories for column in {one.column, one.test})
        in_all = (one for one in wanted if histories and has(one))
        return next(in_all, self._replace(on=TEST))

    def merits(self, values: Any) -> np.ndarray:
        """How good values are, float64: the higher the better, -inf for what is not finite."""
        values = np.asarray(values, np.float64)
        return np.where(np.isfinite(values), values if self.higher_is_better else -values, -np.inf)

    def last_best(self, values: Any) -> int:
        """The place of the best value, of equal ones the last, as of checkpoints."""
        return len(values) - 1 - int(np.argmax(self.merits(values)[::-1]))

    def first_reached(self, values: Any, target: float) -> int | None:
        """The first place at which a value is as good as ``target``, up to its rounding; None if there is none."""
        # Not by merits, for which an infinite target would be the worst.
        wanted = float(target if self.higher_is_better else -target) - ROUNDING * abs(target)
        reached = np.flatnonzero(self.merits(values) >= wanted)
        return int(reached[0]) if reached.size else None

    def round_reached(self, history: Mapping[str, Any], target: float) -> int | None:
        """The first evaluated round of a run in which its value is as good as ``target``; None if there is none."""
        place = self.first_reached(history[self.column], target)
        return None if place is None else int(history["round"][place])

    def figure(self, value: Any) -> str:
        """A value for a table: in percent with one decimal, or with four digits; a dash if it is not finite."""
        if value is None or not np.isfinite(value):
            return "-"
        return f"{100 * value:.1f}" if self.is_share else f"{value:.4g}"

    def text(self, value: Any) -> str:
        """A value by itself, such as ``81.2%`` or ``0.8124``."""
        figure = self.figure(value)
        return f"{figure}%" if self.is_share and figure != "-" else figure

    def said(self, metrics: Mapping[str, Any]) -> str:
        """Name and value in an evaluation, such as ``accuracy 81.2%``."""
        by = self.among(metrics)
        return f"{by.column.removeprefix(f'{TEST}_').replace('_', ' ')} {by.text(metrics[by.column])}"

    def check_target(self, name: str, value: Any) -> None:
        """Refuses a value that a share cannot reach."""
        if self.is_share and checks.is_concrete(value) and not 0.0 < value <= 1.0:
            article = "an" if self.name[0] in "aeiou" else "a"
            allowed = f"must be {article} {self.label} in (0, 1], or for fd.simulate a function"
            raise ValueError(f"{name}={checks.shown(value)}: {allowed}")


ACCURACY = Criterion()
LOSS = Criterion("loss", higher_is_better=False, is_share=False)


def common(runs: Iterable[Any]) -> Criterion:
    """By what some runs are compared: the criterion of the first, where all have measured it, else the loss.

    Args:
      runs: what has ``criterion`` and ``history``, such as results and the cells of a sweep.
    """
    compared = list(runs)
    return (compared[0].criterion if compared else ACCURACY).among(*(run.history for run in compared))
