"""What has changed from one standing to another."""

import math
from collections.abc import Mapping
from typing import Any

from fedjax_drag.experiment.arena.scores import Score
from fedjax_drag.experiment.arena.standing import Standing
from fedjax_drag.experiment.config.config import flatten
from fedjax_drag.simulation.criterion import Criterion

NOTHING = "No entry has moved beyond the intervals."

_SETTINGS = ("base", "attacks", "backdoors", "tuning_seeds", "most_settings")
_LEFT_OUT = "left out"


def changes(old: Standing, new: Standing) -> list[str]:
    """A sentence for each change: of the protocol, entries that are new, gone or of other code, and those that moved.

    An entry has moved if its rank is another among the entries of both standings, or if its intervals of the worst case
    do not overlap. Differences within the intervals are not listed: seeds alone would make them.
    """
    common = [label for label in new.rows if label in old.rows]
    before, after = old.scores(common), new.scores(common)
    sentences = [f"Protocol: {difference}." for difference in _protocol(old, new)]
    if added := [label for label in new.scores() if label not in old.rows]:
        sentences.append(f"New: {', '.join(added)}.")
    if gone := [label for label in old.scores() if label not in new.rows]:
        sentences.append(f"Gone: {', '.join(gone)}.")
    codes = {label: {old.rows[label].code, new.rows[label].code} for label in after}
    if rewritten := [label for label, both in codes.items() if len(both) == 2 and "" not in both]:
        sentences.append(f"Code changed: {', '.join(rewritten)}.")
    moved = [sentence for label in after if (sentence := _moved(label, before[label], after[label], new.criterion))]
    return [*sentences, *(moved or [NOTHING])]


def _protocol(old: Standing, new: Standing) -> list[str]:
    """What is another in the protocol; settings of the runs only where both standings hold them."""
    found = []
    for key in ("name", "version", "seeds", "tasks", "opponents"):
        was, now = getattr(old, key), getattr(new, key)
        if was != now:
            name = "attacks" if key == "opponents" else key
            found.append(f"{name} {_told(now)}, before {_told(was)}")
    if old.protocol and new.protocol:
        was, now = _settings(old.protocol), _settings(new.protocol)
        others = [key for key in {**was, **now} if was.get(key, _LEFT_OUT) != now.get(key, _LEFT_OUT)]
        said = lambda key: f"{key}={now[key]}" if key in now else f"{key} {_LEFT_OUT}"
        found += [f"{said(key)}, before {was.get(key, _LEFT_OUT)}" for key in others]
    return found


def _settings(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """What is set, by dotted key; a component is its name, whether it has arguments or not."""
    kept = {key: protocol[key] for key in _SETTINGS if key in protocol}
    return {key.removesuffix(".name"): value for key, value in flatten(kept).items() if value != {}}


def _told(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _moved(label: str, before: Score, after: Score, by: Criterion) -> str:
    """What is another of an entry beyond the intervals; empty if nothing is."""
    apart = abs(after.worst.mean - before.worst.mean) > after.worst.half + before.worst.half  # never of a single seed
    failed = math.isfinite(before.worst.mean) != math.isfinite(after.worst.mean)
    if before.rank == after.rank and not apart and not failed:
        return ""
    worst = f"{before.worst.text(by)} to {after.worst.text(by)}"
    return f"{label}: ranks {before.ranks} to {after.ranks}, worst case {worst}."
