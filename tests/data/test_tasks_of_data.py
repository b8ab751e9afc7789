"""Methods on the data sets for other tasks, under attack."""

import dataclasses
import json

import numpy as np
import pytest
from typer.testing import CliRunner

import fedjax_drag as fd
import tasks
from fedjax_drag.types import Batch

SEVERAL = fd.losses.binary_cross_entropy(), fd.metrics.f1()
TASKS = {
    "digits_pairs": (fd.models.mlp(10, ()), *SEVERAL, 1.0),
    "shapes": (tasks.Pixels(), fd.losses.cross_entropy(), fd.metrics.accuracy(), 0.2),
    "adult_hours": (fd.models.mlp(1, ()), fd.losses.mse(), fd.metrics.r2(), 0.02),
    "shakespeare_tokens": (tasks.LSTM, tasks.NATS, tasks.PERPLEXITY, 1.0),
}
"""Model, loss, metric, step size."""
THOROUGH = pytest.mark.thorough


def federation(name, load=None, number=200):
    """Some of the examples, on clients of unequal sizes."""
    fed = (load or fd.data.load)(name)
    train, test = (Batch(part.x[:number], part.y[:number]) for part in (fed.train, fed.test))
    few = dataclasses.replace(fed, train=train, test=test, users=None, test_users=None, user_names=())
    return fd.data.partition.quantity_skew(few, 6, power=1)


def run(data, rule, attack, num_rounds=3):
    model, loss, metric, step_size = TASKS[data.name]
    result = fd.simulate(
        tasks.RULES[rule](),
        model=model,
        data=data,
        loss=loss,
        metrics=[metric],
        attack=attack,
        num_byzantine=1,
        num_rounds=num_rounds,
        cohort_size=6,
        step_size=step_size,
        local_steps=2,
        batch_size=8,
        eval_every=1,
    )
    assert np.isfinite(result.history[f"test_{metric.name}"]).all()
    assert "attack_success_rate" not in result.history
    return result.history["test_loss"]


@pytest.mark.parametrize("attack", [fd.attacks.label_flip(1.0), pytest.param(fd.attacks.sign_flip(), marks=THOROUGH)])
@pytest.mark.parametrize("rule", [pytest.param(rule, marks=[] if rule == "Krum" else THOROUGH) for rule in tasks.RULES])
@pytest.mark.parametrize("name", ["digits_pairs", pytest.param("shapes", marks=THOROUGH)])
def test_rules_train_on_it_under_attack(name, rule, attack):
    loss = run(federation(name), rule, attack)
    # SCAFFOLD, whose variates take up flipped signs too, does not learn under these.
    assert loss[-1] < loss[0] or (rule == "SCAFFOLD" and isinstance(attack, fd.attacks.sign_flip))


@pytest.mark.slow
@pytest.mark.parametrize("attack", [fd.attacks.sign_flip(), fd.attacks.label_flip(1.0)])
@pytest.mark.parametrize("rule", tasks.RULES)
@pytest.mark.parametrize("name", ["adult_hours", "shakespeare_tokens"])
def test_rules_run_on_published_data_under_attack(name, rule, attack, real):
    run(federation(name, lambda name: real(fd.data.load, name), number=2000), rule, attack)


def test_flipped_labels_harm_the_mean():
    data = federation("digits_pairs")
    honest, flipped = (run(data, "FedAvg", fd.attacks.label_flip(fraction), 10)[-1] for fraction in (0.0, 1.0))
    assert flipped > honest


def test_the_table_of_the_page_is_made_of_the_lines(tmp_path, capsys):
    lines = tmp_path / "tasks.jsonl"
    cells = [
        ("none", "FedAvg", 0, 0.5),
        ("none", "FedAvg", 1, 0.25),
        ("sign flip", "FedAvg", 0, 1e5),
        ("sign flip", "Krum", 0, 0.1),
    ]
    line = '{{"task": "shapes", "metric": "f1", "attack": "{}", "rule": "{}", "seed": {}, "value": {}}}\n'
    lines.write_text("".join(line.format(*cell) for cell in cells))
    tasks.table(lines)
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| shapes: f1 | none | 0.375 |  |  |  |  |",
        "| shapes: f1 | sign flip | diverged |  |  | 0.1 |  |",
    ]


def test_a_table_keeps_short_runs_apart_and_takes_the_last_of_a_seed(tmp_path, capsys):
    line = {"task": "shapes", "metric": "f1", "attack": "none", "rule": "Krum", "seed": 0}
    lines = [line | {"rounds": rounds, "value": value} for rounds, value in ((2, 0.1), (60, 0.5), (60, 0.7))]
    file = tmp_path / "tasks.jsonl"
    file.write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    tasks.table(file)
    *_, short, whole = capsys.readouterr().out.splitlines()
    assert short == "| shapes: f1 after 2 rounds | none |  |  |  | 0.1 |  |"
    assert whole == "| shapes: f1 | none |  |  |  | 0.7 |  |"


def test_an_unknown_task_is_named():
    result = CliRunner().invoke(tasks.app, ["run", "adult"])
    assert result.exit_code == 2
    assert "must be one of adult_hours" in " ".join(result.output.split())
