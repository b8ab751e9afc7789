import numpy as np

from fedjax_drag.experiment.run.summary import summary, table
from fedjax_drag.simulation.criterion import LOSS, Criterion


def row(accuracies, **more):
    history = {"round": np.arange(1, len(accuracies) + 1), "test_accuracy": np.array(accuracies)}
    return history, summary(history, seconds=2.5, compile_seconds=None) | more


def test_table_is_aligned_and_has_telling_targets():
    text = table({"FedAvg": row([0.3, 0.65, 0.6]), "long label": row([0.5, 0.85, 0.84], rounds_per_second=7.25)})
    head, first, second = text.splitlines()
    assert len(head) == len(first) == len(second)
    assert " ".join(head.split()) == "final best round at 60% round at 70% round at 80% rounds/s seconds"
    assert first.split() == ["FedAvg", "60.0%", "65.0%", "2", "-", "-", "-", "2.5"]
    assert second.split() == ["long", "label", "84.0%", "85.0%", "2", "2", "2", "7.2", "2.5"]


def test_an_accuracy_equal_to_a_target_reaches_it_in_float32_too():
    head, line = table({"FedAvg": row(np.float32([0.5, 0.79999995]))}).splitlines()
    assert "round at 80%  rounds/s" in head
    assert line.split() == ["FedAvg", "80.0%", "80.0%", "2", "2", "2", "-", "2.5"]


def test_summary_of_a_run_that_diverged_or_never_began():
    _, figures = row([0.5, np.nan])
    assert figures["best_accuracy"] == 0.5
    assert np.isnan(figures["final_accuracy"])
    assert row([])[1]["final_accuracy"] is None
    assert "-" in table({"x": row([np.nan])})


def test_runs_chosen_by_different_metrics_are_compared_by_one():
    losses = {"test_loss": np.array([2.5, 1.5, 1.75]), "round": np.arange(1, 4)}
    by_accuracy = losses | {"test_accuracy": np.array([0.1, 0.2, 0.3])}
    by_f1 = losses | {"test_f1": np.array([0.3, 0.2, 0.1])}
    figures = summary(by_accuracy, 2.5, None), summary(by_f1, 2.5, None, Criterion("f1"))
    text = table({"a": (by_accuracy, figures[0]), "f": (by_f1, figures[1])})
    head, *lines = (line.split() for line in text.splitlines())
    assert head[:4] == ["final", "loss", "best", "loss"]
    assert [line[1:3] for line in lines] == [["1.75", "1.5"], ["1.75", "1.5"]]
    both = by_accuracy | by_f1
    _, line = table({"f": (both, summary(both, 2.5, None, LOSS))}).splitlines()
    assert line.split()[1:3] == ["30.0%", "30.0%"]
