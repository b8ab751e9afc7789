"""The server rules once more, in NumPy float64, written from their formulas and not from the package.

Deltas come as a matrix ``G`` ``[S, D]``, one flattened client per row. Every rule returns an
:class:`Outcome`. Rows with a non-finite entry, and rows that a mask leaves out, are dropped by
:func:`present` before a rule sees them.

What degenerate input means here, for every rule: the cosine with a zero vector is 0, and a term
that would divide by a zero norm or by a zero sum of weights is left out.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize


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


def present(G: np.ndarray, valid: np.ndarray | None = None) -> np.ndarray:
    """Mask ``[S]`` of the rows a rule may see."""
    finite = np.isfinite(G).all(axis=1)
    return finite if valid is None else finite & valid


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


def krum_scores(G: np.ndarray, num_byzantine: int) -> np.ndarray:
    """For each client the sum of its ``n - f - 2`` smallest squared distances to the others."""
    n = len(G)
    neighbours = n - num_byzantine - 2
    if neighbours < 1:
        raise ValueError(f"num_byzantine={num_byzantine}: needs n - f - 2 >= 1 with n={n}")
    scores = []
    for m in range(n):
        others = sorted(float(((G[m] - G[k]) ** 2).sum()) for k in range(n) if k != m)
        scores.append(sum(others[:neighbours]))
    return np.array(scores)


def krum(G: np.ndarray, num_byzantine: int) -> Outcome:
    """The delta with the lowest score, the first of them if several share it."""
    chosen = int(np.argmin(krum_scores(G, num_byzantine)))
    update = G[chosen]
    return Outcome(update, np.eye(len(G))[chosen], np.array([cosine(g, update) for g in G]))


def smoothed_distance_sum(z: np.ndarray, G: np.ndarray, smoothing: float) -> float:
    """``mean h(||z - g_m||)``, ``h(d) = d`` from ``smoothing`` on and the tangent parabola below it."""
    d = np.linalg.norm(G - z, axis=1)
    return float(np.mean(np.where(d >= smoothing, d, d**2 / (2 * smoothing) + smoothing / 2)))


def geometric_median(G: np.ndarray, smoothing: float = 1e-6) -> Outcome:
    """Minimiser of :func:`smoothed_distance_sum`, to about ten digits.

    Weiszfeld steps bring the point close; Newton steps with a trust region finish. A delta at which
    the unsmoothed sum already has its minimum (as when more than half of all deltas coincide there)
    is found by Vardi and Zhang's condition, since iterations approach such a point slowly.
    """
    unit = np.abs(G).max() or 1.0
    X, nu = G / unit, smoothing / unit
    corner = _optimal_delta(X) if nu < 1e-9 else None
    z = _minimise(X, nu) if corner is None else corner
    inverse = 1 / np.maximum(np.linalg.norm(X - z, axis=1), nu)
    update = z * unit
    return Outcome(update, inverse / inverse.sum(), np.array([cosine(g, update) for g in G]))


def _optimal_delta(X: np.ndarray) -> np.ndarray | None:
    """A row that minimises the sum of distances to all rows, or None."""
    for x in X:
        d = np.linalg.norm(X - x, axis=1)
        apart = d > 0
        pull = ((X[apart] - x) / d[apart, None]).sum(axis=0)
        if np.linalg.norm(pull) <= np.sum(~apart):
            return x
    return None


def _minimise(X: np.ndarray, nu: float) -> np.ndarray:
    z = X.mean(axis=0)
    for _ in range(500):
        w = 1 / np.maximum(np.linalg.norm(X - z, axis=1), nu)
        z = w @ X / w.sum()
    spread = np.linalg.norm(X - z, axis=1).max() or 1.0

    def value(u: np.ndarray) -> float:
        return smoothed_distance_sum(z + spread * u, X, nu) / spread

    def gradient(u: np.ndarray) -> np.ndarray:
        apart = z + spread * u - X
        w = 1 / np.maximum(np.linalg.norm(apart, axis=1), nu)
        return (w[:, None] * apart).mean(axis=0)

    def hessian(u: np.ndarray) -> np.ndarray:
        apart = z + spread * u - X
        d = np.linalg.norm(apart, axis=1)
        w = spread / np.maximum(d, nu)
        outside = np.where(d > nu, w / np.maximum(d, nu) ** 2, 0.0)
        return (np.eye(X.shape[1]) * w.sum() - np.einsum("s,si,sj->ij", outside, apart, apart)) / len(X)

    found = minimize(value, np.zeros(X.shape[1]), jac=gradient, hess=hessian, method="trust-exact", tol=1e-13)
    return z + spread * found.x


def rounds(
    rule: Callable[..., Outcome],
    theta: np.ndarray,
    cohort_deltas: list[np.ndarray],
    valid: list[np.ndarray] | None = None,
) -> tuple[list[np.ndarray], list[Outcome | None]]:
    """Runs ``rule(G, state, round) -> Outcome`` over rounds, dropping the rows that are not there.

    Returns:
      Parameters after every round, and outcomes: None for a round without a usable delta, which
      changes neither parameters nor state.
    """
    state, history, outcomes = None, [], []
    for t, G in enumerate(cohort_deltas):
        seen = present(G, None if valid is None else valid[t])
        outcome = rule(G[seen], state, t) if seen.any() else None
        if outcome is not None:
            theta, state = theta + outcome.update, outcome.state
        history.append(theta)
        outcomes.append(outcome)
    return history, outcomes


class ScaffoldState(NamedTuple):
    """Server's and clients' control variates, ``[D]`` and ``[M, D]``."""

    server: np.ndarray
    clients: np.ndarray


def scaffold_round(
    theta: np.ndarray,
    state: ScaffoldState,
    cohort: np.ndarray,
    gradient: Callable[[int, np.ndarray], np.ndarray],
    *,
    local_steps: int,
    step_size: float,
    a: float = 1.0,
    server_step_size: float = 1.0,
    lost: frozenset[int] = frozenset(),
) -> tuple[np.ndarray, ScaffoldState]:
    """One SCAFFOLD round with option II; messages of the clients in ``lost`` never arrive."""
    deltas, changes = [], []
    variates = state.clients.copy()
    for m in cohort:
        w = theta.copy()
        for _ in range(local_steps):
            w = w - step_size * (gradient(int(m), w) + a * (state.server - state.clients[m]))
        if int(m) in lost:
            continue
        delta = w - theta
        new = state.clients[m] - state.server - delta / (local_steps * step_size)
        deltas.append(delta)
        changes.append(new - state.clients[m])
        variates[m] = new
    if not deltas:
        return theta, state
    server = state.server + len(deltas) / len(variates) * np.mean(changes, axis=0)
    return theta + server_step_size * np.mean(deltas, axis=0), ScaffoldState(server, variates)


def sign_flip(G: np.ndarray, malicious: np.ndarray, scale: float) -> np.ndarray:
    """``g <- -s g`` for the malicious rows."""
    return np.where(malicious[:, None], -scale * G, G)


def label_flip(y: np.ndarray, flipped: np.ndarray, num_classes: int) -> np.ndarray:
    """``y <- C - 1 - y`` where ``flipped``."""
    return np.where(flipped, num_classes - 1 - y, y)
