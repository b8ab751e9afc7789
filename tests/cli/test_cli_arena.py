"""The arena on the command line: played once, shown again, stopped with what it has."""

import re

import numpy as np
import pytest
import yaml

from fedjax_drag.experiment.arena import requirements
from fedjax_drag.experiment.arena.choice import Choice
from fedjax_drag.experiment.arena.trials import EntryOutcome, Trials

PROTOCOL = {
    "name": "tiny",
    "base": {
        "data": {"name": "digits", "validation_fraction": 0.2},
        "partition": {"name": "iid", "num_clients": 6},
        "model": {"name": "mlp", "hidden": [4]},
        "rounds": 1,
        "cohort_size": 6,
        "local_steps": 1,
        "batch_size": 8,
        "step_size": 0.1,
        "num_byzantine": 1,
    },
    "attacks": {"sign_flip": None},
    "entries": {"median": None},
    "seeds": [0, 1],
}


@pytest.fixture
def protocol(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(PROTOCOL))
    return path


@pytest.fixture
def play(monkeypatch):
    """A stand-in for the runs of an entry."""

    def outcome(self, arena, entry):
        choice = Choice((), {"none": (), "sign_flip": ()}, 0.5)
        return EntryOutcome({(): choice}, np.array([[[0.9, 0.8], [0.5, 0.6]]]), ())

    monkeypatch.setattr(Trials, "play", outcome)
    monkeypatch.setattr(requirements, "passes", lambda config, num_clients: 3.0)
    return outcome


@pytest.mark.usefixtures("play")
def test_it_is_played_and_shown(command, protocol, tmp_path):
    result = command("arena", "run", protocol, "--entry", "median")
    assert result.exit_code == 0, result.output
    assert re.search(r"\| median +\| +1 \| +1 \| 85\.0", result.stdout)
    assert result.stdout.rstrip().endswith("results in runs/tiny")
    shown = command("arena", "table", "runs/tiny")
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.strip() in result.stdout
    assert "median" in (tmp_path / "runs" / "tiny" / "arena.html").read_text()
    assert (tmp_path / "runs" / "tiny" / "arena.md").read_text().strip() == shown.stdout.strip()


@pytest.mark.thorough
@pytest.mark.usefixtures("play")
def test_what_has_changed_and_the_page(command, protocol, tmp_path):
    assert command("arena", "run", protocol, "--entry", "median", "--out", "old").exit_code == 0
    assert command("arena", "run", protocol, "--out", "new").exit_code == 0
    assert (tmp_path / "new" / "arena.html").is_file()
    written = ("--html", "pages/arena.html", "--figures", "pages")
    result = command("arena", "table", "new", "--since", "old/arena.json", *written)
    assert result.exit_code == 0, result.output
    assert "## What has changed\n\n- New: fedavg, root_only.\n- No entry has moved" in result.stdout
    assert result.stdout.splitlines()[-3:] == ["pages/arena.html", "pages/heat_map.svg", "pages/knowledge.svg"]
    assert all((tmp_path / line).is_file() for line in result.stdout.splitlines()[-3:])


def test_rows_of_a_standing_are_not_played_again(command, protocol, play, monkeypatch, tmp_path):
    assert command("arena", "run", protocol, "--entry", "median", "--out", "old").exit_code == 0
    labels = []

    def noted(self, arena, entry):
        labels.append(entry.label)
        return play(self, arena, entry)

    monkeypatch.setattr(Trials, "play", noted)
    result = command("arena", "run", protocol, "--standing", "old", "--entry", "fedavg", "--entry", "median")
    assert result.exit_code == 0, result.output
    assert labels == ["fedavg"]
    assert "| median |" in result.stdout
    other = tmp_path / "other.yaml"
    other.write_text(yaml.safe_dump(PROTOCOL | {"seeds": [2, 3]}))
    refused = command("arena", "run", other, "--standing", "old", "--out", "fresh")
    assert refused.exit_code == 2
    assert "standing='tiny': was played by another protocol than 'tiny'; must have the same seeds" in refused.stderr


def test_errors_are_one_line(command, protocol, tmp_path):
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(yaml.safe_dump(PROTOCOL | {"entries": {"krun": None}}))
    for arguments, message in (
        (("run", "none.yaml"), "configuration 'none.yaml': no such file"),
        (("run", wrong), "krun"),
        (("run", protocol, "--entry", "krum"), "entry='krum': must be one of fedavg, root_only, median"),
        (("table", "runs/none"), "'runs/none': no such file; 'fedjax-drag arena run' writes it"),
        (("table", "digits", "--html", wrong / "a.html"), "html='"),
        (("table", "digits", "--figures", wrong), f"figures='{wrong}': cannot be written (File exists: "),
    ):
        result = command("arena", *arguments)
        assert result.exit_code == 2, result.output
        (line,) = result.stderr.splitlines()
        assert line.startswith("fedjax-drag: error: ")
        assert message in line


def test_after_ctrl_c_the_same_command_goes_on(command, protocol, play, monkeypatch):
    labels = []

    def stopping(self, arena, entry):
        labels.append(entry.label)
        if labels == ["fedavg", "root_only"]:
            raise KeyboardInterrupt
        return play(self, arena, entry)

    monkeypatch.setattr(Trials, "play", stopping)
    monkeypatch.setattr("sys.argv", ["fedjax-drag", "arena", "run", "tiny.yaml"])
    first = command("arena", "run", protocol)
    assert first.exit_code == 130
    assert first.stderr.splitlines()[-1] == "stopped; to go on: fedjax-drag arena run tiny.yaml"
    assert command("arena", "run", protocol).exit_code == 0
    assert labels == ["fedavg", "root_only", "root_only", "median"]
