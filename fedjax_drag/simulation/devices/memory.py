"""Memory of a run: how much its compiled programs need, and how much the device has free."""

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import psutil

from fedjax_drag.cores import own_groups
from fedjax_drag.simulation.devices.host_state import DEVICE, DISK, HOST

_log = logging.getLogger(__name__)

_MAPS, _MOST_MAPS = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")


def needed(program: Any) -> int:
    """Bytes that a compiled program occupies on each device while it runs, its arguments included.

    0 where the compiler does not report them.
    """
    sizes = program.memory_analysis()
    if sizes is None:
        return 0
    own = sizes.argument_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    return own + sizes.temp_size_in_bytes


def available(device: Any = None) -> float:
    """Bytes free on a device (default the first); infinite where the device does not report them.

    The cores of a host's CPU share the host's free memory, within the limit of the process's control group.
    """
    device = device or jax.local_devices()[0]
    if device.platform == "cpu":
        return min(psutil.virtual_memory().available, _left_in_cgroup())
    stats = device.memory_stats() or {}
    if "bytes_limit" not in stats:
        return math.inf
    return stats["bytes_limit"] - stats.get("bytes_in_use", 0)


def compiled(lowered: Sequence[Any], meanwhile: Callable[[], Any] = lambda: None) -> tuple[list[Any], Any]:
    """Traced programs compiled, each in a thread of its own, None for None, and what ``meanwhile`` gives."""
    with ThreadPoolExecutor(len(lowered), "compilation") as threads:
        compiling = threads.map(lambda program: program and program.compile(), lowered)
        value = meanwhile()
        return list(compiling), value


def make_room() -> None:
    """Drops all compiled programs where the process has half of the memory maps that Linux grants it.

    The programs of a run on a CPU need some 700 of them.
    """
    try:
        is_crowded = _MAPS.read_text().count("\n") > int(_MOST_MAPS.read_text()) // 2
    except (OSError, ValueError):  # not Linux
        return
    if is_crowded:
        jax.clear_caches()


def _left_in_cgroup() -> float:
    """Bytes below the limits of the control groups of this process; infinite without a limit.

    Cached files do not count as used: the kernel drops them when memory is short.
    """
    return min((_left_in(group) for group in own_groups()), default=math.inf)


def _left_in(group: Path) -> float:
    try:
        limit = int((group / "memory.max").read_text())
        used = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return limit - int(used["anon"])
    except (OSError, ValueError, KeyError):  # the root has no limit, others say "max"
        return math.inf


def check(programs: Iterable[tuple[int, Any]], on_host: int, ways_out: Iterable[str]) -> None:
    """Refuses a run that does not fit the memory, and logs how much it needs.

    Args:
      programs: what each needs (:func:`needed`), with those of its arguments that are on their devices already.
      on_host: bytes that the run keeps on the host.
      ways_out: settings that need less memory.

    Raises:
      MemoryError: one line with the bytes needed, the bytes free and the ways out.
    """
    device, sharing, further = None, 1, 0
    for whole, present in programs:
        shards = [shard for leaf in jax.tree.leaves(present) for shard in leaf.addressable_shards]
        device = shards[0].device
        placed = sum(shard.data.nbytes for shard in shards if shard.device == device)
        further = max(further, whole - placed)
        if device.platform == "cpu":
            sharing = len({shard.device for shard in shards})
    assert device is not None
    further = further * sharing + (on_host if device.platform == "cpu" else 0)
    free = available(device)
    _log.info("%s: the run needs %s beside its data, %s are free", device, _size(further), _size(free))
    if further > free:
        raise MemoryError(
            f"{device} has {_size(free)} free, and the run needs {_size(further)} beside its data; "
            f"take {' or '.join(ways_out)}"
        )


def ways_out(clients_axis: str, clients_per_chunk: int | None, rows_on: str | None, mesh: bool) -> list[str]:
    """Settings that need less memory than the present ones.

    Args:
      clients_axis: of the run.
      clients_per_chunk: of the run.
      rows_on: where the rows of all clients are; None where there are none.
      mesh: whether several devices share the clients.
    """
    ways = []
    if clients_axis == "vmap":
        ways.append("clients_axis='map'")
    elif (clients_per_chunk or 1) > 1:
        ways.append(f"clients_per_chunk below {clients_per_chunk}")
    if rows_on == DEVICE:
        ways.append(f"client_state={HOST!r}")
    if rows_on in (DEVICE, HOST):
        ways.append(f"client_state={DISK!r}")
    if not mesh:
        ways.append("a mesh of several devices")
    return [*ways, "a smaller cohort_size or batch_size"]


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:,.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:,.1f} MiB"
