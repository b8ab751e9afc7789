"""Robust and other simple rules once more, in NumPy float64, written from their formulas and not from the package.

Deltas come as in :mod:`reference.numpy_rules`: a matrix ``G`` ``[S, D]`` of the clients that count, one a row.
Rules that choose clients come in two parts, so that a choice between equals can be checked instead of repeated: the
scores, and what follows from the choice.
"""

import functools
from typing import NamedTuple

import numpy as np
from reference.numpy_rules import Outcome, cosine
from scipy.optimize import minimize


def outcome(G: np.ndarray, update: np.ndarray, weight: np.ndarray | None = None, state=None) -> Outcome:
    """An outcome whose cosines are those to the update."""
    weight = np.full(len(G), np.nan) if weight is None else weight
    return Outcome(update, weight, np.array([cosine(g, update) for g in G]), state)


def squared_distances(G: np.ndarray) -> np.ndarray:
    """``||g_m - g_k||^2`` as ``[S, S]``."""
    return np.array([((G - g) ** 2).sum(axis=1) for g in G])


def krum_scores(G: np.ndarray, neighbours: int) -> np.ndarray:
    """For each client the sum of its smallest squared distances to others."""
    apart = squared_distances(G)
    np.fill_diagonal(apart, np.inf)
    return np.sort(apart, axis=1)[:, :neighbours].sum(axis=1)


def multi_krum_scores(G: np.ndarray, num_byzantine: int) -> np.ndarray:
    """Krum's scores; at least one neighbour counts, and at most all others."""
    n = len(G)
    return krum_scores(G, min(max(n - num_byzantine - 2, 1), n - 1))


def average_of(G: np.ndarray, chosen: np.ndarray) -> Outcome:
    """The mean of some rows."""
    weight = np.zeros(len(G))
    weight[chosen] = 1 / len(chosen)
    return outcome(G, G[chosen].mean(axis=0), weight)


def trimmed_mean(G: np.ndarray, trim_fraction: float) -> Outcome:
    """Of every coordinate the mean without the ``floor(beta n)`` lowest and highest values."""
    n = len(G)
    cut = int(np.floor(trim_fraction * n + 1e-9))
    return outcome(G, np.sort(G, axis=0)[cut : n - cut].mean(axis=0))


def bulyan_choice_is_greedy(G: np.ndarray, chosen: np.ndarray, num_byzantine: int, slack: float = 1e-5) -> bool:
    """Whether ``chosen`` is what repeated Krum can choose, one client at a time, each among those that are left.

    A score counts as the lowest within ``slack``, and any order of those that tie is tried; the last steps, which have
    fewer than ``f + 3`` clients to choose from, still sum over one neighbour.
    """
    everybody, wanted = range(len(G)), frozenset(map(int, chosen))

    @functools.cache
    def reachable(taken: frozenset[int]) -> bool:
        if taken == wanted:
            return True
        left = [m for m in everybody if m not in taken]
        scores = krum_scores(G[left], min(max(len(left) - num_byzantine - 2, 1), len(left) - 1))
        lowest = {left[i] for i in np.flatnonzero(scores <= scores.min() * (1 + slack))} & wanted
        different = {G[m].tobytes(): m for m in lowest}.values()  # it does not matter which of equal rows goes first
        return any(reachable(taken | {m}) for m in different)

    return reachable(frozenset())


