"""Rules against backdoors and forged messages: loops over clients, coordinates and layers in NumPy float64.

Written from the papers; deltas come as in :mod:`reference.numpy_rules`, a matrix ``G`` ``[S, D]`` of the clients that
count, one a row.
"""

import itertools
from dataclasses import dataclass, field

import numpy as np
from reference.numpy_robust import outcome
from reference.numpy_rules import Outcome


def robust_lr(G: np.ndarray, threshold: float) -> Outcome:
    """Each coordinate along its mean if enough signs agree, else against it."""
    update = np.zeros(G.shape[1])
    for i, column in enumerate(G.T):
        agreement = abs(int((column > 0).sum()) - int((column < 0).sum()))
        update[i] = column.mean() if agreement >= threshold else -column.mean()
    return outcome(G, update, np.full(len(G), 1 / len(G)))


def crfl(G: np.ndarray, clip: float) -> Outcome:
    """From zero parameters and without noise: the mean, shortened; cosines are those to the mean."""
    mean = G.mean(axis=0)
    return outcome(G, mean / max(1.0, np.linalg.norm(mean) / clip), np.full(len(G), 1 / len(G)))


def scores(numbers: np.ndarray) -> np.ndarray:
    """How many standard deviations each number is away from the median."""
    deviation = np.sqrt(np.mean((numbers - np.mean(numbers)) ** 2))
    apart = np.abs(numbers - np.median(numbers))
    return apart / deviation if deviation > 0 else np.zeros(len(numbers))


def lasa(
    G: np.ndarray, layers: list[slice], matrices: list[int], sparsity: float, bounds: tuple[float, float]
) -> Outcome:
    """Clips, leaves out small entries of the matrices among the layers, and averages each layer over its members.

    Args:
      G: ``[S, D]``.
      layers: where each layer is in a row.
      matrices: which of them are sparse.
      sparsity: share of their entries that become 0.
      bounds: of the scores of lengths and of signs.
    """
    radius, rows = np.median(np.linalg.norm(G, axis=1)), []
    scale = np.array([min(1.0, radius / np.linalg.norm(g)) if np.linalg.norm(g) > 0 else 1.0 for g in G])
    for g, factor in zip(G, scale, strict=True):
        row = factor * g
        places = np.concatenate([np.arange(len(row))[layers[k]] for k in matrices])
        left_out = len(places) - int(np.floor((1 - sparsity) * len(places) + 1e-9))
        for place in sorted(places, key=lambda i: abs(row[i]))[:left_out]:
            row[place] = 0.0
        rows.append(row)
    sparse, update, weight = np.array(rows), np.zeros(G.shape[1]), np.zeros(len(G))
    for place in layers:
        part = sparse[:, place]
        lengths = np.array([np.linalg.norm(row) for row in part])
        signs = []
        for row in part:
            total = np.sum(np.abs(np.sign(row)))
            signs.append(0.5 * (1 + np.sum(np.sign(row)) / total) if total > 0 else 0.5)
        by_length, by_sign = scores(lengths), scores(np.array(signs))
        near = (by_length <= bounds[0] * (1 + 1e-5)) & (by_sign <= bounds[1] * (1 + 1e-5))
        members = np.flatnonzero(near) if near.any() else np.arange(len(G))
        update[place] = part[members].mean(axis=0)
        weight[members] += part.shape[1] / G.shape[1] * scale[members] / len(members)
    return outcome(G, update, weight)


def with_copies(G: np.ndarray, number: int) -> np.ndarray:
    """The rows, and copies of the one that is farthest from the extremes."""
    high, low = G.max(axis=0), G.min(axis=0)
    from_extremes = np.array([min(np.linalg.norm(g - high), np.linalg.norm(g - low)) for g in G])
    return np.vstack([G, *[G[np.argmax(from_extremes)]] * number])


def bfgs(pairs: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """The matrix of BFGS: a multiple of the identity, updated by one pair ``(s, y)`` after the other."""
    s, y = pairs[-1]
    B = (y @ s) / (s @ s) * np.eye(len(s))
    for s, y in pairs:
        B = B - np.outer(B @ s, B @ s) / (s @ B @ s) + np.outer(y, y) / (y @ s)
    return B


def squares(numbers: np.ndarray, clusters: int) -> tuple[float, int]:
    """The least sum of squares of numbers in order in as many intervals; where the second of two begins."""
    spread = lambda part: float(((part - part.mean()) ** 2).sum()) if len(part) else 0.0
    if clusters == 1:
        return spread(numbers), 0
    return min((spread(numbers[:i]) + spread(numbers[i:]), i) for i in range(1, len(numbers)))


def upper_cluster(numbers: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Members of the upper of two clusters, if the gap statistic with rows ``uniform`` finds more than one."""
    nobody = np.zeros(len(numbers), bool)
    if len(numbers) < 3 or np.ptp(numbers) == 0:
        return nobody
    scaled = np.sort((numbers - numbers.min()) / np.ptp(numbers))
    gap, deviation = [], []
    for k in (1, 2):
        drawn = np.array([squares(np.sort(row), k)[0] for row in uniform])
        gap.append(np.log(drawn.mean()) - np.log(squares(scaled, k)[0]))
        deviation.append(np.sqrt(1 + 1 / len(uniform)) * np.std(np.log(drawn)))
    if gap[0] - gap[1] + deviation[1] >= 0:
        return nobody
    boundary = np.sort(numbers)[squares(scaled, 2)[1]]
    return numbers >= boundary


@dataclass
class Detector:
    """What FLDetector remembers, client by client.

    Attributes:
      window: N.
      clients: ids of the federation, in order.
      last: what each client sent last.
      distances: of each client since the last removal.
      removed: ids of the clients that do not count any more.
      updates: all of them, the first first.
    """

    window: int
    clients: list[int]
    last: dict[int, np.ndarray] = field(default_factory=dict)
    distances: dict[int, list[float]] = field(default_factory=dict)
    removed: set[int] = field(default_factory=set)
    updates: list[np.ndarray] = field(default_factory=list)

    def measure(self, ids: list[int], G: np.ndarray) -> None:
        """Distances of a round's messages from their predictions."""
        if len(self.updates) <= self.window:
            return
        recent = self.updates[-self.window - 1 :]
        B = bfgs([(before, after - before) for before, after in itertools.pairwise(recent)])
        judged = [m for m, client in enumerate(ids) if client in self.last and client not in self.removed]
        away = {m: float(np.linalg.norm(G[m] - self.last[ids[m]] - B @ recent[-1])) for m in judged}
        for m in judged:
            self.distances.setdefault(ids[m], []).append(away[m] / sum(away.values()))

    def score(self, client: int) -> float:
        """The mean of the last distances."""
        return float(np.mean(self.distances.get(client, [0.0])[-self.window :]))

    def remove(self, uniform: np.ndarray) -> None:
        """Removes who stands out among those with enough distances; ``uniform`` ``[references, M]``."""
        ready = [c for c in self.clients if len(self.distances.get(c, [])) >= self.window and c not in self.removed]
        upper = upper_cluster(np.array([self.score(c) for c in ready]), uniform[:, : len(ready)])
        if upper.any():
            self.removed |= {client for client, above in zip(ready, upper, strict=True) if above}
            self.distances = {}
