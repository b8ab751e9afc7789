"""The command that plans: its errors, and what it prints."""

import json

import jax
import pytest
from test_cli import one_line

from fedjax_drag.accelerators import targets


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")


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


def test_plan_prints_and_exits_by_whether_it_fits(command, tiny_file, stand_in, monkeypatch):
    result = command("plan", tiny_file, "--target", "h100")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("tiny on NVIDIA H100 80GB HBM3\n  fits ")
    assert result.stderr.splitlines()[0].startswith("compiling tiny: ")
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "1e-9")
    result = command("plan", tiny_file, "--json", "--quiet")
    assert result.exit_code == 1
    assert result.stderr == ""
    (plan,) = json.loads(result.stdout)
    assert plan["fits"] is False
    assert "fits_with" not in plan


@pytest.mark.thorough
def test_plan_of_a_sweep(command, tiny_file, stand_in):
    result = command("plan", tiny_file, "axes.aggregator.c=[0.1,0.2]", "axes.seed=[0,1]", "--quiet")
    assert result.exit_code == 0, result.output
    assert "  cells         4, 4 at a time" in result.stdout
