"""The examples of every ``--help``, word for word, from a folder with a file of the user's own."""

import re
import shlex
from glob import glob

import pytest
import typer
from typer.testing import CliRunner

from fedjax_drag.cli.app import app
from fedjax_drag.experiment.config import shipped

RULES = """
import fedjax_drag as fd


def my_rule(radius=1.0):
    return fd.aggregators.centered_clipping(radius=radius)
"""
"""What the examples have in ``my_rules.py``, the user's own file."""


def pages(command, *words):
    """The words of each command and its help."""
    yield words, command.help
    for name, below in getattr(command, "commands", {}).items():
        yield from pages(below, *words, name)


def examples():
    """The commands under ``Examples:``, which need the package, those before them and :data:`RULES`; each once."""
    found = {}
    for words, text in pages(typer.main.get_command(app)):
        block = re.search(r"Examples:\n((?: +fedjax-drag .*\n?)+)", text or "")
        found |= dict.fromkeys(block[1].splitlines() if block else (), words)
    return [command.strip() for command in found]


def test_every_command_has_an_example():
    shown = "\n".join(text for _, text in pages(typer.main.get_command(app)))
    for words, _ in pages(typer.main.get_command(app)):
        assert re.search(rf"^ +fedjax-drag {' '.join(words)}\b", shown, re.MULTILINE), words


@pytest.mark.slow
def test_every_example_works_after_those_before_it(tmp_path, monkeypatch):
    """Runs and sweeps have ten rounds in place of their own; the arena of Fashion-MNIST, of an hour, is left out."""
    short = {}
    for name, path in shipped.paths().items():
        short[name] = tmp_path / "short" / f"{name}.yaml"
        short[name].parent.mkdir(parents=True, exist_ok=True)
        text = re.sub(r"^rounds: .*", "rounds: 10", path.read_text("utf-8"), flags=re.MULTILINE)
        short[name].write_text(text, encoding="utf-8")
    monkeypatch.setattr(shipped, "paths", lambda: short)
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "my_rules.py").write_text(RULES, encoding="utf-8")
    monkeypatch.chdir(empty)
    commands = [command for command in examples() if "--arena fashion_mnist" not in command]
    assert len(commands) > 25
    for command in commands:
        program, *written = shlex.split(command)
        arguments = [path for word in written for path in (sorted(glob(word)) or [word])]
        done = CliRunner().invoke(app, arguments, prog_name=program)
        assert done.exit_code == 0, f"{command}\n{done.output}"
