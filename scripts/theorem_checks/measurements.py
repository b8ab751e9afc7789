"""Measured convergence on quadratics beside what the papers prove."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import rankdata

import fedjax_drag as fd
from fedjax_drag.types import Aggregator
from theorem_checks.bounds import (
    XIAO,
    ZHU,
    Setting,
    byzantine_bound,
    byzantine_rate,
    drag_bound,
    oracle_rate,
    oracle_step,
)
from theorem_checks.quadratics import Displacement, Quadratics, Runs, keeping_deltas, rounds_of, simulate

DRAG_C = (0.0, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
BR_DRAG_C = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9)


class Measured(NamedTuple):
    """A theorem and the runs that test it.

    Attributes:
      setting: the constants.
      runs: by value of c.
      bounds: by name, the bound for each c.
      over_rounds: at one c, by name, measurement and bounds after 1, 2, .. rounds.
    """

    setting: Setting
    runs: Runs
    bounds: dict[str, np.ndarray]
    over_rounds: dict[str, np.ndarray]


def drag_theorem(values: Sequence[float] = DRAG_C, rounds: int = 300, seeds: int = 3, shown: float = 0.02) -> Measured:
    """Theorem 1 of both papers: 5 of 20 clients in a round, U = 5, ``eta L U`` = 1/20.

    Args:
      values: of c.
      rounds: T.
      seeds: number of seeds.
      shown: the c whose measurement and bounds are returned over the rounds.
    """
    problem, step_size, steps, batch = Quadratics.draw(20, spread=0.3, noise=0.5, start=3.0), 0.01, 5, 2
    options = {"cohort_size": 5, "batch_size": batch, "step_size": step_size, "local_steps": steps}
    runs = simulate(problem, lambda c: fd.aggregators.drag(c, 0.25), values, seeds, num_rounds=rounds, **options)
    setting = problem.setting(step_size, steps, batch)
    proofs = {"Xiao et al.": XIAO, "Zhu et al.": ZHU}
    bounds, over_rounds = {}, {"measured": runs.running[values.index(shown)]}
    for name, proof in proofs.items():
        for title, printed in ((name, False), (f"{name}, as printed", True)):
            bounds[title] = np.array([drag_bound(setting, c, rounds, proof, printed) for c in values])
        over_rounds[name] = drag_bound(setting, shown, np.arange(1, rounds + 1), proof)
    return Measured(setting, runs, bounds, over_rounds)


def attacked(
    rule: Callable[[Any], Aggregator], values: Sequence[float], rounds: int, seeds: int
) -> tuple[Setting, Runs]:
    """The setting of Theorem 2: 6 of the 10 clients in a round flip the sign, and all examples are root data."""
    problem, step_size, steps, batch = Quadratics.draw(20, spread=0.3, noise=0.5, start=10.0), 0.0005, 5, 8
    runs = simulate(
        problem,
        rule,
        values,
        seeds,
        num_rounds=rounds,
        cohort_size=10,
        batch_size=batch,
        step_size=step_size,
        local_steps=steps,
        attack=fd.attacks.sign_flip(),
        num_byzantine=6,
        byzantine_of="cohort",
        root_size=problem.examples.shape[0] * problem.examples.shape[1],
    )
    return problem.setting(step_size, steps, batch, root=True), runs


class Oracle(NamedTuple):
    """The first case of Theorem 2.

    Attributes:
      over_rounds: by name, measurement and bound after 1, 2, .. rounds.
      step_size: eta.
      largest_step_size: the largest one for which the theorem promises a bound.
    """

    over_rounds: dict[str, np.ndarray]
    step_size: float
    largest_step_size: float


def oracle_theorem(rounds: int = 1000, seeds: int = 2) -> Oracle:
    """The first case of Theorem 2, with ``c = w / (w - x)``."""
    setting, runs = attacked(lambda _: fd.aggregators.br_drag(oracle=True), [0.0], rounds, seeds)
    observed = rounds_of(runs.results[0])
    bound = byzantine_bound(setting, observed, np.arange(1, rounds + 1), oracle_rate(setting, observed))
    over_rounds = {"measured": runs.running[0], "Theorem 2, c = w / (w - x)": bound}
    return Oracle(over_rounds, setting.step_size, oracle_step(setting, observed))


def br_drag_theorem(values: Sequence[float] = BR_DRAG_C, rounds: int = 1000, seeds: int = 2) -> Measured:
    """The second case of Theorem 2, with a constant c."""
    setting, runs = attacked(fd.aggregators.br_drag, values, rounds, seeds)
    observed = [rounds_of(results) for results in runs.results]
    bound = np.array([byzantine_bound(setting, one, rounds, byzantine_rate(setting, one)) for one in observed])
    return Measured(setting, runs, {"Theorem 2": bound}, {})


class Coefficients(NamedTuple):
    """TACO's coefficients, and the constants of Assumption 2 that should order them.

    Attributes:
      alpha: mean coefficient of each client, ``[M]``.
      ratios: ``mu_i / c_i``, ``[M]``.
      smallest_cosine: the smallest ``c_i``; Assumption 2 requires that it is positive.
    """

    alpha: np.ndarray
    ratios: np.ndarray
    smallest_cosine: float

    @property
    def order(self) -> float:
        """Spearman's rank correlation of alpha and the ratios; -1 is the order that Corollary 2 asks for."""
        return float(np.corrcoef(rankdata(self.alpha), rankdata(self.ratios))[0, 1])

    @property
    def reversed(self) -> np.ndarray:
        """The same coefficients, with the largest for the client with the largest ratio."""
        return np.sort(self.alpha)[np.argsort(np.argsort(self.ratios))]


def taco_corollary(clients: int = 8, rounds: int = 10) -> Coefficients:
    """The coefficients of a run of TACO, and the tightest constants of Assumption 2 that hold in it.

    Args:
      clients: M; each has one example.
      rounds: T.
    """
    problem, step_size, steps = Quadratics.draw(clients, spread=1.0, noise=0.0, start=5.0, per_client=1), 0.02, 5
    thetas = [np.full(len(problem.curvature), problem.start)]
    result = fd.simulate(
        keeping_deltas(fd.algorithms.taco(clients)),
        model=Displacement(len(problem.curvature), problem.start),
        data=problem.data,
        loss=problem.loss,
        num_rounds=rounds,
        cohort_size=clients,
        batch_size=1,
        step_size=step_size,
        local_steps=steps,
        eval_every=1,
        clients_axis="vmap",
        time_clients=False,
        callbacks=[lambda evaluation: thetas.append(np.asarray(evaluation.state.params["theta"]))],
    )
    # Sorted by client: the cohort is everybody, in an order that changes from round to round.
    by_client = np.argsort(result.history["client_ids"], axis=1)
    alpha = np.take_along_axis(result.history["alpha"], by_client, 1)
    descent = -np.take_along_axis(result.history["delta"], by_client[..., None], 1)  # the paper's sign
    gradient = problem.curvature * np.stack(thetas[:-1])
    product, squares = np.einsum("td,tmd->tm", gradient, descent), (gradient**2).sum(1)
    cosine = product / np.sqrt(squares)[:, None] / np.linalg.norm(descent, axis=2)
    ratios = (product / squares[:, None]).max(0) / cosine.min(0)
    return Coefficients(alpha.mean(0), ratios, float(cosine.min()))
