"""Tasks from configurations, and what goes by a metric: best checkpoint, summary, figure, report, sweep, resume."""

import json

import numpy as np
import pytest
import yaml

import fedjax_drag as fd
from fedjax_drag.experiment.build.experiment import load_experiment
from fedjax_drag.experiment.figures import plotting
from fedjax_drag.experiment.report import write
from fedjax_drag.experiment.run import environment, results
from fedjax_drag.experiment.run.checkpoints import Checkpoints
from fedjax_drag.experiment.sweep import outcome_table
from fedjax_drag.experiment.sweep.choice import best
from fedjax_drag.experiment.sweep.grid import load_grid
from fedjax_drag.experiment.sweep.outcome_table import Cell
from fedjax_drag.experiment.sweep.summary_page import summary
from fedjax_drag.simulation.criterion import ACCURACY, LOSS, Criterion, common

CODE = """
import numpy as np
import fedjax_drag as fd

def examples(several=False):
    draw = np.random.default_rng(0).normal
    x = draw(size=(160, 5)).astype(np.float32)
    y = x @ draw(size=(5, 3)) + 0.1 * draw(size=(160, 3))
    y = y > 0 if several else y[:, 0].astype(np.float32)
    fed = fd.data.from_arrays(x[:120], y[:120], x[120:], y[120:], normalize="none")
    return fed if several else fd.data.hold_out(fed, 0.25)

class largest_error(fd.types.Metric):
    higher_is_better = False
    def update(self, outputs, targets):
        return abs(outputs[:, 0] - targets), np.ones(len(targets))
    def result(self, sums):
        return sums[0] / sums[1]
"""
TASK = {
    "name": "task",
    "data": "my_task.py:examples",
    "partition": {"name": "iid", "num_clients": 4},
    "model": {"name": "mlp", "hidden": []},
    "loss": "huber",
    "metrics": ["r2", {"name": "my_task.py:largest_error"}],
    "rounds": 3,
    "eval_every": 1,
    "cohort_size": 4,
    "local_steps": 2,
    "step_size": 0.1,
    "mesh": None,
}


