"""Compares the papers' theorems with runs on quadratic losses, whose constants are known exactly.

    python scripts/theorems.py --output-dir runs/theorems
    python scripts/theorems.py taco                         # one of drag, br_drag, taco, fednova, clippedgossip

It prints a table and draws a figure for each: theorem1.png (DRAG), theorem2.png (BR-DRAG with six clients in ten that
flip the sign), corollary2.png (TACO's coefficients), fednova.png (clients with different numbers of local steps) and
clippedgossip.png (robust mixing on a graph). All five take about two minutes of CPU.
"""

import enum
from pathlib import Path
from typing import Annotated, NamedTuple

import matplotlib
import typer
from matplotlib.figure import Figure

from theorem_checks import bounds, consensus, figures, inconsistency, measurements


class Shown(NamedTuple):
    """What is printed and drawn of a theorem."""

    file: str
    title: str
    text: str
    figure: Figure


class Theorem(enum.StrEnum):
    """The theorems, by the method that they are about."""

    DRAG = "drag"
    BR_DRAG = "br_drag"
    TACO = "taco"
    FEDNOVA = "fednova"
    CLIPPEDGOSSIP = "clippedgossip"


def main(
    chosen: Annotated[list[Theorem] | None, typer.Argument(help="Theorems to check; default all.")] = None,
    output_dir: Annotated[Path, typer.Option(help="Folder of the figures.")] = Path("runs/theorems"),
) -> None:
    """Measures convergence on quadratics, and prints and draws it beside the papers' bounds."""
    matplotlib.use("agg")
    output_dir.mkdir(parents=True, exist_ok=True)
    for theorem in chosen or Theorem:
        file, title, text, figure = CHECKS[theorem]()
        figure.savefig(output_dir / file, dpi=150)
        typer.echo(f"{title}\n{text}\n{output_dir / file}\n")


def check_drag() -> Shown:
    """Theorem 1 of both papers, on DRAG."""
    drag, values = measurements.drag_theorem(), measurements.DRAG_C
    proofs = {"Xiao": bounds.XIAO, "Zhu": bounds.ZHU}
    ends = {f"no bound, {name}": bounds.largest_c(drag.setting, proof) for name, proof in proofs.items()}
    text = figures.report(values, drag) + "".join(f"\n{name} from c = {c:.4f}" for name, c in ends.items())
    figure = figures.draw("DRAG, Theorem 1 (left: c = 0.02)", values, drag, ends)
    return Shown("theorem1.png", "DRAG, Theorem 1", text, figure)


def check_br_drag() -> Shown:
    """Both cases of Theorem 2, on BR-DRAG."""
    oracle, values = measurements.oracle_theorem(), measurements.BR_DRAG_C
    br_drag = measurements.br_drag_theorem()._replace(over_rounds=oracle.over_rounds)
    measured, bound = (series[-1] for series in oracle.over_rounds.values())
    text = (
        f"{figures.report(values, br_drag)}\nc = w / (w - x): measured {measured:.4g}, bound {bound:.4g}, "
        f"step size {oracle.step_size} of at most {oracle.largest_step_size:.4g}"
    )
    title = "BR-DRAG, Theorem 2, 60 % sign flips (left: c = w / (w - x))"
    return Shown("theorem2.png", "BR-DRAG, Theorem 2", text, figures.draw(title, values, br_drag, {}))


def check_taco() -> Shown:
    """Corollary 2, on TACO."""
    taco = measurements.taco_corollary()
    lines = [f"rank correlation of alpha and mu / c {taco.order:.3f}, smallest c {taco.smallest_cosine:.3f}"]
    for name, alpha in (("TACO's", taco.alpha), ("the reversed", taco.reversed)):
        product, paired = bounds.over_correction(alpha, taco.ratios), bounds.paired_correction(alpha, taco.ratios)
        lines.append(f"with {name} alpha: product of sums {product:.4g}, sum of products {paired:.4g}")
    return Shown("corollary2.png", "TACO, Corollary 2", "\n".join(lines), figures.draw_coefficients(taco))


def check_fednova() -> Shown:
    """The objective inconsistency of FedAvg, and FedNova without it."""
    measured = inconsistency.measure()
    title = "FedNova, objective inconsistency"
    return Shown("fednova.png", title, inconsistency.report(measured), inconsistency.draw(measured))


def check_clippedgossip() -> Shown:
    """Figure 3 of ClippedGossip: consensus under dissensus."""
    measured = consensus.measure()
    return Shown("clippedgossip.png", "ClippedGossip, Figure 3", consensus.report(measured), consensus.draw(measured))


CHECKS = {
    Theorem.DRAG: check_drag,
    Theorem.BR_DRAG: check_br_drag,
    Theorem.TACO: check_taco,
    Theorem.FEDNOVA: check_fednova,
    Theorem.CLIPPEDGOSSIP: check_clippedgossip,
}


if __name__ == "__main__":
    typer.run(main)
