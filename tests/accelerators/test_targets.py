"""Targets by name; where the compilers are installed, a program compiled by each of them."""

import os
import subprocess
import sys

import pytest

from fedjax_drag.accelerators import targets


@pytest.mark.parametrize(
    ("name", "platform", "devices", "described"),
    [
        ("h100", "gpu", 1, "NVIDIA H100 80GB HBM3"),
        ("H200:8", "gpu", 8, "8 x NVIDIA H200 141GB HBM3e"),
        ("a100-40", "gpu", 1, "NVIDIA A100-SXM4-40GB"),
        ("v5e:1x1", "tpu", 1, "TPU v5e"),
        ("v6e:2x4", "tpu", 8, "8 x TPU v6e"),
        ("v5p:2x2x2", "tpu", 8, "8 x TPU v5p"),
    ],
)
def test_a_target_has_a_name(name, platform, devices, described):
    target = targets.find(name)
    assert (target.platform, target.num_devices, target.description) == (platform, devices, described)


@pytest.mark.parametrize(
    "name", ["h101", "h100:9", "h100:0", "h100:x", "v5e", "v5e:2", "v5e:0x1", "v5p:2x2", "v5e:2x2x1", ""]
)
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match=r"^target=.*: must be one of h100, h200, .* or v5p:2x2x1$"):
        targets.find(name)


def test_jax_leaves_a_part_of_a_gpu_alone(monkeypatch):
    for name in ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"):
        monkeypatch.delenv(name, raising=False)
    gpu, tpu = targets.GPUS["h100"], targets.TPUS["v5e"]
    assert gpu.usable == int(0.75 * gpu.memory)
    assert tpu.usable == tpu.memory
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.8")
    assert gpu.usable == int(0.8 * gpu.memory)
    monkeypatch.setenv("XLA_CLIENT_MEM_FRACTION", "0.9")
    assert gpu.usable == int(0.9 * gpu.memory)


def test_what_the_compiler_is_told():
    text = targets.target_config(targets.GPUS["a100-80"])
    for line in ("core_count: 108", "device_memory_size: 85100068864", "cuda_compute_capability { major: 8 }"):
        assert line in text.splitlines()


SCRIPT = """
import os
from fedjax_drag.accelerators.silence import silent
with silent():
    import jax
    jax.config.update("jax_platforms", "cpu")
    jax.devices()
from fedjax_drag.accelerators import counts, targets
target, before = targets.find({name!r}), dict(os.environ)
try:
    sharding = jax.sharding.SingleDeviceSharding(target.devices[0])
    shape = jax.ShapeDtypeStruct((1024, 1024), "float32", sharding=sharding)
except targets.MissingCompilerError as error:
    print("missing", error)
    raise SystemExit
assert dict(os.environ) == before
compiled = jax.jit(lambda x: x + 1).lower(shape).compile()
work, memory = counts.work_of(compiled.as_text()), counts.memory_of(compiled)
print(len(target.devices), work.num_kernels, work.bytes, memory.arguments, memory.output)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["h100", "h100:2", "h200", "a100-40", "v5e:2x2", "v5p:2x2x1", "v6e:1x1"])
def test_the_compiler_of_a_target(name):
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("TPU_", "JAX_PLATFORMS"))}
    script = [sys.executable, "-c", SCRIPT.format(name=name)]
    ran = subprocess.run(script, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    if ran.stdout.startswith("missing"):
        assert "pip install" in ran.stdout
        pytest.skip(ran.stdout.strip())
    assert ran.stdout.split() == list(map(str, [targets.find(name).num_devices, 1, 2 * 2**22, 2**22, 2**22]))
