"""The fast tests on the device."""

import functools
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.accelerator.part import Cases, Part
from benchmarks.accelerator.sizes import Sizes
from benchmarks.timing import Row

ROOT = Path(__file__).parents[4]
_MOST_SECONDS = 100
_MOST_PROCESSES = 8
_MOST_NAMES = 5


def cases(sizes: Sizes) -> Cases:
    """A case for each folder or file of tests."""
    return {name: functools.partial(outcome, name) for name in sizes.tests}


def outcome(name: str, seconds: float = _MOST_SECONDS) -> list[Row]:
    """Counts what becomes of the tests in a folder, those of a run that had to be stopped as well.

    Raises:
      RuntimeError: no test ran.
    """
    number = str(min(_MOST_PROCESSES, os.cpu_count() or 1))
    command = [
        sys.executable,
        "-m",
        "pytest",
        f"tests/{name}",
        "-v",
        "--tb=line",
        "-n",
        number,
        "-p",
        "no:cacheprovider",
    ]
    # Several processes share the device, so none may reserve its memory.
    env = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONPATH": _path()}
    stopped = False
    with tempfile.TemporaryFile("w+") as log:
        with subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=subprocess.STDOUT) as process:
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                stopped = True
                process.send_signal(signal.SIGINT)  # pytest then reports what it has
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
        log.seek(0)
        text = log.read()
    counts = counted(text)
    if not sum(counts.values()):
        last = text.strip().splitlines() or ["no output"]
        raise RuntimeError(f"pytest tests/{name}: {last[-1]}")
    names = failures(text)
    return [
        {
            "tests": name,
            **counts,
            "stopped after": f"{seconds:.0f} s" if stopped else None,
            "failures": "; ".join(names[:_MOST_NAMES]) + ("; ..." if len(names) > _MOST_NAMES else ""),
            "_failures": names,
        }
    ]


def counted(log: str) -> dict[str, int]:
    """How many tests passed, failed and were skipped, by the lines that pytest writes as they end."""
    ends = re.findall(r"^(?:\[gw\d+\] \[ *\d+%\] (\w+) tests/|tests/\S+.* (PASSED|FAILED|ERROR|SKIPPED))", log, re.M)
    words = [first or second for first, second in ends]
    return {
        "passed": words.count("PASSED"),
        "failed_tests": words.count("FAILED") + words.count("ERROR"),
        "skipped": words.count("SKIPPED"),
    }


def failures(log: str) -> list[str]:
    """Failed tests with their reasons, from pytest's summary or, where that is missing, from the lines as they end."""
    summary = re.findall(r"^(?:FAILED|ERROR) (tests/.+)$", log, re.M)
    ended = re.findall(r"^\[gw\d+\] \[ *\d+%\] (?:FAILED|ERROR) (tests/\S+)", log, re.M)
    return [line[:200] for line in summary or ended]


def _path() -> str:
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


PART = Part(
    name="tests",
    title="The fast tests on the device",
    text=f"`pytest` on the folders of tests that compute, at most {_MOST_PROCESSES} processes on one device; at most "
    f"{_MOST_SECONDS} s for a folder.",
    minutes=7.0,
    cases=cases,
    seconds=_MOST_SECONDS + 40,
    alone=True,
)
