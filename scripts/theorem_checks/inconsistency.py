"""Where FedAvg and FedNova converge if clients take different numbers of local steps, on quadratics."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

import fedjax_drag as fd
from fedjax_drag.simulation.batch import prepare_batch
from fedjax_drag.simulation.settings import Settings
from fedjax_drag.types import Algorithm
from theorem_checks.quadratics import Displacement, Quadratics

SEEDS, ROUNDS, EVERY, STEP_SIZE, STEPS = 5, 800, 20, 0.01, (1, 20)

METHODS = {
    "fedavg": lambda: fd.algorithms.from_aggregator(fd.aggregators.fedavg()),
    "fednova": fd.algorithms.fednova,
    "drag": lambda: fd.algorithms.from_aggregator(fd.aggregators.drag(c=0.25, alpha=0.25)),
}

SITUATIONS = {
    "steps once": {"steps_drawn": "once"},
    "steps once, 30 % dropouts": {"steps_drawn": "once", "dropout_rate": 0.3},
    "steps in each round": {},
    "steps in each round, 30 % dropouts": {"dropout_rate": 0.3},
}


class Paths(NamedTuple):
    """Runs of a method.

    Attributes:
      thetas: the parameters every :data:`EVERY` rounds, ``[seeds, T / EVERY, d]``.
      steps: local steps of every client in the last round ``[seeds, M]``; of a method that does not report them None.
    """

    thetas: np.ndarray
    steps: np.ndarray | None


def problem() -> Quadratics:
    """Twenty clients, each with its minimum and a single example; the minimum of their mean is at 0."""
    return Quadratics.draw(20, spread=1.0, noise=0.0, start=2.0, per_client=1)


def run(method: Algorithm, losses: Quadratics, seeds: int = SEEDS, rounds: int = ROUNDS, **situation: object) -> Paths:
    """Runs a method with every client in every cohort, the seeds as one program."""
    clients, _, size = losses.examples.shape
    data, model = losses.data, Displacement(size, losses.start)  # one for all seeds, which is what makes one program

    def of(seed: int) -> Settings:
        return Settings(
            algorithm=method,
            model=model,
            data=data,
            loss=losses.loss,
            num_rounds=rounds,
            cohort_size=clients,
            batch_size="full",
            step_size=STEP_SIZE,
            eval_every=EVERY,
            time_clients=False,
            clients_axis="vmap",
            seed=seed,
            **{"local_steps": STEPS, **situation},
        )

    thetas: list[np.ndarray] = []
    batch = prepare_batch([of(seed) for seed in range(seeds)])
    record = lambda evaluation: thetas.append(np.asarray(evaluation.states.params["theta"]))
    results = batch.run(range(seeds), [record])
    steps = [result.history["work"][-1] for result in results if "work" in result.history]
    return Paths(np.stack(thetas, 1), np.stack(steps) if steps else None)


def limit(losses: Quadratics, steps: np.ndarray, normalised: bool) -> np.ndarray:
    """The point where a method stops, ``[d]``.

    A client that takes ``tau`` full-batch steps from theta sends ``s (e - theta)``, with its minimum e and
    ``s = 1 - (1 - eta a)^tau`` in a coordinate of curvature a. The weights of the minima are therefore ``s``, and
    ``s / tau`` where deltas are divided by the number of steps (Wang et al. 2020, Theorem 1 and equation 8).

    Args:
      losses: with one minimum a client.
      steps: tau of every client ``[M]``.
      normalised: FedNova's limit in place of FedAvg's.
    """
    weight = 1 - (1 - STEP_SIZE * losses.curvature) ** steps[:, None]
    if normalised:
        weight = weight / steps[:, None]
    return (weight * losses.examples.mean(1)).sum(0) / weight.sum(0)


def measure() -> dict[str, dict[str, Paths]]:
    """Runs of every method in every situation."""
    losses = problem()
    return {
        name: {at: run(build(), losses, **how) for at, how in SITUATIONS.items()} for name, build in METHODS.items()
    }


def predicted(measured: Mapping[str, Mapping[str, Paths]]) -> dict[str, float]:
    """The limits' distance from the minimum where every client keeps its number of steps, a mean over the seeds."""
    steps = measured["fednova"]["steps once"].steps
    assert steps is not None
    ends = {"fedavg": False, "fednova": True}
    lengths = {name: [np.linalg.norm(limit(problem(), own, way)) for own in steps] for name, way in ends.items()}
    return {name: float(np.mean(values)) for name, values in lengths.items()}


def report(measured: Mapping[str, Mapping[str, Paths]]) -> str:
    """A row for each method: its distance from the minimum over the last quarter of the rounds, in each situation."""
    theory = predicted(measured)
    lines = ["  ".join(f"{name:>34}" for name in ("method", "predicted, steps once", *SITUATIONS))]
    for name, runs in measured.items():
        ends = [np.linalg.norm(paths.thetas[:, -ROUNDS // EVERY // 4 :], axis=-1).mean() for paths in runs.values()]
        first = f"{theory[name]:.4f}" if name in theory else "-"
        lines.append("  ".join(f"{text:>34}" for text in (name, first, *(f"{end:.4f}" for end in ends))))
    return "\n".join(lines)


def draw(measured: Mapping[str, Mapping[str, Paths]]) -> Figure:
    """Distances from the minimum over the rounds, and the predicted ones."""
    figure = Figure(figsize=(10, 4), facecolor="white", layout="constrained")
    theory, panels = predicted(measured), figure.subplots(1, 2, sharey=True)
    for panel, situation in zip(panels, ("steps once", "steps in each round, 30 % dropouts"), strict=True):
        for colour, (name, runs) in zip(("C0", "C1", "C2"), measured.items(), strict=True):
            distance = np.linalg.norm(runs[situation].thetas, axis=-1).mean(0)
            panel.plot(EVERY * np.arange(1, len(distance) + 1), distance, color=colour, label=name)
            if situation == "steps once" and name in theory:
                panel.axhline(theory[name], color=colour, linestyle="--", label=f"{name}, predicted")
        panel.set(xlabel="rounds", yscale="log", title=situation)
        panel.legend(fontsize=8)
    panels[0].set_ylabel("distance from the minimum")
    return figure