def bulyan_bounds(chosen: np.ndarray, keep: int, slack: float = 1e-6) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest possible mean, coordinate by coordinate, of the ``keep`` values nearest to the median.

    The two differ only where several values are equally far from the median, up to ``slack`` of the largest value.
    """
    middle = np.median(chosen, axis=0)
    bounds = []
    for sign in (1.0, -1.0):
        columns = []
        for values, centre in zip(chosen.T, middle, strict=True):
            distance = abs(values - centre)
            margin = slack * abs(values).max()
            reach = np.sort(distance)[keep - 1]
            inside = values[distance < reach - margin]
            at_the_edge = np.sort(sign * values[abs(distance - reach) <= margin])[: keep - len(inside)]
            columns.append((inside.sum() + sign * at_the_edge.sum()) / keep)
        bounds.append(np.array(columns))
    return bounds[0], bounds[1]


def nearest(G: np.ndarray, count: int) -> tuple[np.ndarray, float]:
    """Mask ``[S, S]`` of each row's ``count`` nearest rows, itself included, and how clear the choice is.

    Clearness is the smallest relative gap between the last neighbour and the first that is none, over pairs of
    different rows; infinite where the choice makes no difference.
    """
    apart, n = squared_distances(G), len(G)
    mask, clearness = np.zeros((n, n)), np.inf
    for m in range(n):
        order = np.argsort(apart[m], kind="stable")
        mask[m, order[:count]] = 1
        if count < n:
            last, first = order[count - 1], order[count]
            if not np.array_equal(G[last], G[first]):
                clearness = min(clearness, float(1 - apart[m, last] / apart[m, first]))
    return mask, clearness


def group_means(G: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Means of the rows of each group; ``groups`` ``[S]`` says who belongs where, groups of nobody vanish."""
    return np.stack([G[groups == k].mean(axis=0) for k in np.unique(groups)])


def centered_clipping(G: np.ndarray, centre: np.ndarray | None, radius: float, iterations: int) -> Outcome:
    """Clips the deltas to a ball around last round's result and averages; the result is the next centre."""
    v = np.zeros(G.shape[1]) if centre is None else centre
    for _ in range(iterations):
        apart = np.linalg.norm(G - v, axis=1)
        v = v + np.mean([min(1.0, radius / d) * (g - v) if d > 0 else 0 * v for g, d in zip(G, apart, strict=True)], 0)
    return outcome(G, v, state=v)


def norm_clipping(G: np.ndarray, max_norm: float) -> Outcome:
    """The mean of the deltas, each shortened to ``max_norm`` if longer."""
    norms = np.linalg.norm(G, axis=1)
    weight = np.minimum(1.0, np.divide(max_norm, norms, out=np.ones(len(G)), where=norms > 0)) / len(G)
    return outcome(G, weight @ G, weight)


def signsgd_majority(G: np.ndarray, step_size: float) -> Outcome:
    """A fixed step in the direction that most signs agree on; none where they balance."""
    return outcome(G, step_size * np.sign(np.sign(G).sum(axis=0)))


def fedexp(G: np.ndarray, eps: float) -> Outcome:
    """The mean, made longer where the deltas disagree."""
    mean = G.mean(axis=0)
    below = 2 * len(G) * (mean @ mean + eps)
    step = max(1.0, float((G**2).sum() / below)) if below > 0 else 1.0
    return outcome(G, step * mean, np.full(len(G), step / len(G)), step)


def root_only(G: np.ndarray, root: np.ndarray) -> Outcome:
    """The root delta, whatever the clients sent."""
    return outcome(G, root, np.zeros(len(G)))


class Median(NamedTuple):
    """A weighted geometric median: the point, and the coefficient of every row in it."""

    point: np.ndarray
    weight: np.ndarray


def distance_sum(z: np.ndarray, G: np.ndarray, p: np.ndarray, smoothing: float) -> float:
    """``sum p_m h(||z - g_m||)``, ``h(d) = d`` from ``smoothing`` on and the tangent parabola below."""
    d = np.linalg.norm(G - z, axis=1)
    return float(p @ np.where(d >= smoothing, d, d**2 / (2 * smoothing) + smoothing / 2))


def geometric_median(
    G: np.ndarray, p: np.ndarray | None = None, smoothing: float = 1e-6, near: np.ndarray | None = None
) -> Median:
    """Minimiser of :func:`distance_sum`: by Newton steps, from the row that minimises the
    unsmoothed sum (Vardi and Zhang's condition) if there is one, otherwise from ``near`` if it is given.
    """
    p = np.full(len(G), 1 / len(G)) if p is None else p / p.sum()
    unit = np.abs(G).max() or 1.0
    X, nu = G / unit, smoothing / unit
    row = _at_a_row(X, p, nu)
    start = near / unit if row is None and near is not None else row
    z = row if row is not None and nu < 1e-9 else _minimise(X, p, nu, start)
    weight = p / np.maximum(np.linalg.norm(X - z, axis=1), max(nu, 1e-300))
    return Median(z * unit, weight / weight.sum())


