import numpy as np

from fedjax_drag.experiment.run.summary import summary, table


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
