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
    """Every step is pulled to where the pass began."""
    for r in rounds:
        ends = []
        for m in r.heard:
            w = theta
            for gradient in r.batches[m]:
                w = w - r.step_size * (gradient(w) + mu * (w - theta))
            ends.append(w)
        theta = np.mean(ends, axis=0)
        yield theta, {}


def agreement(deltas: list[np.ndarray]) -> np.ndarray:
    """TACO's ``alpha`` of the clients of a round, from their deltas."""
    g = np.array(deltas)
    lengths, mean = np.linalg.norm(g, axis=1), g.mean(axis=0)
    return (1 - lengths / lengths.sum()) * np.maximum(g @ mean / (lengths * np.linalg.norm(mean)), 0)


def tailored_fedprox(theta: np.ndarray, rounds: list[Round], *, num_clients: int, mu: float) -> Iterator[Outcome]:
    """The pull is weaker for a client that agreed when it last took part."""
    alpha = np.full(num_clients, 0.1)
    for r in rounds:
        deltas = []
        for m in r.heard:
            w = theta
            for gradient in r.batches[m]:
                w = w - r.step_size * (gradient(w) + mu * (1 - alpha[m]) * (w - theta))
            deltas.append(w - theta)
        theta = theta + np.mean(deltas, axis=0)
        alpha[list(r.heard)] = agreement(deltas)
        yield theta, {"alpha": alpha.copy()}


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


def fednova(theta: np.ndarray, rounds: list[Round], *, rho: float, mu: float) -> Iterator[Outcome]:
    """Deltas per unit of work, times the mean work.

    With local momentum and a proximal term a delta is ``-eta sum_j a_j grad_j``: gradient j enters the buffer at step
    k >= j with weight ``rho^(k - j)``, and of that step ``(1 - eta mu)^(K - 1 - k)`` is left at the end. Work is the
    sum of the ``a_j``.
    """
    for r in rounds:
        normalised, work = [], []
        for m in r.heard:
            w, buffer, K = theta, 0.0, len(r.batches[m])
            for gradient in r.batches[m]:
                buffer = rho * buffer + gradient(w)
                w = w - r.step_size * (buffer + mu * (w - theta))
            kept = 1 - r.step_size * mu
            work.append(sum(rho ** (k - j) * kept ** (K - 1 - k) for j in range(K) for k in range(j, K)))
            normalised.append((w - theta) / work[-1])
        theta = theta + np.mean(work) * np.mean(normalised, axis=0)
        yield theta, {"work": np.mean(work)}


def mime(theta: np.ndarray, rounds: list[Round], *, b: float, gradient: str = "average") -> Iterator[Outcome]:
    """MimeLite: a momentum of gradients at the global parameters, which the clients use and do not change.

    A client's gradient there is that on its first mini-batch, or the mean over those of its pass.
    """
    momentum = np.zeros_like(theta)
    for r in rounds:
        ends, seen = [], []
        for m in r.heard:
            w = theta
            for at in r.batches[m]:
                w = w - r.step_size * ((1 - b) * at(w) + b * momentum)
            ends.append(w)
            seen.append(np.mean([at(theta) for at in r.batches[m][: 1 if gradient == "first" else None]], axis=0))
        theta = np.mean(ends, axis=0)
        momentum = (1 - b) * np.mean(seen, axis=0) + b * momentum
        yield theta, {"momentum": momentum}


def scaffold(
    theta: np.ndarray,
    rounds: list[Round],
    *,
    num_clients: int,
    a: float,
    server_step_size: float = 1.0,
    tailored: bool = False,
    variate: str = "steps",
) -> Iterator[Outcome]:
    """Control variates with option II; ``tailored`` by TACO's ``alpha``, which corrects the less who agree.

    With ``variate`` "first" or "average", they are gradients where the pass begins: on its first mini-batch, or the
    mean over all of them.
    """
    server, own = np.zeros_like(theta), np.zeros((num_clients, theta.size))
    alpha = np.full(num_clients, 0.1)
    for r in rounds:
        deltas, changes, after = [], [], own.copy()
        for m in r.heard:
            w, strength = theta, a * (1 - alpha[m]) if tailored else a
            for gradient in r.batches[m]:
                w = w - r.step_size * (gradient(w) + strength * (server - own[m]))
            at_start = [gradient(theta) for gradient in r.batches[m]]
            after[m] = {
                "steps": own[m] - server + (theta - w) / (len(r.batches[m]) * r.step_size),
                "first": at_start[0],
                "average": np.mean(at_start, axis=0),
            }[variate]
            deltas.append(w - theta)
            changes.append(after[m] - own[m])
        theta = theta + server_step_size * np.mean(deltas, axis=0)
        server = server + len(r.heard) / num_clients * np.mean(changes, axis=0)
        own, alpha[list(r.heard)] = after, agreement(deltas)
        yield theta, {"server": server, "own": own, **({"alpha": alpha.copy()} if tailored else {})}


