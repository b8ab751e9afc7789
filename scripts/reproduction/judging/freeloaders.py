"""TACO and freeloaders: the coefficients of each group of clients, and the clients that were expelled."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_drag.experiment.run.results import History
from reproduction.judging.claims import Answer, Question
from reproduction.judging.comparison import paired
from reproduction.judging.margins import Votes, across
from reproduction.judging.outcome import MissingError, Outcome

GROUPS = ("A", "B", "C", "freeloaders")
"""Honest clients with 10, 20 and 50 % of the labels, in the order in which the split assigns them, and freeloaders."""

FREELOADERS = GROUPS.index("freeloaders")
KAPPA, STRIKES = "algorithm.kappa", "algorithm.max_strikes"

ALPHA, EXPELLED = "group_alpha", "expelled"
"""What is stored of the clients of a run: :func:`coefficients`, and TPR and FPR at its end."""


def reduced(history: History, values: Mapping[str, Any]) -> History:
    """What questions need of the clients of a run; empty without freeloaders or with another method than TACO.

    Args:
      history: with the metrics of each client ``[E, M]``.
      values: of the axes of its cell.
    """
    if any(name not in history for name in ("alpha", "strikes", "malicious")) or not (history["malicious"] > 0).any():
        return {}
    found = {}
    with contextlib.suppress(MissingError):  # another split than that of the groups
        found[ALPHA] = coefficients(history)
    if STRIKES in values:
        found[EXPELLED] = np.array(expelled(history, values[STRIKES]))
    return found


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
        raise MissingError("a group takes no part")
    return np.array([alpha[mask].mean() for mask in masks])


def expelled(history: History, max_strikes: float) -> tuple[float, float]:
    """The shares of freeloaders (TPR) and of honest clients (FPR) that are expelled at the end."""
    out, malicious = history["strikes"][-1] >= max_strikes, history["malicious"][-1] > 0
    return float(out[malicious].mean()), float(out[~malicious].mean())


def ordered(where: Mapping[str, Any]) -> Question:
    """Whether alpha grows with the share of labels that a client holds, and is largest for freeloaders."""

    def question(outcome: Outcome) -> Answer:
        alphas = _alphas(outcome, where)
        steps = (across(step, "alpha", at_least=0.0, strict=True) for step in np.diff(alphas, axis=1).T)
        means = zip(GROUPS, alphas.mean(0), strict=True)
        return Answer(tuple(steps), ", ".join(f"{name} {alpha:.2f}" for name, alpha in means))

    return question


def separated(where: Mapping[str, Any], kappa: float) -> Question:
    """Whether alpha of freeloaders is at least the threshold, and that of every group of honest clients below."""

    def question(outcome: Outcome) -> Answer:
        alphas = _alphas(outcome, where)
        honest, freeloaders = alphas[:, :FREELOADERS].max(1), alphas[:, FREELOADERS]
        above = across(freeloaders, "alpha", at_least=kappa)
        below = across(honest, "alpha", at_most=kappa, strict=True)
        return Answer((above, below), f"{freeloaders.mean():.2f} against {honest.mean():.2f}")

    return question


def detected(kappa: float, theirs: Sequence[tuple[float, float]]) -> Question:
    """Whether as many freeloaders are expelled as in the paper, and no more honest clients, at each count of strikes.

    Args:
      kappa: threshold of alpha.
      theirs: the paper's TPR and FPR, by count of strikes.
    """

    def question(outcome: Outcome) -> Answer:
        row = outcome.at({KAPPA: kappa})
        columns = [row.at({STRIKES: strikes}) for strikes in sorted(row.labels(STRIKES))]
        if len(columns) != len(theirs):
            raise MissingError(f"{len(columns)} of {len(theirs)} counts of strikes")
        ours = np.stack(paired(*(column.by_seed(lambda cell: cell.history[EXPELLED]) for column in columns)))
        paper = np.array(theirs)[:, None]  # [strikes, 1, 2], beside ours [strikes, seeds, 2]
        agree = (ours[..., 0] == paper[..., 0]) & (ours[..., 1] <= paper[..., 1])
        votes = Votes(int(agree.all(0).sum()), ours.shape[1])
        return Answer((votes,), rates_text(ours.mean(1).tolist()))

    return question


def fewer_by_larger_thresholds(outcome: Outcome) -> Answer:
    """Whether a larger kappa, and more strikes, expel no more freeloaders and no more honest clients, on each seed."""
    kappas, strikes = (sorted(outcome.labels(axis)) for axis in (KAPPA, STRIKES))
    cells = [outcome.at({KAPPA: kappa, STRIKES: number}) for kappa in kappas for number in strikes]
    rates = np.stack(paired(*(cell.by_seed(lambda one: one.history[EXPELLED]) for cell in cells)))
    grid = rates.reshape(len(kappas), len(strikes), *rates.shape[1:])  # [kappa, strikes, seeds, 2]
    fewer = np.all([(np.diff(grid, axis=axis) <= 0).all((0, 1, 3)) for axis in (0, 1)], axis=0)
    return Answer((Votes(int(fewer.sum()), len(fewer)),), "")


def rates_text(rates: Sequence[Sequence[float]]) -> str:
    """TPR and FPR for each count of strikes, as text."""
    return ", ".join(f"{100 * tpr:.3g} % / {100 * fpr:.3g} %" for tpr, fpr in rates)


def _alphas(outcome: Outcome, where: Mapping[str, Any]) -> np.ndarray:
    """:func:`coefficients` of each seed ``[N, 4]``."""
    return paired(outcome.at(where).by_seed(lambda cell: cell.history[ALPHA]))[0]
