"""The script that sets ByzFL's benchmark beside the published figures."""

from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf
from typer.testing import CliRunner

import byzfl_benchmark
from fedjax_drag.experiment.build.experiment import load
from fedjax_drag.experiment.run import metrics_file, results
from fedjax_drag.experiment.run.metrics_file import METRICS

CONFIG = yaml.safe_load((Path(__file__).parents[1] / "configs/arena/byzfl_mnist.yaml").read_text())


def write(folder, attack, seed, accuracies, rounds=150, rule=0):
    """A run of a sweep, without running anything."""
    mapping = {key: value for key, value in CONFIG.items() if key != "axes"}
    mapping |= {"aggregator": CONFIG["axes"]["aggregator"][rule], "attack": attack, "seed": seed, "rounds": rounds}
    cell = folder / "cells" / f"{attack}-{seed}"
    cell.mkdir(parents=True)
    config = load(mapping | {"partition": mapping["partition"] | {"gamma": 0.0}})
    OmegaConf.save(OmegaConf.create(config.to_mapping()), cell / results.CONFIG)
    rows = [{"round": 50 * (place + 1), "test_accuracy": value} for place, value in enumerate(accuracies)]
    (cell / METRICS).write_bytes(b"".join(map(metrics_file.line_of, rows)))


def test_the_worst_case_is_the_best_evaluation_under_the_worst_attack(tmp_path):
    """The mean over the seeds comes first: its best evaluation is 0.5 under ipm, though both seeds reach 0.7."""
    a, b = tmp_path / "a", tmp_path / "b"
    write(a, "ipm", 0, [0.7, 0.3, 0.2])
    write(a, "ipm", 1, [0.3, 0.7, 0.2])
    write(b, "ipm", 2, [0.1, 0.1])  # is not finished
    write(b, "optimal_alie", 0, [0.6, 0.6, 0.1])
    write(b, "optimal_alie", 1, [0.6, 0.6, 0.1])
    write(b, {"name": "optimal_alie", "side": "above"}, 2, [0.1, 0.1, 0.1])  # ByzFL's pushes to the other side
    ((cell, by_attack),) = byzfl_benchmark.read([a, b]).items()
    assert cell == ("trimmed mean", 0.0, 1)
    best, end, attack = byzfl_benchmark.worst(by_attack)
    assert (best, end, attack) == (pytest.approx(0.5), pytest.approx(0.1), "ipm")
    shown = CliRunner().invoke(byzfl_benchmark.app, ["table", str(a), str(b)])
    assert shown.exit_code == 0, shown.output
    row = shown.stdout.splitlines()[-1]
    assert [entry.strip() for entry in row.strip("|").split("|")] == [
        *("trimmed mean", "0", "1", "2", "0.87", "0.50", "ipm", "0.10", "2")
    ]


def test_a_rule_is_known_where_a_sweep_has_no_other(tmp_path):
    write(tmp_path, "ipm", 0, [0.5], rounds=50, rule=1)
    assert set(byzfl_benchmark.read([tmp_path])) == {("geometric median", 0.0, 1)}


@pytest.mark.slow
def test_their_own_code_is_timed():
    pytest.importorskip("byzfl")
    pytest.importorskip("torch")
    result = CliRunner().invoke(byzfl_benchmark.app, ["time", "--steps", "1", "--attack", "ipm"])
    assert result.exit_code == 0, result.output
    assert "s a step" in result.stdout
