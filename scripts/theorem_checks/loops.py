"""DRAG and TACO as plain loops, on quadratic losses whose gradients have no noise; all clients in each round.

The loss of client i is ``a_i ||theta - z_i||^2 / 2``.
"""

import functools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

MINIMA = np.random.default_rng(0).normal(size=(4, 3))
"""``z_i``, ``[M, d]``."""

CURVATURES = np.array([1.0, 0.7, 0.4, 0.1])[:, None]
"""``a_i``, ``[M, 1]``."""


def gradients(theta: np.ndarray) -> np.ndarray:
    """Of each client ``[M, d]``, at one theta ``[d]`` or at that of each client ``[M, d]``."""
    return CURVATURES * (theta - MINIMA)


def squared_gradient(theta: np.ndarray) -> float:
    """``||grad f(theta)||^2`` of the mean loss."""
    return float((gradients(theta).mean(0) ** 2).sum())


def _norm(vectors: np.ndarray) -> np.ndarray:
    """Norms along the last axis; without BLAS, so that oscillations are the same on each machine."""
    return np.sqrt((vectors**2).sum(-1, keepdims=True))


@functools.cache
def drag(c: float, step_size: float, alpha: float = 0.25) -> float:
    """The squared gradient norm at the end of DRAG with ``U = 1``: mean of the last quarter of ``40 / eta`` rounds."""
    theta, reference, squares = np.full(3, 3.0), None, []
    for _ in range(round(40 / step_size)):
        squares.append(squared_gradient(theta))
        updates = -step_size * gradients(theta)
        reference = updates.mean(0) if reference is None else reference
        norms, unit = _norm(updates), reference / _norm(reference)
        pull = c * (1 - (updates * unit).sum(1, keepdims=True) / norms)
        update = ((1 - pull) * updates + pull * norms * unit).mean(0)
        reference, theta = (1 - alpha) * reference + alpha * update, theta + update
    return float(np.mean(squares[-len(squares) // 4 :]))


class TacoRound(NamedTuple):
    """A round of TACO in the words of its paper, in which updates and ``Delta`` point uphill.

    Attributes:
      before: ``Delta_t``.
      after: ``Delta_(t+1)``.
      plain: ``Delta~_t``, the mean gradient over clients and local steps.
      alpha: mean of the ``alpha_i^t``.
      next_alpha: mean of the ``alpha_i^(t+1)``.
      z: ``z_t``.
      next_z: ``z_(t+1)``.
    """

    before: np.ndarray
    after: np.ndarray
    plain: np.ndarray
    alpha: float
    next_alpha: float
    z: np.ndarray
    next_z: np.ndarray


def taco(
    rounds: int, gamma: float, tailored: bool, local_step: float = 0.1, server_step: float = 0.3, local_steps: int = 5
) -> Iterator[TacoRound]:
    """The rounds of TACO.

    Args:
      rounds: T.
      gamma: strength of the correction.
      tailored: weigh the clients by their coefficients, as equation 9; else equally.
      local_step: ``eta_l``.
      server_step: ``eta_g``.
      local_steps: K.
    """
    old = theta = np.full(3, 3.0)
    direction, alphas = np.zeros(3), np.full(len(MINIMA), 0.1)
    for _ in range(rounds):
        local, passed = np.tile(theta, (len(MINIMA), 1)), np.zeros_like(MINIMA)
        for _ in range(local_steps):
            gradient = gradients(local)
            passed += gradient / local_steps
            local = local - local_step * (gradient + gamma * (1 - alphas)[:, None] * direction)
        updates = theta - local
        norms, mean = np.linalg.norm(updates, axis=1), updates.mean(0)
        cosine = updates @ mean / (norms * np.linalg.norm(mean))
        next_alphas = (1 - norms / norms.sum()) * np.maximum(cosine, 0)
        weights = next_alphas if tailored else np.ones(len(MINIMA))
        after = weights @ updates / (local_steps * local_step * weights.sum())
        new = theta - server_step * after
        z, next_z = (w + (1 - a.mean()) * (w - v) for v, w, a in ((old, theta, alphas), (theta, new, next_alphas)))
        yield TacoRound(direction, after, passed.mean(0), alphas.mean(), next_alphas.mean(), z, next_z)
        old, theta, direction, alphas = theta, new, after, next_alphas
