"""The arena on the command line: played once, shown again, stopped with what it has."""

import html
import re
import shlex

import pytest
import yaml
from standings import ARENA, stand_in

import fedjax_drag as fd


@pytest.fixture
def protocol(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(ARENA))
    return path


@pytest.fixture
def play(monkeypatch):
    return stand_in(monkeypatch, pages=True)


@pytest.mark.usefixtures("play")
def test_it_is_played_and_shown(command, protocol, tmp_path):
    result = command("arena", "run", protocol, "--entry", "median")
    assert result.exit_code == 0, result.output
    assert re.search(r"\| median +\| +1 \| +1 \| 70\.5", result.stdout)
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
    assert "## What has changed\n\n- New: root_only, fedavg.\n- No entry has moved" in result.stdout
    assert result.stdout.splitlines()[-3:] == ["pages/arena.html", "pages/heat_map.svg", "pages/knowledge.svg"]
    assert all((tmp_path / line).is_file() for line in result.stdout.splitlines()[-3:])


def test_rows_of_a_standing_are_not_played_again(command, protocol, play, tmp_path):
    assert command("arena", "run", protocol, "--entry", "median", "--out", "old").exit_code == 0
    result = command("arena", "run", protocol, "--standing", "old", "--entry", "fedavg", "--entry", "median")
    assert result.exit_code == 0, result.output
    assert [entry.label for entry in play] == ["median", "fedavg"]
    assert "| median |" in result.stdout
    other = tmp_path / "other.yaml"
    other.write_text(yaml.safe_dump(ARENA | {"seeds": [2, 3]}))
    refused = command("arena", "run", other, "--standing", "old", "--out", "fresh")
    assert refused.exit_code == 2
    assert "standing='tiny': was played by another protocol than 'tiny'; must have the same seeds" in refused.stderr


@pytest.mark.parametrize("plays", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["stand-in", "runs"])
def test_a_rule_of_ones_own_is_entered_by_the_commands_of_the_page(command, tmp_path, monkeypatch, plays):
    """With a stand-in for the runs, and with real ones."""
    with monkeypatch.context() as patched:
        stand_in(patched, pages=True)
        fd.arena.run(ARENA, tmp_path)
    if not plays:
        stand_in(monkeypatch, pages=True)
    page = html.unescape((tmp_path / "arena.html").read_text())
    (file,), (commands,) = (
        re.findall(rf'<pre class="{name}">(.*?)</pre>', page, re.S) for name in ("file", "commands")
    )
    (tmp_path / "my_rules.py").write_text(file)
    lines = [shlex.split(line) for line in commands.splitlines()]
    assert [line[:3] for line in lines] == [["fedjax-drag", "arena", "enter"], ["fedjax-drag", "arena", "table"]]
    lines[0][4] = "radius=[0.3,1.0]"  # as many settings as this arena allows
    refused = command(*lines[0][1:-1])
    assert "must be allowed by --allow-code" in refused.output
    for line in lines:
        result = command(*line[1:])
        assert result.exit_code == 0, result.output
    standing = fd.arena.read("runs/mine")
    assert list(standing.rows) == ["fedavg", "root_only", "median", "my_rule"]
    assert standing.own == ["my_rule"]
    assert standing.rows["my_rule"].settings == {"aggregator.radius": [0.3, 1.0]}
    assert "my_rule" in (tmp_path / "arena.html").read_text()


def test_errors_are_one_line(command, protocol, tmp_path):
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(yaml.safe_dump(ARENA | {"entries": {"krun": None}}))
    for arguments, message in (
        (("run", "none.yaml"), "configuration 'none.yaml': no such file"),
        (("run", wrong), "krun"),
        (("run", protocol, "--out", ""), "--out='': must be the path of a folder"),
        (("run", protocol, "--entry", "krum"), "entry='krum': must be one of fedavg, root_only, median"),
        (("enter", "my_rules.py:rule", "radius"), "override 'radius': must be key=value"),
        (("enter", "my_rules.py:rule", "--label", "median"), "label='median': is that of another entry"),
        (("table", "runs/none"), "'runs/none': no such file; 'fedjax-drag arena run' writes it"),
        (("table", "digits", "--html", wrong / "a.html"), "html='"),
        (("table", "digits", "--figures", wrong), f"figures='{wrong}': cannot be written (File exists: "),
    ):
        result = command("arena", *arguments)
        assert result.exit_code == 2, result.output
        (line,) = result.stderr.splitlines()
        assert line.startswith("fedjax-drag: error: ")
        assert message in line


def test_after_ctrl_c_the_same_command_goes_on(command, protocol, monkeypatch):
    labels = []

    def stopped(label):
        labels.append(label)
        if labels == ["fedavg", "root_only"]:
            raise KeyboardInterrupt

    stand_in(monkeypatch, stopped)
    monkeypatch.setattr("sys.argv", ["fedjax-drag", "arena", "run", "tiny.yaml"])
    first = command("arena", "run", protocol)
    assert first.exit_code == 130
    assert first.stderr.splitlines()[-1] == "stopped; to go on: fedjax-drag arena run tiny.yaml"
    assert command("arena", "run", protocol).exit_code == 0
    assert labels == ["fedavg", "root_only", "root_only", "median"]
