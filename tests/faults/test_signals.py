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
from small_runs import COMMAND, ENVIRONMENT, LONG, SMALL, SWEEP, assert_same_results, start, wait, written

from fedjax_drag import stopping

SIGNALS = (signal.SIGINT, signal.SIGTERM)
ARENA = {
    "name": "tiny",
    "base": SMALL | {"data": {"name": "digits", "validation_fraction": 0.2}, "num_byzantine": 1},
    "attacks": {"sign_flip": None},
    "entries": {"median": None},
    "tuning_seeds": [100],
    "seeds": [0],
}
LIMIT = 2.0
"""Seconds from the signal to the end of the process."""


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
def test_a_stopped_run_saves_what_it_has_computed(tmp_path, number):
    config, out = tmp_path / "config.yaml", tmp_path / "out"
    config.write_text(yaml.safe_dump(LONG | {"rounds": 100_000, "checkpoint_every_seconds": 3600}))
    process = start("run", config, out, tmp_path / "cache")
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
from fedjax_drag import stopping
stopping.listen(lambda: "stopped")
def long(seconds):  # as a compilation
    print("begun", flush=True)
    time.sleep(seconds)
if sys.argv[1] == "nothing to save":
    long(60)
with stopping.saving():
    if sys.argv[1] == "long":
        long(60)
    try:
        print("begun", flush=True)
        while True:
            stopping.check(0.01)
    except KeyboardInterrupt:
        print("saving", flush=True)
        time.sleep(60 if sys.argv[1] == "second" else 0)
        sys.exit(7)
"""


@pytest.mark.slow  # times out beside other work
@pytest.mark.parametrize("case", ["nothing to save", "long", "in order", "second"])
def test_a_signal_raises_nothing_and_ends_the_process(case):
    process = subprocess.Popen([sys.executable, "-c", HELD, case], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline() == b"begun\n"
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    if case == "second":
        assert process.stdout.readline() == b"saving\n"
        process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=30)[1]
    assert (process.returncode, said) == ((7, b"") if case == "in order" else (130, b"stopped\n"))
    assert (time.monotonic() - began >= stopping.GRACE_SECONDS) == (case == "long")


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
        after, sent = time.monotonic() - began, time.monotonic()
        process.send_signal(which)
        if chance.random() < 0.1:
            time.sleep(chance.uniform(0, 0.1))
            process.send_signal(chance.choice(SIGNALS))
        said = process.communicate(timeout=60)[1]
        took, status = time.monotonic() - sent, process.returncode
        row = kind, which.name, "first second" if early else "later"
        if status not in (0, 130) and early:
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
