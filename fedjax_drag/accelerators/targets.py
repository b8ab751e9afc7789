"""Accelerators to compile for on a machine that has none of them.

XLA compiles from a description of a device, and needs the compiler alone: no driver, no CUDA libraries, no device. JAX
calls it a topology (``jax.experimental.topologies``).

Memory, bandwidth and rates are those of the manufacturers' data sheets, of the SXM modules for GPUs; the figures given
to the compiler are those that a GPU's driver reports, as in XLA's own descriptions of devices.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies

from fedjax_drag.accelerators.products import GROUPED
from fedjax_drag.accelerators.silence import silent

GPU_SECONDS_PER_KERNEL = 4e-6
"""A small kernel in a loop, with the pause after it: measured on an H100 (docs/accelerator.md)."""

TPU_SECONDS_PER_KERNEL = 5e-7
"""The same for a TPU, whose instructions are not launched from the host but wait for its memory: an assumption."""

REACHED = {"memory": 0.8, "products": 0.65}
"""Shares of the bandwidth and of the rates of the data sheet that kernels reach: measured on an H100."""

GROUPED_SHARE = 0.18
"""Rate of convolutions with a group for each client, in any precision, over that of products in float32: measured."""

JAX_SHARE = 0.75
"""Of a GPU's memory, what JAX takes unless ``XLA_CLIENT_MEM_FRACTION`` says otherwise."""

_SHARE_VARIABLES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")  # the second is its older name


@dataclasses.dataclass(frozen=True)
class Chip:
    """One device.

    Attributes:
      title: its name as its maker writes it.
      platform: ``"gpu"`` or ``"tpu"``.
      memory: bytes that the device has; on a TPU those that its compiler gives to a program.
      bandwidth: bytes a second between the device and its memory.
      products: operations a second of matrix products, by their precision
        (:func:`~fedjax_drag.accelerators.products.operations`).
      described: what the compiler of a GPU is told beside memory and bandwidth.
    """

    title: str
    platform: str
    memory: int
    bandwidth: float
    products: Mapping[str, float] = dataclasses.field(default_factory=dict)
    described: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def usable(self) -> int:
        """Bytes of memory that JAX gives to programs and their arguments."""
        if self.platform == "tpu":
            return self.memory
        named = (os.environ.get(name) for name in _SHARE_VARIABLES)
        return int(self.memory * float(next(filter(None, named), JAX_SHARE)))

    @property
    def reached_bandwidth(self) -> float:
        """Bytes a second that kernels move."""
        return REACHED["memory"] * self.bandwidth

    def reached_products(self, precision: str) -> float:
        """Operations a second of products of a precision; infinitely many where the chip's rates are not known."""
        return REACHED["products"] * self.products.get(precision, math.inf)

    @property
    def seconds_per_kernel(self) -> float:
        """Time of a kernel, however little it does."""
        return TPU_SECONDS_PER_KERNEL if self.platform == "tpu" else GPU_SECONDS_PER_KERNEL


def _gpu_products(float32: float, tensorfloat32: float) -> dict[str, float]:
    """Rates of a GPU, which multiplies float32 as tensorfloat32 unless a program asks for more."""
    narrow = {"default": tensorfloat32, "high": tensorfloat32, "bfloat16": 2 * tensorfloat32}
    return narrow | {"highest": float32, GROUPED: GROUPED_SHARE * float32}


def _tpu_products(bfloat16: float) -> dict[str, float]:
    """Rates of a TPU, which multiplies float32 as one, three or six products of bfloat16."""
    return {"bfloat16": bfloat16, "default": bfloat16, GROUPED: bfloat16, "high": bfloat16 / 3, "highest": bfloat16 / 6}


_HOPPER_PRODUCTS, _AMPERE_PRODUCTS = _gpu_products(6.7e13, 4.95e14), _gpu_products(1.95e13, 1.56e14)
_HOPPER = {
    "shared_memory_per_core": 233472,
    "shared_memory_per_block_optin": 232448,
    "core_count": 132,
    "fpus_per_core": 128,
    "l2_cache_size": 52428800,
    "clock_rate_ghz": 1.98,
    "capability": 9,
}
_AMPERE = {
    "shared_memory_per_core": 167936,
    "shared_memory_per_block_optin": 166912,
    "core_count": 108,
    "fpus_per_core": 64,
    "l2_cache_size": 41943040,
    "clock_rate_ghz": 1.41,
    "capability": 8,
}

GPUS = {
    "h100": Chip("NVIDIA H100 80GB HBM3", "gpu", 84942979072, 3.352e12, _HOPPER_PRODUCTS, _HOPPER),
    "h200": Chip("NVIDIA H200 141GB HBM3e", "gpu", 151397597184, 4.8e12, _HOPPER_PRODUCTS, _HOPPER),
    "a100-40": Chip("NVIDIA A100-SXM4-40GB", "gpu", 42331013120, 1.555e12, _AMPERE_PRODUCTS, _AMPERE),
    "a100-80": Chip("NVIDIA A100-SXM4-80GB", "gpu", 85100068864, 2.039e12, _AMPERE_PRODUCTS, _AMPERE),
}
"""GPUs by name; ``NAME:N`` is a host with ``N`` of them."""

TPUS = {
    "v5e": Chip("TPU v5e", "tpu", int(15.75 * 2**30), 8.19e11, _tpu_products(1.97e14)),
    "v5p": Chip("TPU v5p", "tpu", int(95.73 * 2**30), 2.765e12, _tpu_products(4.59e14)),
    "v6e": Chip("TPU v6e", "tpu", int(31.24 * 2**30), 1.638e12, _tpu_products(9.18e14)),
}
"""TPU generations; ``NAME:AxB``, of v5p ``NAME:AxBxC``, is a slice with so many chips along each axis."""

