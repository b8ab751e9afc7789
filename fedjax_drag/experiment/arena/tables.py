"""A standing as a page of Markdown, made of its rows alone."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_drag.experiment.arena.changes import changes
from fedjax_drag.experiment.arena.scores import KEPT, measured, of_failed
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
    if failed := [f"{label}: {message}" for label, row in standing.rows.items() for message in row.failures]:
        parts += [f"Runs that failed count as {failure(standing)}:", _listed(failed)]
    return "\n\n".join(parts) + "\n"


def doubts(standing: Standing) -> str:
    """Which accuracies are of models that are not finite or stand still; empty if none is known to be."""
    found = [f"{label} against {doubt}" for label, row in standing.rows.items() for doubt in row.doubts]
    counts = f"a model that is not finite counts as {failure(standing)}"
    counts += ", and one whose messages were all rejected stands still"
    return f"Not to be taken at face value ({counts}): {'; '.join(found)}." if found else ""


def failure(standing: Standing) -> str:
    """What a run that failed counts as, in words."""
    by = standing.criterion
    return f"{of_failed(by):.0f}" if by.is_share else "worse than any"


def about(standing: Standing) -> str:
    """What the figures are."""
    better = "above" if standing.criterion.higher_is_better else "below"
    return (
        f"Test {measured(standing.criterion)}, mean over {len(standing.seeds)} seeds with the 95 % interval, over "
        f"{len(standing.tasks)} tasks: without an attack, with the worst of {len(standing.opponents) - 1} attacks in "
        "each task and under each seed, and the mean over the attacks. Settings and the attacks' strengths were chosen "
        "on validation examples with other seeds. The place is that of the worst case. Ranks: those that the seeds "
        "leave open, since an entry is better than another only where the interval of their paired difference is "
        f"{better} zero. Passes: what the server's side of the method moves in a round, in multiples of the deltas."
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
    lines: list[list[Any]] = [["entry"]]
    for label in standing.backdoors:
        lines[0] += [label, *(f"{label}, {name}" for name in REACHED[1:])]
    for label in standing.scores():
        reached = [standing.rows[label].backdoors[one][name] for one in standing.backdoors for name in REACHED]
        lines.append([label, *(estimate(np.asarray(shares).mean(axis=0)) for shares in reached)])
    return lines


def played(standing: Standing) -> str:
    """When its entries were played, and by which version of this package; empty if the rows do not say."""
    days = sorted({row.played for row in standing.rows.values() if row.played})
    versions = sorted({row.package for row in standing.rows.values() if row.package})
    period = " to ".join(dict.fromkeys([*days[:1], *days[-1:]]))
    return ", ".join(filter(None, [period, " and ".join(f"fedjax_drag {version}" for version in versions)]))


def task(standing: Standing, place: int) -> list[list[str]]:
    """The settings chosen in a task, the accuracies there by attack, and the worst case: lines below their head."""
    lines, by = [["entry", "setting", *standing.opponents, "worst case"]], standing.criterion
    for label in standing.scores():
        row = standing.rows[label]
        by_opponent = row.figures[place]
        means = map(by.figure, by_opponent.mean(axis=1))
        worst = estimate(by.worst(by_opponent, axis=0)).text(by)
        lines.append([label, describe(row.choices[place]["setting"]) or "-", *means, worst])
    return lines


def _listed(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)
