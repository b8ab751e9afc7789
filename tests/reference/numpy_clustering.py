"""Rules that compare clients with one another, once more: with SciPy, scikit-learn and NumPy float64."""

from typing import NamedTuple

import numpy as np
from reference.numpy_robust import average_of, outcome
from reference.numpy_rules import Outcome, cosine
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import squareform
from scipy.stats import wasserstein_distance
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits


def cosine_matrix(G: np.ndarray) -> np.ndarray:
    """All cosines ``[S, S]``; with a zero vector 0, also of itself."""
    return np.array([[cosine(a, b) for b in G] for a in G])


def _halves(apart: np.ndarray) -> np.ndarray:
    return cut_tree(linkage(squareform(apart, checks=False), "complete"), 2)[:, 0]


def _apart(G: np.ndarray) -> np.ndarray:
    apart = 1 - cosine_matrix(G)
    np.fill_diagonal(apart, 0)
    return np.maximum((apart + apart.T) / 2, 0)


def two_clusters(G: np.ndarray) -> np.ndarray:
    """Which of two clusters (0 or 1) each delta belongs to: complete linkage on ``1 - cosine``."""
    return _halves(_apart(G)) if len(G) > 1 else np.zeros(1, int)


def is_clear(G: np.ndarray, slack: float = 1e-4, trials: int = 10) -> bool:
    """Whether the clusters stay the same, but for their order, when distances change by a little."""
    if len(G) < 3:
        return True
    rng, labels, apart = np.random.default_rng(0), two_clusters(G), _apart(G)
    for _ in range(trials):
        noise = 1 + slack * rng.uniform(-1, 1, apart.shape)
        other = _halves(apart * (noise + noise.T) / 2)
        if not (np.array_equal(labels, other) or np.array_equal(labels, 1 - other)):
            return False
    return True


def clustering(G: np.ndarray, labels: np.ndarray) -> Outcome:
    """The mean of the larger cluster; of two equally large ones that with the smaller diameter, or both."""
    apart = _apart(G)
    rank = [(np.sum(labels == k), -apart[np.ix_(labels == k, labels == k)].max(initial=0)) for k in (0, 1)]
    larger = [k for k in (0, 1) if rank[k] == max(rank)]
    return average_of(G, np.flatnonzero(np.isin(labels, larger)))


def standardised(*features: np.ndarray) -> np.ndarray:
    """Features ``[S, F]`` of mean 0 and variance 1; one that is the same for all becomes 0."""
    X = np.stack(features, axis=1).astype(np.float64)
    X = X - X.mean(axis=0)
    scale = X.std(axis=0)
    return np.divide(X, scale, out=np.zeros_like(X), where=scale > 1e-12 * np.abs(np.stack(features, 1)).max(axis=0))


class Clusters(NamedTuple):
    """What k-means found: sum of squared distances to the centroids, and the distance of each point to its own."""

    inertia: float
    distance: np.ndarray


def centroids(X: np.ndarray, labels: np.ndarray) -> dict[int, np.ndarray]:
    """Mean of each cluster that has a member."""
    return {int(k): X[labels == k].mean(axis=0) for k in np.unique(labels)}


def clusters(X: np.ndarray, labels: np.ndarray) -> Clusters:
    """Measures a given assignment."""
    middle = centroids(X, labels)
    distance = np.array([np.linalg.norm(x - middle[int(k)]) for x, k in zip(X, labels, strict=True)])
    return Clusters(float((distance**2).sum()), distance)


def is_stable(X: np.ndarray, labels: np.ndarray, slack: float = 1e-5) -> bool:
    """Whether Lloyd's algorithm would leave everybody where they are: no centroid is nearer than one's own."""
    middle, own = centroids(X, labels), clusters(X, labels).distance
    others = np.array([[np.linalg.norm(x - c) for c in middle.values()] for x in X])
    return bool((own <= others.min(axis=1) + slack).all())


def best_inertia(X: np.ndarray, num_clusters: int, starts: int = 10) -> float:
    """The lowest of scikit-learn's results from several starts."""
    return _fit(X, min(num_clusters, len(np.unique(X, axis=0))), n_init=starts, random_state=0)


def lloyd_inertia(X: np.ndarray, labels: np.ndarray) -> float:
    """What scikit-learn's Lloyd iterations make of the centroids of an assignment."""
    start = np.stack(list(centroids(X, labels).values()))
    return _fit(X, len(start), init=start, n_init=1)


def _fit(X: np.ndarray, num_clusters: int, **settings) -> float:
    with threadpool_limits(1):
        return float(KMeans(num_clusters, tol=0, **settings).fit(X).inertia_)


def clusterguard(G: np.ndarray, X: np.ndarray, labels: np.ndarray) -> Outcome:
    """Softmax of ``|cluster| / (1 + distance to its centroid)``, for given clusters; ``state`` holds the scores."""
    size = np.array([(labels == k).sum() for k in labels])
    score = size / (1 + clusters(X, labels).distance)
    weight = np.exp(score - score.max())
    weight /= weight.sum()
    return outcome(G, weight @ G, weight, score)


def foolsgold(G: np.ndarray, history: np.ndarray) -> Outcome:
    """FoolsGold for the clients of a round, ``history`` ``[S, D]`` being their sums of deltas, this round included.

    Similarities below 0 count as 0. The weight of a client is its trust, kept in ``state``, divided by their number.
    """
    n = len(G)
    similarity = cosine_matrix(history) * (1 - np.eye(n))
    most = np.maximum(similarity.max(axis=1), 0)
    pardoned = similarity.copy()
    for i in range(n):
        for j in range(n):
            if most[j] > most[i]:
                pardoned[i, j] *= most[i] / most[j]
    alone = np.clip(1 - pardoned.max(axis=1), 0, 1)
    trust = np.ones(n)
    if alone.max() > 1e-12:
        with np.errstate(divide="ignore"):
            share = alone / alone.max()
            trust = np.clip(np.log(share) - np.log1p(-share) + 0.5, 0, 1)
    return outcome(G, trust @ G / n, trust / n, trust)


def foolsgold_taco(G: np.ndarray) -> Outcome:
    """The mean with weights ``max(0, cos)`` to the plain mean."""
    mean = G.mean(axis=0)
    cosines = np.array([cosine(g, mean) for g in G])
    rho = np.maximum(0.0, cosines)
    weight = rho / rho.sum() if rho.sum() > 0 else rho
    return Outcome(weight @ G, weight, cosines)


def emd_flattened(before: np.ndarray, after: np.ndarray) -> float:
    """1-D earth mover's distance between all predicted probabilities ``[N, C]`` of two models."""
    return float(wasserstein_distance(before.ravel(), after.ravel()))


def emd_class_histogram(before: np.ndarray, after: np.ndarray) -> float:
    """Earth mover's distance between two mean predicted class distributions, classes lying one apart."""
    labels = np.arange(before.shape[1])
    return float(wasserstein_distance(labels, labels, before.mean(axis=0), after.mean(axis=0)))
