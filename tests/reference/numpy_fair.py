"""The rules about fairness, and the draws of selections, once more in NumPy float64, written from the papers."""

from typing import NamedTuple

import numpy as np
from reference.numpy_rules import Outcome, cosine


def weighed(G: np.ndarray, weight: np.ndarray, state=None) -> Outcome:
    """``sum weight_m g_m``."""
    update = weight @ G
    return Outcome(update, weight, np.array([cosine(g, update) for g in G]), state)


def q_fedavg(G: np.ndarray, loss: np.ndarray, q: float, eta: float) -> Outcome:
    """Algorithm 2 of Li et al. 2020, term by term: ``Delta w_k = L (w - w_k)``, ``Delta_k``, ``h_k``."""
    L, loss = 1 / eta, loss + 1e-10
    change = -L * G
    delta = loss[:, None] ** q * change
    h = q * loss ** (q - 1) * (change**2).sum(1) + L * loss**q
    outcome = weighed(G, L * loss**q / h.sum())
    np.testing.assert_allclose(outcome.update, -delta.sum(0) / h.sum(), rtol=1e-9, atol=1e-12)
    return outcome


def tilted(G: np.ndarray, loss: np.ndarray, t: float, p: np.ndarray) -> Outcome:
    """Lemma 1 of Li et al. 2021: the gradient of the tilted loss weighs by ``p exp(t F)``."""
    weight = p * np.exp(t * loss)
    return weighed(G, weight / weight.sum())


def tilted_loss(loss: np.ndarray, t: float, p: np.ndarray) -> float:
    """``(1/t) log mean exp(t F)``."""
    mean = lambda x: (p * x).sum() / p.sum()
    return mean(loss) if t == 0 else np.log(mean(np.exp(t * loss))) / t


def onto_simplex(y: np.ndarray) -> np.ndarray:
    """The nearest point of the simplex, by bisection of what is taken off every entry."""
    low, high = y.min() - 1, y.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(y - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(y - low, 0)


def agnostic(G: np.ndarray, mixture: np.ndarray, ids: np.ndarray, loss: np.ndarray, gamma: float) -> Outcome:
    """Stochastic-AFL of Mohri et al. 2019 on a cohort; ``mixture`` is ``lambda`` of all clients."""
    up = len(mixture) / len(G)
    after = mixture.copy()
    for m, one in zip(ids, loss, strict=True):
        after[m] += gamma * up * one
    return weighed(G, up * mixture[ids], onto_simplex(after))


class Arms(NamedTuple):
    """What Oort keeps of the clients: utilities, and the rounds of their last participation, 0 for never."""

    utility: np.ndarray
    last: np.ndarray


def oort_plan(arms: Arms, available: np.ndarray, now: int, S: int, exploration=0.9, decay=0.98, least=0.2, c=0.95):
    """Algorithm 1 of Lai et al. 2021 in round ``now`` (from 1), up to its draws.

    Returns:
      Of the clients in question for exploitation the scores by id, how many of them are drawn, the ids of those in
      question for exploration, and how many of these.
    """
    explored = [m for m in range(len(available)) if available[m] and arms.last[m] > 0]
    new = [m for m in range(len(available)) if available[m] and arms.last[m] == 0]
    epsilon = max(least, exploration * decay**now)
    num_new = min(round(epsilon * S), len(new))
    num_known = min(S - num_new, len(explored))
    num_new = min(S - num_known, len(new))
    scores = {}
    if explored:
        U = arms.utility[explored]
        clip, low, high = np.quantile(U, 0.95), U.min(), U.max()
        for m in explored:
            scaled = (min(arms.utility[m], clip) - low) / (high - low) if high > low else 0.0
            scores[m] = scaled + np.sqrt(0.1 * np.log(now) / arms.last[m])
    best = sorted(scores.values(), reverse=True)
    cut = c * best[num_known - 1] if num_known else np.inf
    return {m: u for m, u in scores.items() if u >= cut}, num_known, new, num_new
