"""The script that sets ByzFL's benchmark beside the published figures."""

import pytest
import yaml
from typer.testing import CliRunner

import byzfl_benchmark

HEADER = "aggregator,gamma,attack,seed,round,test_accuracy"
RULE = "clipping(nnm(trimmed_mean))"


def write(folder, num_byzantine, rows):
    folder.mkdir()
    (folder / "sweep.yaml").write_text(yaml.safe_dump({"num_byzantine": num_byzantine}))
    (folder / "table.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    return folder


def test_the_worst_case_is_the_best_evaluation_under_the_worst_attack(tmp_path):
    """The mean over the seeds comes first: its best evaluation is 0.5 under ipm, though both seeds reach 0.7."""
    curves = {"ipm": {0: [0.7, 0.3, 0.2], 1: [0.3, 0.7, 0.2]}, "optimal_alie": {0: [0.6, 0.6, 0.1], 1: [0.6, 0.6, 0.1]}}
    rows = [
        f"{RULE},0.0,{attack},{seed},{50 * (place + 1)},{value}"
        for attack, of_seeds in curves.items()
        for seed, values in of_seeds.items()
        for place, value in enumerate(values)
    ]
    halves = [write(tmp_path / "a", 1, rows[:6]), write(tmp_path / "b", 1, [*rows[6:], f"{RULE},0.0,ipm,2,,"])]
    ((cell, by_attack),) = byzfl_benchmark.read(halves).items()
    assert cell == ("trimmed mean", 0.0, 1)
    best, end, attack = byzfl_benchmark.worst(by_attack)
    assert (best, end, attack) == (pytest.approx(0.5), pytest.approx(0.1), "ipm")
    shown = CliRunner().invoke(byzfl_benchmark.app, ["table", *map(str, halves)])
    assert shown.exit_code == 0, shown.output
    row = shown.stdout.splitlines()[-1]
    assert [entry.strip() for entry in row.strip("|").split("|")] == [
        *("trimmed mean", "0", "1", "2", "0.87", "0.50", "ipm", "0.10", "2")
    ]


@pytest.mark.slow
def test_their_own_code_is_timed():
    pytest.importorskip("byzfl")
    pytest.importorskip("torch")
    result = CliRunner().invoke(byzfl_benchmark.app, ["time", "--steps", "1", "--attack", "ipm"])
    assert result.exit_code == 0, result.output
    assert "s a step" in result.stdout
