"""CPU cores as devices, over which the clients of a round can be shared.

JAX takes the number of a CPU's devices when it starts its backend, so it must be said before anything is computed. The
command line says it; in Python :func:`use_cores` or the environment variable ``FEDJAX_DRAG_USE_CORES=1`` does, and
nothing else in the package.
"""

import contextlib
import math
import os
from pathlib import Path

import jax

from fedjax_drag import checks

ENVIRONMENT_VARIABLE = "FEDJAX_DRAG_USE_CORES"
"""``1`` calls :func:`use_cores` when the package is imported."""

_FLAG = "xla_force_host_platform_device_count"
_PATIENCE = "xla_cpu_collective_call_terminate_timeout_seconds"
_DAY = 24 * 60 * 60

ROOT = Path("/sys/fs/cgroup")
OF_PROCESS = Path("/proc/self/cgroup")


def use_cores(number: int | None = None) -> None:
    """Makes every CPU core a device, over which runs share the clients of a round where that is faster.

    Call it before anything else in JAX: ``mesh="auto"``, the default of a run, then finds the devices. Nothing changes
    on a GPU or TPU. A second call with the same number does nothing.

    Args:
      number: devices, >= 1; default one for each core that this process may use.

    Raises:
      ValueError: JAX has already started with another number.

    Examples:
      >>> import fedjax_drag as fd
      >>> fd.use_cores()  # doctest: +SKIP
    """
    if number is not None:
        checks.count("number", number, 1)
    wanted = number or num_cores()
    wait_for_each_other()
    try:
        jax.config.update("jax_num_cpu_devices", wanted)
    except RuntimeError:
        there = len(jax.local_devices(backend="cpu"))
        if there != wanted:
            raise ValueError(
                f"number={wanted}: must be {there}, with which JAX has already started; call fd.use_cores(), or set "
                f"{ENVIRONMENT_VARIABLE}=1, before anything else in JAX"
            ) from None


def use_cores_if_asked() -> None:
    """Calls :func:`use_cores` where the environment says so.

    Raises:
      ValueError: it is too late, or the environment variable is neither 0 nor 1.
    """
    asked = os.environ.get(ENVIRONMENT_VARIABLE) or "0"
    if asked not in ("0", "1"):
        raise ValueError(f"{ENVIRONMENT_VARIABLE}={asked!r}: must be 0 or 1")
    if asked == "1":
        use_cores()


def one_device_per_core() -> None:
    """:func:`use_cores` of a command, unless the user's environment or a started JAX has decided the number."""
    if jax.config.values["jax_num_cpu_devices"] > 0 or _FLAG in os.environ.get("XLA_FLAGS", ""):
        return
    wait_for_each_other()
    with contextlib.suppress(RuntimeError):  # called within a program that has started JAX
        jax.config.update("jax_num_cpu_devices", num_cores())


def wait_for_each_other() -> None:
    """Lets a device wait a day for another, unless the user's ``XLA_FLAGS`` say how long.

    By itself XLA ends the process where one is 40 s late, as with more local steps or on a machine that others use.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if _PATIENCE not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --{_PATIENCE}={_DAY}".strip()


def start() -> None:
    """Starts JAX's devices, whose number must have been set before.

    Raises:
      ValueError: the devices that ``JAX_PLATFORMS`` names are not here.
    """
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # an assertion without a text where the driver is missing
        if not (asked := os.environ.get("JAX_PLATFORMS")):
            raise
        reason = f" ({str(error).splitlines()[0]})" if str(error) else ""
        raise ValueError(
            f"JAX_PLATFORMS={asked}: JAX finds no such device{reason}; unset it, or install JAX for it, as with "
            "pip install 'fedjax-drag[cuda]'"
        ) from None


def num_cores() -> int:
    """CPU cores that this process may use: those of its affinity, within the quota of its control groups, >= 1."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every platform
    own = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, int(min(own, *map(_quota, own_groups()), math.inf)))


def _quota(group: Path) -> float:
    """CPUs that a control group grants; infinite without a limit."""
    try:
        quota, period = (group / "cpu.max").read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # the root has no limit, others say "max"
        return math.inf


def own_groups() -> list[Path]:
    """Folders of the control groups (version 2) of this process, the innermost first; none where there are none.

    They limit its processors and its memory.
    """
    try:
        own = next(line[3:] for line in OF_PROCESS.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return []
    group = ROOT / own.strip("/")
    return [folder for folder in (group, *group.parents) if folder.is_relative_to(ROOT)]
