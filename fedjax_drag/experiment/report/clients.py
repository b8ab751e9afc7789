"""What the rule saw of each client, over the evaluated rounds."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_drag.experiment.plain import first
from fedjax_drag.experiment.report import charts
from fedjax_drag.experiment.report.charts import Chart, Line
from fedjax_drag.experiment.report.curves import Panel
from fedjax_drag.experiment.report.reading import ReportedRun
from fedjax_drag.experiment.run import metric_kinds
from fedjax_drag.experiment.run.metric_kinds import IDENTITY, OF_ALL, PER_CLIENT

ROWS = 100
"""Most clients that get a row each; of more, the rows are places in the cohort."""

RUNS = 100
"""Most runs of which the clients are shown."""

EVALUATIONS = (200, 60)
"""Columns of a heat map, of a single run and of one among several; more are thinned out evenly."""

SIDES = ("benign", "malicious")
"""Names of series 0 and 1."""

EXPELLED = "expelled"

_PAIRED, _ALONE = 400, 300
"""Height in pixels up to which a heat map has its curves beside it, and height of curves above a taller one."""

_TICKS = 40  # most clients that are named at the axis or in a note
_DIVERGING = [[0.0, "#b35806"], [0.25, "#f1a340"], [0.5, "#f7f7f7"], [0.75, "#67a9cf"], [1.0, "#2166ac"]]
_MARK = "\N{MULTIPLICATION X} "  # of a malicious client


class ClientsOfRun(NamedTuple):
    """The clients of a run.

    Attributes:
      label: the run.
      sides: names of the curves.
      panels: for each quantity, curves of benign and of malicious clients and a heat map.
      paired: whether curves and heat maps stand side by side; a tall heat map has the whole width.
      notes: who was expelled, and what the rows are.
    """

    label: str
    sides: tuple[str, ...]
    panels: list[Panel]
    paired: bool
    notes: list[str]


@dataclasses.dataclass(frozen=True)
class _Cohorts:
    """Who was there at E evaluations; ``ids``, ``malicious`` and ``valid`` are ``[E, S]``.

    ``reason`` says why clients of the cohort do not count: in words, for each evaluation the same.
    """

    rounds: np.ndarray
    ids: np.ndarray
    malicious: np.ndarray
    valid: np.ndarray
    reason: str

    @property
    def sides(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The malicious and the benign clients, in order; None if they are too many or change sides."""
        malicious, benign = np.unique(self.ids[self.malicious]), np.unique(self.ids[~self.malicious])
        many = len(malicious) + len(benign) > ROWS
        return None if many or np.intersect1d(malicious, benign).size else (malicious, benign)


def diagnostics(runs: Sequence[ReportedRun]) -> list[ClientsOfRun]:
    """Per-client charts of those of the first :data:`RUNS` runs that have recorded what they show."""
    most = EVALUATIONS[len(runs) > 1]
    return [found for run in runs[:RUNS] if (found := _clients(run, most)) is not None]


def _clients(run: ReportedRun, most: int) -> ClientsOfRun | None:
    if (cohorts := _cohorts(run)) is None or not (names := _quantities(run, cohorts)):
        return None
    kept = charts.thinned(len(cohorts.rounds), most)
    panels, paired = [], True
    for name in names:
        title = metric_kinds.title(name)
        lines = _lines(cohorts, run.history[name])
        curves = charts.curves(lines, charts.vertical_axis(title, lines, False))
        heat_map = _heat_map(cohorts, run.history[name], title, kept)
        paired = heat_map["layout"]["height"] <= _PAIRED
        curves["layout"]["height"] = heat_map["layout"]["height"] if paired else _ALONE
        panels.append(Panel(curves, title, f"{title}: mean and range over the clients of a side, by round"))
        panels.append(Panel(heat_map, f"{title}, by client", f"{title} of each client, by round"))
    return ClientsOfRun(run.label, SIDES[: 1 + bool(cohorts.malicious.any())], panels, paired, _notes(cohorts))


def _cohorts(run: ReportedRun) -> _Cohorts | None:
    """Who took part; None if the history does not tell."""
    ids = run.history.get("client_ids")
    if ids is None or ids.ndim != 2 or not ids.size or not np.isfinite(ids).all() or np.abs(ids).max() > 2**31:
        return None

    def marks(name: str, default: float) -> np.ndarray:
        given = run.history.get(name)
        return (given if given is not None and given.shape == ids.shape else np.full(ids.shape, default)) == 1

    expels = "num_expelled" in run.history
    absent = "drawn" in run.history or not expels
    reason = " or ".join([EXPELLED] * expels + ["absent"] * absent)
    return _Cohorts(run.history["round"], ids.astype(int), marks("malicious", 0.0), marks("valid", 1.0), reason)


def _quantities(run: ReportedRun, cohorts: _Cohorts) -> list[str]:
    """Names of what the history has of each client, unless it is the same of all throughout."""
    present = [
        name
        for name, x in run.history.items()
        if name not in (*IDENTITY, *OF_ALL) and x.shape == cohorts.ids.shape and np.unique(x[np.isfinite(x)]).size > 1
    ]
    return [name for name in PER_CLIENT if name in present] + [name for name in present if name not in PER_CLIENT]


