"""Metrics of runs against scikit-learn: over batches, clients, devices and the cells of a sweep."""

import functools

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from sklearn import metrics as sklearn
from sklearn.calibration import calibration_curve

import fedjax_drag as fd
from fedjax_drag.simulation.batch import prepare_batch
from fedjax_drag.simulation.program.federation import hold_out
from fedjax_drag.simulation.settings import Settings

RNG = np.random.default_rng(0)
TEST, CLIENTS = 530, 3  # three batches, two devices
INPUTS = RNG.normal(size=(180 + TEST, 6)).astype(np.float32)
SCORES = INPUTS @ RNG.normal(size=(6, 4)) + RNG.normal(size=(len(INPUTS), 4))
BINS = 64


def average(score, **options):
    return lambda targets, outputs: score(targets, outputs.argmax(1), average="macro", zero_division=0, **options)


def softmax(outputs):
    return np.asarray(jax.nn.softmax(outputs))


def calibration_error(targets, outputs, bins=15):
    """From scikit-learn's means of the bins that are not empty."""
    confidence, right = softmax(outputs).max(1), outputs.argmax(1) == targets
    share, mean = calibration_curve(right, confidence, n_bins=bins)
    number = np.histogram(confidence, np.linspace(0, 1, bins + 1))[0]
    return (number[number > 0] * np.abs(share - mean)).sum() / len(targets)


TASKS = {
    "classes": (
        SCORES.argmax(1),
        fd.losses.cross_entropy(),
        {
            fd.metrics.accuracy(): lambda y, out: sklearn.accuracy_score(y, out.argmax(1)),
            fd.metrics.f1(): average(sklearn.f1_score),
            fd.metrics.precision(): average(sklearn.precision_score),
            fd.metrics.recall(): average(sklearn.recall_score),
            fd.metrics.top_k_accuracy(k=2): lambda y, out: sklearn.top_k_accuracy_score(y, out, k=2, labels=range(4)),
            fd.metrics.calibration_error(): calibration_error,
            fd.metrics.perplexity(): lambda y, out: np.exp(sklearn.log_loss(y, softmax(out), labels=range(4))),
            fd.metrics.auc(bins=BINS): lambda y, out: sklearn.roc_auc_score(y, softmax(out), multi_class="ovr"),
        },
    ),
    "labels": (
        SCORES > 0,
        fd.losses.binary_cross_entropy(),
        {
            fd.metrics.f1(average="micro"): lambda y, out: sklearn.f1_score(y, out > 0, average="micro"),
            fd.metrics.accuracy(): lambda y, out: sklearn.accuracy_score(y, out > 0),
            fd.metrics.auc(bins=BINS): lambda y, out: sklearn.roc_auc_score(y, out),
        },
    ),
    "numbers": (
        SCORES.astype(np.float32),
        fd.losses.mse(),
        {
            fd.metrics.r2(): sklearn.r2_score,
            fd.metrics.mean_squared_error(): sklearn.mean_squared_error,
        },
    ),
}


@functools.cache
def data(task):
    targets = TASKS[task][0]
    fed = fd.data.from_arrays(INPUTS[:180], targets[:180], INPUTS[180:], targets[180:], normalize="none")
    return fd.data.partition.iid(fed, num_clients=CLIENTS)


def arguments(task, **changes):
    _, loss, metrics = TASKS[task]
    common = {
        "model": fd.models.mlp(4, ()),
        "data": data(task),
        "loss": loss,
        "metrics": list(metrics),
        "num_rounds": 2,
        "eval_every": 2,
        "cohort_size": 2,
        "step_size": 0.2,
        "local_steps": 3,
        "batch_size": 20,
    }
    return common | changes


def check(task, result, x, y, found, what):
    """A metric of all examples, or of a client's, is scikit-learn's of the model's outputs."""
    layer = result.params["Dense_0"]
    outputs = x @ np.asarray(layer["kernel"]) + np.asarray(layer["bias"])
    for metric, wanted in TASKS[task][2].items():
        if metric.name == "auc":  # within the bound that is stated, of which the length of a bin is an upper estimate
            np.testing.assert_allclose(found(metric.name), wanted(y, outputs), atol=0.02, err_msg=f"{what} auc")
        else:
            np.testing.assert_allclose(found(metric.name), wanted(y, outputs), rtol=2e-4, err_msg=f"{what} {metric}")


@pytest.mark.sample(1)
@pytest.mark.parametrize("task", TASKS)
def test_over_batches_clients_and_devices(task):
    targets = TASKS[task][0]
    mesh = Mesh(jax.devices()[:2], ("clients",))
    for given in (mesh, None)[: 1 if task == "classes" else 2]:
        made = arguments(task, mesh=given, evaluate_clients=0.5)
        result = fd.simulate(fd.aggregators.fedavg(), **made)
        last = {name: values[-1] for name, values in result.history.items()}
        check(task, result, INPUTS[180:], targets[180:], lambda name, of=last: of[f"test_{name}"], f"{given}")
        held = hold_out(made["data"], 0.5).held_out
        ends = np.cumsum(held.counts)
        for client, places in enumerate(np.split(held.examples, ends[:-1])):
            places = places[: held.counts[client]]
            of_client = lambda name, of=last, client=client: of[f"client_{name}"][client]
            check(task, result, INPUTS[places], targets[places], of_client, f"client {client}")


def test_over_the_cells_of_a_sweep():
    settings = [
        Settings(
            fd.algorithms.from_aggregator(fd.aggregators.fedavg()), **arguments("labels", step_size=step, seed=seed)
        )
        for step, seed in ((0.05, 0), (0.5, 1), (0.5, 2))
    ]
    results = prepare_batch(settings, mesh=Mesh(jax.devices()[:2], ("cells",))).run(range(3))
    assert len({float(result.history["test_f1_micro"][-1]) for result in results}) == 3
    for result in results:
        last = {name: values[-1] for name, values in result.history.items()}
        check(
            "labels", result, INPUTS[180:], TASKS["labels"][0][180:], lambda name, of=last: of[f"test_{name}"], "cell"
        )


def test_a_client_without_a_value_does_not_count():
    """Each client has one class: the area under its curve is not defined, and that of nobody is NaN."""
    targets = (SCORES[:, 0] > 0).astype(int)
    own = [(INPUTS[:180][targets[:180] == label], targets[:180][targets[:180] == label]) for label in (0, 1)]
    fed = fd.data.from_clients(own, test=(INPUTS[180:], targets[180:]))
    changes = {"data": fed, "metrics": [fd.metrics.auc(bins=BINS)], "loss": None, "model": fd.models.mlp(2, ())}
    result = fd.simulate(fd.aggregators.fedavg(), **arguments("classes", **changes), evaluate_clients=True)
    assert np.isfinite(result.history["test_auc"]).all()
    assert np.isnan(result.history["client_auc_mean"]).all()
    wide = [fd.metrics.auc(), fd.metrics.f1()]
    result = fd.simulate(
        fd.aggregators.fedavg(), **arguments("classes", **changes | {"metrics": wide}), evaluate_clients=True
    )
    assert {"client_f1_mean", "test_auc"} <= result.history.keys()
    assert "client_auc_mean" not in result.history
