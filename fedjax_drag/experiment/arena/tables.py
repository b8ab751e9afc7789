"""A standing as a page of Markdown, made of its rows alone."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_drag.experiment.arena.changes import changes
from fedjax_drag.experiment.arena.scores import KEPT
from fedjax_drag.experiment.arena.standing import REACHED, Standing
from fedjax_drag.experiment.intervals import estimate
from fedjax_drag.experiment.sweep.grid import describe
from fedjax_drag.experiment.sweep.summary_page import markdown


def page(standing: Standing, since: Standing | None = None) -> str:
    """The figures over all tasks, what has changed since an earlier standing, then every task by itself."""
    parts = [f"# {standing.name}, version {standing.version}", about(standing), markdown(standing.lines())]
    parts[:0] = filter(None, [doubts(standing)])
    parts += [f"Played: {when}."] if (when := played(standing)) else []
    parts += ["## What has changed", _listed(changes(since, standing))] if since else []
    if standing.backdoors:
        heads, *lines = backdoors(standing)
        texts = [[label, *map(str, figures)] for label, *figures in lines]
        parts += ["## Backdoors", about_backdoors(), markdown([heads, *texts])]
    for place, name in enumerate(standing.tasks):
        parts += [f"## {name}", markdown(task(standing, place))]
    failed = [f"{label}: {message}" for label, row in standing.rows.items() for message in row.failures]
    return "\n\n".join([*parts, *(["Runs that failed count as 0:", _listed(failed)] if failed else [])]) + "\n"


def doubts(standing: Standing) -> str:
    """Which accuracies are of models that are not finite or stand still; empty if none is known to be."""
    found = [f"{label} against {doubt}" for label, row in standing.rows.items() for doubt in row.doubts]
    counts = "a model that is not finite counts as 0, and one whose messages were all rejected stands still"
    return f"Not to be taken at face value ({counts}): {'; '.join(found)}." if found else ""


def about(standing: Standing) -> str:
    """What the figures are."""
    return (
        f"Test {standing.criterion.label} in %, mean over {len(standing.seeds)} seeds with the 95 % interval, over "
        f"{len(standing.tasks)} tasks: without an attack, with the worst of {len(standing.opponents) - 1} attacks in "
        "each task and under each seed, and the mean over the attacks. Settings and the attacks' strengths were chosen "
        "on validation examples with other seeds. The place is that of the worst case. Ranks: those that the seeds "
        "leave open, since an entry is better than another only where the interval of their paired difference is above "
        "zero. Passes: what the server's side of the method moves in a round, in multiples of the deltas."
    )


def about_backdoors() -> str:
    """What the figures of the backdoors are."""
    return (
        "Success of each backdoor in %, the share of the test examples that count for which the model says what the "
        "attacker wants: the lower, the better. First in the round in which the attack stops, then, as after, at the "
        "end of the run, after rounds in which all were honest; and the test accuracy when it stops. Mean over the "
        "tasks, with the 95 % interval over the seeds, against the settings chosen for the attacks. Of the strengths "
        f"that leave {round(100 * KEPT)} % of the accuracy without an attack, each attacker has taken the most "
        "successful on validation examples. Places do not depend on it."
    )


def backdoors(standing: Standing) -> list[list[Any]]:
    """What each backdoor has reached, over all tasks: a line of estimates for each entry, below the names."""
    lines: list[list[Any]] = [["entry", *(_shown(label, name) for label in standing.backdoors for name in REACHED)]]
    for label in standing.scores():
        reached = [standing.rows[label].backdoors[one][name] for one in standing.backdoors for name in REACHED]
        lines.append([label, *(estimate(np.asarray(shares).mean(axis=0)) for shares in reached)])
    return lines


def _shown(label: str, name: str) -> str:
    return label if name == REACHED[0] else f"{label}, {name}"


def played(standing: Standing) -> str:
    """When its entries were played, and by which version of this package; empty if the rows do not say."""
    days = sorted({row.played for row in standing.rows.values() if row.played})
    versions = sorted({row.package for row in standing.rows.values() if row.package})
    period = " to ".join(dict.fromkeys([*days[:1], *days[-1:]]))
    return ", ".join(filter(None, [period, " and ".join(f"fedjax_drag {version}" for version in versions)]))


def task(standing: Standing, place: int) -> list[list[str]]:
    """The settings chosen in a task, the accuracies there by attack, and the worst case: lines below their head."""
    lines = [["entry", "setting", *standing.opponents, "worst case"]]
    for label in standing.scores():
        row = standing.rows[label]
        by_opponent = np.asarray(row.accuracy)[place]
        means = [f"{100 * mean:.1f}" for mean in by_opponent.mean(axis=1)]
        worst = estimate(by_opponent.min(axis=0))
        lines.append([label, describe(row.choices[place]["setting"]) or "-", *means, str(worst)])
    return lines


def _listed(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)
