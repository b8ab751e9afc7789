"""``--debug-nans``: a healthy run passes, one that makes a NaN is told with its rounds."""

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from tiny import SYNTHETIC

import fedjax_drag as fd
from fedjax_drag.data.sets.builtin import synthetic

SMALL = SYNTHETIC | {"cohort_size": 5, "rounds": 4}
BROKEN = ["nonfinite=propagate", "step_size=1e+9", "rounds=20"]
"""What is infinite minus itself is not a number."""


@pytest.fixture
def small_file(tiny, tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(tiny | SMALL))
    return path


RULES = ("fedavg", "median", "clustering", "krum", "bulyan", "geometric_median")


@pytest.mark.thorough
@pytest.mark.parametrize("rule", ["drag", *(pytest.param(rule, marks=pytest.mark.slow) for rule in RULES)])
def test_a_healthy_run_passes(command, small_file, rule):
    """Also of rules that mask what does not count with NaNs of their own."""
    done = command("run", small_file, f"aggregator={rule}", "--debug-nans", "--quiet")
    assert (done.exit_code, done.output) == (0, "")


@pytest.mark.thorough
def test_a_healthy_run_under_attack_passes(command, small_file):
    """Also in rounds whose cohort has no malicious client, so that no share of them was rejected."""
    attacked = ("attack=sign_flip", "num_byzantine=1", "aggregator=krum", "cohort_size=4", "evaluate_clients=true")
    done = command("run", small_file, *attacked, "--debug-nans", "--quiet", "--out", "x")
    assert (done.exit_code, done.output) == (0, "")
    shares = [json.loads(line)["detection_tpr"] for line in Path("x/metrics.jsonl").read_text().splitlines()]
    assert None in shares
    assert set(shares) != {None}


class Counted(NamedTuple):
    round: Any
    written: Any
    metrics: dict[str, Any]


@pytest.mark.parametrize("eval_every", [5, 2])
def test_a_nan_of_one_round_is_found(eval_every):
    """Under a configuration of JAX for the whole process, after a call in which there was none."""

    def apply(params, deltas, state, **_):
        params = fd.tree.move(params, jax.tree.map(lambda d: d.mean(0), deltas))
        return params, Counted(state.round + 1, jnp.where(state.round == 2, jnp.nan, 0.0), {})

    data = synthetic(num_examples=60, num_test_examples=20, dim=8)
    data = fd.data.partition.iid(data, num_clients=6)
    rule = fd.types.Aggregator(lambda params: Counted(jnp.int32(0), jnp.float32(0), {}), apply)
    options = {"model": fd.models.mlp(data.num_classes, hidden=(2,)), "data": data, "cohort_size": 3, "num_rounds": 6}
    options |= {"local_steps": 1, "batch_size": 2, "step_size": 0.1, "eval_every": eval_every}
    fd.simulate(rule, **options | {"num_rounds": 2})
    jax.config.update("jax_debug_nans", True)
    try:
        with pytest.raises(FloatingPointError, match=r"^a NaN after round 3 in state/"):
            fd.simulate(rule, **options)
    finally:
        jax.config.update("jax_debug_nans", False)


@pytest.mark.thorough
def test_an_attack_without_an_example_to_reach_makes_no_nan():
    data = fd.data.load("digits")
    test = jax.tree.map(lambda x: x[data.test.y == 0], data.test)
    data = fd.data.partition.iid(dataclasses.replace(data, test=test), num_clients=6)
    options = {"model": fd.models.mlp(data.num_classes, hidden=(2,)), "data": data, "cohort_size": 3, "num_rounds": 1}
    options |= {"local_steps": 1, "batch_size": 2, "step_size": 0.1, "num_byzantine": 1}
    with jax.debug_nans(True):
        history = fd.simulate(fd.aggregators.fedavg(), attack=fd.attacks.backdoor(target=0), **options).history
    assert np.isnan(history["attack_success_rate"]).all()


@pytest.mark.thorough
def test_a_metric_without_a_value_on_the_test_set_is_no_fault():
    data = synthetic(num_classes=3, num_examples=60, num_test_examples=20, dim=8)
    test = jax.tree.map(lambda x: x[data.test.y != 2], data.test)
    data = fd.data.partition.iid(dataclasses.replace(data, test=test), num_clients=6)
    options = {"model": fd.models.mlp(3, hidden=(2,)), "data": data, "cohort_size": 3, "num_rounds": 1}
    options |= {"local_steps": 1, "batch_size": 2, "step_size": 0.1, "metrics": [fd.metrics.auc(bins=8)]}
    with jax.debug_nans(True):
        history = fd.simulate(fd.aggregators.fedavg(), **options).history
    assert np.isnan(history["test_auc"]).all()


@pytest.mark.thorough
def test_a_nan_is_told_with_its_rounds(command, small_file):
    found = command("run", small_file, *BROKEN, "--debug-nans")
    assert found.exit_code == 1
    (line,) = found.stderr.splitlines()
    assert line.startswith("fedjax-drag: error: the run failed: FloatingPointError: a NaN after round ")
    assert " in metrics/train_loss " in line, "before a parameter is not finite"


@pytest.mark.slow
def test_a_nan_in_a_cell_of_a_sweep_is_told(command, small_file, tmp_path):
    done = command(
        "sweep", small_file, *BROKEN[:1], "axes.step_size=[0.1,1e+9]", "--debug-nans", "--out", "x", "--quiet"
    )
    assert done.exit_code == 1, done.output
    with (tmp_path / "x" / "table.csv").open() as stream:
        status = {row["step_size"]: (row["status"], row["message"]) for row in csv.DictReader(stream)}
    assert status["0.1"] == ("done", "")
    assert status["1000000000"][0] == "failed"
    assert "a NaN after round " in status["1000000000"][1]
