"""The methods with a client part once more: whole runs in NumPy float64, written from their formulas.

A method is a generator: it reads like the listing in its paper and yields, after each round, the global parameters
and what it remembers. Parameters are vectors ``[D]``; per-client memory has a row for each of the M clients. A delta
is local minus global.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Gradient = Callable[[np.ndarray], np.ndarray]
Outcome = tuple[np.ndarray, dict[str, np.ndarray]]


@dataclass(frozen=True)
class Round:
    """What happens in a round, whatever the method.

    Attributes:
      number: t, from 0.
      heard: the clients whose messages arrive and count.
      batches: for each of them the gradients ``w -> grad f_m(w, xi_k)`` on the K mini-batches of its local pass.
      step_size: eta.
    """

    number: int
    heard: tuple[int, ...]
    batches: dict[int, list[Gradient]]
    step_size: float


def run(method: Callable[..., Iterator[Outcome]], theta: np.ndarray, rounds: Iterable[Round], **settings: Any) -> Any:
    """What ``method`` yields after every round; one in which nobody is heard (not the first) leaves all as it was."""
    rounds = list(rounds)
    outcomes = method(theta, [r for r in rounds if r.heard], **settings)
    outcome = None
    for r in rounds:
        outcome = next(outcomes) if r.heard else outcome
        yield outcome


class Softmax:
    """Softmax regression: linear scores of F features for C classes, each client with n examples of its own."""

    features, classes = 3, 4
    size = features * classes + classes

    def __init__(self, rng: np.random.Generator, num_clients: int, num_examples: int = 9):
        centre = rng.normal(size=(num_clients, 1, self.features))  # other features and other labels for each client
        self.x = centre + rng.normal(size=(num_clients, num_examples, self.features))
        taste = rng.dirichlet(np.full(self.classes, 0.5), num_clients)
        self.y = np.stack([rng.choice(self.classes, num_examples, p=p) for p in taste])

    def gradient(self, m: int, places: np.ndarray) -> Gradient:
        """Of the mean cross entropy over the client's examples at ``places``."""
        x, truth = self.x[m, places], np.eye(self.classes)[self.y[m, places]]

        def at(w: np.ndarray) -> np.ndarray:
            kernel = w[: -self.classes].reshape(self.features, self.classes)
            scores = x @ kernel + w[-self.classes :]
            likelihood = np.exp(scores - scores.max(axis=1, keepdims=True))
            excess = (likelihood / likelihood.sum(axis=1, keepdims=True) - truth) / len(x)
            return np.concatenate([(x.T @ excess).ravel(), excess.sum(axis=0)])

        return at


def fedavg(theta: np.ndarray, rounds: list[Round]) -> Iterator[Outcome]:
    """``theta += mean g``."""
    for r in rounds:
        ends = []
        for m in r.heard:
            w = theta
            for gradient in r.batches[m]:
                w = w - r.step_size * gradient(w)
            ends.append(w)
        theta = np.mean(ends, axis=0)
        yield theta, {}


def fedprox(theta: np.ndarray, rounds: list[Round], *, mu: float) -> Iterator[Outcome]:
    """Each step is pulled to where the pass began."""
    for r in rounds:
        ends = []
        for m in r.heard:
            w = theta
            for gradient in r.batches[m]:
                w = w - r.step_size * (gradient(w) + mu * (w - theta))
            ends.append(w)
        theta = np.mean(ends, axis=0)
        yield theta, {}


def fedsam(theta: np.ndarray, rounds: list[Round], *, rho: float) -> Iterator[Outcome]:
    """The gradient is taken at a distance ``rho`` uphill, on the same mini-batch."""
    for r in rounds:
        ends = []
        for m in r.heard:
            w = theta
            for gradient in r.batches[m]:
                uphill = gradient(w)
                w = w - r.step_size * gradient(w + rho * uphill / np.linalg.norm(uphill))
            ends.append(w)
        theta = np.mean(ends, axis=0)
        yield theta, {}


def fednova(theta: np.ndarray, rounds: list[Round]) -> Iterator[Outcome]:
    """Deltas per local step, times the mean number of steps."""
    for r in rounds:
        per_step, steps = [], []
        for m in r.heard:
            w = theta
            for gradient in r.batches[m]:
                w = w - r.step_size * gradient(w)
            steps.append(len(r.batches[m]))
            per_step.append((w - theta) / steps[-1])
        theta = theta + np.mean(steps) * np.mean(per_step, axis=0)
        yield theta, {}


def scaffold(
    theta: np.ndarray, rounds: list[Round], *, num_clients: int, a: float = 1.0, server_step_size: float = 1.0
) -> Iterator[Outcome]:
    """Control variates with option II."""
    server, own = np.zeros_like(theta), np.zeros((num_clients, theta.size))
    for r in rounds:
        deltas, changes, after = [], [], own.copy()
        for m in r.heard:
            w = theta
            for gradient in r.batches[m]:
                w = w - r.step_size * (gradient(w) + a * (server - own[m]))
            after[m] = own[m] - server + (theta - w) / (len(r.batches[m]) * r.step_size)
            deltas.append(w - theta)
            changes.append(after[m] - own[m])
        theta = theta + server_step_size * np.mean(deltas, axis=0)
        server = server + len(r.heard) / num_clients * np.mean(changes, axis=0)
        own = after
        yield theta, {"server": server, "own": own}


