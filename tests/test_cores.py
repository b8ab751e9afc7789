"""CPU cores become devices where someone says so, and before JAX starts."""

import os
import subprocess
import sys

import pytest

import fedjax_drag as fd
from fedjax_drag import cores

BEFORE = """
import fedjax_drag as fd
fd.use_cores(3)
import jax
assert jax.device_count() == 3
fd.use_cores(3)
try:
    fd.use_cores(2)
except ValueError as error:
    print(error)
"""


def printed(program, **environment):
    inherited = {key: value for key, value in os.environ.items() if key not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, env=inherited | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_before_jax_starts_and_only_then():
    assert printed(BEFORE) == (
        "number=2: must be 3, with which JAX has already started; call fd.use_cores(), or set FEDJAX_DRAG_USE_CORES=1, "
        "before anything else in JAX"
    )


@pytest.mark.thorough
def test_the_environment_says_it_too():
    program = "import fedjax_drag, jax; print(jax.device_count())"
    assert printed(program, FEDJAX_DRAG_USE_CORES="1") == str(cores.num_cores())


def test_the_environment_variable_is_checked(monkeypatch):
    asked = []
    monkeypatch.setattr(cores, "use_cores", lambda: asked.append(True))
    for value, expected in [("", 0), ("0", 0), ("1", 1)]:
        monkeypatch.setenv(cores.ENVIRONMENT_VARIABLE, value)
        cores.use_cores_if_asked()
        assert len(asked) == expected
    monkeypatch.setenv(cores.ENVIRONMENT_VARIABLE, "all")
    with pytest.raises(ValueError, match="FEDJAX_DRAG_USE_CORES='all': must be 0 or 1"):
        cores.use_cores_if_asked()


def test_the_number_is_checked():
    with pytest.raises(ValueError, match="number=0: must be an integer >= 1"):
        fd.use_cores(0)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, cores.num_cores()),
        ({"JAX_NUM_CPU_DEVICES": "5"}, 5),
        ({"XLA_FLAGS": "--xla_force_host_platform_device_count=3"}, 3),
    ],
)
def test_a_command_leaves_the_number_to_the_user(environment, expected):
    program = "import jax; from fedjax_drag import cores; cores.one_device_per_core(); print(jax.device_count())"
    assert printed(program, **environment) == str(expected)


@pytest.mark.thorough
def test_a_command_inside_a_program_that_uses_jax_takes_what_is_there():
    program = "import jax; from fedjax_drag import cores; jax.devices(); cores.one_device_per_core(); print('fine')"
    assert printed(program) == "fine"


def test_cores_are_those_that_the_process_may_use(monkeypatch, tmp_path):
    own, group = tmp_path / "cgroup", tmp_path / "outer" / "inner"
    group.mkdir(parents=True)
    own.write_text("0::/outer/inner\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr(cores, "ROOT", tmp_path)
    monkeypatch.setattr(cores, "OF_PROCESS", own)
    assert cores.num_cores() == 16
    (group / "cpu.max").write_text("max 100000\n")
    assert cores.num_cores() == 16
    (group.parent / "cpu.max").write_text("650000 100000\n")
    assert cores.num_cores() == 6
    (group / "cpu.max").write_text("50000 100000\n")
    assert cores.num_cores() == 1
    monkeypatch.setattr(cores, "OF_PROCESS", tmp_path / "missing")
    assert cores.num_cores() == 16


def test_a_device_waits_for_another_as_long_as_the_user_says_or_a_day(monkeypatch):
    flag = "--xla_cpu_collective_call_terminate_timeout_seconds"
    for given, wanted in [("", f"{flag}=86400"), ("--a=1", f"--a=1 {flag}=86400"), (f"{flag}=5", f"{flag}=5")]:
        monkeypatch.setenv("XLA_FLAGS", given)
        cores.wait_for_each_other()
        cores.wait_for_each_other()
        assert os.environ["XLA_FLAGS"] == wanted