def _lines(cohorts: _Cohorts, values: np.ndarray) -> list[Line]:
    """Mean and range over the benign and over the malicious clients that count; the latter only if there are any."""
    lines = []
    for series, side in enumerate((~cohorts.malicious, cohorts.malicious)):
        counted = np.ma.array(values, float, mask=~(side & cohorts.valid & np.isfinite(values)))
        if counted.count():
            mean, low, high = (reduce(counted, axis=1).filled(np.nan) for reduce in (np.ma.mean, np.ma.min, np.ma.max))
            lines.append(Line(SIDES[series], series, cohorts.rounds, mean, (low, high)))
    return lines


def _heat_map(cohorts: _Cohorts, values: np.ndarray, title: str, kept: np.ndarray) -> Chart:
    """Malicious clients first, then the others, or places in the cohort, by evaluation; who does not count is muted.

    A row has at each evaluation a ``place`` in the cohort, ``[R, E]``, if its client is ``there``.
    """
    ids, malicious = cohorts.ids[kept].T, cohorts.malicious[kept].T
    axis: dict[str, Any] = {"title": {"text": "cohort, malicious first"}, "showticklabels": False}
    labels: list[str] = []
    if cohorts.sides is None:
        place = np.argsort(~malicious, axis=0, kind="stable")
        there = np.ones(place.shape, bool)
        clients, num_malicious = np.take_along_axis(ids, place, 0), malicious.sum(0)
    else:
        rows = np.concatenate(cohorts.sides)
        matches = rows[:, None, None] == ids
        place, there = matches.argmax(1), matches.any(1)
        clients, num_malicious = np.broadcast_to(rows[:, None], place.shape), np.full(len(kept), len(cohorts.sides[0]))
        labels = [f"{_MARK}{row}" if i < num_malicious[0] else f"{row}" for i, row in enumerate(rows)]
        ticks = charts.thinned(len(rows), _TICKS)
        axis = {"title": {"text": "client"}, "tickvals": ticks.tolist(), "ticktext": [labels[i] for i in ticks]}
    at = lambda x: np.take_along_axis(x[kept].T, place, 0)
    counts = at(cohorts.valid) & there
    shown = np.where(counts, at(values), np.nan)
    common = {"x": cohorts.rounds[kept].tolist(), "y": list(range(len(place))), "customdata": clients.tolist()}
    common |= {"type": "heatmap", "hoverongaps": False}
    said = "round %{x}<br>client %{customdata}<br>"
    hover = f"{said}{charts.text(title)} %{{z:.3~g}}<extra></extra>"
    data = [common | {"z": charts.numbers(shown, 3), "meta": 0, "hovertemplate": hover} | _colors(shown)]
    if (gone := there & ~counts).any():
        muted = {"z": charts.numbers(np.where(gone, 1.0, np.nan)), "showscale": False, "meta": charts.MUTED}
        data.append(common | muted | {"hovertemplate": f"{said}{cohorts.reason}<extra></extra>"})
    if num_malicious.any():
        heights = [*num_malicious - 0.5, num_malicious[-1] - 0.5]
        border = {"x": charts.edges(cohorts.rounds[kept]).tolist(), "y": heights}
        style = {"mode": "lines", "hoverinfo": "skip", "line": {"width": 2.5, "shape": "hv"}, "meta": charts.INK}
        data.append(border | style)
    layout = {
        "xaxis": {"title": {"text": "communication round"}, "showgrid": False},
        "yaxis": {"range": [len(place) - 0.5, -0.5], "showgrid": False, "zeroline": False} | axis,
        "height": int(np.clip(130 + 15 * len(place), 240, 760)),
        "meta": labels,
    }
    return {"data": data, "layout": layout}


def _colors(shown: np.ndarray) -> dict[str, Any]:
    """Colours between the 1st and the 99th percentile; about 0 if there are negative values."""
    known = charts.drawable(shown)
    low, high = np.percentile(known, (1, 99)).tolist() if known.size else (0.0, 1.0)
    if low < 0:
        largest = max(-low, high)
        return {"colorscale": _DIVERGING, "zmin": -largest, "zmax": largest}
    return {"colorscale": "Cividis", "zmin": 0.0 if low < 0.5 * high else low, "zmax": high or 1.0}


def _notes(cohorts: _Cohorts) -> list[str]:
    """What a reader of the charts has to know."""
    notes = []
    if cohorts.sides is None:
        notes.append(
            f"Rows are places in the cohort: more than {ROWS} clients, or malicious ones that change by round."
        )
    elif cohorts.malicious.any():
        named = ", ".join(first([*map(str, cohorts.sides[0])], _TICKS))
        notes.append(f"Malicious, marked {_MARK.strip()} and above the line: {named}.")
    gone = {}
    for evaluation, place in np.argwhere(~cohorts.valid) if cohorts.reason == EXPELLED else ():
        side = SIDES[int(cohorts.malicious[evaluation, place])]
        gone.setdefault(int(cohorts.ids[evaluation, place]), f"{side}, round {cohorts.rounds[evaluation]}")
    if gone:
        said = ", ".join(first([f"{client} ({when})" for client, when in gone.items()], _TICKS))
        notes.append(f"Expelled, with the first evaluated round in which they no longer count: {said}.")
    return notes
