"""The command that measures: its table, its file and its errors."""

import re
from pathlib import Path

import pytest
import yaml
from test_cli import one_line

from fedjax_drag.experiment import tuning


@pytest.mark.thorough
def test_tune_prints_a_row_for_each_setting_and_writes_a_file_that_runs(command, tiny_file):
    result = command("tune", tiny_file, "rounds=4", "mesh=null", "--quick", "--rounds", "1", "--write", "faster.yaml")
    assert result.exit_code == 0, result.output
    head, *rows = result.stdout.splitlines()
    assert head.split() == ["ms", "a", "round", "ratio", "MiB"]
    for setting in ("present setting", "clients_axis=map", "clients_axis=vmap"):
        (row,) = [row for row in rows if row.startswith(f"{setting} ")]
        assert re.search(r"\d\.\d{3}  +\d+\.\d\d  +\d+\.\d", row), row
    assert rows[-1] == "configuration in faster.yaml"
    assert yaml.safe_load(Path("faster.yaml").read_text())["rounds"] == 4
    assert command("run", "faster.yaml", "--quiet").exit_code == 0


def test_errors_of_tune_are_one_line(command, tiny_file):
    assert "did you mean 'rounds'" in one_line(command("tune", tiny_file, "round=5"), 2)
    place = tiny_file.with_name("there.yaml")
    place.write_text("kept")
    message = one_line(command("tune", tiny_file, "--write", place), 2)
    assert message.endswith("there.yaml': is there already; name another file")
    refused = command("tune", tiny_file, "--quick", "--write", place / "faster.yaml")
    assert (refused.stdout, one_line(refused, 2).count("faster.yaml': cannot be written (")) == ("", 1)
    assert "must be null" in one_line(command("tune", tiny_file, "compare={A: {}}"), 2)


def test_ctrl_c_leaves_the_rows_that_were_measured(command, tiny_file, monkeypatch):
    def seconds(simulation, interval):
        if simulation.batching.clients_axis == "vmap":
            raise KeyboardInterrupt
        return 0.004

    monkeypatch.setattr(tuning, "_seconds", seconds)
    result = command("tune", tiny_file, "mesh=null", "--quick", "--write", "faster.yaml")
    assert (result.exit_code, result.stderr) == (130, "stopped\n")
    assert [row.split("  ")[0] for row in result.stdout.splitlines()[1:]] == ["present setting", "clients_axis=map"]
    assert not Path("faster.yaml").exists()
