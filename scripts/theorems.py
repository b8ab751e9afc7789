"""The papers' theorems on quadratics whose constants are known: what is measured, what is promised, and where it ends.

    python scripts/theorems.py --output-dir runs/theorems

It prints a table for each theorem and draws a figure for each: theorem1.png (DRAG), theorem2.png (BR-DRAG under sign
flips of six clients in ten) and corollary2.png (TACO's coefficients). About a minute of CPU.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import matplotlib
import numpy as np
import typer
from matplotlib.figure import Figure
from scipy.stats import rankdata
from theorem_bounds import (
    XIAO,
    ZHU,
    Setting,
    byzantine_bound,
    byzantine_rate,
    drag_bound,
    largest_c,
    oracle_rate,
    oracle_step,
    over_correction,
    paired_correction,
)
from theorem_quadratics import Displacement, Quadratics, Runs, recorded, rounds_of, simulate

import fedjax_drag as fd
from fedjax_drag.types import Aggregator

DRAG_C = (0.0, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
BR_DRAG_C = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9)


class Measured(NamedTuple):
    """A theorem and what became of it.

    Attributes:
      setting: the constants.
      runs: by value of c.
      bounds: by name, the bound for each c.
      over_rounds: at one c, by name, measured and bound after 1, 2, .. rounds.
    """

    setting: Setting
    runs: Runs
    bounds: dict[str, np.ndarray]
    over_rounds: dict[str, np.ndarray]


def drag_theorem(values: Sequence[float] = DRAG_C, rounds: int = 300, seeds: int = 3, shown: float = 0.02) -> Measured:
    """Theorem 1 of both papers: 5 of 20 clients in a round, U = 5, ``eta L U`` = 1/20."""
    problem, step_size, steps, batch = Quadratics.draw(20, spread=0.3, noise=0.5, start=3.0), 0.01, 5, 2
    asked = {"cohort_size": 5, "batch_size": batch, "step_size": step_size, "local_steps": steps}
    runs = simulate(problem, lambda c: fd.aggregators.drag(c, 0.25), values, seeds, num_rounds=rounds, **asked)
    setting = problem.setting(step_size, steps, batch)
    variants = [("Xiao et al.", XIAO, False), ("Xiao et al., as printed", XIAO, True)]
    variants += [("Zhu et al.", ZHU, False), ("Zhu et al., as printed", ZHU, True)]
    bounds = {
        name: np.array([drag_bound(setting, c, rounds, proof, printed) for c in values])
        for name, proof, printed in variants
    }
    done = np.arange(1, rounds + 1)
    over = {"measured": runs.running[values.index(shown)]}
    over |= {name: drag_bound(setting, shown, done, proof) for name, proof, printed in variants if not printed}
    return Measured(setting, runs, bounds, over)


def attacked(
    rule: Callable[[Any], Aggregator], values: Sequence[float], rounds: int, seeds: int
) -> tuple[Setting, Runs]:
    """What Theorem 2 is about: 6 of the 10 clients of each round flip the sign, and all examples are root data."""
    problem, step_size, steps, batch = Quadratics.draw(20, spread=0.3, noise=0.5, start=10.0), 0.0005, 5, 8
    asked = {"num_rounds": rounds, "cohort_size": 10, "batch_size": batch, "step_size": step_size, "local_steps": steps}
    asked |= {"attack": fd.attacks.sign_flip(), "num_byzantine": 6, "byzantine_of": "cohort"}
    asked |= {"root_size": problem.examples.shape[0] * problem.examples.shape[1]}
    return problem.setting(step_size, steps, batch, root=True), simulate(problem, rule, values, seeds, **asked)


def oracle_theorem(rounds: int = 1000, seeds: int = 2) -> tuple[dict[str, np.ndarray], float, float]:
    """The first case of Theorem 2, with ``c = w / (w - x)``.

    Returns:
      By name, measured and bound after 1, 2, .. rounds; the step size, and the largest one allowed.
    """
    setting, runs = attacked(lambda _: fd.aggregators.br_drag(oracle=True), [0.0], rounds, seeds)
    told = rounds_of(runs.results[0])
    promised = byzantine_bound(setting, told, np.arange(1, rounds + 1), oracle_rate(setting, told))
    over = {"measured": runs.running[0], "Theorem 2, c = w / (w - x)": promised}
    return over, setting.step_size, oracle_step(setting, told)


def br_drag_theorem(values: Sequence[float] = BR_DRAG_C, rounds: int = 1000, seeds: int = 2) -> Measured:
    """The second case of Theorem 2, with a constant c."""
    setting, runs = attacked(fd.aggregators.br_drag, values, rounds, seeds)
    told = [rounds_of(results) for results in runs.results]
    bound = np.array([byzantine_bound(setting, one, rounds, byzantine_rate(setting, one)) for one in told])
    return Measured(setting, runs, {"Theorem 2": bound}, {})


class Coefficients(NamedTuple):
    """TACO's clients.

    Attributes:
      alpha: mean coefficient, ``[M]``.
      ratios: ``mu_i / c_i``, ``[M]``.
      smallest_cosine: the smallest ``c_i``, which Assumption 2 wants positive.
    """

    alpha: np.ndarray
    ratios: np.ndarray
    smallest_cosine: float

    @property
    def order(self) -> float:
        """Spearman's rank correlation of the two; -1 is the order that Corollary 2 asks for."""
        return float(np.corrcoef(rankdata(self.alpha), rankdata(self.ratios))[0, 1])

    @property
    def reversed(self) -> np.ndarray:
        """The same coefficients, the largest for the client with the largest ratio."""
        return np.sort(self.alpha)[np.argsort(np.argsort(self.ratios))]


