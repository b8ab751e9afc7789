"""Tables of configs/personal/ditto.yaml, as in docs/results/ditto.md.

    python scripts/ditto.py runs/ditto --figure ditto.png

A figure of a seed is the mean of the last three evaluations; shown are the mean over the seeds in % and its 95 %
interval (Student's t). A difference is paired by seed. The figures of a rule without Ditto are those of the global
model in the runs of Ditto over it, which Ditto does not change.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import typer

from fedjax_drag.experiment.config.config import Config
from fedjax_drag.experiment.intervals import estimate
from fedjax_drag.experiment.sweep import sweep_folder
from fedjax_drag.experiment.sweep.summary_page import markdown

LAST = 3
"""Evaluations whose mean is a figure."""

ATTACKS = ("none", "labels flipped", "signs flipped")
FIGURES = {"mean": "mean of the clients", "worst_tenth": "worst tenth of the clients"}
ALONE = "alone"
RULES = {"fedavg": "FedAvg", "krum": "Krum", "br_drag": "BR-DRAG"}
METHODS = (ALONE, *RULES.values(), "Ditto 0.1", "Ditto 1", "Ditto 1 over Krum", "Ditto 1 over BR-DRAG")


class Place(NamedTuple):
    """Of a figure: the method, the concentration of the labels, the attack, and ``mean`` or ``worst_tenth``."""

    method: str
    beta: float
    attack: str
    figure: str


Figures = dict[Place, dict[int, float]]
"""By seed."""


def measured(folders: Iterable[Path]) -> Figures:
    """The figures of all cells that are at their end."""
    found: Figures = defaultdict(dict)
    for folder in folders:
        for run in sweep_folder.finished(folder):
            beta, attack = run.config.partition.arguments["beta"], attack_of(run.config)
            lam, rule = run.config.algorithm.arguments["lam"], RULES[run.config.aggregator.name]
            own = ALONE if lam == 0 else f"Ditto {lam:g}" + ("" if rule == "FedAvg" else f" over {rule}")
            for figure, (method, kind) in itertools.product(FIGURES, ((rule, "client"), (own, "own"))):
                value = float(np.mean(run.history[f"{kind}_accuracy_{figure}"][-LAST:]))
                found[Place(method, beta, attack, figure)][run.config.seed] = value
    return found


def attack_of(config: Config) -> str:
    """One of :data:`ATTACKS`."""
    assert config.attack is not None
    if config.attack.name == "sign_flip":
        return ATTACKS[2]
    return ATTACKS[1] if config.attack.arguments["fraction"] else ATTACKS[0]


def table(found: Figures, beta: float, figure: str, less: str | None = None) -> list[list[str]]:
    """A row for each method, a column for each attack; ``less`` a method, of its figures."""
    lines = [["method", *ATTACKS]]
    for method in METHODS:
        cells = []
        for attack in ATTACKS:
            own = found.get(Place(method, beta, attack, figure), {})
            other = dict.fromkeys(own, 0.0) if less is None else found.get(Place(less, beta, attack, figure), {})
            values = [own[seed] - other[seed] for seed in sorted(own.keys() & other.keys())]
            cells.append(str(estimate(np.array(values))) if values else "")
        if any(cells) and method != less:
            lines.append([method, *cells])
    return lines


def draw(found: Figures, betas: list[float], file: Path) -> None:
    """The means over the seeds with their intervals: a row of panels for each beta, a panel for each figure."""
    from matplotlib.figure import Figure

    shown = Figure(figsize=(11, 3.5 * len(betas)), layout="constrained")
    panels = shown.subplots(len(betas), len(FIGURES), squeeze=False)
    methods = [method for method in reversed(METHODS) if any(place.method == method for place in found)]
    colours = dict(zip(ATTACKS, ("C0", "C1", "C3"), strict=True))
    for (beta, figure), axes in zip(itertools.product(betas, FIGURES), panels.flat, strict=True):
        for (row, method), (shift, attack) in itertools.product(enumerate(methods), enumerate(ATTACKS, -1)):
            if values := found.get(Place(method, beta, attack, figure)):
                mean, half = estimate(100 * np.array(list(values.values())))
                axes.errorbar(mean, row - shift / 5, xerr=half, fmt="o", color=colours[attack], markersize=4)
        axes.set_yticks(range(len(methods)), methods)
        axes.set_title(f"Dirichlet({beta:g}): {FIGURES[figure]}")
        axes.set_xlabel("accuracy on a client's own examples, %")
        axes.grid(axis="x", alpha=0.3)
    for attack, colour in colours.items():
        panels.flat[0].plot([], [], "o", color=colour, label=attack)
    shown.legend(loc="outside upper center", ncols=len(ATTACKS))
    shown.savefig(file, dpi=110)


def main(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", exists=True, file_okay=False, help="Results folders of the sweep."),
    ],
    figure: Annotated[Path | None, typer.Option(help="Image that is drawn.")] = None,
) -> None:
    """Print the tables."""
    found = measured(folders)
    betas = sorted({place.beta for place in found})
    for beta, kind, less in itertools.product(betas, FIGURES, (None, ALONE)):
        title = f"Dirichlet({beta:g}), {FIGURES[kind]}" + (f", less {less}" if less else "")
        typer.echo(f"\n{title}\n\n{markdown(table(found, beta, kind, less))}")
    if figure is not None:
        draw(found, betas, figure)


if __name__ == "__main__":
    typer.run(main)
