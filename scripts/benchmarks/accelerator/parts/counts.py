"""What compiled programs say of themselves: how much memory they need, and what they do."""

from typing import Any

import jax

from benchmarks.accelerator.parts.device import bandwidth
from benchmarks.accelerator.sizes import Sizes
from fedjax_drag.accelerators.counts import Work, work_of
from fedjax_drag.accelerators.targets import GPUS, Chip


def temporary_mib(program: Any) -> float | None:
    """Memory that a compiled program needs beside its arguments and results; None where the compiler does not say."""
    sizes = program.memory_analysis()
    return sizes.temp_size_in_bytes / 2**20 if sizes else None


def work(program: Any) -> Work | None:
    """Bytes moved and kernels of a compiled program; None where its text cannot be read.

    A compiler may write what the plan does not know yet. The time that was measured is not lost for that.
    """
    try:
        return work_of(program.as_text())
    except Exception:
        return None


def planned_ms(done: Work | None, sizes: Sizes) -> float | None:
    """The plan's time of a program, in milliseconds; a loop whose length depends on the input counts once."""
    return 1e3 * done.seconds(chip(sizes.copied_bytes)) if done else None


def chip(num_bytes: int) -> Chip:
    """The present device: by its maker's figures where the plan has them, else with the bandwidth of a copy.

    Args:
      num_bytes: of the array that is copied.
    """
    device = jax.devices()[0]
    return known_chip() or Chip(device.device_kind, device.platform, 0, bandwidth(num_bytes))


def known_chip() -> Chip | None:
    """The present device by its maker's figures; None where the plan does not have them."""
    kind = jax.devices()[0].device_kind
    return next((chip for chip in GPUS.values() if chip.title.startswith(kind)), None)
