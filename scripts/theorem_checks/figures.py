"""Tables and figures of measured convergence and bounds."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from theorem_checks.measurements import Coefficients, Measured


def report(values: Sequence[float], theorem: Measured) -> str:
    """A row for each c: the measurement, each bound, and the ratio of the first bound to the measurement."""
    names = list(theorem.bounds)
    lines = ["  ".join(f"{name:>24}" for name in ("c", "measured", *names, "looseness"))]
    for i, c in enumerate(values):
        measured = theorem.runs.means[i]
        bounds = [theorem.bounds[name][i] for name in names]
        lines.append("  ".join(f"{value:24.4g}" for value in (c, measured, *bounds, bounds[0] / measured)))
    return "\n".join(lines)


def draw(title: str, values: Sequence[float], theorem: Measured, ends: Mapping[str, float]) -> Figure:
    """Measurement and bounds, over the rounds (left) and over c (right).

    Args:
      title: of the figure.
      values: of c.
      theorem: what to draw.
      ends: by name, values of c near 0 to mark.
    """
    figure = Figure(figsize=(10, 4), facecolor="white", layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, series in theorem.over_rounds.items():
        left.plot(np.arange(1, len(series) + 1), series, label=name, linestyle="-" if name == "measured" else "--")
    right.plot(values, theorem.runs.means, "o-", label="measured")
    for name, bound in theorem.bounds.items():
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


def draw_coefficients(corollary: Coefficients) -> Figure:
    """TACO's coefficients against the ratios by which Corollary 2 orders them."""
    figure = Figure(figsize=(5, 4), facecolor="white", layout="constrained")
    panel = figure.subplots()
    panel.plot(corollary.ratios, corollary.alpha, "o")
    title = f"TACO: rank correlation {corollary.order:.2f}"
    panel.set(xlabel="mu / c of a client", ylabel="its mean alpha", title=title)
    return figure
