"""The spellings of ``scripts/benchmark.py``; nothing is timed."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

import benchmark

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["rounds"]),
        (["cnn", "--repeats", "3"], ["rounds", "cnn", "--repeats", "3"]),
        (["--sweep", "64"], ["sweep", "64"]),
        (["cnn", "lenet", "--profile"], ["profile", "cnn", "lenet"]),
        (["--repeats", "3", "--growth", "10"], ["growth", "--repeats", "3", "10"]),
        (["aggregators", "drag"], ["aggregators", "drag"]),
        (["--help"], ["--help"]),
    ],
)
def test_a_subcommand_may_be_spelled_as_an_option_or_left_out(arguments, expected):
    assert benchmark.with_command(arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["vgg"], "'vgg': must be one of cnn, lenet"),
        (["cnn", "--only", "fedprox"], "'fedprox': must be one of bare;"),
        (["profile", "vgg"], "'vgg': must be one of cnn, lenet"),
        (["--aggregators", "mode"], "'mode': must be one of mean, fedavg"),
        (["--growth", "20000"], "size"),
        (["federation", "10"], "sizes"),
        (["collectives", "mode"], "'mode': must be one of fedavg"),
        (["programs", "vgg"], "'vgg': must be one of cnn32, cnn28, mlp"),
        (["programs", "mlp:tf32"], "'mlp:tf32': must be one of cnn32"),
        (["programs", "before/mlp"], "'before/mlp': needs --against"),
        (["collectives", "--target", "v0"], "target=v0: must be one of"),
        (["federation", "--only", "krum"], "'krum': must be one of fedavg, availability"),
        (["--sweep", "0"], "cells"),
        (["cnn", "--against", "nowhere"], "--against='nowhere': must be the root of a tree"),
        (["start", "--against", "nowhere"], "--against='nowhere': must be the root of a tree"),
        (["start", "fly", "--against", str(ROOT)], "'fly': must be one of run, simulate"),
        (["cnn", "--against", str(ROOT), "--only", "torch"], "'torch': must be one of fedavg;"),
    ],
)
def test_a_wrong_argument_is_reported_before_anything_is_timed(arguments, message, monkeypatch):
    monkeypatch.setattr(benchmark, "_make_each_core_a_device", lambda: None)
    result = CliRunner().invoke(benchmark.app, benchmark.with_command(arguments))
    assert result.exit_code == 2
    assert "Invalid value" in result.output
    assert message in result.output.lower()


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
