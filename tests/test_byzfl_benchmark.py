"""The script that runs ByzFL's benchmark by ByzFL's own classes."""

import pytest
from typer.testing import CliRunner

import byzfl_benchmark


@pytest.mark.slow
def test_their_own_code_is_timed():
    pytest.importorskip("byzfl")
    pytest.importorskip("torch")
    result = CliRunner().invoke(byzfl_benchmark.app, ["time", "--steps", "1", "--attack", "ipm"])
    assert result.exit_code == 0, result.output
    assert "s a step" in result.stdout
