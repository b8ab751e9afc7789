"""Federations of quadratic losses, whose constants are known exactly, and their simulation."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import numpy as np

import fedjax_drag as fd
from fedjax_drag.data import FederatedDataset
from fedjax_drag.simulation.batch import prepare_batch
from fedjax_drag.simulation.settings import Settings
from fedjax_drag.types import Aggregator, Algorithm, Params, State, Uplink
from theorem_checks.bounds import Rounds, Setting


class Displacement(nn.Module):
    """``theta - z`` for an example ``z``; half its square, weighted by the curvature, is the loss.

    Attributes:
      size: d.
      start: every entry of the initial theta.
    """

    size: int
    start: float

    @nn.compact
    def __call__(self, x: Any) -> Any:
        """The displacements from examples ``[B, d]``."""
        return self.param("theta", nn.initializers.constant(self.start), (self.size,)) - x


@dataclasses.dataclass(frozen=True, eq=False)
class Quadratics:
    """Clients with ``F_m(theta) = mean_z (theta - z)' A (theta - z) / 2``, A diagonal and the same for all.

    The curvature is common to all clients, so a client's gradient differs from the mean gradient by the same vector
    everywhere, as a global ``sigma_G`` requires. Examples are drawn with replacement, so the variance of a mini-batch's
    gradient is that of a single example divided by B. The minimum is at 0.

    Attributes:
      curvature: the diagonal of A, ``[d]``.
      examples: ``[M, n, d]``.
      start: every entry of ``theta_0``.
    """

    curvature: np.ndarray
    examples: np.ndarray
    start: float

    @classmethod
    def draw(
        cls, clients: int, spread: float, noise: float, start: float, per_client: int = 32, size: int = 4
    ) -> "Quadratics":
        """Random examples with exact means.

        Args:
          clients: M.
          spread: standard deviation of the clients' minima in every coordinate; that of client m grows with m.
          noise: standard deviation of a client's examples around its minimum.
          start: every entry of ``theta_0``.
          per_client: n.
          size: d.
        """
        rng = np.random.default_rng(0)
        minima = rng.normal(size=(clients, 1, size)) * np.linspace(0.2, 1.8, clients)[:, None, None] * spread
        around = rng.normal(size=(clients, per_client, size)) * noise
        examples = minima - minima.mean(0) + around - around.mean(1, keepdims=True)
        return cls(np.linspace(0.2, 1.0, size), examples, start)

    @property
    def data(self) -> FederatedDataset:
        """The examples as a data set with meaningless labels."""
        clients, each, size = self.examples.shape
        x, labels = self.examples.reshape(-1, size).astype(np.float32), np.zeros(clients * each, np.int32)
        plain = fd.data.from_arrays(x, labels, x[:1], labels[:1], num_classes=size, mean=(0.0,), std=(1.0,))
        rows = np.arange(clients * each, dtype=np.int32).reshape(clients, each)
        return dataclasses.replace(plain, rows=rows, counts=np.full(clients, each, np.int32))

    def loss(self, displacement: Any, labels: Any) -> Any:
        """The loss of each displacement ``theta - z`` ``[B, d]``."""
        del labels
        return (displacement**2 * self.curvature.astype(np.float32)).sum(-1) / 2

    def squared_gradient(self, theta: np.ndarray) -> np.ndarray:
        """``||grad f(theta)||^2`` for theta ``[..., d]``."""
        return ((self.curvature * theta) ** 2).sum(-1)

    def setting(self, step_size: float, local_steps: int, batch_size: int, root: bool = False) -> Setting:
        """The constants of the theorems.

        Args:
          step_size: eta.
          local_steps: U.
          batch_size: B.
          root: take the variance over all examples, as Theorem 2 needs it for the root data; it is larger.
        """
        means = self.examples.mean(1, keepdims=True)
        noise = self.squared_gradient(self.examples - (0 if root else means)).mean(1)
        worst = noise.mean() if root else noise.max()
        apart = self.squared_gradient(means).max()
        gap = (self.curvature * self.start**2).sum() / 2
        return Setting(self.curvature.max(), worst / batch_size, apart, gap, step_size, local_steps)


class Runs(NamedTuple):
    """Runs of one rule with several hyperparameters and seeds.

    Attributes:
      squares: ``||grad f(theta_t)||^2`` before each round, ``[values, seeds, T]``.
      results: by value and seed.
    """

    squares: np.ndarray
    results: list[list[fd.simulation.Result]]

    @property
    def means(self) -> np.ndarray:
        """The mean over all rounds and seeds ``[values]``, which the theorems bound."""
        return self.squares.mean((1, 2))

    @property
    def running(self) -> np.ndarray:
        """The mean over the seeds and the first 1, 2, .. T rounds ``[values, T]``."""
        return self.squares.mean(1).cumsum(1) / np.arange(1, self.squares.shape[2] + 1)


def simulate(
    problem: Quadratics, rule: Callable[[Any], Aggregator], values: Sequence[float], seeds: int, **settings: Any
) -> Runs:
    """Runs a rule on a problem with several hyperparameters and seeds, as one program.

    Args:
      problem: the losses.
      rule: builds the aggregation rule from its hyperparameter.
      values: of the hyperparameter.
      seeds: number of seeds.
      **settings: further settings of the simulation.
    """
    data, model = problem.data, Displacement(len(problem.curvature), problem.start)
    fixed = {"clients_axis": "vmap", "eval_every": 1, "time_clients": False, "stop_on_divergence": False}

    def configured(value: Any, seed: int) -> Settings:
        method = fd.algorithms.from_aggregator(rule(value))
        return Settings(algorithm=method, model=model, data=data, loss=problem.loss, seed=seed, **fixed, **settings)

    cells = [(value, seed) for value in values for seed in range(seeds)]
    batch = prepare_batch([configured(*cell) for cell in cells], cells_axis="vmap")
    thetas = [np.full((len(cells), len(problem.curvature)), problem.start)]
    record = lambda evaluation: thetas.append(np.asarray(evaluation.states.params["theta"]))
    results = batch.run(range(len(cells)), [record])
    squares = problem.squared_gradient(np.stack(thetas[:-1], 1)).reshape(len(values), seeds, -1)
    return Runs(squares, [results[i * seeds : (i + 1) * seeds] for i in range(len(values))])


def rounds_of(results: Sequence[fd.simulation.Result]) -> Rounds:
    """The quantities of Theorem 2 from the metrics of BR-DRAG; the rounds of all results are concatenated."""

    def column(name: str) -> np.ndarray:
        return np.concatenate([result.history[name] for result in results]).astype(float)

    malicious, cosine, divergence, weight = map(column, ("malicious", "cosine", "divergence", "weight"))
    size, honest = malicious.shape[1], malicious == 0
    b = weight * size
    ratios = (b / (1 - divergence))[honest]  # rho_m
    c = divergence.sum(1) / (1 - cosine).sum(1)

    def over_cohort(values: np.ndarray, clients: np.ndarray) -> np.ndarray:
        return np.where(clients, values, 0.0).sum(1) / size

    return Rounds(
        w=malicious.mean(1),
        x=over_cohort(cosine, ~honest),
        y=over_cohort(cosine, honest),
        c=c,
        b=over_cohort(b, honest),
        b_squares=over_cohort(b**2, honest),
        p=float(ratios.min()),
        q=float(ratios.max()),
    )


def keeping_deltas(method: Algorithm) -> Algorithm:
    """TACO with the clients' deltas ``[S, d]`` as a further metric ``delta``."""

    def with_delta(state: Any, delta: Any) -> Any:
        inner = state.aggregator
        return state._replace(aggregator=inner._replace(metrics=inner.metrics | {"delta": delta}))

    def init(params: Params) -> State:
        return with_delta(method.init(params), np.zeros((0, 1)))

    def aggregate(params: Params, uplink: Uplink, state: State, **extras: Any) -> tuple[Params, State]:
        params, after = method.aggregate(params, uplink, state, **extras)
        return params, with_delta(after, uplink.delta["theta"])

    return method._replace(init=init, aggregate=aggregate)
