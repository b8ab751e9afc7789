"""The tables of a standing, made of its rows alone; each is lines of cells, the first of them its head."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from fedjax_drag import notebook
from fedjax_drag.experiment.arena.record import PlayedRows
from fedjax_drag.experiment.arena.scores import worst_by_seed
from fedjax_drag.experiment.intervals import Estimate, estimate
from fedjax_drag.experiment.sweep.grid import describe
from fedjax_drag.experiment.sweep.summary_page import markdown

Lines = list[list[str]]


def page(standing: PlayedRows, changes: Sequence[str] = ()) -> str:
    """Ranks over all tasks, what has changed, then every task by itself, as Markdown."""
    parts = [f"# {standing.name}, version {standing.version}", about(standing), markdown(ranks(standing))]
    parts[:0] = filter(None, [doubts(standing)])
    parts += [f"Played: {when}."] if (when := played(standing)) else []
    parts += ["## What has changed", "\n".join(f"- {change}" for change in changes)] if changes else []
    for place, name in enumerate(standing.tasks):
        parts += [f"## {name}", markdown(task(standing, place))]
    failed = [f"- {label}: {message}" for label, row in standing.rows.items() for message in row.failures]
    return "\n\n".join([*parts, *(["Runs that failed count as 0:", "\n".join(failed)] if failed else [])]) + "\n"


def doubts(standing: PlayedRows) -> str:
    """Which accuracies are no result of learning; empty if none is known to be."""
    found = [f"{label} against {doubt}" for label, row in standing.rows.items() for doubt in row.doubts]
    counts = "a model that is not finite counts as chance, and one whose messages were all rejected stands still"
    return f"Not to be taken at face value ({counts}): {'; '.join(found)}." if found else ""


def about(standing: PlayedRows) -> str:
    """What the figures are."""
    return (
        f"Test accuracy in %, mean over {len(standing.seeds)} seeds with the 95 % interval, over {len(standing.tasks)} "
        f"tasks: without an attack, with the worst of {len(standing.opponents) - 1} attacks in each task and under each"
        " seed, and the mean over the attacks. Settings and the attacks' strengths were chosen on validation examples "
        "with other seeds. The place is that of the worst case. Ranks: those that the seeds leave open, since an entry "
        "is better than another only where the interval of their paired difference is above zero. Passes: what the "
        "server's side of the method moves in a round, in multiples of the deltas."
    )


def ranks(standing: PlayedRows) -> Lines:
    """The figures over all tasks, the best entry first."""
    head = ["entry", "place", "ranks", "clean", "worst case", "mean", "needs", "passes", "minutes"]
    lines = [
        [label, str(place), one.ranks, *map(str, (one.clean, one.worst, one.mean)), *_demanded(standing, label)]
        for place, (label, one) in enumerate(standing.scores().items(), start=1)
    ]
    return [head, *lines]


def task(standing: PlayedRows, place: int) -> Lines:
    """The settings chosen in a task, the accuracies there by attack, and the worst case."""
    lines = []
    for label in standing.scores():
        row = standing.rows[label]
        by_opponent = np.asarray(row.accuracy)[place]
        means = [str(Estimate(float(one.mean()), float("nan"))) for one in by_opponent]
        worst = estimate(by_opponent.min(axis=0))
        lines.append([label, describe(row.choices[place]["setting"]) or "-", *means, str(worst)])
    return [["entry", "setting", *standing.opponents, "worst case"], *lines]


def heat(standing: PlayedRows, place: int | None = None) -> tuple[Lines, Float[np.ndarray, "entries columns"]]:
    """Accuracies by entry and attack with the worst case last, the highest first: as lines, and as numbers.

    Args:
      standing: whose rows they are.
      place: of a task; None for the mean over all of them.
    """
    labels = list(standing.scores())
    of_tasks = slice(None) if place is None else slice(place, place + 1)
    accuracies = [np.asarray(standing.rows[label].accuracy)[of_tasks] for label in labels]
    means = [accuracy.mean(axis=(0, 2)) for accuracy in accuracies]
    worst = [worst_by_seed(accuracy).mean() for accuracy in accuracies]
    values = np.column_stack([np.array(means), np.array(worst)])
    order = np.argsort(-values[:, -1], kind="stable")
    labels, values = [labels[i] for i in order], values[order]
    lines = [
        [label, *(f"{100 * value:.1f}" for value in row)] for label, row in zip(labels, values.tolist(), strict=True)
    ]
    return [["entry", *standing.opponents, "worst case"], *lines], values


def played(standing: PlayedRows) -> str:
    """When its entries were played, and by which version of this package; empty if the rows do not say."""
    days = sorted({row.played for row in standing.rows.values() if row.played})
    versions = sorted({row.package for row in standing.rows.values() if row.package})
    period = " to ".join(dict.fromkeys([*days[:1], *days[-1:]]))
    return ", ".join(filter(None, [period, " and ".join(f"fedjax_drag {version}" for version in versions)]))


def shares(values: Float[np.ndarray, "entries columns"]) -> Float[np.ndarray, "entries columns"]:
    """How strongly cells are shaded, from 0 for the lowest value to 1 for the highest."""
    # Cubed, since good defences are close together where a bad one is far away.
    return ((values - values.min()) / (np.ptp(values) or 1.0)) ** 3


def notebook_page(standing: PlayedRows) -> str:
    """Ranks and the map of attacks as HTML, the user's own entries marked."""
    if not standing.rows:
        return notebook.table(standing.name, {"entries": "none has been played"})
    own = [label for label, row in standing.rows.items() if row.is_own]
    lines, values = heat(standing)
    by = f", {len(standing.tasks)} tasks, {len(standing.seeds)} seeds"
    return notebook.beside(
        notebook.grid(f"{standing.name}: test accuracy in %{by}", ranks(standing), own),
        notebook.grid("Mean over the tasks, by attack", lines, own, shares(values)),
    )


def _demanded(standing: PlayedRows, label: str) -> list[str]:
    row = standing.rows[label]
    passes = "-" if row.passes is None else f"{row.passes:.1f}"
    return [row.knowledge, passes, f"{row.seconds / 60:.0f}"]
