"""``scripts/benchmark.py``: its arguments, and small pieces of what it measures."""

import dataclasses
import io
import subprocess
import sys
import weakref
from pathlib import Path

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import benchmark
import fedjax_drag as fd
from benchmarks import aggregators, convolution, equality, libraries, networks, programs, sweeps
from benchmarks.timing import seconds_each
from benchmarks.workloads import WORKLOADS

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["rounds"]),
        (["cnn", "--repeats", "3"], ["rounds", "cnn", "--repeats", "3"]),
        (["aggregators", "drag"], ["aggregators", "drag"]),
        (["--help"], ["--help"]),
    ],
)
def test_the_subcommand_rounds_may_be_left_out(arguments, expected):
    assert benchmark.with_command(arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["vgg"], "'vgg': must be one of cnn; lenet"),
        (["cnn", "--only", "fedprox"], "'fedprox': must be one of bare;"),
        (["profile", "vgg"], "'vgg': must be one of cnn; lenet"),
        (["aggregators", "mode"], "'mode': must be one of mean; fedavg"),
        (["aggregators", "drag", "--memory-gib", "0.01"], "--memory-gib 0.01: must hold four copies of 10 deltas"),
        (["growth", "20000"], "size"),
        (["federation", "10"], "sizes"),
        (["programs", "vgg"], "'vgg': must be one of cnn32, cnn28, mlp"),
        (["programs", "mlp:tf32"], "'mlp:tf32': must be one of cnn32"),
        (["programs", "before/mlp"], "'before/mlp': needs --against"),
        (["convolution", "vgg"], "'vgg': must be one of cnn; lenet"),
        (["networks", "vgg"], "'vgg': must be one of fedavgcnn of pfllib"),
        (["equality", "mode"], "'mode': must be one of fedavg"),
        (["federation", "--only", "krum"], "'krum': must be one of fedavg; availability"),
        (["sweep", "0"], "cells"),
        (["cnn", "--against", "nowhere"], "--against='nowhere': must be the root of a tree"),
        (["start", "--against", "nowhere"], "--against='nowhere': must be the root of a tree"),
        (["start", "fly", "--against", str(ROOT)], "'fly': must be one of run; simulate"),
        (["cnn", "--against", str(ROOT), "--only", "torch"], "'torch': must be one of fedavg;"),
    ],
)
def test_a_wrong_argument_is_reported_before_anything_is_timed(arguments, message, monkeypatch):
    monkeypatch.setattr(benchmark, "_make_each_core_a_device", lambda: None)
    result = CliRunner().invoke(benchmark.app, benchmark.with_command(arguments))
    assert result.exit_code == 2
    assert "Invalid value" in result.output
    assert message in " ".join(result.output.split()).lower()


def test_a_rule_is_timed_beside_the_mean(monkeypatch):
    monkeypatch.setattr(aggregators, "COHORTS", (10,))
    monkeypatch.setattr(aggregators, "SIZES", (50,))
    (row,) = aggregators.run(["krum"], 1, 1.0)
    assert (row["rule"], row["S"], row["d"]) == ("krum", "10", "5e+01")
    assert min(row["ms"], row["passes"], row["to_numpy"]) > 0


@pytest.mark.thorough
def test_results_of_two_devices_are_compared():
    """Here of one with itself."""
    (row,) = equality.run(["krum"])
    assert (row["what"], row["difference"], row["verdict"]) == ("krum", "0e+00", "equal")
    assert equality.difference(np.array([3.0, 4.5]), np.array([3.0, 4.0])) == 0.1
    assert equality.difference(np.array([np.nan]), np.array([1.0])) == np.inf


@pytest.mark.thorough
def test_every_form_of_the_convolution_is_timed():
    model = lambda: fd.models.cnn(10, "small")
    work = dataclasses.replace(WORKLOADS["cnn"], model=model, image_shape=(8, 8, 1), cohort_size=2, batch_size=2)
    rows = convolution.measure(work, 1)
    assert [row["form"] for row in rows] == ["auto", "looped", "banded", "grouped", "patches", "pooled"]
    assert all(row["ms_per_step"] > 0 and row["failed"] is None for row in rows)