def adabest(
    theta: np.ndarray, rounds: list[Round], *, num_clients: int, mu: float, beta: float
) -> Iterator[Outcome]:
    """``h_m`` fades by the number of rounds since the client last took part."""
    own, last = np.zeros((num_clients, theta.size)), np.full(num_clients, -1)
    average = theta
    for r in rounds:
        deltas, after = [], own.copy()
        for m in r.heard:
            w = theta
            for gradient in r.batches[m]:
                w = w - r.step_size * (gradient(w) - own[m])
            g = w - theta
            fading = own[m] / (r.number - last[m]) if last[m] >= 0 else 0.0
            after[m] = fading - mu * g
            deltas.append(g)
        own, last[list(r.heard)] = after, r.number
        before, average = average, theta + np.mean(deltas, axis=0)
        theta = average - beta * (before - average)
        yield theta, {"own": own, "average": average}


def feddyn(theta: np.ndarray, rounds: list[Round], *, num_clients: int, a: float) -> Iterator[Outcome]:
    """Dynamic regularisation; the server divides by M what it sums over the cohort."""
    h, own = np.zeros_like(theta), np.zeros((num_clients, theta.size))
    for r in rounds:
        ends, after = [], own.copy()
        for m in r.heard:
            w = theta
            for gradient in r.batches[m]:
                w = w - r.step_size * (gradient(w) - own[m] + a * (w - theta))
            after[m] = own[m] - a * (w - theta)
            ends.append(w)
        h = h - a / num_clients * sum(w - theta for w in ends)
        theta = np.mean(ends, axis=0) - h / a
        own = after
        yield theta, {"server": h, "own": own}


def fedacg(theta: np.ndarray, rounds: list[Round], *, lam: float, beta: float) -> Iterator[Outcome]:
    """The pass begins, and is held, at the look-ahead ``phi``."""
    momentum = np.zeros_like(theta)
    for r in rounds:
        phi, deltas = theta + lam * momentum, []
        for m in r.heard:
            w = phi
            for gradient in r.batches[m]:
                w = w - r.step_size * (gradient(w) + beta * (w - phi))
            deltas.append(w - phi)
        momentum = lam * momentum + np.mean(deltas, axis=0)
        theta = theta + momentum
        yield theta, {"momentum": momentum}


def stem(theta: np.ndarray, rounds: list[Round], *, a: float, carry_momentum: bool = False) -> Iterator[Outcome]:
    """Two gradients on every mini-batch but the first of all.

    With ``carry_momentum`` a pass continues from the mean of the last round's momenta, corrected on its first
    mini-batch at the parameters from which that round began.
    """
    carried = before = None
    for r in rounds:
        deltas, momenta = [], []
        for m in r.heard:
            w, w_last, v = theta, before, carried
            for gradient in r.batches[m]:
                v = gradient(w) if v is None else gradient(w) + (1 - a) * (v - gradient(w_last))
                w_last, w = w, w - r.step_size * v
            deltas.append(w - theta)
            momenta.append(v)
        mean_momentum = np.mean(momenta, axis=0)
        if carry_momentum:
            carried, before = mean_momentum, theta
        theta = theta + np.mean(deltas, axis=0) - r.step_size * mean_momentum
        yield theta, {"momentum": mean_momentum}


def taco(
    theta: np.ndarray,
    rounds: list[Round],
    *,
    num_clients: int,
    gamma: float,
    kappa: float,
    max_strikes: int,
    tailored_correction: bool = True,
    tailored_aggregation: bool = True,
) -> Iterator[Outcome]:
    """Tailored correction and aggregation, and expulsion; ``eta_g = K eta``.

    Without the tailored correction steps are plain; without the tailored aggregation all weigh the same. ``D`` has
    the sign of a gradient.
    """
    alpha, strikes = np.full(num_clients, 0.1), np.zeros(num_clients, int)
    D = np.zeros_like(theta)
    for r in rounds:
        heard = [m for m in r.heard if strikes[m] < max_strikes]
        deltas = []
        for m in heard:
            w = theta
            for gradient in r.batches[m]:
                correction = gamma * (1 - alpha[m]) * D if tailored_correction else 0.0
                w = w - r.step_size * (gradient(w) + correction)
            deltas.append(w - theta)
        g = np.array(deltas)
        lengths, mean = np.linalg.norm(g, axis=1), g.mean(axis=0)
        alpha[heard] = (1 - lengths / lengths.sum()) * np.maximum(g @ mean / (lengths * np.linalg.norm(mean)), 0)
        strikes[heard] += alpha[heard] >= kappa
        weight = alpha[heard] if tailored_aggregation else np.ones(len(heard))
        K_eta = len(r.batches[heard[0]]) * r.step_size
        D = -(weight @ g) / (K_eta * weight.sum())
        before, theta = theta, theta - K_eta * D
        ahead = theta + (1 - alpha[heard].mean()) * (theta - before)
        yield theta, {"alpha": alpha.copy(), "strikes": strikes.copy(), "correction": D, "ahead": ahead}