_AXES = {"v5e": 2, "v5p": 3, "v6e": 2}
_MOST_GPUS = 8

ALLOWED = (
    f"{', '.join(GPUS)}, with :N for up to {_MOST_GPUS} of them, or a slice of TPUs such as v5e:2x2, v6e:4x4 or "
    "v5p:2x2x1"
)


_TPU_HOST = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
"""What libtpu would ask the host of a TPU, and that other processes may compile beside this one: no TPU is opened."""


class MissingCompilerError(ImportError):
    """The compiler for a target is not installed; the message names the command that installs it."""


@dataclasses.dataclass(frozen=True)
class Target:
    """Devices to compile for, not to run on.

    Attributes:
      name: as the user wrote it.
      chip: what each device is.
      shape: number of chips along each axis.
    """

    name: str
    chip: Chip
    shape: tuple[int, ...]

    @property
    def num_devices(self) -> int:
        """How many chips there are."""
        return math.prod(self.shape)

    @property
    def platform(self) -> str:
        """``"gpu"`` or ``"tpu"``."""
        return self.chip.platform

    @property
    def description(self) -> str:
        """The target in words."""
        number = f"{self.num_devices} x " if self.num_devices > 1 else ""
        return f"{number}{self.chip.title}"

    @functools.cached_property
    def devices(self) -> list[Any]:
        """The devices, which JAX takes in shardings and meshes of what is lowered and compiled.

        Raises:
          MissingCompilerError: the compiler is not installed.
          ValueError: the compiler knows no such slice.
        """
        return _tpu_devices(self) if self.platform == "tpu" else _gpu_devices(self)


def find(name: str) -> Target:
    """The target of a name; it asks no compiler.

    Raises:
      ValueError: no target has this name.
    """
    kind, _, extent = name.lower().partition(":")
    refused = ValueError(f"target={name}: must be one of {ALLOWED}")
    if kind in GPUS:
        number = int(extent) if re.fullmatch("[1-9]", extent) else 0 if extent else 1
        if not 1 <= number <= _MOST_GPUS:
            raise refused
        return Target(name, GPUS[kind], (number,))
    if kind in TPUS:
        axes = extent.split("x")
        if len(axes) != _AXES[kind] or not all(re.fullmatch("[1-9][0-9]{0,2}", axis) for axis in axes):
            raise refused
        return Target(name, TPUS[kind], tuple(map(int, axes)))
    raise refused


def _gpu_devices(target: Target) -> list[Any]:
    topology = f"1x1x{target.num_devices}"  # one host and one process
    try:
        with silent(), _set({"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}):  # of a driver and libraries
            described = topologies.get_topology_desc(
                platform="cuda", topology_name=topology, topology=topology, target_config=target_config(target.chip)
            )
    except NotImplementedError:  # no plugin has registered
        plugins = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")
        if importlib.util.find_spec("jax_plugins") and any(map(importlib.util.find_spec, plugins)):
            raise MissingCompilerError(
                f"target={target.name}: JAX has found no GPU and dropped its compiler; set JAX_PLATFORMS=cpu"
            ) from None
        command = _pip("--no-deps", f"jax-cuda12-plugin=={jax.__version__}", f"jax-cuda12-pjrt=={jax.__version__}")
        raise MissingCompilerError(
            f"target={target.name}: the compiler for NVIDIA GPUs is not installed; {command} installs it, without CUDA"
        ) from None
    return list(described.devices)


def _tpu_devices(target: Target) -> list[Any]:
    kind = target.name.lower().partition(":")[0]
    try:
        with silent(), _set({} if _has_tpus() else _TPU_HOST):
            described = topologies.get_topology_desc(
                platform="tpu", topology_name=f"{kind}:{'x'.join(map(str, target.shape))}"
            )
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).partition(": ")[2] or str(error)
        raise ValueError(f"target={target.name}: the compiler knows no such slice ({reason.splitlines()[0]})") from None
    except RuntimeError:
        raise MissingCompilerError(
            f"target={target.name}: the compiler for TPUs is not installed; {_pip('libtpu')} installs it"
        ) from None
    return list(described.devices)


def _pip(*arguments: str) -> str:
    return " ".join(["pip install", *arguments])


def target_config(chip: Chip) -> str:
    """What XLA's compiler is told of a GPU: the text of a ``GpuTargetConfigProto``."""
    described = dict(chip.described)
    capability = described.pop("capability")
    figures = {
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "threads_per_core_limit": 2048,
        "shared_memory_per_block": 49152,
        "registers_per_core_limit": 65536,
        "registers_per_block_limit": 65536,
        "block_dim_limit_x": 2**31 - 1,
        "block_dim_limit_y": 65535,
        "block_dim_limit_z": 65535,
        "memory_bandwidth": int(chip.bandwidth),
        "device_memory_size": chip.memory,
        **described,
    }
    lines = [f"{key}: {value}" for key, value in figures.items()]
    lines.append(f"cuda_compute_capability {{ major: {capability} }}")
    return (
        "gpu_device_info {\n" + "\n".join(lines) + '\n}\nplatform_name: "CUDA"\n'
        f'dnn_version_info {{ major: 9 minor: 8 }}\ndevice_description_str: "{chip.title}"\n'
    )


def _has_tpus() -> bool:
    """Whether this machine may have TPUs, of which libtpu knows by itself."""
    return any(Path("/dev").glob("accel*")) or Path("/dev/vfio").exists()


@contextlib.contextmanager
def _set(wanted: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for as long as a compiler starts; those that are set already stay."""
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