@pytest.mark.thorough
def test_a_network_is_timed_in_the_ways_in_which_it_is_written():
    rows = networks.measure("tiny", networks.cnn(3, 2, 3, 4, first_pool=False), (8, 8, 1), 1)
    assert [row["written in"] for row in rows] == ["nn.Conv", "nnx.Conv", "jax.lax"]
    assert all(row["difference"] < 1e-5 and row["fast to ours"] > 0 for row in rows)


@pytest.mark.thorough
def test_a_residual_network_is_the_same_in_lax_as_in_linen():
    made = networks.models(networks.resnet, (8, 8, 3))
    linen, (init, apply) = made["nn.Conv"](), made["jax.lax"]()
    x = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype(np.float32)
    params = init(jax.random.key(0))
    np.testing.assert_allclose(apply(params, x), linen.apply({"params": params}, x), rtol=1e-5, atol=1e-5)


def test_calls_are_timed_in_one_stretch_and_the_last_result_alone_is_kept():
    """All results, two gigabytes each, may not fit the device."""
    results, calls = weakref.WeakSet(), []

    class Result:
        pass

    def call():
        assert len(results) <= 1
        results.add(result := Result())
        calls.append(0)
        return result

    assert 0 < seconds_each(call, least=0.001, most=50) < 0.001
    assert 1 < len(calls) <= 200


def test_a_program_is_timed_when_it_is_its_turn(monkeypatch, capsys):
    model = lambda: fd.models.mlp(10, hidden=(4,))
    work = dataclasses.replace(WORKLOADS["mlp"], model=model, num_clients=4, examples=20, cohort_size=2)
    monkeypatch.setitem(programs.PROGRAMS, "tiny", programs.Program(work, 2, 2))
    monkeypatch.setattr("sys.stdin", io.StringIO("go\n"))
    row = programs.measure("tiny:float32", profile=True, planned=True)
    assert capsys.readouterr().out.strip() == programs.READY
    assert row["rounds_of_a_cell_per_second"] == pytest.approx(2e3 / row["ms_per_round"])
    assert row["planned_mib"] > 0


def test_a_call_that_ends_before_a_row_is_measured_says_so(tmp_path, monkeypatch):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    sleeper = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr(programs, "_start", lambda *_: subprocess.Popen(sleeper, **pipes))
    with pytest.raises(ValueError, match="--minutes 0: no row was measured in that time"):
        programs.run(["w1"], tmp_path, 0.0)


def test_of_separate_runs_the_first_alone_is_compiled():
    assert sweeps.in_a_row([10.0], 1) == 10.0
    assert sweeps.in_a_row([10.0, 1.0, 3.0], 5) == 18.0


@pytest.mark.slow
def test_a_tree_is_timed_against_another(monkeypatch):
    monkeypatch.setattr(benchmark, "_make_each_core_a_device", lambda: None)
    arguments = ["mlp", "--against", str(ROOT), "--only", "fedavg", "--repeats", "1"]
    result = CliRunner().invoke(benchmark.app, benchmark.with_command(arguments))
    assert result.exit_code == 0, result.output
    head, _, row = [line for line in result.output.splitlines() if line.startswith("|")]
    figures = dict(zip(head.split(" | "), row.split(" | "), strict=True))
    assert figures["program"] == "fedavg"
    assert float(figures["ratio_to_before"]) > 0


@pytest.mark.thorough
def test_libraries_are_timed_where_they_are_installed(monkeypatch):
    for name, value in {"ROWS": 12, "WIDTH": 40, "MALICIOUS": 2, "ARC_ROWS": 16}.items():
        monkeypatch.setattr(libraries, name, value)
    rows = libraries.run(1)
    assert [(row["rule"], row["S"]) for row in rows] == [("trimmed mean", 12), ("CAF", 12), ("MeaMed", 12), ("ARC", 16)]
    assert all(row["here ms"] > 0 for row in rows)
