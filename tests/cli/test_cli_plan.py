"""The command that plans: its errors, and what it prints."""

import json
import os
import subprocess
import sys
from collections import Counter

import jax
import pytest
from test_cli import one_line

from fedjax_drag.accelerators import targets
from fedjax_drag.accelerators.counts import Kernel, Work
from fedjax_drag.experiment.plan.runs import RunPlan
from fedjax_drag.simulation.program.clients_axis import ClientBatching


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    """What the command sets for its own process."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")


@pytest.fixture
def stand_in(monkeypatch):
    """The CPU's devices in the place of GPUs."""
    monkeypatch.setattr(targets, "_gpu_devices", lambda target: jax.devices()[: target.num_devices])


def test_other_targets_are_refused(command, tiny_file):
    message = one_line(command("plan", tiny_file, "--target", "h101"), 2)
    assert message.startswith("target=h101: must be one of h100, h200")


def test_a_missing_compiler_is_named_with_its_command(command, tiny_file, monkeypatch):
    def missing(target):
        raise targets.MissingCompilerError("target=h100: the compiler is not installed; pip install x installs it")

    monkeypatch.setattr(targets, "_gpu_devices", missing)
    assert "pip install x" in one_line(command("plan", tiny_file), 2)


def test_errors_of_a_configuration(command, tiny_file, stand_in):
    assert "did you mean 'rounds'" in one_line(command("plan", tiny_file, "round=5"), 2)


def made(needed):
    """A plan of a run that needs so many bytes, in the place of what is compiled."""
    kernels = {Kernel("fusion", 10**9): 1, Kernel("fusion", 10**6, 10**10, "highest"): 1, Kernel("fusion", 0): 100}
    work = Work(Counter(kernels), open_loops=0)
    figures = {"usable": 1000, "needed": needed, "client_state": 0, "data": 1, "state": 2, "temporary": 3}
    counts = {"devices": 1, "shares": 1, "cohort_size": 4, "rounds": 6, "evaluations": 3}
    done = {"round": work, "evaluation": work, "seconds": 0.25}
    return lambda label, config, target, *_: RunPlan(
        label=label, target=target, batching=ClientBatching("vmap"), **figures, **counts, **done
    )


@pytest.mark.parametrize(("needed", "status", "first"), [(999, 0, "  fits  "), (1001, 1, "  does not fit")])
def test_plan_prints_and_exits_by_whether_it_fits(command, tiny_file, stand_in, monkeypatch, needed, status, first):
    monkeypatch.setattr("fedjax_drag.experiment.plan.runs.plan_run", made(needed))
    result = command("plan", tiny_file, "--target", "h100")
    assert result.exit_code == status, result.output
    head, row, *_ = result.stdout.splitlines()
    assert head == "tiny on NVIDIA H100 80GB HBM3"
    assert row.startswith(first)
    assert "372.9 us by memory, 229.6 us by products, 400.0 us by launches" in result.stdout
    assert "  most time by  launches: more clients" in result.stdout
    result = command("plan", tiny_file, "--json")
    assert result.exit_code == status
    (plan,) = json.loads(result.stdout)
    assert plan["fits"] is (status == 0)
    assert plan["seconds"] == 0.25


@pytest.mark.thorough
def test_plan_compiles_and_says_so(command, tiny_file, stand_in):
    result = command("plan", tiny_file)
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines()[0].startswith("compiling tiny, for ")
    assert command("plan", tiny_file, "--quiet").stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("target", ["h100", "h100:2", "v5e:1x1", "v5e:2x2"])
def test_the_compilers_themselves(tiny_file, target):
    """In a process of its own, in which JAX has not started."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("TPU_", "JAX_PLATFORMS"))}
    words = [sys.executable, "-m", "fedjax_drag", "plan", str(tiny_file), "mesh=all", "--target", target, "--json"]
    ran = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=600, check=False)
    if "pip install" in ran.stderr:
        pytest.skip(ran.stderr.strip())
    assert ran.returncode == 0, ran.stderr
    assert all(line.startswith("compiling tiny, for ") for line in ran.stderr.splitlines()), ran.stderr
    (plan,) = json.loads(ran.stdout)
    assert plan["fits"]
    assert plan["round"]["bytes"] > 10_000
    assert bool(plan["round"]["collectives"]) == (plan["devices"] > 1)


@pytest.mark.thorough
def test_plan_of_a_sweep(command, tiny_file, stand_in):
    result = command("plan", tiny_file, "axes.aggregator.c=[0.1,0.2]", "axes.seed=[0,1]", "--quiet")
    assert result.exit_code == 0, result.output
    assert "  cells         4, 4 at a time" in result.stdout
