"""``--debug-nans``: a healthy run passes, one that makes a NaN is told with its rounds."""

import csv

import pytest
import yaml
from tiny import SYNTHETIC

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
def test_a_nan_is_told_with_its_rounds(command, small_file):
    found = command("run", small_file, *BROKEN, "--debug-nans")
    assert found.exit_code == 1
    (line,) = found.stderr.splitlines()
    start = "fedjax-drag: error: the run failed: FloatingPointError: JAX found a NaN in what rounds "
    assert line.startswith(start)
    first, to, last = line.removeprefix(start).split()[:3]
    assert (to, int(last)) == ("to", int(first) + 1)


@pytest.mark.slow
def test_a_nan_in_a_cell_of_a_sweep_is_told(command, small_file, tmp_path):
    done = command(
        "sweep", small_file, *BROKEN[:1], "axes.step_size=[0.1,1e+9]", "--debug-nans", "--out", "x", "--quiet"
    )
    assert done.exit_code == 0, done.output
    with (tmp_path / "x" / "table.csv").open() as stream:
        status = {row["step_size"]: (row["status"], row["message"]) for row in csv.DictReader(stream)}
    assert status["0.1"] == ("done", "")
    assert status["1000000000"][0] == "failed"
    assert "JAX found a NaN in what rounds" in status["1000000000"][1]
