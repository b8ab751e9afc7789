"""Standings made of numbers alone."""

import numpy as np

import fedjax_drag as fd

PROTOCOL = {"base": {"rounds": 3}, "attacks": {}, "tuning_seeds": [100], "most_settings": 8}
NEEDS = {"root_only": ["root data"], "krum": ["number of attackers"]}


def standing(worst, seeds=3, spread=0.01, tasks=("beta=1.0", "beta=0.1"), **changes):
    """Entries by label with their worst case; clean accuracy is 0.9, and the other attack does nothing."""
    rows = {}
    for number, (label, accuracy) in enumerate(worst.items()):
        table = np.full((len(tasks), 3, seeds), 0.9)
        table[:, 1] = accuracy + spread * np.arange(seeds) - spread * (seeds - 1) / 2
        choice = {"task": {}, "setting": {"aggregator.c": 0.5} if number else {}, "strengths": {}}
        method = {"aggregator": "python:mine" if label == "mine" else label}
        choices = [choice | {"validation_accuracy": 0.5}] * len(tasks)
        values = (method, {}, NEEDS.get(label, []), choices, table.tolist(), [], 90.0, f"{label}-1", 3.0 + number)
        rows[label] = fd.arena.Row(label, *values)
    plain = {"version": 1, "seeds": list(range(seeds)), "opponents": ["none", "ipm", "alie"], "protocol": PROTOCOL}
    return fd.arena.Standing("tiny", tasks=list(tasks), rows=rows, **(plain | changes))
