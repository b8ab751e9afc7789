"""The scripts that run PFLlib's setting and tabulate Ditto's."""

from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf
from typer.testing import CliRunner

import ditto
import fedjax_drag as fd
import pfllib
from fedjax_drag.experiment.run import metrics_file, results
from fedjax_drag.experiment.run.metrics_file import METRICS
from fedjax_drag.experiment.sweep.grid import load_grid

CONFIG = Path(__file__).parents[2] / "configs" / "personal" / "ditto.yaml"


@pytest.fixture(scope="module")
def numbered():
    """Examples whose input is their number, 800 to train on and 200 to test on."""
    x, y = np.arange(1000, dtype=np.float32)[:, None], np.arange(1000) % 10
    return fd.data.from_arrays(x[:800], y[:800], x[800:], y[800:], normalize="none")


@pytest.mark.parametrize("split", [pfllib.two_labels, lambda *given: pfllib.dirichlet(*given, beta=1.0)])
def test_every_example_is_one_clients_and_three_quarters_are_trained_on(numbered, split):
    fed = split(numbered, 10)
    tested = fed.client_test
    everything = np.concatenate([fed.train.x[:, 0], tested.examples.x[:, 0]])
    assert sorted(everything) == list(range(1000))
    sizes = fed.counts + tested.counts
    assert sizes.min() >= 4
    np.testing.assert_array_equal(fed.counts, (0.75 * sizes).astype(int))
    np.testing.assert_array_equal(fed.test.x, tested.examples.x)
    assert (fed.mean, fed.std) == ((0.5,), (0.5,))


def test_groups_of_clients_have_two_labels_and_none_of_the_others(numbered):
    fed = pfllib.two_labels(numbered, 10)
    labels = [sorted(set(fed.labels[row[:n]])) for row, n in zip(fed.rows, fed.counts, strict=True)]
    assert labels == [[2 * (m // 2), 2 * (m // 2) + 1] for m in range(10)]


def test_tables_of_ditto_are_of_the_last_evaluations_and_paired(tmp_path):
    quick = ["axes.seed=[0, 1]", "axes.partition.beta=[0.1]", "rounds=4", "eval_every=1"]
    accuracy = {"alone": 0.5, "Ditto 1": 0.75}
    for number, point in enumerate(load_grid(CONFIG, quick).points):
        config = point.config
        lam = config.algorithm.arguments["lam"]
        if config.aggregator.name != "fedavg" or lam == 0.1:
            continue
        cell = tmp_path / "cells" / str(number)
        cell.mkdir(parents=True)
        OmegaConf.save(OmegaConf.create(config.to_mapping()), cell / results.CONFIG)
        own = accuracy["Ditto 1" if lam else "alone"] + 0.01 * config.seed
        figures = [(f"{kind}_accuracy_{figure}", kind) for kind in ("client", "own") for figure in ditto.FIGURES]
        lines = [
            {"round": round_ + 1, "test_accuracy": 0.5, "test_loss": 1.0}
            | {name: (own if kind == "own" else 0.25) if round_ else 0.0 for name, kind in figures}
            for round_ in range(4)
        ]
        (cell / METRICS).write_bytes(b"".join(map(metrics_file.line_of, lines)))
    found = ditto.measured([tmp_path])
    head, alone, fedavg, coupled = ditto.table(found, 0.1, "mean")
    assert head == ["method", *ditto.ATTACKS]
    assert fedavg == ["FedAvg", *["25.0 ± 0.0"] * 3]
    assert alone[0] == "alone"
    assert alone[1].startswith("50.5 ±")
    assert coupled[1].startswith("75.5 ±")
    assert ditto.table(found, 0.1, "worst_tenth", less="alone")[2] == ["Ditto 1", *["25.0 ± 0.0"] * 3]
    ditto.draw(found, [0.1], tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000


def test_a_table_of_no_runs_is_refused(tmp_path):
    result = CliRunner().invoke(pfllib.app, ["table", str(tmp_path)])
    assert result.exit_code == 2
    assert "must be a folder with runs of this script" in " ".join(result.output.split())
