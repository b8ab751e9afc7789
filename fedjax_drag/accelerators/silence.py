"""Keeps from the terminal what libraries write past Python."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Drops what compilers write to standard error when they start, such as that there is no driver.

    The file descriptor is redirected, since they know nothing of ``sys.stderr``.
    """
    sys.stderr.flush()
    try:
        usual = os.dup(2)
    except OSError:  # closed
        yield
        return
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(usual, 2)
            os.close(usual)