def adabest(theta: np.ndarray, rounds: list[Round], *, num_clients: int, mu: float, beta: float) -> Iterator[Outcome]:
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
        h = beta * (before - average)
        theta = average - h
        yield theta, {"own": own, "last": last.copy(), "average": average, "server": h}


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


def fedadmm(
    theta: np.ndarray, rounds: list[Round], *, num_clients: int, rho: float, server_step_size: float
) -> Iterator[Outcome]:
    """Dual variables as the paper has them, not over rho; the server follows the mean change of w + y / rho."""
    models, duals = np.tile(theta, (num_clients, 1)), np.zeros((num_clients, theta.size))
    for r in rounds:
        changes = []
        for m in r.heard:
            w, augmented = theta, models[m] + duals[m] / rho
            for gradient in r.batches[m]:
                w = w - r.step_size * (gradient(w) + duals[m] + rho * (w - theta))
            models[m], duals[m] = w, duals[m] + rho * (w - theta)
            changes.append(models[m] + duals[m] / rho - augmented)
        theta = theta + server_step_size * np.mean(changes, axis=0)
        yield theta, {"duals": duals / rho, "models": models.copy()}


def feddc(
    theta: np.ndarray, rounds: list[Round], *, num_clients: int, a: float, correction: float
) -> Iterator[Outcome]:
    """Drifts ``h_m`` and control variates as SCAFFOLD's; the server adds the mean drift of all clients, each round."""
    drifts, controls = np.zeros((num_clients, theta.size)), np.zeros((num_clients, theta.size))
    for r in rounds:
        ends, control = [], controls.mean(axis=0)
        new_drifts, new_controls = drifts.copy(), controls.copy()
        for m in r.heard:
            w = theta
            for gradient in r.batches[m]:
                pull = a * (w + drifts[m] - theta)
                w = w - r.step_size * (gradient(w) + pull + correction * (control - controls[m]))
            new_drifts[m] = drifts[m] + w - theta
            new_controls[m] = controls[m] - control - (w - theta) / (len(r.batches[m]) * r.step_size)
            ends.append(w)
        drifts, controls = new_drifts, new_controls
        theta = np.mean(ends, axis=0) + drifts.mean(axis=0)
        yield theta, {"drifts": drifts, "controls": controls, "drift": drifts.mean(0), "control": controls.mean(0)}


def fedacg(
    theta: np.ndarray,
    rounds: list[Round],
    *,
    lam: float,
    beta: float,
    start: str = "lookahead",
    moves_server: bool = True,
) -> Iterator[Outcome]:
    """The pass begins, and is held, at the look-ahead ``phi``; with ``start`` "global" it begins at ``theta``."""
    momentum = np.zeros_like(theta)
    for r in rounds:
        phi, deltas = theta + lam * momentum, []
        begin = theta if start == "global" else phi
        for m in r.heard:
            w = begin
            for gradient in r.batches[m]:
                w = w - r.step_size * (gradient(w) + beta * (w - phi))
            deltas.append(w - begin)
        momentum = lam * momentum + np.mean(deltas, axis=0)
        theta = theta + (momentum if moves_server else np.mean(deltas, axis=0))
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
        yield theta, {"momentum": carried, "before": before} if carry_momentum else {}


def taco(
    theta: np.ndarray,
    rounds: list[Round],
    *,
    num_clients: int,
    gamma: float | None,
    kappa: float,
    max_strikes: int,
    tailored_correction: bool = True,
    tailored_aggregation: bool = True,
    server_step_size: float = 1.0,
) -> Iterator[Outcome]:
    """Tailored correction and aggregation, and expulsion; ``gamma`` is ``1/K`` unless given.

    Without the tailored correction steps are plain; without the tailored aggregation all weigh the same. ``D`` has
    the sign of a gradient; it is zero where all weights are.
    """
    alpha, strikes = np.full(num_clients, 0.1), np.zeros(num_clients, int)
    D = np.zeros_like(theta)
    for r in rounds:
        heard = [m for m in r.heard if strikes[m] < max_strikes]
        K, deltas = len(r.batches[heard[0]]), []
        strength = (1 / K if gamma is None else gamma) * tailored_correction
        for m in heard:
            w = theta
            for gradient in r.batches[m]:
                w = w - r.step_size * (gradient(w) + strength * (1 - alpha[m]) * D)
            deltas.append(w - theta)
        alpha[heard] = agreement(deltas)
        strikes[heard] += alpha[heard] >= kappa
        weight = alpha[heard] if tailored_aggregation else np.ones(len(heard))
        total = weight @ np.array(deltas)
        D = -total / (K * r.step_size * weight.sum()) if weight.any() else np.zeros_like(theta)
        before, theta = theta, theta - server_step_size * K * r.step_size * D
        yield (
            theta,
            {
                "alpha": alpha.copy(),
                "strikes": strikes.copy(),
                "correction": D,
                "eligible": strikes < max_strikes,
                "output": theta + (1 - alpha[heard].mean()) * (theta - before),
            },
        )
