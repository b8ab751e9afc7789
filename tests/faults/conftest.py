import contextlib
import resource
import signal

import pytest


def _peak():
    """Most memory that this process has had, in MiB (of a Linux system)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.fixture(scope="session")
def bounded():
    """``bounded(seconds, megabytes)``: what is inside fails if it takes more of either."""

    @contextlib.contextmanager
    def within(seconds, megabytes):
        def late(*_):
            raise AssertionError(f"takes more than {seconds} s")

        before, handler = _peak(), signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
        assert _peak() - before < megabytes, f"takes {_peak() - before:.0f} MiB"

    return within