@pytest.fixture
def task(tmp_path, monkeypatch):
    """The path of a configuration of a regression."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_task.py").write_text(CODE)
    path = tmp_path / "task.yaml"
    path.write_text(yaml.safe_dump(TASK))
    return path


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("changes", "criterion"),
    [
        ([], Criterion("r2", is_share=False)),
        (["metric=largest_error", "step_size=1.2"], Criterion("largest_error", False, False)),
    ],
)
def test_a_regression_from_its_file(task, tmp_path, changes, criterion):
    out, name = tmp_path / "out", criterion.name
    result = fd.run(task, changes, out=out, quiet=True, allow_code=True)
    assert result.criterion == criterion
    rest = fd.run(task, [*changes, "rounds=5", "keep_checkpoints=1"], out=out, resume=True, quiet=True, allow_code=True)
    (tmp_path / "my_task.py").unlink()  # the folder is read without building parts
    (read,) = results.read(out)
    assert read.criterion == criterion
    values = rest.history[f"validation_{name}"]
    assert values.tolist() == read.history[f"validation_{name}"].astype(np.float32).tolist()
    first = np.argmax(values) if criterion.higher_is_better else np.argmin(values)
    assert Checkpoints(out).rounds() == sorted({int(first) + 1, 5})
    assert Checkpoints(out).best() == first + 1
    figures = json.loads((out / "summary.json").read_text())
    on_test = rest.history[f"test_{name}"]
    assert figures[f"final_{name}"] == pytest.approx(float(on_test[-1]))
    assert figures[f"best_{name}"] == pytest.approx(float(on_test[first]))
    assert (figures["best_round"], "final_accuracy" in figures) == (first + 1, False)
    page = write(out, with_skew=True).read_text()
    label = name.replace("_", " ")
    for text in (f"final test {label}", f"chosen by validation {label}", f"best validation {label}"):
        assert text in page
    figure = plotting.draw([read])
    assert figure.axes[0].get_ylabel() == f"Test {label}"
    assert plotting.draw([read], "test_loss").axes[0].get_ylabel() == "Test loss"


def test_several_labels_from_the_command_line(task, tmp_path, command):
    words = [
        "step_size=2.0",
        "loss=binary_cross_entropy",
        "metrics=[{name: f1, average: micro}, {name: auc, bins: 50}]",
    ]
    data = "data={name: my_task.py:examples, several: true}"
    done = command("run", str(task), *words, data, "evaluate_clients=true", "--out", "out", "--quiet", "--allow-code")
    assert done.exit_code == 0, done.output
    figures = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert 0.5 < figures["final_f1_micro"] <= 1
    (read,) = results.read(tmp_path / "out")
    assert read.config.to_mapping()["metrics"] == [{"name": "f1", "average": "micro"}, {"name": "auc", "bins": 50}]
    assert {"client_auc_mean", "test_auc", "test_f1_micro"} <= read.history.keys()
    assert (tmp_path / "out" / "curve.png").is_file()
    page = write(tmp_path / "out", target=0.6).read_text()
    assert "rounds to 60 %" in page
    assert "worst tenth of the clients, %" in page
    again = command("run", str(tmp_path / "out" / "config.yaml"), "--out", "again", "--quiet", "--allow-code")
    assert again.exit_code == 0, again.output
    assert "curve.png" in again.output or (tmp_path / "again" / "curve.png").is_file()


def test_a_sweep_and_its_best_setting(task, tmp_path):
    axes = {"axes.step_size": [1e-3, 0.1], "axes.seed": [0, 1]}
    words = [f"{axis}={values}" for axis, values in axes.items()]
    words.append("rounds=2")
    found = fd.sweep(task, words, out=tmp_path / "r2", quiet=True, allow_code=True)
    assert (found.best.values, found.best.criterion.column) == ({"step_size": 0.1}, "validation_r2")
    assert found.best.value == pytest.approx(found.worst_case["0.1"])
    assert [*found.worst_case] == ["0.1", "0.001"]
    by_loss = fd.sweep(task, [*words, "metric=loss"], out=tmp_path / "loss", quiet=True, allow_code=True)
    assert (by_loss.best.values, by_loss.best.criterion.column) == ({"step_size": 0.1}, "validation_loss")
    losses = [*by_loss.worst_case.values()]
    assert losses == sorted(losses), "the lowest first"
    cell = sorted((tmp_path / "loss" / "cells").iterdir())[0]
    assert environment.read_criterion(cell) == LOSS
    text = (tmp_path / "loss" / "summary.md").read_text()
    assert "Validation loss at the end of the run, mean over 2 seeds" in text
    assert f"test loss {by_loss.best.test_value:.4g}, chosen by validation loss ({by_loss.best.value:.4g})." in text
    page = write(tmp_path / "loss", with_skew=False).read_text()
    assert "final test loss of the best" in page
    resumed = fd.sweep(task, [*words, "metric=loss"], out=tmp_path / "loss", resume=True, quiet=True, allow_code=True)
    assert resumed.best == by_loss.best


def test_lower_is_better_in_tables_and_worst_cases():
    by = Criterion("perplexity", higher_is_better=False, is_share=False)
    grid = load_grid(
        {
            "data": "digits",
            "partition": {"name": "iid", "num_clients": 20},
            "axes": {"step_size": [0.1, 0.2], "dropout_rate": [0, 0.5]},
        }
    )
    finals = [20.0, 30.0, 25.0, 26.0]
    cells = [
        Cell(point.values, "done", "", {"round": np.array([2]), "test_perplexity": np.array([final])}, by)
        for point, final in zip(grid.points, finals, strict=True)
    ]
    found = outcome_table.matrix(grid, cells)
    assert (found.rows, found.worst.tolist()) == (("0.2", "0.1"), [26.0, 30.0])
    assert outcome_table.worst_cases(grid, cells) == {"0.2": 26.0, "0.1": 30.0}
    assert best(grid, cells).values == {"step_size": 0.2}
    page = summary(grid, cells)
    assert "Test perplexity at the end of the run; worst case: the maximum over the columns." in page
    assert "Best setting: step_size=0.2: worst-case test perplexity 26, chosen on the test set." in page


def test_a_criterion():
    by = Criterion("perplexity", higher_is_better=False, is_share=False)
    values = np.float32([20, np.nan, 5, 7, 5, np.inf])
    assert by.last_best(values) == 4
    assert (by.first_reached(values, 7.0), by.first_reached(values, 1.0)) == (2, None)
    assert by.first_reached(np.float32([9e-7, 2e-7, 1e-7]), 1e-7) == 2, "of small errors too"
    assert by.merits([1.0, 3.0]).argmax() == 0
    assert [by.text(x) for x in (5.0, np.nan, None)] == ["5", "-", "-"]
    assert ACCURACY.said({"test_accuracy": 0.5, "validation_accuracy": 0.25}) == "validation accuracy 25.0%"
    assert by.among({"test_loss"}, {"test_perplexity", "test_loss"}).column == "test_loss"
    runs = [Cell({}, "done", "", {"test_perplexity": values}, by), Cell({}, "done", "", {"test_accuracy": values})]
    assert [common(part).column for part in (runs[:1], runs[1:], [])] == [
        "test_perplexity",
        "test_accuracy",
        "test_accuracy",
    ]


def test_the_folder_of_an_older_version_is_judged_by_accuracy_and_resumes(tmp_path):
    config = {"data": {"name": "synthetic", "num_examples": 60, "num_test_examples": 20, "dim": 8}, "rounds": 2}
    config |= {"partition": {"name": "iid", "num_clients": 6}, "cohort_size": 3, "eval_every": 1, "batch_size": 4}
    fd.run(config, out=tmp_path / "out", quiet=True)
    for name, keys in (("config.yaml", ("metrics", "metric")), ("environment.json", ("criterion",))):
        path = tmp_path / "out" / name
        content = yaml.safe_load(path.read_text())
        kept = {key: value for key, value in content.items() if key not in keys}
        assert len(kept) < len(content)
        path.write_text(json.dumps(kept))
    (read,) = results.read(tmp_path / "out")
    assert read.criterion == ACCURACY
    longer = fd.run(config, ["rounds=3"], out=tmp_path / "out", resume=True, quiet=True)
    assert longer.history["round"].tolist() == [1, 2, 3]
    assert "final_accuracy" in json.loads((tmp_path / "out" / "summary.json").read_text())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["metrics=[r3]"], "metrics.name='r3': must be one of accuracy"),
        (["metrics=[{name: f1, average: all}]"], "metrics.average='all': must be one of macro, micro"),
        (["metrics=[1]"], "metrics=1: must be a name, or a mapping"),
        (["metrics=[r2, r2]"], "metrics: two are called 'r2'; names must differ"),
        (["metric=f1"], "metric='f1': must be one of r2, largest_error, loss"),
        (["metric=[f1]"], "metric=['f1']: must be a string or null"),
        (["metrics=[accuracy]", "stop_when=90"], "stop_when=90: must be an accuracy in (0, 1]"),
        (["loss=cross_entropy", "metrics=[]"], "loss: must take outputs float32[B, 1] and targets float32[B]"),
    ],
)
def test_wrong_keys_are_one_line(task, changes, message):
    with pytest.raises(ValueError) as error:
        fd.run(task, changes, allow_code=True)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_one_metric_may_be_written_alone_and_python_objects_in_a_list(task):
    (metric,) = load_experiment(task, ["metrics=r2"], allow_code=True).config.metrics
    assert metric.to_mapping() == {"name": "r2", "center": 0.0}
    config = load_experiment({**TASK, "data": "digits", "metrics": [fd.metrics.f1(), "accuracy"]}).config
    assert [one.label for one in config.metrics] == ["f1", "accuracy"]
