"""Standings made of numbers alone, and arenas that are played by a stand-in for the runs."""

import math

import numpy as np

import fedjax_drag as fd
from fedjax_drag.experiment.arena import requirements
from fedjax_drag.experiment.arena.trials import EntryOutcome, Trials

PROTOCOL = {"base": {"rounds": 3}, "attacks": {}, "tuning_seeds": [100], "most_settings": 8}
NEEDS = {"root_only": ["root data"], "krum": ["number of attackers"]}

ARENA = {
    "name": "tiny",
    "base": {
        "data": {"name": "digits", "validation_fraction": 0.2},
        "partition": {"name": "iid", "num_clients": 6},
        "model": {"name": "mlp", "hidden": [4]},
        "rounds": 1,
        "cohort_size": 6,
        "local_steps": 1,
        "batch_size": 8,
        "step_size": 0.1,
        "num_byzantine": 1,
        "eval_every": 1,
    },
    "attacks": {"sign_flip": None},
    "entries": {"median": None},
    "seeds": [0, 1],
    "most_settings": 2,
}
QUALITY = {"fedavg": 0.2, "root_only": 0.6, "krum": 0.5, "norm_clipping": 0.8}


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


def stand_in(monkeypatch, before=lambda label: None, pages=False):
    """Plays entries without runs, after ``before``, and writes no pages; returns the entries that were played."""
    entries = []

    def play(self, arena, entry):
        self.check(arena, entry)
        before(entry.label)
        entries.append(entry)
        setting = {axis: values[0] for axis, values in entry.settings.items()}
        choice = {"task": {}, "setting": setting, "strengths": {}, "validation_accuracy": 0.5}
        shape = math.prod(map(len, arena.tasks.values())), len(arena.opponents), len(arena.seeds)
        accuracy = np.full(shape, QUALITY.get(entry.label, 0.7)) + 0.01 * np.arange(len(arena.seeds))
        return EntryOutcome([choice] * shape[0], accuracy, ("no data",) if entry.label == "krum" else ())

    monkeypatch.setattr(Trials, "play", play)
    monkeypatch.setattr(requirements, "passes", lambda config, num_clients: 3.0)
    if not pages:
        monkeypatch.setattr("fedjax_drag.experiment.arena.page.write", lambda standing, path: path)
    return entries
