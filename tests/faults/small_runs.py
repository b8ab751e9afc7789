"""A run that takes moments, and what two runs that ended alike have in common."""

import json
import os
import subprocess
import sys
import time

import jax
import numpy as np
from tiny import DRAG, TINY
from typer.testing import CliRunner

from fedjax_drag.cli.app import app
from fedjax_drag.experiment.run.checkpoints import load_params

SMALL = TINY | DRAG | {"clients_axis": "map"}

ARENA = {
    "name": "tiny",
    "base": SMALL | {"data": {"name": "digits", "validation_fraction": 0.2}, "num_byzantine": 1},
    "attacks": {"sign_flip": None},
    "entries": {"median": None},
    "tuning_seeds": [100],
    "seeds": [0],
}

TIMES = ("seconds", "compile_seconds", "rounds_per_second", "resumed_from_round")


def call(*arguments):
    """Exit status and the lines on standard error."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert "Traceback" not in done.output
    return done.exit_code, [line for line in done.stderr.splitlines() if line]


def figures(folder):
    """A run's summary without what depends on when it ran."""
    found = json.loads((folder / "summary.json").read_text())
    return {name: value for name, value in found.items() if name not in TIMES}


def assert_same(folder, whole, of_sweep=False):
    """A run that was interrupted left in ``folder`` what the uninterrupted one left in ``whole``, bit for bit.

    Cells of a sweep that go on from different rounds run one by one, and then keep a checkpoint before the newest that
    they do not save together; the newest and the best are the same, and no more are there than are to be kept.
    """
    assert (folder / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    assert figures(folder) == figures(whole)
    if of_sweep:
        assert set(kept(folder)) >= set(kept(whole))
        assert len(kept(folder)) <= 3, "the two newest and the best"
    else:
        assert kept(folder) == kept(whole)
    for which in ("latest", "best"):
        jax.tree.map(np.testing.assert_array_equal, load_params(folder, which), load_params(whole, which))


def kept(folder):
    """The names of what lies among a run's checkpoints."""
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


# Processes that end at any moment.

LONG = SMALL | {"rounds": 40, "eval_every": 1, "byzantine_fraction": 0.25, "attack": "sign_flip"}
LONG |= {"checkpoint_every_seconds": 0.05}  # so that many are written while the run goes on
SWEEP = LONG | {"rounds": 60, "eval_every": 3, "axes": {"aggregator": ["fedavg", "median", "drag"], "seed": [0, 1]}}
COMMAND = "from fedjax_drag.cli.main import main; main()"
ENVIRONMENT = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
}
LINES = {"run": "metrics.jsonl", "sweep": "cells/*/metrics.jsonl"}


def start(kind, config, out, cache, code=COMMAND):
    resume = ["--resume"] if (out / ("config.yaml" if kind == "run" else "sweep.yaml")).exists() else []
    command = [sys.executable, "-c", code, kind, str(config), "--out", str(out), "--quiet", *resume]
    environment = os.environ | ENVIRONMENT | {"FEDJAX_DRAG_CACHE": str(cache)}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def written(kind, out):
    return sum(path.read_bytes().count(b"\n") for path in out.glob(LINES[kind]))


def wait(process, until):
    """Waits until then, or for the end of the process."""
    while process.poll() is None and not until():
        time.sleep(0.005)


def assert_same_results(kind, out, whole):
    names = [sorted(path.name for path in folder.iterdir() if path.suffix != ".partial") for folder in (out, whole)]
    assert names[0] == names[1]
    if kind == "run":
        assert_same(out, whole)
        assert (out / "accuracy.png").read_bytes() == (whole / "accuracy.png").read_bytes()
        return
    assert (out / "table.csv").read_bytes() == (whole / "table.csv").read_bytes()
    assert (out / "summary.md").read_bytes() == (whole / "summary.md").read_bytes()
    cells = sorted(path.name for path in (whole / "cells").iterdir())
    assert sorted(path.name for path in (out / "cells").iterdir()) == cells
    for cell in cells:
        assert_same(out / "cells" / cell, whole / "cells" / cell, of_sweep=True)
