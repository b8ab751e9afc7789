"""Runs hand their evaluations to tools by name."""

import sys

import pytest

from fedjax_drag.callbacks import Logger
from fedjax_drag.experiment.build.experiment import load_experiment
from fedjax_drag.experiment.run import lock, loggers
from fedjax_drag.experiment.run.run import plan, run


@pytest.fixture
def noted(monkeypatch):
    """A tool that notes what it is told, in place of TensorBoard."""
    told = []

    def noting(folder, name, config):
        told.append((folder.name, name, config["aggregator"]["name"]))
        return Logger(lambda number, scalars, vectors: told.append((number, len(vectors["cosine"]))), told.append)

    monkeypatch.setitem(loggers.LOGGERS, "tensorboard", (noting, lambda: None))
    return told


def test_a_run_is_logged_from_its_start_to_its_end(tiny, tmp_path, noted):
    run(tiny, out=tmp_path, log=["tensorboard"])
    assert noted == [("logs", "tiny", "drag"), (2, 4), (4, 4), (6, 4), True]


@pytest.mark.thorough
def test_logs_go_with_what_is_overwritten(tiny, finished, tmp_path):
    folder = tmp_path / "x"
    (folder / "logs" / "tensorboard").mkdir(parents=True)
    for name in ("config.yaml", "environment.json"):
        (folder / name).write_text((finished[0] / name).read_text())
    with plan(load_experiment(tiny), out=folder, overwrite=True):
        pass
    assert [path.name for path in folder.iterdir()] == [lock.LOCK]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--log", "tensorbord"], "log='tensorbord': must be one of tensorboard, wandb, mlflow; did you mean"),
        (["--log", "wandb"], "log='wandb': wandb: "),
    ],
)
def test_what_cannot_be_logged_to_is_one_line_before_anything_is_written(
    command, tiny_file, tmp_path, monkeypatch, arguments, message
):
    monkeypatch.setitem(sys.modules, "wandb", None)
    result = command("run", tiny_file, *arguments)
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"fedjax-drag: error: {message}")
    assert not (tmp_path / "runs").exists()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("tool", "variables", "reason"),
    [
        ("wandb", {"WANDB_MODE": "online", "HOME": "."}, "UsageError: No API key configured"),
        ("mlflow", {"MLFLOW_TRACKING_URI": "nowhere://x"}, "UnsupportedModelRegistryStoreURIException: "),
    ],
)
def test_a_tool_that_cannot_start_says_so_before_data_are_read(
    command, tiny_file, tmp_path, monkeypatch, tool, variables, reason
):
    for variable in ("WANDB_API_KEY", "MLFLOW_ALLOW_FILE_STORE"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    result = command("run", tiny_file, "--log", tool, "--out", "x")
    assert result.exit_code == 2, result.output
    assert result.stderr.splitlines()[-1].startswith(f"fedjax-drag: error: log={tool!r}: cannot start; {reason}")
    assert not (tmp_path / "x").exists()


@pytest.mark.thorough
def test_without_a_folder_there_are_no_logs(tiny):
    with pytest.raises(ValueError, match="log='mlflow': needs the results folder, and out is None"):
        run(tiny, log=["mlflow"])
    with pytest.raises(ValueError, match=r"^log='mlflow': must be a list$"):
        run(tiny, log="mlflow")
