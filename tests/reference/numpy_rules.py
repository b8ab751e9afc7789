"""The server rules once more, in NumPy float64, written from their formulas and not from the package.

Deltas come as a matrix ``G`` ``[S, D]``, one flattened client per row, of the clients that count: those that are there
and whose delta is finite. Every rule returns an :class:`Outcome`.

What degenerate input means here, for every rule: the cosine with a zero vector is 0, and a term
that would divide by a zero norm or by a zero sum of weights is left out.
"""

from typing import Any, NamedTuple

import numpy as np


class Outcome(NamedTuple):
    """What a rule did.

    Attributes:
      update: what is added to the parameters, ``[D]``.
      weight: coefficient of each client's delta in the update, ``[S]``; NaN where there is none.
      cosine: of each delta to the rule's reference, ``[S]``; NaN where there is none.
      state: what the rule carries to the next round.
    """

    update: np.ndarray
    weight: np.ndarray
    cosine: np.ndarray
    state: Any = None


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """The cosine of two vectors, 0 if one is zero."""
    norms = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / norms) if norms > 0 else 0.0


def direction(a: np.ndarray) -> np.ndarray:
    """The unit vector along ``a``, zero if ``a`` is."""
    norm = np.linalg.norm(a)
    return a / norm if norm > 0 else np.zeros_like(a)


def fedavg(G: np.ndarray, num_examples: np.ndarray | None = None) -> Outcome:
    """``sum p_m g_m`` with ``p`` uniform, or proportional to the numbers of examples."""
    n = np.ones(len(G)) if num_examples is None else np.asarray(num_examples, np.float64)
    p = n / n.sum() if n.sum() > 0 else np.zeros(len(G))
    update = p @ G
    return Outcome(update, p, np.array([cosine(g, update) for g in G]))


class DragState(NamedTuple):
    """Last round's reference and modified update."""

    reference: np.ndarray
    update: np.ndarray


def drag(G: np.ndarray, state: DragState | None, c: float, alpha: float, divergence: str = "cosine") -> Outcome:
    """DRAG; ``state`` is None until the first round that had a client."""
    if state is None:
        r = G.mean(axis=0)
    else:
        r = (1 - alpha) * state.reference + alpha * state.update
    cosines = np.array([cosine(g, r) for g in G])
    lam = degree_of_divergence(cosines, c, divergence)
    v = np.stack([(1 - k) * g + k * np.linalg.norm(g) * direction(r) for g, k in zip(G, lam, strict=True)])
    update = v.mean(axis=0)
    return Outcome(update, (1 - lam) / len(G), cosines, DragState(r, update))


def degree_of_divergence(cosines: np.ndarray, c: float, divergence: str = "cosine") -> np.ndarray:
    """``lambda`` of every client, from 0 to ``2 c``."""
    if divergence == "angle":
        return c * (2 / np.pi) * np.arccos(np.clip(cosines, -1, 1))
    return c * (1 - cosines)


def br_drag(G: np.ndarray, root: np.ndarray, c: float) -> Outcome:
    """BR-DRAG: deltas brought to the root delta's norm, then dragged towards it."""
    length = np.linalg.norm(root)
    cosines = np.array([cosine(g, root) for g in G])
    lam = c * (1 - cosines)
    v = np.stack([(1 - k) * length * direction(g) + k * root for g, k in zip(G, lam, strict=True)])
    norms = np.linalg.norm(G, axis=1)
    weight = np.divide((1 - lam) * length, norms, out=np.zeros(len(G)), where=norms > 0) / len(G)
    return Outcome(v.mean(axis=0), weight, cosines)


def fltrust(G: np.ndarray, root: np.ndarray, projection: bool = False) -> Outcome:
    """FLTrust; ``projection`` gives the form in which the BR-DRAG paper describes it."""
    cosines = np.array([cosine(g, root) for g in G])
    trust = np.maximum(0.0, cosines)
    norms = np.linalg.norm(G, axis=1)
    if projection:
        return Outcome(np.mean(trust * norms) * direction(root), np.full(len(G), np.nan), cosines)
    if trust.sum() == 0:
        return Outcome(np.zeros_like(root), np.zeros(len(G)), cosines)
    scale = np.divide(np.linalg.norm(root), norms, out=np.zeros(len(G)), where=norms > 0)
    weight = trust * scale / trust.sum()
    return Outcome(weight @ G, weight, cosines)


def median(G: np.ndarray) -> Outcome:
    """The middle value of every coordinate, the mean of the middle two for an even count."""
    ordered = np.sort(G, axis=0)
    half = len(G) // 2
    update = ordered[half] if len(G) % 2 else (ordered[half - 1] + ordered[half]) / 2
    return Outcome(update, np.full(len(G), np.nan), np.array([cosine(g, update) for g in G]))


def sign_flip(G: np.ndarray, malicious: np.ndarray, scale: float) -> np.ndarray:
    """``g <- -s g`` for the malicious rows."""
    return np.where(malicious[:, None], -scale * G, G)


def label_flip(y: np.ndarray, flipped: np.ndarray, num_classes: int) -> np.ndarray:
    """``y <- C - 1 - y`` where ``flipped``."""
    return np.where(flipped, num_classes - 1 - y, y)


def opposite_target(target, kind: str, num_classes: int = 0, mean=0.0):
    """One example's target as the attacker of label_flip writes it, entry by entry.

    Of Jagielski et al.'s inverse flipping ``1 - y`` for y in [0, 1], with the mean of all y in the place of 1 / 2.
    """
    if kind == "label":
        return num_classes - 1 - target
    if kind == "tokens":
        return [entry if entry < 0 else num_classes - 1 - entry for entry in target]
    if kind == "several labels":
        return [0 if entry else 1 for entry in target]
    return mean + (mean - target)
