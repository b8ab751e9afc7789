"""Commands that get Ctrl-C or SIGTERM at any moment end in time, with their status, and go on to the same bits.

``pytest -n 0 -s -m slow tests/faults/test_signals.py`` sends 200 signals, half of them in a command's first second,
and prints the table; ``FEDJAX_DRAG_SIGNALS=2000`` sends more.
"""

import collections
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
import yaml
from small_runs import ARENA, COMMAND, ENVIRONMENT, LONG, SWEEP, assert_same_results, start, wait, written

SIGNALS = (signal.SIGINT, signal.SIGTERM)
LIMIT = 2.0
"""Seconds from the signal to the end of the process."""
GRACE = "from fedjax_drag import stopping; stopping.GRACE_SECONDS = {}; "
"""Of a process beside other work, in which a loop may read the event late."""


@pytest.fixture(autouse=True)
def not_ignored():
    """Commands that a shell starts in the background ignore Ctrl-C, and so would those that are started here."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def listens(process):
    """Whether a process has a handler for SIGTERM, which Python itself has not."""
    try:
        with open(f"/proc/{process.pid}/status") as stream:
            caught = next(line for line in stream if line.startswith("SigCgt:"))
    except (OSError, StopIteration):  # it has ended
        return False
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.thorough
@pytest.mark.parametrize("number", SIGNALS)
def test_a_stopped_run_saves_what_it_has_computed(tmp_path, number):
    config, out = tmp_path / "config.yaml", tmp_path / "out"
    config.write_text(yaml.safe_dump(LONG | {"rounds": 100_000, "checkpoint_every_seconds": 3600}))
    process = start("run", config, out, tmp_path / "cache", GRACE.format(600.0) + COMMAND)
    wait(process, lambda: written("run", out) >= 5)
    process.send_signal(number)
    assert process.communicate()[1].endswith(
        f"stopped; to go on: fedjax-drag run {config} --out {out} --quiet --resume\n"
    )
    assert process.returncode == 130
    newest = max(int(path.name) for path in (out / "checkpoints").iterdir())
    assert newest == len((out / "metrics.jsonl").read_bytes().splitlines())


HELD = """
import sys, time
stopping.listen(lambda: "stopped")
def long(seconds):  # as a compilation
    print("begun", flush=True)
    time.sleep(seconds)
if sys.argv[1] == "nothing to save":
    long(600)
with stopping.saving():
    if sys.argv[1] == "long":
        long(600)
    try:
        print("begun", flush=True)
        while True:
            stopping.check(0.01)
    except KeyboardInterrupt:
        print("saving", flush=True)
        time.sleep(600 if sys.argv[1] == "second" else 0)
        sys.exit(7)
"""


@pytest.mark.parametrize("case", ["nothing to save", "long", "in order", "second"])
def test_a_signal_raises_nothing_and_ends_the_process(case):
    """Only where nothing reads the event does the process end for the time that has passed."""
    grace = 0.5 if case == "long" else 600.0
    code = GRACE.format(grace) + HELD
    process = subprocess.Popen([sys.executable, "-c", code, case], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline() == b"begun\n"
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    if case == "second":
        assert process.stdout.readline() == b"saving\n"
        process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=120)[1]
    assert (process.returncode, said) == ((7, b"") if case == "in order" else (130, b"stopped\n"))
    assert case != "long" or time.monotonic() - began >= grace


@pytest.mark.slow
def test_signals_at_random_moments(tmp_path):
    cache, chance, number = tmp_path / "cache", random.Random(0), int(os.environ.get("FEDJAX_DRAG_SIGNALS", "200"))
    contents = {
        "run": LONG,
        "sweep": SWEEP | {"axes": {"aggregator": ["fedavg", "median"], "seed": [0, 1]}},
        "arena": ARENA,
    }
    configs = {kind: tmp_path / f"{kind}.yaml" for kind in contents}
    for kind, content in contents.items():
        configs[kind].write_text(yaml.safe_dump(content))

    def begin(kind, out):
        if kind == "report":
            arguments = ["report", str(tmp_path / "whole run"), "--out", str(out.with_suffix(".html"))]
        elif kind == "arena":
            arguments = ["arena", "run", str(configs[kind]), "--out", str(out), "--quiet"]
        else:
            return start(kind, configs[kind], out, cache)
        command = [sys.executable, "-c", COMMAND, *arguments]
        environment = os.environ | ENVIRONMENT | {"FEDJAX_DRAG_CACHE": str(cache)}
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    seconds = {}
    for kind in ("run", "sweep", "report"):
        began = time.monotonic()
        assert begin(kind, tmp_path / f"whole {kind}").communicate()[1] == ""
        seconds[kind] = time.monotonic() - began
    seconds = {**seconds, "arena": seconds["sweep"]}
    print(seconds, flush=True)

    counts, longest, same = collections.Counter(), collections.Counter(), collections.Counter()
    for turn in range(number):
        kind, out = list(seconds)[turn % 4], tmp_path / f"out{turn}"
        early = turn // 4 % 2 == 0
        process, which = begin(kind, out), chance.choice(SIGNALS)
        began = time.monotonic()
        after = chance.random() if early else min(seconds[kind], 30.0) ** chance.random()
        wait(process, lambda end=began + after: time.monotonic() > end)
        after, listening, sent = time.monotonic() - began, listens(process), time.monotonic()
        process.send_signal(which)
        if chance.random() < 0.1:
            time.sleep(chance.uniform(0, 0.1))
            process.send_signal(chance.choice(SIGNALS))
        said = process.communicate(timeout=600)[1]
        took, status = time.monotonic() - sent, process.returncode
        row = kind, which.name, "first second" if early else "later"
        if status != 0 and not listening:  # Python itself ended, by whatever it does then
            status = "before the command"
        counts[*row, status] += 1
        longest[row] = max(longest[row], took)
        print(turn, *row, f"after {after:.2f} s:", status, f"in {took:.2f} s", flush=True)
        assert status in (0, 130, "before the command"), said
        assert "Traceback" not in said or status == "before the command", said
        if kind in ("run", "sweep") and status == 130 and turn % 80 in (4, 5):
            again = begin(kind, out)
            assert again.communicate()[1] == ""
            assert_same_results(kind, out, tmp_path / f"whole {kind}")
            same[kind] += 1
        shutil.rmtree(out, ignore_errors=True)
    for row, most in sorted(longest.items()):
        statuses = {status: n for (*one, status), n in sorted(counts.items(), key=str) if tuple(one) == row}
        print(f"| {' | '.join(row)} | {sum(statuses.values())} | {statuses} | {most:.2f} |")
    print(f"resumed to the same bits: {dict(same)}")
    assert max(longest.values()) < LIMIT