def median_rounding(z: np.ndarray, G: np.ndarray, p: np.ndarray, smoothing: float = 1e-6) -> float:
    """How far the median ``z`` moves when every unit vector to a row is off by a few float32 roundings.

    These are relative to the rows' coordinates, so that close rows far from the origin have the worst directions. Where
    the sum of distances is flat, as between two rows, the answer is large.
    """
    d = np.maximum(np.linalg.norm(G - z, axis=1), smoothing)
    u = np.where((d > smoothing)[:, None], (G - z) / d[:, None], 0.0)
    curvature = np.eye(G.shape[1]) * (p / d).sum() - np.einsum("s,si,sj->ij", p / d, u, u)
    noise = 3e-7 * p @ (1 + np.linalg.norm(z) / d)
    return float(noise / max(np.linalg.eigvalsh(curvature)[0], 1e-30))


def _at_a_row(X: np.ndarray, p: np.ndarray, nu: float) -> np.ndarray | None:
    """Where the row that minimises the unsmoothed sum leaves the smoothed minimum: within ``nu`` of it."""
    for x in X[p > 0]:
        d = np.linalg.norm(X - x, axis=1)
        apart = d > 0
        pull, mass = (p[apart, None] * (X[apart] - x) / d[apart, None]).sum(axis=0), p[~apart].sum()
        if np.linalg.norm(pull) < mass * (1 - 1e-9):  # between two equals all is best: leave the middle
            return x + nu * pull / mass
    return None


def _minimise(X: np.ndarray, p: np.ndarray, nu: float, start: np.ndarray | None) -> np.ndarray:
    z = weiszfeld(X, p, nu, 300) if start is None else start
    spread = np.linalg.norm((X - z)[p > 0], axis=1).max() or 1.0

    def parts(u):
        apart = z + spread * u - X
        d = np.linalg.norm(apart, axis=1)
        return apart, d, p / np.maximum(d, nu)

    def gradient(u):
        apart, _, w = parts(u)
        return w @ apart

    def hessian(u):
        apart, d, w = parts(u)
        outside = np.where(d > nu, w / np.maximum(d, nu) ** 2, 0.0)
        return spread * (np.eye(X.shape[1]) * w.sum() - np.einsum("s,si,sj->ij", outside, apart, apart))

    def value(u):
        return distance_sum(z + spread * u, X, p, nu) / spread

    found = minimize(value, np.zeros(X.shape[1]), jac=gradient, hess=hessian, method="trust-exact", tol=1e-13)
    return z + spread * found.x


def weiszfeld(G: np.ndarray, p: np.ndarray, smoothing: float, steps: int, from_zero: bool = False) -> np.ndarray:
    """So many smoothed Weiszfeld steps from the weighted mean, or from zero."""
    z = np.zeros(G.shape[1]) if from_zero else p @ G / p.sum()
    for _ in range(steps):
        w = p / np.maximum(np.linalg.norm(G - z, axis=1), smoothing)
        z = w @ G / w.sum()
    return z


def fill(distances: np.ndarray, lam: float) -> np.ndarray:
    """``alpha_m = max(0, eta - d_m) / lam`` on the simplex: the level ``eta`` by bisection."""
    low, high = distances.min(), distances.min() + lam
    for _ in range(200):
        level = (low + high) / 2
        low, high = (level, high) if np.maximum(0, level - distances).sum() < lam else (low, level)
    alpha = np.maximum(0, high - distances)
    if alpha.sum() == 0:  # the level is not above the smallest of huge distances by as much as a rounding
        alpha = (distances == distances.min()).astype(float)
    return alpha / alpha.sum()


def autogm(G: np.ndarray, lam: float, alternations: int = 500, smoothing: float = 1e-6) -> Outcome:
    """Alternates between the weighted geometric median and the weights, from equal weights, until nothing changes."""
    alpha, point = np.full(len(G), 1 / len(G)), None
    for _ in range(alternations):
        found = geometric_median(G, alpha, smoothing, near=point)
        point = found.point
        after = fill(np.linalg.norm(G - found.point, axis=1), lam)
        done = abs(after - alpha).max() < 1e-13
        alpha = after
        if done:
            break
    return outcome(G, found.point, found.weight, alpha)
