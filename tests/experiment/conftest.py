from contextlib import contextmanager

import pytest
import yaml
from typer.testing import CliRunner

from fedjax_drag.experiment.cli import app
from fedjax_drag.experiment.run import Recorder, execute, plan

TINY = {
    "name": "tiny",
    "data": "digits",
    "partition": {"name": "iid", "num_clients": 8},
    "model": {"name": "mlp", "hidden": [8]},
    "aggregator": {"name": "drag", "c": 0.25, "alpha": 0.25},
    "rounds": 6,
    "eval_every": 2,
    "cohort_size": 4,
    "local_steps": 1,
    "batch_size": 4,
    "step_size": 0.1,
    "time_clients": False,
}


@pytest.fixture
def tiny():
    return dict(TINY)


@pytest.fixture
def tiny_file(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY))
    return path


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The folder and the result of a tiny run that nobody may change."""
    folder = tmp_path_factory.mktemp("finished") / "tiny"
    return folder, execute(plan(TINY, out=folder))["tiny"]


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
