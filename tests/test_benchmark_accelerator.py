"""``scripts/benchmark.py accelerator``: what is kept, what goes on, what is shown; parts at a tiny size."""

import json
import os
import subprocess
import sys
import weakref
from pathlib import Path

import filelock
import pytest
from typer.testing import CliRunner

import benchmark
from benchmarks.accelerator import command, page
from benchmarks.accelerator.figure import draw
from benchmarks.accelerator.part import Part, attempts, reason
from benchmarks.accelerator.parts import PARTS, fast_tests, select
from benchmarks.accelerator.record import FILE, Record, read
from benchmarks.accelerator.runner import Clock, missing, run
from benchmarks.accelerator.sizes import FULL, SIZES, SMALL, TINY
from benchmarks.accelerator.worker import TimeUpError, Worker, outcome_of
from benchmarks.timing import seconds_each

MACHINE = {"platform": "gpu", "device": "NVIDIA H200", "jax": "0.10.2", "size": "tiny"}


def part(name, *cases, **options):
    return Part(name, name.title(), "What it is.", 1.0, lambda sizes: dict.fromkeys(cases, list), **options)


class Scripted:
    """A worker that answers from a list, and moves the clock on by a second a case."""

    def __init__(self, **answers):
        self.answers, self.asked, self.closed, self.now = answers, [], 0, 0.0

    def measure(self, part, case, seconds):
        self.asked.append((part, case))
        answer = self.answers.get(case, 1.0)
        if isinstance(answer, str):
            return {"failed": answer, "seconds": 1.0}
        self.now += min(answer, seconds)
        if answer > seconds:
            raise TimeUpError(f"took more than {seconds:.0f} s")
        return {"rows": [{"case": case, "ms": answer}], "seconds": answer}

    def close(self):
        self.closed += 1


def measured(parts, folder, minutes=10.0, again=False, **answers):
    worker = Scripted(**answers)
    record = Record(folder, MACHINE)
    left = run(parts, TINY, record, worker, Clock(minutes, lambda: worker.now), again)
    return worker, record, left


def test_parts_take_forty_minutes_and_have_cases_at_every_size():
    assert sum(part.minutes for part in PARTS) <= 40
    assert len({part.name for part in PARTS}) == len(PARTS)
    for sizes in SIZES.values():
        assert all(part.cases(sizes) for part in PARTS)
    assert all((fast_tests.ROOT / "tests" / name).exists() for sizes in SIZES.values() for name in sizes.tests)
    assert len(select(["rules"])[0].cases(FULL)) == 31


