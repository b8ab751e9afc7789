"""Decentralised learning once more in NumPy float64, node by node, from the formulas of the papers."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

Mix = Callable[[int, np.ndarray, dict[int, np.ndarray], np.ndarray], np.ndarray]
"""``(i, x_i, {j: x_j}, W) -> x_i``, what node i makes of its neighbours' models."""


def metropolis(edges: Sequence[tuple[int, int]], nodes: int) -> np.ndarray:
    """The mixing matrix of Metropolis and Hastings."""
    degree = [sum(i in edge for edge in edges) for i in range(nodes)]
    W = np.zeros((nodes, nodes))
    for i, j in edges:
        W[i, j] = W[j, i] = 1 / (1 + max(degree[i], degree[j]))
    for i in range(nodes):
        W[i, i] = 1 - W[i].sum()
    return W


def gossip(i: int, own: np.ndarray, others: dict[int, np.ndarray], W: np.ndarray) -> np.ndarray:
    """The weighted mean; what the absent weigh goes to the node's own model."""
    left = 1 - sum(W[i, j] for j in others)
    return left * own + sum((W[i, j] * x for j, x in others.items()), np.zeros_like(own))


def clipped(radius: float | None) -> Mix:
    """ClippedGossip; without a radius that of the second largest distance."""

    def mix(i: int, own: np.ndarray, others: dict[int, np.ndarray], W: np.ndarray) -> np.ndarray:
        distances = sorted(np.linalg.norm(x - own) for x in others.values())
        tau = np.inf if radius is None else radius
        if radius is None and distances:
            tau = distances[-2] if len(distances) > 1 else distances[-1]
        moved = own.copy()
        for j, x in others.items():
            length = np.linalg.norm(x - own)
            moved += W[i, j] * (x - own) * (min(1, tau / length) if length else 1)
        return moved

    return mix


def trimmed(number: int) -> Mix:
    """The mean in each coordinate without the smallest and the largest values, of the neighbours and the node."""

    def mix(i: int, own: np.ndarray, others: dict[int, np.ndarray], W: np.ndarray) -> np.ndarray:
        values = np.sort([own, *others.values()], axis=0)
        return values[number : len(values) - number].mean(0)

    return mix


def nearest(number: int) -> Mix:
    """The mean over those nearest to the node's own model, itself among them, without ``number`` of them."""

    def mix(i: int, own: np.ndarray, others: dict[int, np.ndarray], W: np.ndarray) -> np.ndarray:
        models = sorted([own, *others.values()], key=lambda x: np.linalg.norm(x - own))
        return np.mean(models[: len(models) - number], axis=0)

    return mix


def dissensus(
    i: int, own: np.ndarray, others: dict[int, np.ndarray], W: np.ndarray, malicious: set[int], strength: float
) -> np.ndarray:
    """What each malicious neighbour sends to node i."""
    push = sum((W[i, j] * (x - own) for j, x in others.items() if j not in malicious), np.zeros_like(own))
    return own - strength * push / sum(W[i, j] for j in others if j in malicious)


def decentralised(
    start: np.ndarray,
    gradients: Sequence[Callable[[np.ndarray], np.ndarray]],
    W: np.ndarray,
    mix: Mix,
    *,
    steps: int,
    step_size: float,
    present: Sequence[Sequence[bool]],
    malicious: set[int] | frozenset[int] = frozenset(),
    flip: float | None = None,
    strength: float | None = None,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Local steps, attack and mixing; yields the mean of the honest models that took part, and all models ``[N, D]``.

    Args:
      start: of all models ``[D]``.
      gradients: of each node.
      W: mixing matrix.
      mix: of a node.
      steps: U.
      step_size: eta.
      present: of each round, who takes part.
      malicious: nodes that forge.
      flip: they send the mean minus so many times what they would add to it; None for no such attack.
      strength: of dissensus; None for no such attack.
    """
    nodes = range(len(gradients))
    models: dict[int, Any] = dict.fromkeys(nodes, start)
    mean = start
    for here in present:
        half = {}
        for i in nodes:
            half[i] = models[i]
            for _ in range(steps):
                half[i] = half[i] - step_size * gradients[i](half[i])
        sent = {i: mean - flip * (half[i] - mean) if i in malicious and flip is not None else half[i] for i in nodes}
        after = dict(models)
        for i in nodes:
            if not here[i]:
                continue
            others = {j: sent[j] for j in nodes if j != i and W[i, j] and here[j]}
            if strength is not None and malicious & others.keys():
                forged = dissensus(i, half[i], others, W, malicious, strength)
                others |= dict.fromkeys(malicious & others.keys(), forged)
            after[i] = mix(i, half[i], others, W)
        models = after
        mean = np.mean([models[i] for i in nodes if here[i] and i not in malicious], axis=0)
        yield mean, np.array([models[i] for i in nodes])
