"""The commands of all pages, word for word and in order, in one folder; only the configurations are shortened."""

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedjax_drag import data
from fedjax_drag.cli.app import app

ROOT = Path(__file__).parents[1]
FIRST = ("README.md", "docs/running.md", "docs/data.md", "docs/evaluation.md", "docs/recipes.md", "docs/sweeps.md")
"""Read in this order: later pages use what the commands of earlier ones leave."""


def available(dataset):
    try:
        data.load(dataset)
    except FileNotFoundError:
        return False
    return True


def installed(module):
    return None if importlib.util.find_spec(module) else f"{module} is not installed"


NOT_RUN = {
    r"(pip|git|cd|source|python -m venv|pre-commit) .*": "installs",
    r"pytest.*|\.ci/.*": "runs tests",
    r".* --launcher slurm .*": "a cluster",
    r".* --distributed .*": "two processes at once: tests/cli/test_cli_distributed.py",
    r"fedjax-drag data prepare .*": "writes beside the user's data",
    r"fedjax-drag arena (run|enter) .*": "ten minutes; tests/experiment/arena and a notebook play smaller ones",
    r"fedjax-drag arena table runs/.*": "needs the one before",
    r"fedjax-drag run configs/reference/cifar10_lenet.yaml": "CIFAR-10, hours",
    r"fedjax-drag plan .*": "needs the compilers: tests/cli/test_cli_plan.py",
    r"fedjax-drag tune .*": "measures for a minute: tests/cli/test_cli_tune.py",
    r"(JAX_PLATFORMS=cpu )?python (scripts/benchmark|tests/compiled_programs)\.py.*": "measures for minutes",
    r'python -c "import jax; print\(jax.devices\(\)\)"': "no command of this package",
    r".* --log tensorboard .*": installed("tensorboardX"),
    r".* --launcher local .*": installed("submitit"),
    r"fedjax-drag run configs/fashion_mnist_drag.yaml.*": None if available("fashion_mnist") else "no Fashion-MNIST",
}
"""Commands with the reason not to run them here; None where this machine can run them."""

READERS = {"runs/a": "runs/quickstart", "runs/b": "runs/seed1", "runs/sweep": "runs/robustness"}
"""Folders that stand for a reader's own."""


def pages():
    """All pages, with what others need first."""
    found = ["README.md", "CONTRIBUTING.md", *(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/*.md"))]
    return sorted(found, key=lambda page: (FIRST.index(page) if page in FIRST else len(FIRST), page))


def blocks():
    """Page, language and text of all fenced blocks."""
    for page in pages():
        text = (ROOT / page).read_text("utf-8")
        for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            yield page, language, block


def commands(block):
    """The commands of a block without a language: of one with prompts, what stands behind these."""
    lines = re.sub(r"\\\n\s*", "", block).splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    for line in lines:
        yield from filter(None, (one.strip() for one in re.sub(r"(^|\s+)#.*", "", line).split("&&")))


def reason(command):
    """Why a command is not run; None where it is."""
    return next((why for pattern, why in NOT_RUN.items() if re.fullmatch(pattern, command) and why), None)


def every_command():
    return [command for _, language, block in blocks() if not language for command in commands(block)]


def test_a_command_is_run_or_there_is_a_reason_not_to():
    written = every_command()
    assert [one for one in written if not (one.startswith("fedjax-drag ") or reason(one))] == []
    assert [one for one in NOT_RUN if not any(re.fullmatch(one, command) for command in written)] == []
    assert [folder for folder in READERS if not any(folder in shlex.split(command) for command in written)] == []


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 110


def shortened(text):
    """A configuration with few rounds."""
    text = re.sub(r"^rounds: \d+", "rounds: 4", text, flags=re.MULTILINE)
    return re.sub(r"^eval_every: \d+", "eval_every: 50", text, flags=re.MULTILINE)


@pytest.fixture
def short_configurations(tmp_path, monkeypatch):
    """A folder with all configurations, each run of which has few rounds."""
    for source in (ROOT / "configs").rglob("*.yaml"):
        target = tmp_path / source.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(shortened(source.read_text(encoding="utf-8")), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_every_command_succeeds_after_those_before_it(short_configurations):
    run = []
    for page, language, block in blocks():
        if named := re.match(r"# (\w+\.(?:py|yaml))\n", block):
            (short_configurations / named[1]).write_text(shortened(block))
        for command in [] if language else commands(block):
            if reason(command) is None and command not in run:  # a page may begin with what another has done
                meant = re.sub(r"runs/\w+\b", lambda folder: READERS.get(folder[0], folder[0]), command)
                program, *arguments = shlex.split(meant)
                if "--launcher" in arguments:  # submitit sets logging up anew, which closes pytest's streams
                    subprocess.run([sys.executable, "-m", "fedjax_drag", *arguments], check=True)
                else:
                    done = CliRunner().invoke(app, arguments, prog_name=program)
                    assert done.exit_code == 0, f"{page}: {command}\n{done.output}"
                run.append(command)
        if (page, language) == ("docs/running.md", "python"):  # reads what the commands have left
            exec(block, {})
    assert len(run) >= 30
    folders = {path.name for path in (short_configurations / "runs").iterdir()}
    assert {"quickstart", "c05", "quickstart-aggregator_krum-attack_sign_flip-byzantine_fraction_0.3"} <= folders
