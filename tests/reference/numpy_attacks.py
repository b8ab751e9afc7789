"""Attacks that forge from the round's statistics once more, in NumPy float64, written from their papers.

A message is a matrix ``G`` ``[n, D]`` of the clients that the attacker knows, one a row; what is returned is the
``[D]`` that every malicious client sends. ``delta`` marks the coordinates that distances and norms are over.
"""

import numpy as np
from scipy.stats import norm


def alie_z(S: int, f: int) -> float:
    """z of S clients of which f are malicious; where it would be infinite, that of half a client more or less."""
    supporters = S // 2 + 1 - f
    return norm.ppf(np.clip((S - f - supporters) / (S - f), 0.5 / S, 1 - 0.5 / S))


def alie(G: np.ndarray, z: float) -> np.ndarray:
    return G.mean(axis=0) - z * G.std(axis=0)


def ipm(G: np.ndarray, epsilon: float) -> np.ndarray:
    return -epsilon * G.mean(axis=0)


def perturbation(G: np.ndarray, kind: str, delta: np.ndarray) -> np.ndarray:
    """p, the norm of the mean being that of the delta alone."""
    mean = G.mean(axis=0)
    return -{"std": G.std(axis=0), "unit": mean / np.linalg.norm(mean[delta]), "sign": np.sign(mean)}[kind]


def to_others(G: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Distances of ``x`` to all rows."""
    return np.linalg.norm(G - x, axis=1)


def min_max_holds(G: np.ndarray, x: np.ndarray, tolerance: float = 0.0) -> bool:
    return to_others(G, x).max() <= (1 + tolerance) * max(to_others(G, g).max() for g in G)


def min_sum_holds(G: np.ndarray, x: np.ndarray, tolerance: float = 0.0, bound=max) -> bool:
    return (to_others(G, x) ** 2).sum() <= (1 + tolerance) * bound((to_others(G, g) ** 2).sum() for g in G)


def min_sum_min_holds(G: np.ndarray, x: np.ndarray, tolerance: float = 0.0) -> bool:
    """As the authors' code bounds it."""
    return min_sum_holds(G, x, tolerance, bound=min)


def furthest(G: np.ndarray, kind: str, delta: np.ndarray, holds) -> np.ndarray:
    """``mean + gamma p`` with the largest gamma for which ``holds(G, x)`` of the delta, by bisection."""
    mean, p, low, high = G.mean(axis=0), perturbation(G, kind, delta), 0.0, 1.0
    while holds(G[:, delta], (mean + high * p)[delta]):
        high *= 2
    for _ in range(50):
        middle = (low + high) / 2
        inside = holds(G[:, delta], (mean + middle * p)[delta])
        low, high = (middle, high) if inside else (low, middle)
    return mean + low * p


def mimicked(G: np.ndarray) -> int:
    """The row with the largest absolute projection on the first principal direction."""
    _, _, directions = np.linalg.svd(G - G.mean(axis=0), full_matrices=False)
    return int(np.abs(G @ directions[0]).argmax())
