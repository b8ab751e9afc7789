"""What is kept, resumed and reported of a run with a validation split."""

import json

import chex
import numpy as np
import pytest
from tiny import SYNTHETIC, TINY

from fedjax_drag.experiment.build.experiment import load_experiment
from fedjax_drag.experiment.run.checkpoints import Checkpoints, load_params
from fedjax_drag.experiment.run.recorder import Recorder
from fedjax_drag.experiment.run.run import plan, run
from fedjax_drag.experiment.run.summary import summary, table
from fedjax_drag.simulation import Evaluation

SPLIT = TINY | SYNTHETIC | {"data": SYNTHETIC["data"] | {"validation_fraction": 0.25}}


@pytest.mark.thorough
def test_the_best_checkpoint_is_chosen_by_validation(tmp_path):
    with plan(load_experiment(SPLIT | {"keep_checkpoints": 1})) as planned:
        (job,) = planned.jobs
    state = job.simulation.initial_state()
    recorder = Recorder(tmp_path, job.config, job.simulation, resume=False, criterion=job.simulation.criterion)
    pairs = {1: (0.5, 0.7), 2: (0.6, 0.7), 3: (0.9, 0.6), 4: (0.7, 0.5)}  # of equal ones the last
    for number, (test, validation) in pairs.items():
        metrics = {"round": number, "test_accuracy": test, "test_loss": 1.0, "validation_accuracy": validation}
        recorder(Evaluation(number, 4, metrics, state._replace(round=np.int32(number))))
    recorder.interrupted()
    recorder.close()
    checkpoints = Checkpoints(tmp_path)
    assert (checkpoints.rounds(), checkpoints.best()) == ([2, 4], 2)
    figures = json.loads((tmp_path / "summary.json").read_text())
    assert (figures["final_accuracy"], figures["best_accuracy"]) == (0.7, 0.6)
    assert (figures["best_round"], figures["best_validation_accuracy"]) == (2, 0.7)
    load_params(tmp_path, "best")


@pytest.mark.slow
def test_a_run_resumes_to_the_same_bits(tmp_path):
    whole = run(SPLIT, out=tmp_path / "whole", quiet=True)
    run(SPLIT, ["rounds=2"], out=tmp_path / "parts", quiet=True)
    rest = run(SPLIT, out=tmp_path / "parts", resume=True, quiet=True)
    chex.assert_trees_all_equal(rest.params, whole.params)
    first, second = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "parts"))
    assert first == second
    assert json.loads(first.splitlines()[-1])["validation_accuracy"] is not None
    with pytest.raises(ValueError, match=r"data.validation_fraction=0.5: the run to resume .* has .*=0.25; must be"):
        run(SPLIT, ["data.validation_fraction=0.5"], out=tmp_path / "parts", resume=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["data.validation_fraction=1.5"], r"data.validation_fraction=1.5: must be in \(0, 1\)"),
        (["data.validation_fraction=60"], r"data.validation_fraction=60: must be .*\[1, 59\]"),
        (["data.validation_fraction=half"], "data.validation_fraction='half': must be a number or an integer or null"),
        (["data.validation_seed=-1"], "data.validation_seed=-1: must be"),
    ],
)
def test_wrong_keys_are_refused_in_one_line(changes, message):
    with pytest.raises(ValueError, match=message) as caught:
        run(SPLIT, changes)
    assert "\n" not in str(caught.value)


def history(test, validation):
    columns = {"round": range(1, len(test) + 1), "test_accuracy": test, "validation_accuracy": validation}
    return {name: np.array(column) for name, column in columns.items()}


def row(test, validation):
    columns = history(test, validation)
    return columns, summary(columns, seconds=2.5, compile_seconds=None)


def test_summaries_have_the_test_figure_of_the_chosen_round():
    text = table({"a": row([0.3, 0.8, 0.6], [0.45, 0.5, 0.65]), "b": row([0.2, 0.2, 0.3], [0.1, 0.2, np.nan])})
    head, first, second = (" ".join(line.split()) for line in text.splitlines())
    assert head == "final best by validation round at 40% round at 50% round at 60% rounds/s seconds"
    assert first == "a 60.0% 60.0% 1 2 3 - 2.5"
    assert second == "b 30.0% 20.0% - - - - 2.5"
    assert row([0.3], [np.nan])[1]["best_validation_accuracy"] is None


def test_runs_of_which_one_has_no_validation_are_compared_on_the_test_set():
    split, plain = row([0.3, 0.8, 0.6], [0.4, 0.5, 0.6]), history([0.7], [0.7])
    del plain["validation_accuracy"]
    text = table({"split": split, "plain": (plain, summary(plain, 2.5, None))})
    head, first, second = (line.split() for line in text.splitlines())
    assert (head[:2], first[:3], second[:3]) == (
        ["final", "best"],
        ["split", "60.0%", "80.0%"],
        ["plain", "70.0%", "70.0%"],
    )
