"""Fixtures around a tiny run: its configuration, its results folder, the command line."""

from contextlib import contextmanager

import jax
import pytest
import yaml
from tiny import DRAG, TINY
from typer.testing import CliRunner

from fedjax_drag.cli.app import app
from fedjax_drag.experiment.build.experiment import load_experiment
from fedjax_drag.experiment.run.recorder import Recorder
from fedjax_drag.experiment.run.run import execute, plan

CONFIG = TINY | DRAG


@pytest.fixture
def tiny():
    return dict(CONFIG)


@pytest.fixture
def tiny_file(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return path


def optimise(wanted):
    """Whether what is compiled from here on is optimised as for users; JAX does not tell apart what it has compiled."""
    if jax.config.read("jax_disable_most_optimizations") == wanted:
        jax.config.update("jax_disable_most_optimizations", not wanted)
        jax.clear_caches()


@contextmanager
def optimised():
    """Programs inside are compiled as for users, whichever test asks first for the fixture that needs them."""
    before = not jax.config.read("jax_disable_most_optimizations")
    optimise(True)
    try:
        yield
    finally:
        optimise(before)


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The folder and the result of a tiny run that nobody may change."""
    folder = tmp_path_factory.mktemp("finished") / "tiny"
    with optimised(), plan(load_experiment(CONFIG), out=folder) as planned:
        return folder, execute(planned)["tiny"]


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Calls the command line in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="fedjax-drag")

    return call


@pytest.fixture
def interrupt_after(monkeypatch):
    """Stops the runs inside it like Ctrl-C does, once so many evaluations have been recorded."""

    @contextmanager
    def interrupting(evaluations):
        record = Recorder.__call__
        seen = []

        def stopping(self, event):
            if len(seen) < evaluations:
                record(self, event)
                seen.append(event.round)
            if len(seen) == evaluations:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Recorder, "__call__", stopping)
            yield

    return interrupting