@pytest.mark.thorough
def test_naming_the_cases_starts_no_backend():
    """Only one process can have the device: the command leaves it to the worker."""
    code = (
        "from benchmarks.accelerator.parts import PARTS\n"
        "from benchmarks.accelerator.sizes import FULL\n"
        "assert all(part.cases(FULL) for part in PARTS)\n"
    )
    environment = os.environ | {"JAX_PLATFORMS": "none_such"}  # the first use of a device would fail
    scripts = fast_tests.ROOT / "scripts"
    done = subprocess.run([sys.executable, "-c", code], cwd=scripts, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_later_call_continues_where_the_first_was_stopped(tmp_path):
    parts = [part("one", "a", "b"), part("two", "c")]
    first, _, left = measured(parts, tmp_path, minutes=0.5, b=25.0)
    assert first.asked == [("one", "a"), ("one", "b")]  # less than ten seconds are left for c
    assert left == {"two": 1}
    second, record, left = measured(parts, tmp_path)
    assert second.asked == [("two", "c")]
    assert left == {}
    assert [row["case"] for row in record.rows("one") + record.rows("two")] == ["a", "b", "c"]


def test_what_the_end_of_the_call_interrupts_is_not_recorded(tmp_path):
    _, record, left = measured([part("one", "a", "b")], tmp_path, minutes=0.5, b=60.0)
    assert left == {"one": 1}
    assert record.outcome("one", "b") is None


def test_a_failed_case_and_a_slow_one_are_recorded_and_the_others_go_on(tmp_path):
    parts = [part("one", "a", "b", "c", seconds=20)]
    worker, record, left = measured(parts, tmp_path, a="RESOURCE_EXHAUSTED: out of memory", b=70.0)
    assert left == {}
    assert record.failures("one") == {"a": "RESOURCE_EXHAUSTED: out of memory", "b": "took more than 60 s"}
    assert [row["case"] for row in record.rows("one")] == ["c"]
    assert missing(parts[0], TINY, record) == []
    worker, record, _ = measured(parts, tmp_path, again=True)
    assert worker.asked == [("one", "a"), ("one", "b")]
    assert record.failures("one") == {}


def test_a_part_that_needs_the_device_alone_gets_a_process_for_each_case(tmp_path):
    worker, *_ = measured([part("one", "a", "b", alone=True)], tmp_path)
    assert worker.closed == 3


def test_a_long_case_is_not_begun_where_a_shorter_one_still_fits(tmp_path):
    long, short = part("long", "a"), part("short", "b", "c", "d")
    worker = Scripted()
    record = Record(tmp_path, MACHINE)
    left = run([long, short], FULL, record, worker, Clock(0.7, lambda: worker.now))
    assert worker.asked == [("short", "b"), ("short", "c"), ("short", "d")]
    assert left == {"long": 1}


def test_a_record_is_of_one_device_and_says_what_is_wrong_with_it(tmp_path):
    Record(tmp_path, MACHINE).keep("one", "a", {"rows": [], "seconds": 1.0})
    with pytest.raises(ValueError, match=r"is of .*H200.*name another --out"):
        Record(tmp_path, {**MACHINE, "device": "Tesla T4"})
    (tmp_path / FILE).write_text("{")
    with pytest.raises(ValueError, match="cannot be read"):
        Record(tmp_path, MACHINE)
    with pytest.raises(ValueError, match="cannot be read"):
        read(tmp_path / "nowhere")


def test_a_folder_has_one_writer(tmp_path):
    with filelock.FileLock(tmp_path / ".lock"), pytest.raises(ValueError, match="another process measures into it"):
        command.measure(["device"], tmp_path, 1.0, True, False)


def test_the_page_has_tables_and_failures_and_is_written_between_its_marks(tmp_path):
    record = Record(tmp_path, MACHINE)
    record.keep("one", "a", {"rows": [{"rule": "krum|median", "ms_": 0.0123, "none": None, "_open": 3}], "seconds": 60})
    record.keep("one", "b", {"failed": "MemoryError: no", "seconds": 1.0})
    text = page.section([part("one", "a", "b"), part("two", "c")], record)
    assert text.startswith(
        "Measured on NVIDIA H200 with JAX 0.10.2. **An example of the form alone:** sizes are *tiny*"
    )
    assert "| rule | ms  |\n| --- | --- |\n| krum\\|median | 0.012 |" in text
    assert "- `b` failed: MemoryError: no" in text
    assert "Two" not in text
    path = tmp_path / "page.md"
    path.write_text(f"# Title\n\n{page.BEGIN}\nold\n{page.END}\n\nafter\n")
    page.write(path, text)
    page.write(path, text)
    assert path.read_text() == f"# Title\n\n{page.BEGIN}\n\n{text}\n{page.END}\n\nafter\n"
    path.write_text("# Of somebody else\n")
    with pytest.raises(ValueError, match="must be a new file, or one with the lines"):
        page.write(path, text)


def test_the_picture_has_every_rule(tmp_path):
    record = Record(tmp_path, MACHINE)
    with pytest.raises(ValueError, match="no rules to draw"):
        draw(record, tmp_path / "rules.svg")
    for name, ms in {"krum": 2.0, "median": 30.0}.items():
        record.keep(
            "rules", name, {"rows": [{"rule": name, "d": "1e+06", "ms": ms, "planned_ms": 1.0}], "seconds": 1.0}
        )
    draw(record, tmp_path / "rules.svg")
    picture = (tmp_path / "rules.svg").read_text()
    assert "<!-- krum -->" in picture
    assert "<!-- median -->" in picture


@pytest.mark.parametrize(
    ("name", "case"),
    [("rules", "fedavg"), ("device", "versions"), pytest.param("equality", "fedavg", marks=pytest.mark.thorough)],
)
def test_a_tiny_part_gives_rows(name, case):
    outcome = outcome_of(name, case, "tiny")
    assert outcome.get("failed") is None
    if name == "equality":
        assert outcome["rows"][0]["verdict"] == "equal"
    if name == "rules":
        assert outcome["rows"][0]["passes"] >= 1
        assert outcome["rows"][0]["ms"] > 0


def test_what_a_case_raises_is_its_reason():
    assert outcome_of("rules", "krum", "tiny")["failed"] == "KeyError: 'krum'"
    assert reason(RuntimeError("RESOURCE_EXHAUSTED: Out of memory\nmore")) == (
        "RuntimeError: RESOURCE_EXHAUSTED: Out of memory"
    )
    assert len(reason(ValueError("x" * 1000))) == 300


def test_of_several_ways_one_may_fail():
    made, failed = attempts({"a": lambda: 1, "b": lambda: 1 / 0})
    assert (made, failed) == ({"a": 1}, {"b": "ZeroDivisionError: division by zero"})
    with pytest.raises(ZeroDivisionError):
        attempts({"b": lambda: 1 / 0})


def test_outcomes_of_tests_are_counted_also_where_the_summary_is_missing():
    log = (
        "[gw0] [ 10%] PASSED tests/ops/test_a.py::test_one \n"
        "[gw1] [ 20%] FAILED tests/ops/test_a.py::test_two \n"
        "[gw1] [ 30%] SKIPPED tests/ops/test_a.py::test_three \n"
        "[gw1] [ 30%] ERROR tests/ops/test_a.py::test_four \n"
    )
    assert fast_tests.counted(log) == {"passed": 1, "failed_tests": 2, "skipped": 1}
    assert fast_tests.failures(log) == ["tests/ops/test_a.py::test_two", "tests/ops/test_a.py::test_four"]
    summary = "FAILED tests/ops/test_a.py::test_two - assert 1 == 2\n"
    assert fast_tests.failures(log + summary) == ["tests/ops/test_a.py::test_two - assert 1 == 2"]


def test_calls_are_timed_in_one_stretch():
    calls = []
    assert 0 < seconds_each(lambda: calls.append(0) or 0.0, least=0.001, most=50) < 0.001
    assert 1 < len(calls) <= 200


def test_of_timed_calls_the_last_result_alone_is_kept():
    """All of them, two gigabytes each, may not fit the device."""
    results = weakref.WeakSet()

    class Result:
        pass

    def call():
        assert len(results) <= 1
        results.add(result := Result())
        return result

    seconds_each(call, least=0.001, most=20)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gpu"], "'gpu': must be one of device, equality"),
        (["--minutes", "0"], "cannot be read"),
        (["--minutes", "-1"], "minutes"),
    ],
)
def test_a_wrong_argument_is_one_line(arguments, message, tmp_path):
    result = CliRunner().invoke(benchmark.app, ["accelerator", *arguments, "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", "").split())


