"""The script that sets the authors' logs of bucketing beside the runs of configs/peers."""

from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

import peers
from fedjax_drag.experiment.run import metrics_file, results
from fedjax_drag.experiment.run.metrics_file import METRICS
from fedjax_drag.experiment.sweep.grid import load_grid

CONFIGS = sorted((Path(__file__).parents[2] / "configs" / "peers").glob("bucketing_*.yaml"))


@pytest.mark.thorough
def test_the_configurations_run_every_setting_of_the_logs():
    """Beside mimicry with momentum, whose target depends on the seed."""
    points = [point for path in CONFIGS for point in load_grid(path).points]
    found = {peers.setting_of(point.config) for point in points}
    logged = peers.logged()
    assert {setting for setting in logged if not (setting.attack == "mimic" and setting.momentum)} == found
    assert all(len(accuracies) == 3 for accuracies in logged.values())
    assert len(logged) == 20 + 80 - 8


def test_a_row_sets_both_means_beside_each_other(tmp_path):
    (path,) = [path for path in CONFIGS if "attacks" in path.name]
    config = next(point.config for point in load_grid(path, ["rounds=60"]).points)
    for seed, accuracies in enumerate(([0.1, 0.0, 0.01, 0.01, 0.01, 0.01], [0.1, 0.0, 0.02, 0.02, 0.02, 0.02])):
        cell = tmp_path / "cells" / str(seed)
        cell.mkdir(parents=True)
        OmegaConf.save(OmegaConf.create(config.to_mapping() | {"seed": seed}), cell / results.CONFIG)
        lines = [{"round": 10 * (place + 1), "test_accuracy": value} for place, value in enumerate(accuracies)]
        (cell / METRICS).write_bytes(b"".join(map(metrics_file.line_of, lines)))
    ours = peers.measured([tmp_path])
    (accuracies,) = ours.values()
    assert accuracies == pytest.approx({0: 0.8, 1: 1.6})
    head, row = peers.rows(peers.logged(), ours)
    assert dict(zip(head, row, strict=True)) | {"theirs": "", "ours": ""} == {
        "rule": "krum",
        "buckets": "0",
        "attack": "LF",
        "momentum": "0",
        "clients": "differ",
        "theirs": "",
        "ours": "",
        "seeds": "2",
        "overlap": "yes",
    }
    assert row[6] == f"1.2 ± {12.706 * np.sqrt(0.32) / np.sqrt(2):.1f}"
