"""TACO and freeloaders: the coefficients of each group of clients, and the clients that were expelled."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_drag.experiment.run.results import History
from reproduction.claims import Answer, Question
from reproduction.names import percent
from reproduction.outcome import NOT_MEASURED, MissingError, Outcome

GROUPS = ("A", "B", "C", "freeloaders")
"""Honest clients with 10, 20 and 50 % of the labels, in the order in which the split assigns them, and freeloaders."""

FREELOADERS = GROUPS.index("freeloaders")
STRIKES = "algorithm.max_strikes"


def coefficients(history: History) -> np.ndarray:
    """Mean alpha of each group ``[4]``, over the rounds after the first in which freeloaders take part.

    Args:
      history: of a run in which all clients take part in every round, with the metrics of each client ``[E, M]``.

    Raises:
      MissingError: no client of a group takes part.
    """
    alpha, ids, malicious = history["alpha"], history["client_ids"], history["malicious"] > 0
    taking_part = history["valid"] > 0
    rounds = (taking_part & malicious).any(1) & (np.asarray(history["round"]) > 1)
    group = np.where(malicious, FREELOADERS, ids * FREELOADERS // alpha.shape[1])
    masks = [taking_part & (group == index) & rounds[:, None] for index in range(len(GROUPS))]
    if not all(mask.any() for mask in masks):
        raise MissingError(NOT_MEASURED)
    return np.array([alpha[mask].mean() for mask in masks])


def expelled(history: History, max_strikes: float) -> tuple[float, float]:
    """The shares of freeloaders (TPR) and of honest clients (FPR) that are expelled at the end."""
    out, malicious = history["strikes"][-1] >= max_strikes, history["malicious"][-1] > 0
    return float(out[malicious].mean()), float(out[~malicious].mean())


def ordered(where: Mapping[str, Any]) -> Question:
    """Whether alpha grows with the share of labels that a client holds, and is largest for freeloaders."""

    def question(outcome: Outcome) -> Answer:
        alphas = _mean_coefficients(outcome.at(where))
        ours = ", ".join(f"{name} {alpha:.2f}" for name, alpha in zip(GROUPS, alphas, strict=True))
        return Answer(bool((np.diff(alphas) > 0).all()), ours)

    return question


def separated(where: Mapping[str, Any], kappa: float) -> Question:
    """Whether alpha of freeloaders is at least the threshold, and that of every group of honest clients below."""

    def question(outcome: Outcome) -> Answer:
        alphas = _mean_coefficients(outcome.at(where))
        honest, freeloaders = alphas[:FREELOADERS].max(), alphas[FREELOADERS]
        return Answer(bool(freeloaders >= kappa > honest), f"{freeloaders:.2f} against {honest:.2f}")

    return question


def detected(kappa: float, theirs: Sequence[tuple[float, float]]) -> Question:
    """Whether as many freeloaders are expelled as in the paper, and no more honest clients, at each count of strikes.

    Args:
      kappa: threshold of alpha.
      theirs: the paper's TPR and FPR, by count of strikes.
    """

    def question(outcome: Outcome) -> Answer:
        row = outcome.at({"algorithm.kappa": kappa})
        ours = []
        for strikes in row.labels(STRIKES):
            rates = [expelled(history, strikes) for history in row.at({STRIKES: strikes}).of_clients("strikes")]
            ours.append(tuple(np.mean(rates, axis=0)))
        if len(ours) != len(theirs):
            raise MissingError(NOT_MEASURED)
        holds = all(own[0] == paper[0] and own[1] <= paper[1] for own, paper in zip(ours, theirs, strict=True))
        return Answer(holds, rates_text(ours))

    return question


def rates_text(rates: Sequence[tuple[float, float]]) -> str:
    """TPR and FPR for each count of strikes, as text."""
    return ", ".join(f"{percent(tpr, 0)} / {percent(fpr, 0)}" for tpr, fpr in rates)


def _mean_coefficients(outcome: Outcome) -> np.ndarray:
    """:func:`coefficients`, averaged over the cells."""
    return np.mean([coefficients(history) for history in outcome.of_clients("alpha")], axis=0)
