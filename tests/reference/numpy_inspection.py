"""HDBSCAN, and rules that look at output layers, predictions and representations: NumPy in float64, from the papers.

The model of these tests is one hidden layer of tanh: parameters ``{"hidden": {"kernel", "bias"}, "out": ...}``.
"""

import itertools

import numpy as np
from sklearn.cluster import KMeans
from sklearn.metrics.pairwise import cosine_similarity, rbf_kernel


def hidden(w, x):
    """The representation of inputs ``[N, d]``."""
    return np.tanh(x @ w["hidden"]["kernel"] + w["hidden"]["bias"])


def probabilities(w, x):
    """Softmax of the outputs, ``[N, C]``."""
    logits = hidden(w, x) @ w["out"]["kernel"] + w["out"]["bias"]
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


def components(members, linked):
    """Groups of members that ``linked(i, j)`` connects."""
    left, found = set(members), []
    while left:
        group, edge = set(), [min(left)]
        while edge:
            i = edge.pop()
            if i not in group:
                group.add(i)
                edge += [j for j in left if j not in group and linked(i, j)]
        found.append(group)
        left -= group
    return found


def hdbscan(apart, min_cluster_size, min_samples):
    """HDBSCAN* from the top: all edges of one length are taken away together; labels ``[n]``, -1 for noise.

    Campello, Moulavi and Sander, 2013, Algorithms 1 to 3, with the root left out of the selection.
    """
    n = len(apart)
    neighbours = [np.sort(np.delete(apart[i], i)) for i in range(n)]
    core = np.array([near[min(min_samples, n - 1) - 1] if len(near) else 0.0 for near in neighbours])
    reach = np.maximum(apart, np.maximum.outer(core, core))

    def holding(group):
        """The least distance within which a group is connected."""
        for length in sorted({reach[i, j] for i, j in itertools.combinations(group, 2)}):
            if len(components(group, lambda i, j, length=length: reach[i, j] <= length)) == 1:
                return length
        raise AssertionError

    def explored(group, birth):
        """Stability of the cluster that begins as ``group``, and the best clusters inside with theirs."""
        stability, now = 0.0, group
        while True:
            length = holding(now)
            rate = 1 / length if length > 0 else np.inf
            parts = components(now, lambda i, j, length=length: reach[i, j] < length)
            large = [part for part in parts if len(part) >= min_cluster_size]
            if len(large) != 1:
                break
            stability += (len(now) - len(large[0])) * (rate - birth)
            now = large[0]
        stability += len(now) * (rate - birth)
        best, total = [], 0.0
        for part in large:
            own, inside, within = explored(part, rate)
            best += [part] if own >= within else inside
            total += max(own, within)
        return stability, best, total

    labels = np.full(n, -1)
    if n >= min_cluster_size:
        for group in explored(set(range(n)), 0.0)[1]:
            labels[list(group)] = min(group)
    return labels


def together(labels):
    """Who is in the same cluster, ``[n, n]``; noise with itself."""
    n = len(labels)
    return np.array([[i == j or (labels[i] == labels[j] and labels[i] >= 0) for j in range(n)] for i in range(n)])


def energies(delta):
    """A client's normalised update energies ``[C]`` and its threshold exceedings."""
    energy = np.abs(delta["out"]["bias"]) + np.abs(delta["out"]["kernel"]).sum(axis=0)
    normalised = energy**2 / (energy**2).sum()
    return normalised, int((normalised > max(0.01, 1 / len(energy)) * normalised.max()).sum())


def cosine_apart(a, b):
    """``1 - cos``."""
    return 1 - a @ b / (np.linalg.norm(a) * np.linalg.norm(b))


def pairwise(distance, rows):
    """A distance of all pairs ``[n, n]``."""
    return np.array([[0.0 if i == j else distance(a, b) for j, b in enumerate(rows)] for i, a in enumerate(rows)])


