"""A run that takes moments, and what two runs that ended alike have in common."""

import json

import jax
import numpy as np
from tiny import DRAG, TINY

from fedjax_drag.experiment.run.checkpoints import load_params

SMALL = TINY | DRAG | {"clients_axis": "map"}

TIMES = ("seconds", "compile_seconds", "rounds_per_second", "resumed_from_round")


def figures(folder):
    """A run's summary without what depends on when it ran."""
    found = json.loads((folder / "summary.json").read_text())
    return {name: value for name, value in found.items() if name not in TIMES}


def assert_same(folder, whole):
    """A run that was interrupted left in ``folder`` what the uninterrupted one left in ``whole``, bit for bit."""
    assert (folder / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    assert figures(folder) == figures(whole)
    assert kept(folder) == kept(whole)
    for which in ("latest", "best"):
        jax.tree.map(np.testing.assert_array_equal, load_params(folder, which), load_params(whole, which))


def kept(folder):
    """The names of what lies among a run's checkpoints."""
    return sorted(path.name for path in (folder / "checkpoints").iterdir())