def taco_corollary(clients: int = 8, rounds: int = 10) -> Coefficients:
    """The constants of Assumption 2, as tight as the run allows, and the coefficients; one example for each client."""
    problem, step_size, steps = Quadratics.draw(clients, spread=1.0, noise=0.0, start=5.0, per_client=1), 0.02, 5
    thetas = [np.full(len(problem.curvature), problem.start)]
    result = fd.simulate(
        recorded(fd.algorithms.taco(clients)),
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
        callbacks=[lambda seen: thetas.append(np.asarray(seen.state.params["theta"]))],
    )
    # Both by client: the cohort is everybody, in an order that changes.
    places = np.argsort(result.history["client_ids"], axis=1)
    alpha = np.take_along_axis(result.history["alpha"], places, 1)
    sent = -np.take_along_axis(result.history["delta"], places[..., None], 1)  # the paper's sign
    gradient = problem.curvature * np.stack(thetas[:-1])
    product, squares = np.einsum("td,tmd->tm", gradient, sent), (gradient**2).sum(1)
    cosine = product / np.sqrt(squares)[:, None] / np.linalg.norm(sent, axis=2)
    ratios = (product / squares[:, None]).max(0) / cosine.min(0)
    return Coefficients(alpha.mean(0), ratios, float(cosine.min()))


def report(values: Sequence[float], found: Measured) -> str:
    """A row for each c: what was measured, each bound, and how many times as large the first one is."""
    names = list(found.bounds)
    lines = ["  ".join(f"{name:>24}" for name in ("c", "measured", *names, "looseness"))]
    for i, c in enumerate(values):
        cells = [c, found.runs.means[i], *(found.bounds[name][i] for name in names)]
        loose = found.bounds[names[0]][i] / found.runs.means[i]
        lines.append("  ".join(f"{value:24.4g}" for value in (*cells, loose)))
    return "\n".join(lines)


def draw(title: str, values: Sequence[float], found: Measured, ends: dict[str, float]) -> Figure:
    """Measured and bound, over rounds and over c; ``ends`` are values of c to mark, near 0."""
    figure = Figure(figsize=(10, 4), facecolor="white", layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, series in found.over_rounds.items():
        left.plot(np.arange(1, len(series) + 1), series, label=name, linestyle="-" if name == "measured" else "--")
    right.plot(values, found.runs.means, "o-", label="measured")
    for name, bound in found.bounds.items():
        finite = np.isfinite(bound)
        right.plot(np.asarray(values)[finite], bound[finite], "s--", label=name, markersize=4)
    for (name, c), style in zip(ends.items(), (":", "-."), strict=False):
        right.axvline(c, color="0.5", linestyle=style, label=name)
    if ends:
        right.set_xscale("symlog", linthresh=0.01)
        right.set_xlim(-0.002, 1.5 * max(values))
    for panel, axis in ((left, "rounds"), (right, "c")):
        panel.set(xlabel=axis, ylabel="mean squared gradient norm", yscale="log")
        panel.legend(fontsize=8)
    figure.suptitle(title)
    return figure


def draw_coefficients(found: Coefficients) -> Figure:
    """TACO's coefficients against what Corollary 2 orders them by."""
    figure = Figure(figsize=(5, 4), facecolor="white", layout="constrained")
    panel = figure.subplots()
    panel.plot(found.ratios, found.alpha, "o")
    panel.set(xlabel="mu / c of a client", ylabel="its mean alpha", title=f"TACO: rank correlation {found.order:.2f}")
    return figure


def main(output_dir: Annotated[Path, typer.Option(help="Folder of the figures.")] = Path("runs/theorems")) -> None:
    """Runs the theorems, prints what came of them, and draws them."""
    matplotlib.use("agg")
    output_dir.mkdir(parents=True, exist_ok=True)

    def show(name: str, title: str, text: Any, figure: Figure) -> None:
        figure.savefig(output_dir / name, dpi=150)
        typer.echo(f"{title}\n{text}\n{output_dir / name}\n")

    drag = drag_theorem()
    ends = {f"no bound, {name}": largest_c(drag.setting, proof) for name, proof in (("Xiao", XIAO), ("Zhu", ZHU))}
    text = report(DRAG_C, drag) + "".join(f"\n{name} from c = {c:.4f}" for name, c in ends.items())
    show("theorem1.png", "DRAG, Theorem 1", text, draw("DRAG, Theorem 1 (left: c = 0.02)", DRAG_C, drag, ends))

    over, step_size, allowed = oracle_theorem()
    br_drag = br_drag_theorem()._replace(over_rounds=over)
    first, promised = over.values()
    text = report(BR_DRAG_C, br_drag) + f"\nc = w / (w - x): measured {first[-1]:.4g}, bound {promised[-1]:.4g}, "
    text += f"step size {step_size} of at most {allowed:.4g}"
    title = "BR-DRAG, Theorem 2, 60 % sign flips (left: c = w / (w - x))"
    show("theorem2.png", "BR-DRAG, Theorem 2", text, draw(title, BR_DRAG_C, br_drag, {}))

    taco = taco_corollary()
    lines = [f"rank correlation of alpha and mu / c {taco.order:.3f}, smallest c {taco.smallest_cosine:.3f}"]
    for name, alpha in (("TACO's", taco.alpha), ("the reversed", taco.reversed)):
        printed, paired = over_correction(alpha, taco.ratios), paired_correction(alpha, taco.ratios)
        lines.append(f"with {name} alpha: product of sums {printed:.4g}, sum of products {paired:.4g}")
    show("corollary2.png", "TACO, Corollary 2", "\n".join(lines), draw_coefficients(taco))


if __name__ == "__main__":
    typer.run(main)
