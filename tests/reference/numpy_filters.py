"""Rules that filter or clip once more: loops over clients, coordinates and subsets in NumPy float64, from the papers.

Deltas come as in :mod:`reference.numpy_rules`: a matrix ``G`` ``[S, D]`` of the clients that count, one a row. Where a
rule chooses, a function measures every choice, so that one between equals can be checked instead of repeated.
"""

import itertools

import numpy as np
from reference.numpy_clustering import cosine_matrix
from reference.numpy_robust import outcome
from reference.numpy_rules import Outcome, cosine
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import squareform
from sklearn.cluster import HDBSCAN, MeanShift, estimate_bandwidth


def diameter(G: np.ndarray, members: tuple[int, ...]) -> float:
    """The largest distance between two of some rows."""
    return max((float(np.linalg.norm(G[i] - G[j])) for i in members for j in members), default=0.0)


def deviation(G: np.ndarray, members: tuple[int, ...]) -> float:
    """The root of the largest eigenvalue of the covariance of some rows."""
    rows = G[list(members)]
    offsets = rows - rows.mean(axis=0)
    return float(np.sqrt(max(np.linalg.eigvalsh(offsets.T @ offsets / len(rows))[-1], 0.0)))


def smallest(measure, G: np.ndarray, num_byzantine: int) -> float:
    """The smallest measure of a subset of n - f rows."""
    return min(measure(G, members) for members in itertools.combinations(range(len(G)), len(G) - num_byzantine))


def caf(G: np.ndarray, num_byzantine: int) -> Outcome:
    """Filters along the covariance's first eigenvector; the weights of the smallest eigenvalue, kept in ``state``."""
    n = len(G)
    c, best, smallest_eigenvalue = np.ones(n), np.ones(n), np.inf
    while c.sum() > n - 2 * num_byzantine:
        mean = c @ G / c.sum()
        covariance = np.zeros((G.shape[1], G.shape[1]))
        for weight, g in zip(c, G, strict=True):
            covariance += weight / c.sum() * np.outer(g - mean, g - mean)
        values, vectors = np.linalg.eigh(covariance)
        if values[-1] < smallest_eigenvalue:
            smallest_eigenvalue, best = values[-1], c.copy()
        tau = np.array([((g - mean) @ vectors[:, -1]) ** 2 for g in G])
        largest = tau[c > 0].max()
        if largest == 0:
            break
        c = np.array([weight * (1 - t / largest) if weight > 0 else 0.0 for weight, t in zip(c, tau, strict=True)])
    weight = best / best.sum()
    return outcome(G, weight @ G, weight, best)


def dnc_scores(sample: np.ndarray) -> np.ndarray:
    """How far each row lies from the mean along the top right singular vector, by the singular value decomposition."""
    offsets = sample - sample.mean(axis=0)
    v = np.linalg.svd(offsets)[2][0]
    return np.array([abs(row @ v) for row in offsets])


def clipped(G: np.ndarray, radius: float) -> np.ndarray:
    """Every row, shortened to ``radius`` if longer."""
    return np.array([g * min(1.0, radius / np.linalg.norm(g)) if np.linalg.norm(g) > 0 else g for g in G])


def arc(G: np.ndarray, num_byzantine: int) -> np.ndarray:
    """The k longest rows clipped to the length of the next."""
    n, f = len(G), min(num_byzantine, len(G))
    k = 2 * f * (n - f) // n
    lengths = sorted((float(np.linalg.norm(g)) for g in G), reverse=True)
    return clipped(G, lengths[k])


def sign_shares(G: np.ndarray) -> np.ndarray:
    """Shares of positive, zero and negative entries ``[S, 3]``."""
    return np.array([[np.mean(g > 0), np.mean(g == 0), np.mean(g < 0)] for g in G])


def largest_cluster(X: np.ndarray) -> np.ndarray:
    """Members of the largest cluster of scikit-learn's mean shift; of points of bandwidth 0 those that are equal.

    Points that are as far apart as the bandwidth is wide are within it, whatever their rounding.
    """
    bandwidth = estimate_bandwidth(X, quantile=0.5)
    if bandwidth <= 0:
        kinds, label, size = np.unique(X, axis=0, return_inverse=True, return_counts=True)
        del kinds
        last = max(range(len(size)), key=lambda k: (size[k], k))
        return label.ravel() == last
    label = MeanShift(bandwidth=bandwidth + 1e-6, cluster_all=False).fit(X).labels_
    return label == np.argmax(np.bincount(label[label >= 0]))


def signguard(G: np.ndarray, lower: float, upper: float) -> Outcome:
    """Both filters on all coordinates, then the mean of what is clipped to the median length; ``state`` is who."""
    lengths = np.linalg.norm(G, axis=1)
    middle = np.median(lengths)
    ordinary = np.array([lower * middle <= length <= upper * middle for length in lengths])
    selected = ordinary & largest_cluster(sign_shares(G))
    return clipped_average(G, selected, middle)


def clipped_average(G: np.ndarray, selected: np.ndarray, radius: float) -> Outcome:
    """The mean of some rows, each shortened to ``radius``; ``state`` is which rows."""
    scale = np.array([min(1.0, radius / np.linalg.norm(g)) if np.linalg.norm(g) > 0 else 1.0 for g in G])
    weight = selected * scale / max(selected.sum(), 1)
    return outcome(G, weight @ G, weight, selected)


def halves(G: np.ndarray) -> np.ndarray:
    """Which of two clusters (0 or 1) each row belongs to: average linkage on ``1 - cosine``, by SciPy."""
    if len(G) == 1:
        return np.zeros(1, int)
    return cut_tree(linkage(squareform(directions_apart(G), checks=False), "average"), 2)[:, 0]


def directions_apart(G: np.ndarray) -> np.ndarray:
    """``1 - cosine`` of all pairs ``[S, S]``."""
    apart = 1 - cosine_matrix(G)
    np.fill_diagonal(apart, 0)
    return np.maximum((apart + apart.T) / 2, 0)


def larger(apart: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Members of the larger of two clusters; of equal ones that with the smaller diameter, or both."""
    rank = [(np.sum(labels == k), -apart[np.ix_(labels == k, labels == k)].max(initial=0)) for k in (0, 1)]
    return np.isin(labels, [k for k in (0, 1) if rank[k] == max(rank)])


def majority(apart: np.ndarray) -> np.ndarray:
    """Members of the first group of more than half when a threshold on the distances rises."""
    n = len(apart)
    for threshold in np.unique(apart):
        group = list(range(n))
        for i, j in itertools.combinations(range(n), 2):
            if apart[i, j] <= threshold and group[i] != group[j]:
                old, new = group[j], group[i]
                group = [new if g == old else g for g in group]
        for g in set(group):
            if group.count(g) > n // 2:
                return np.array(group) == g
    return np.ones(n, bool)


def hdbscan(apart: np.ndarray) -> np.ndarray:
    """Members of the only cluster that scikit-learn's HDBSCAN finds if it must hold more than half."""
    settings = {"min_cluster_size": len(apart) // 2 + 1, "min_samples": 1, "allow_single_cluster": True, "copy": True}
    return HDBSCAN(metric="precomputed", **settings).fit(apart).labels_ == 0


def flame(G: np.ndarray) -> Outcome:
    """The majority by direction, clipped to the median length of all, without noise."""
    return clipped_average(G, majority(directions_apart(G)), float(np.median(np.linalg.norm(G, axis=1))))


def to_update(G: np.ndarray, update: np.ndarray) -> np.ndarray:
    """Cosines of the rows with an update."""
    return np.array([cosine(g, update) for g in G])
