"""What TACO made of freeloaders: coefficients by group of clients, and who was expelled."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_drag.experiment.run.results import History
from reproduction.judging import Answer, Question
from reproduction.names import percent
from reproduction.outcome import MissingError, Outcome

GROUPS = ("A", "B", "C", "freeloaders")
"""Honest clients with 10, 20 and 50 % of the labels, which the split deals out in this order, and the others."""

STRIKES = "algorithm.max_strikes"


def coefficients(history: History) -> np.ndarray:
    """Mean alpha of each group ``[4]``, over the rounds from the second on in which there are freeloaders.

    Args:
      history: of a run in which all clients take part in every round, with what it has of each client ``[E, M]``.

    Raises:
      MissingError: a group has no client that takes part.
    """
    alpha, ids, malicious = history["alpha"], history["client_ids"], history["malicious"] > 0
    taking_part = history["valid"] > 0
    rounds = (taking_part & malicious).any(1) & (np.asarray(history["round"]) > 1)
    group = np.where(malicious, 3, ids * 3 // alpha.shape[1])
    which = [taking_part & (group == place) & rounds[:, None] for place in range(len(GROUPS))]
    if not all(mask.any() for mask in which):
        raise MissingError("not measured")
    return np.array([alpha[mask].mean() for mask in which])


def expelled(history: History, max_strikes: float) -> tuple[float, float]:
    """The shares of freeloaders and of honest clients that are expelled at the end, TPR and FPR."""
    gone, malicious = history["strikes"][-1] >= max_strikes, history["malicious"][-1] > 0
    return float(gone[malicious].mean()), float(gone[~malicious].mean())


def ordered(where: Mapping[str, Any]) -> Question:
    """Is alpha larger the more labels a client holds, and largest for freeloaders?"""

    def question(outcome: Outcome) -> Answer:
        found = np.mean([coefficients(history) for history in outcome.at(where).of_clients("alpha")], axis=0)
        ours = ", ".join(f"{name} {alpha:.2f}" for name, alpha in zip(GROUPS, found, strict=True))
        return Answer(bool((np.diff(found) > 0).all()), ours)

    return question


def apart(where: Mapping[str, Any], kappa: float) -> Question:
    """Is alpha of freeloaders at least the threshold, and that of every group of honest clients below?"""

    def question(outcome: Outcome) -> Answer:
        found = np.mean([coefficients(history) for history in outcome.at(where).of_clients("alpha")], axis=0)
        return Answer(bool(found[3] >= kappa > found[:3].max()), f"{found[3]:.2f} against {found[:3].max():.2f}")

    return question


def detected(kappa: float, theirs: Sequence[tuple[float, float]]) -> Question:
    """Are as many freeloaders expelled as in the paper, and no more honest clients, for every count of strikes?"""

    def question(outcome: Outcome) -> Answer:
        row = outcome.at({"algorithm.kappa": kappa})
        ours = []
        for strikes in row.labels(STRIKES):
            shares = [expelled(history, strikes) for history in row.at({STRIKES: strikes}).of_clients("strikes")]
            ours.append(tuple(np.mean(shares, axis=0)))
        if len(ours) != len(theirs):
            raise MissingError("not measured")
        holds = all(own[0] == paper[0] and own[1] <= paper[1] for own, paper in zip(ours, theirs, strict=True))
        return Answer(holds, told(ours))

    return question


def told(shares: Sequence[tuple[float, float]]) -> str:
    """TPR and FPR for each count of strikes, as text."""
    return ", ".join(f"{percent(tpr, 0)} / {percent(fpr, 0)}" for tpr, fpr in shares)