def deepsight(w, models, deltas, inputs, threshold, min_cluster_size, min_samples):
    """Accepted clients ``[n]`` bool, and the threshold exceedings ``[n]``.

    Args:
      w: the global parameters.
      models: those of each client.
      deltas: of each client.
      inputs: K sets of random inputs ``[N, d]``.
      threshold: the paper's tau.
      min_cluster_size: of HDBSCAN.
      min_samples: of HDBSCAN.
    """

    def clustered(apart):
        return together(hdbscan(apart, min_cluster_size, min_samples))

    normalised, exceeding = zip(*[energies(delta) for delta in deltas], strict=True)
    suspicious = np.array(exceeding) <= np.median(exceeding) / 2
    euclidean = lambda a, b: np.linalg.norm(a - b)
    by_bias = clustered(pairwise(cosine_apart, [delta["out"]["bias"] for delta in deltas]))
    by_energy = clustered(pairwise(euclidean, normalised))
    by_difference = []
    for x in inputs:
        before = probabilities(w, x)
        differences = [(probabilities(model, x) / before).mean(axis=0) for model in models]
        by_difference.append(1.0 - clustered(pairwise(euclidean, differences)))
    merged = ((1.0 - by_bias) + (1.0 - by_energy) + np.mean(by_difference, axis=0)) / 3
    groups = clustered(np.round(merged, 12))
    return np.array([suspicious[group].mean() < threshold for group in groups]), np.array(exceeding)


def discrepancy(X, Y, gamma):
    """The unbiased estimate of the squared maximum mean discrepancy of two sets of rows."""
    m, n = len(X), len(Y)
    inside = [(rbf_kernel(Z, gamma=gamma).sum() - len(Z)) / (len(Z) * (len(Z) - 1)) for Z in (X, Y)]
    return sum(inside) - 2 * rbf_kernel(X, Y, gamma=gamma).sum() / (m * n)


def flare(apart, temperature):
    """How often each client is among the nearest of another, and the weights."""
    n, count = len(apart), np.zeros(len(apart))
    for i in range(n):
        others = sorted((j for j in range(n) if j != i), key=lambda j: apart[i, j])
        for j in others[: max(n // 2 - 1, 0)]:
            count[j] += 1
    if not count.any():
        return count, np.full(n, 1 / n)
    share = np.exp(count / (temperature * count.mean()))
    return count, share / share.sum()


def principal_coordinates(G):
    """The first two, from the singular value decomposition."""
    offsets = G - G.mean(axis=0)
    return offsets @ np.linalg.svd(offsets, full_matrices=False)[2][:2].T


def near(points, factor):
    """Whose distances to all others sum to at most ``factor`` times the median of these sums."""
    total = np.array([sum(np.linalg.norm(p - q) for q in points) for p in points])
    return total <= factor * np.median(total)


def gap_number(points, uniform, most):
    """The number of clusters by the gap statistic of Tibshirani, Walther and Hastie.

    Args:
      points: ``[n, 2]``.
      uniform: reference samples ``[B, n, 2]`` in [0, 1].
      most: the greatest number.
    """
    n = len(points)

    def log_inertia(X, k):
        return np.log(KMeans(k, n_init=5, random_state=0).fit(X).inertia_)

    scaled = (points - points.min(axis=0)) / np.ptp(points, axis=0)
    gap, slack = [], []
    for k in range(1, min(most + 2, n)):
        expected = [log_inertia(sample, k) for sample in uniform]
        gap.append(np.mean(expected) - log_inertia(scaled, k))
        slack.append(np.std(expected) * np.sqrt(1 + 1 / len(uniform)))
    for k in range(1, min(most, n - 2) + 1):
        if gap[k - 1] >= gap[k] - slack[k]:
            return k
    return min(most, n - 1)


def rfl_bat(G, uniform, outer, inner, most):
    """Places of the clients that are averaged; ``uniform`` ``(n) -> [B, n, 2]``."""
    points = principal_coordinates(G)
    kept = np.flatnonzero(near(points, outer))
    k = gap_number(points[kept], uniform(len(kept)), most)
    label = KMeans(k, n_init=5, random_state=0).fit(points[kept]).labels_
    middle = []
    for cluster in range(k):
        rows = G[kept[label == cluster]]
        middle.append(1.0 if len(rows) == 1 else np.median(cosine_similarity(rows).mean(axis=1)))
    members = kept[label == int(np.argmin(middle))]
    return members[near(points[members], inner)]
