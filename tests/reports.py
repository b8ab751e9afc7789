"""Results folders as runs and sweeps leave them, written by hand."""

import json

import yaml

from fedjax_drag.experiment.run import results
from fedjax_drag.experiment.sweep.grid import load_grid

BASE = {
    "data": "digits",
    "partition": {"name": "iid", "num_clients": 8},
    "model": {"name": "mlp", "hidden": [8]},
    "rounds": 3,
    "eval_every": 1,
    "cohort_size": 4,
}
ENVIRONMENT = {"python": "3.11", "packages": {"jax": "0.10"}, "seed": 0, "started": "now"}


def write_run(folder, accuracies, summary=None, config=None, **columns):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / results.CONFIG).write_text(yaml.safe_dump(BASE | {"name": folder.name} | (config or {})))
    rows = [
        {"round": i + 1, "test_accuracy": accuracy, "test_loss": 1.0 - (accuracy or 0)}
        | {name: column[i] for name, column in columns.items()}
        for i, accuracy in enumerate(accuracies)
    ]
    (folder / results.METRICS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    if summary is not None:
        (folder / results.SUMMARY).write_text(json.dumps(summary))
    (folder / results.ENVIRONMENT).write_text(json.dumps(ENVIRONMENT))
    return folder


def write_sweep(folder, axes, accuracies, base=None, validation=None):
    """A sweep whose cells, in order, have these curves, on test and validation; None for a cell that was not begun."""
    folder.mkdir()
    written = BASE | (base or {}) | {"name": "matrix", "axes": axes}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(written, sort_keys=False))
    grid = load_grid(written)
    for place, (point, curve) in enumerate(zip(grid.points, accuracies, strict=True)):
        if curve is not None:
            more = {} if validation is None else {"validation_accuracy": validation[place]}
            write_run(folder / "cells" / point.folder, curve, {"interrupted": False}, {"name": point.label}, **more)
    return folder, grid
