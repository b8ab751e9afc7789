"""What compiled programs say of themselves: how much memory they need, and what they do."""

from typing import Any

from fedjax_drag.accelerators.counts import Work, work_of


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
