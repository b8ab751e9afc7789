"""The device and its software, and how fast it is at its two elementary tasks: products and copies."""

import functools
import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
import psutil

import fedjax_drag as fd
from benchmarks.accelerator.part import Cases, Part
from benchmarks.accelerator.sizes import Sizes
from benchmarks.timing import Row, seconds_each
from fedjax_drag.cores import num_cores

PACKAGES = ("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "libtpu", "flax", "optax", "numpy", "torch")
VARIABLES = (
    "JAX_PLATFORMS",
    "JAX_DEFAULT_MATMUL_PRECISION",
    "XLA_FLAGS",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
    "XLA_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
)
_SMI = "name,driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit"
_PRODUCTS = {"float32": "float32", "TF32": "tensorfloat32", "as JAX chooses": "default"}
_OFTEN = 0.1  # seconds of a timing


def cases(sizes: Sizes) -> Cases:
    """What there is, and what it does."""
    return {"versions": versions, "speed": lambda: speed(sizes)}


def versions() -> list[Row]:
    """Device, driver, packages, host and the environment variables that matter."""
    device = jax.devices()[0]
    memory = (device.memory_stats() or {}).get("bytes_limit")
    rows = {
        "device": f"{device.device_kind}, {jax.device_count()} of them" if device.platform != "cpu" else "CPU",
        "memory for JAX": f"{memory / 2**30:.1f} GiB" if memory else "",
        "JAX's backend": " ".join(str(device.client.platform_version).split()),
        "nvidia-smi": _nvidia_smi(),
        "host": f"{_processor()}, {num_cores()} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB",
        "Python": f"{platform.python_version()}, {platform.system()}",
        "fedjax_drag": fd.__version__,
    }
    for name in PACKAGES:
        rows[name] = _version(name) or ("not installed" if name == "torch" else "")
    rows |= {name: os.environ.get(name, "") for name in VARIABLES}
    return [{"what": name, "value": value} for name, value in rows.items() if value]


def speed(sizes: Sizes) -> list[Row]:
    """Floating point operations per second of a product, bytes per second of a copy, time of an empty program."""
    rows = {}
    for name, precision in _PRODUCTS.items():
        rows[f"product of float32 matrices, {name}"] = _teraflops(sizes.side, jnp.float32, precision)
    rows["product of bfloat16 matrices"] = _teraflops(sizes.side, jnp.bfloat16, "default")
    rows["copy, bytes read and written"] = f"{bandwidth(sizes.copied_bytes) / 1e9:.3g} GB/s"
    one, add = jnp.zeros(()), jax.jit(lambda x: x + 1)
    add(one)
    rows["empty program, one after another"] = f"{1e6 * seconds_each(lambda: add(one)):.3g} microseconds"
    waited = seconds_each(lambda: jax.block_until_ready(add(one)))
    rows["empty program, waited for"] = f"{1e6 * waited:.3g} microseconds"
    return [{"what": name, "value": value} for name, value in rows.items()]


@functools.lru_cache
def bandwidth(num_bytes: int) -> float:
    """Bytes per second that the device reads and writes, of an array of this size."""
    x = jnp.zeros(num_bytes // 4)
    return 2 * x.nbytes / _best(lambda x: x + 1, x)


def _teraflops(side: int, dtype: Any, precision: str) -> str:
    with jax.default_matmul_precision(precision):
        x = jax.random.normal(jax.random.key(0), (side, side), dtype)
        return f"{2e-12 * side**3 / _best(lambda x: x @ x, x):.3g} TFLOP/s"


def _best(program: Callable[[Any], Any], x: Any) -> float:
    compiled = jax.jit(program).lower(x).compile()
    jax.block_until_ready(compiled(x))
    return min(seconds_each(lambda: compiled(x), _OFTEN, 100) for _ in range(3))


def _version(package: str) -> str:
    if package == "torch" and not find_spec("torch"):
        return ""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _nvidia_smi() -> str:
    program = shutil.which("nvidia-smi")
    if not program:
        return ""
    command = [program, f"--query-gpu={_SMI}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return "; ".join(answer.stdout.split("\n")).strip("; ")


def _processor() -> str:
    return platform.processor() or platform.machine()


PART = Part(
    name="device",
    title="The device",
    text="Products are of square matrices of normal numbers; the copy adds one to an array.",
    minutes=0.5,
    cases=cases,
)
