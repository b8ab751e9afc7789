"""The commands of the first pages, word for word and in order, in one folder; only the configurations are shortened."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedjax_drag import data
from fedjax_drag.cli.app import app

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/running.md", "docs/data.md")
"""Read in this order: later pages use what the commands of earlier ones leave."""


def available(dataset):
    try:
        data.load(dataset)
    except FileNotFoundError:
        return False
    return True


FASHION = None if available("fashion_mnist") else "Fashion-MNIST is not on this machine"
TENSORBOARD = None if importlib.util.find_spec("tensorboardX") else "tensorboardX is not installed"
NOT_RUN = {
    "pip install -e .": "installs",
    "pip install -e '.[test]'": "installs",
    "pytest": "runs all tests",
    "pip install 'fedjax-drag[cluster]'": "installs",
    "fedjax-drag sweep CONFIG --launcher slurm --jobs 16 --job gpus_per_node=1 --job slurm_partition=gpu": "a cluster",
    "fedjax-drag data prepare fashion_mnist --from /usr/share/datasets/fashion-mnist": "writes beside the user's data",
    "fedjax-drag run configs/reference/cifar10_lenet.yaml": "CIFAR-10, hours",
    "fedjax-drag run configs/quickstart.yaml --log tensorboard --out runs/logged": TENSORBOARD,
    "fedjax-drag run configs/fashion_mnist_drag.yaml": FASHION,
    "fedjax-drag run configs/fashion_mnist_drag.yaml --resume": FASHION,
}
"""Commands with the reason not to run them here; None where this machine can run them."""


def commands():
    """The lines of all fenced blocks without a language, in the order of the pages."""
    text = "".join((ROOT / page).read_text("utf-8") for page in PAGES)
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = [re.sub(r"\s+#.*", "", line) for language, block in blocks if not language for line in block.splitlines()]
    return [command.strip() for line in lines for command in line.split("&&")]


def test_every_command_that_is_not_run_is_on_a_page():
    assert set(NOT_RUN) <= set(commands())


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 110


@pytest.fixture
def short_configurations(tmp_path, monkeypatch):
    """A folder with all configurations, of which each run has few rounds."""
    for source in (ROOT / "configs").rglob("*.yaml"):
        target = tmp_path / source.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        text, changed = re.subn(r"^rounds: \d+", "rounds: 4", source.read_text(encoding="utf-8"), flags=re.MULTILINE)
        text = re.sub(r"^eval_every: \d+", "eval_every: 50", text, flags=re.MULTILINE)
        assert changed == 1, source
        target.write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_every_command_succeeds_after_those_before_it(short_configurations):
    run = [command for command in commands() if NOT_RUN.get(command) is None]
    assert len(run) >= 12
    for command in run:
        program, *arguments = shlex.split(command)
        assert program == "fedjax-drag", f"{command}: neither run here nor listed with a reason"
        done = CliRunner().invoke(app, arguments, prog_name=program)
        assert done.exit_code == 0, f"{command}\n{done.output}"
    folders = {path.name for path in (short_configurations / "runs").iterdir()}
    assert {"quickstart", "c05", "quickstart,aggregator=krum,attack=sign_flip,byzantine_fraction=0.3"} <= folders
