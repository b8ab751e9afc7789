"""The methods with own models once more: whole runs in NumPy float64, written from their formulas.

A method is a generator over the cohorts of a run: it yields, after each round, the global parameters ``[D]``, and
the own models of all clients ``[M, D]``. Every local step is on all of a client's examples.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

Outcome = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Work:
    """What all methods are told.

    Attributes:
      gradients: of each client its gradient ``(w, which)`` of the mean loss on its examples ``which``, a slice.
      cohorts: the clients of each round.
      steps: U.
      step_size: eta.
      head: ``[D]`` bool, the parameters of the upper layer.
    """

    gradients: list[Callable[..., np.ndarray]]
    cohorts: list[list[int]]
    steps: int
    step_size: float
    head: np.ndarray

    @property
    def clients(self) -> range:
        return range(len(self.gradients))


def local_only(theta: np.ndarray, work: Work) -> Iterator[Outcome]:
    """Gradient descent of each client by itself."""
    v = dict.fromkeys(work.clients, theta)
    for cohort in work.cohorts:
        for m in cohort:
            for _ in range(work.steps):
                v[m] = v[m] - work.step_size * work.gradients[m](v[m])
        yield theta, np.array([v[m] for m in work.clients])


def fine_tune(theta: np.ndarray, work: Work, *, steps: int, step_size: float) -> Iterator[Outcome]:
    """FedAvg, and some more steps from its model."""
    for cohort in work.cohorts:
        ends = []
        for m in cohort:
            w = theta
            for _ in range(work.steps):
                w = w - work.step_size * work.gradients[m](w)
            ends.append(w)
        theta = np.mean(ends, axis=0)

        models = []
        for m in work.clients:
            w = theta
            for _ in range(steps):
                w = w - step_size * work.gradients[m](w)
            models.append(w)
        yield theta, np.array(models)


def at_home(theta: np.ndarray, work: Work, *, home: np.ndarray, head_steps: int = 0) -> Iterator[Outcome]:
    """The parameters ``home`` stay with the clients; with ``head_steps`` they move first, the others afterwards."""
    own = dict.fromkeys(work.clients, theta[home])
    for cohort in work.cohorts:
        ends = []
        for m in cohort:
            w = theta.copy()
            w[home] = own[m]
            for k in range(work.steps):
                gradient = work.gradients[m](w)
                if head_steps:
                    gradient[~home if k < head_steps else home] = 0
                w = w - work.step_size * gradient
            own[m] = w[home]
            ends.append(w)
        theta = np.where(home, theta, np.mean(ends, axis=0))

        models = np.tile(theta, (len(own), 1))
        models[:, home] = [own[m] for m in work.clients]
        yield theta, models


def fedper(theta: np.ndarray, work: Work) -> Iterator[Outcome]:
    """The head stays."""
    return at_home(theta, work, home=work.head)


def lg_fedavg(theta: np.ndarray, work: Work) -> Iterator[Outcome]:
    """The representation stays."""
    return at_home(theta, work, home=~work.head)


def fedrep(theta: np.ndarray, work: Work, *, head_steps: int) -> Iterator[Outcome]:
    """The head stays, and moves first."""
    return at_home(theta, work, home=work.head, head_steps=head_steps)


def ditto(theta: np.ndarray, work: Work, *, lam: float) -> Iterator[Outcome]:
    """A second model of each client, held near where the round began."""
    v = dict.fromkeys(work.clients, theta)
    for cohort in work.cohorts:
        ends = []
        for m in cohort:
            w = theta
            for _ in range(work.steps):
                w = w - work.step_size * work.gradients[m](w)
                v[m] = v[m] - work.step_size * (work.gradients[m](v[m]) + lam * (v[m] - theta))
            ends.append(w)
        theta = np.mean(ends, axis=0)
        yield theta, np.array([v[m] for m in work.clients])


def pfedme(theta: np.ndarray, work: Work, *, lam: float, inner_steps: int, inner_step_size: float) -> Iterator[Outcome]:
    """Steps on the Moreau envelope."""
    own = dict.fromkeys(work.clients, theta)
    for cohort in work.cohorts:
        ends = []
        for m in cohort:
            w = near = theta
            for _ in range(work.steps):
                for _ in range(inner_steps):
                    near = near - inner_step_size * (work.gradients[m](near) + lam * (near - w))
                w = w - work.step_size * lam * (w - near)
            own[m] = near
            ends.append(w)
        theta = np.mean(ends, axis=0)
        yield theta, np.array([own[m] for m in work.clients])


def per_fedavg(
    theta: np.ndarray, work: Work, *, alpha: float, variant: str = "first_order", delta: float = 1e-3
) -> Iterator[Outcome]:
    """MAML on the halves of the examples; the product with the Hessian as a central difference."""
    even, odd = slice(0, None, 2), slice(1, None, 2)
    for cohort in work.cohorts:
        ends = []
        for m in cohort:
            w, f = theta, work.gradients[m]
            for _ in range(work.steps):
                meta = f(w - alpha * f(w, even), odd)
                if variant == "hessian_free":
                    meta = meta - alpha * (f(w + delta * meta, even) - f(w - delta * meta, even)) / (2 * delta)
                w = w - work.step_size * meta
            ends.append(w)
        theta = np.mean(ends, axis=0)
        yield theta, np.array([theta - alpha * work.gradients[m](theta) for m in work.clients])


def apfl(theta: np.ndarray, work: Work, *, alpha: float, adaptive: bool = False) -> Iterator[Outcome]:
    """A mixture; its share takes one step a round, where the round begins."""
    v, share = dict.fromkeys(work.clients, theta), dict.fromkeys(work.clients, alpha)
    for cohort in work.cohorts:
        ends = []
        for m in cohort:
            w, a = theta, share[m]
            if adaptive:
                slope = (v[m] - w) @ work.gradients[m](a * v[m] + (1 - a) * w)
                share[m] = float(np.clip(a - work.step_size * slope, 0, 1))
            for _ in range(work.steps):
                mixed = a * v[m] + (1 - a) * w
                v[m] = v[m] - work.step_size * a * work.gradients[m](mixed)
                w = w - work.step_size * work.gradients[m](w)
            ends.append(w)
        theta = np.mean(ends, axis=0)

        yield theta, np.array([share[m] * v[m] + (1 - share[m]) * theta for m in work.clients])