def test_the_list_says_what_is_measured(tmp_path):
    record = Record(tmp_path, {**MACHINE, "size": "small"})
    record.keep("rules", "fedavg", {"rows": [], "seconds": 1.0})
    result = CliRunner().invoke(benchmark.app, ["accelerator", "--list", "rules", "--out", str(tmp_path)])
    assert result.exit_code == 0
    assert f"| rules | 3.00 | {len(SMALL.rules)} | 1 | Rules against the mean |" in result.output


@pytest.mark.slow
def test_every_part_runs_at_a_tiny_size_and_in_a_process_of_its_own(tmp_path, monkeypatch):
    """On the CPU; takes a minute or two, most of it compilation."""
    monkeypatch.setattr(command, "SMALL", TINY)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    names = ["accelerator", "--small", "--out", str(tmp_path), "--markdown", str(tmp_path / "page.md")]
    result = CliRunner().invoke(benchmark.app, [*names, "--figure", str(tmp_path / "rules.svg")])
    assert result.exit_code == 0, result.output
    kept = json.loads((tmp_path / FILE).read_text())
    assert kept["machine"]["size"] == "tiny"
    assert list(kept["parts"]) == [part.name for part in PARTS]
    failures = {name: read(tmp_path).failures(name) for name in kept["parts"]}
    assert all(not failed for failed in failures.values()), failures
    assert all(title in Path(tmp_path / "page.md").read_text() for title in (part.title for part in PARTS))


@pytest.mark.slow
def test_a_process_that_dies_or_takes_too_long_is_replaced():
    worker = Worker("tiny")
    try:
        assert worker.machine()["platform"]
        with pytest.raises(TimeUpError):
            worker.measure("rules", "fedavg", 0.0)
        assert worker.measure("device", "versions", 100.0)["rows"]
        worker._process.kill()
        assert worker.measure("device", "versions", 100.0)["failed"] == "the process ended with status -9"
        assert worker.measure("device", "versions", 100.0)["rows"]
    finally:
        worker.close()
