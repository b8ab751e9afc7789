"""Other tasks than classification: regression, several labels, next tokens, segmentation."""

import flax.linen as nn
import jax
import numpy as np
import pytest
from sklearn import metrics as sklearn

import fedjax_drag as fd

RNG = np.random.default_rng(0)
WEIGHTS = RNG.normal(size=(6, 3))
INPUTS = RNG.normal(size=(240, 6)).astype(np.float32)
NUMBERS = (INPUTS @ WEIGHTS + 0.1 * RNG.normal(size=(240, 3))).astype(np.float32)
STARTS = RNG.integers(0, 7, (240, 1))
TEXTS = (STARTS + np.arange(9) * 2) % 7  # the next token is that two further
LENGTHS = RNG.integers(3, 9, 240)
NEXT = np.where(np.arange(8) < LENGTHS[:, None], TEXTS[:, 1:], -1)
IMAGES = RNG.normal(size=(240, 6, 6, 1)).astype(np.float32)


class Pixels(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Conv(2, (3, 3))(nn.relu(nn.Conv(8, (3, 3))(x)))


F1, NLL = fd.metrics.f1(), fd.losses.token_cross_entropy()
TASKS = {
    "regression": (INPUTS, NUMBERS[:, 0], fd.models.mlp(1, ()), fd.losses.mse(), fd.metrics.r2(), 0.9),
    "several numbers": (INPUTS, NUMBERS, fd.models.mlp(3, ()), fd.losses.huber(), fd.metrics.r2(), 0.8),
    "several labels": (INPUTS, (NUMBERS > 0), fd.models.mlp(3, ()), fd.losses.binary_cross_entropy(), F1, 0.75),
    "tokens": (
        TEXTS[:, :8].astype(np.int32),
        NEXT,
        fd.models.transformer(7, layers=1, heads=2, width=16, return_sequences=True),
        NLL,
        fd.metrics.accuracy(padding=-1),
        0.9,
    ),
    "characters": (
        TEXTS[:, :8].astype(np.int32),
        NEXT,
        fd.models.lstm(7, embedding=8, hidden=16, layers=1, return_sequences=True),
        NLL,
        fd.metrics.accuracy(padding=-1),
        0.5,
    ),
    "segmentation": (IMAGES, (IMAGES[..., 0] > 0), Pixels(), fd.losses.cross_entropy(), fd.metrics.accuracy(), 0.85),
}
RULES = {
    "fedavg": fd.aggregators.fedavg(),
    "scaffold": fd.algorithms.scaffold(),
    "drag": fd.aggregators.drag(c=0.25),
    "krum": fd.aggregators.krum(),
    "br_drag": fd.aggregators.br_drag(c=0.5),
}


def data(x, y):
    fed = fd.data.from_arrays(
        x[:200], y[:200], x[200:], y[200:], normalize="none" if x.dtype == np.float32 else "standard"
    )
    return fd.data.partition.iid(fed, num_clients=5)


def run(rule, task, **changes):
    x, y, model, loss, metric, _ = TASKS[task]
    step = 0.5 if task in ("tokens", "characters", "segmentation") else 0.1
    arguments = {
        "model": model,
        "data": data(x, y),
        "loss": loss,
        "metrics": [metric],
        "num_rounds": 30,
        "cohort_size": 5,
        "step_size": step,
        "local_steps": 5,
        "batch_size": 20,
    }
    return fd.simulate(rule, **arguments | changes)


@pytest.mark.sample(2)
@pytest.mark.parametrize("task", TASKS)
def test_it_learns_and_the_history_has_its_metric(task):
    result = run(fd.aggregators.fedavg(), task)
    metric, wanted = TASKS[task][4:]
    assert result.history[f"test_{metric.name}"][-1] > wanted
    assert result.history["test_loss"][-1] < result.history["test_loss"][0]
    assert ("test_accuracy" in result.history) == (metric.name == "accuracy")
    assert "test loss" in repr(result)


@pytest.mark.thorough
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("task", ["regression", "several labels", "tokens", "segmentation"])
def test_methods_learn_it_under_an_attack(task, rule):
    """SCAFFOLD, which has no defence, without one."""
    attack = {} if rule == "scaffold" else {"attack": fd.attacks.sign_flip(), "num_byzantine": 1}
    loss = run(RULES[rule], task, num_rounds=12, eval_every=1, **attack).history["test_loss"]
    assert loss.min() < 0.9 * loss[0]
    assert np.isfinite(loss).all()


def test_metrics_are_scikit_learns_of_the_final_model():
    metrics = [fd.metrics.r2(), fd.metrics.mean_squared_error()]
    result = run(fd.aggregators.fedavg(), "several numbers", metrics=metrics, evaluate_clients=True)
    layer = result.params["Dense_0"]
    predicted = INPUTS[200:] @ np.asarray(layer["kernel"]) + np.asarray(layer["bias"])
    history = result.history
    np.testing.assert_allclose(history["test_r2"][-1], sklearn.r2_score(NUMBERS[200:], predicted), rtol=1e-4)
    error = sklearn.mean_squared_error(NUMBERS[200:], predicted)
    np.testing.assert_allclose(history["test_mean_squared_error"][-1], error, rtol=1e-4)
    errors = history["client_mean_squared_error"][-1]
    np.testing.assert_allclose(history["client_mean_squared_error_worst_tenth"][-1], errors.max(), rtol=1e-6)
    np.testing.assert_allclose(history["client_r2_worst_tenth"][-1], history["client_r2"][-1].min(), rtol=1e-6)


def test_padding_does_not_count_in_training_and_evaluation():
    """The same texts with three more places of padding: the same history up to rounding."""
    x, y, *_ = TASKS["characters"]
    longer = np.pad(x, ((0, 0), (0, 3))), np.pad(y, ((0, 0), (0, 3)), constant_values=-1)
    short, long = (
        run(fd.aggregators.fedavg(), "characters", data=data(*given), num_rounds=4, eval_every=2).history
        for given in ((x, y), longer)
    )
    for name in ("test_accuracy", "test_loss", "train_loss"):
        np.testing.assert_allclose(short[name], long[name], rtol=1e-4)


def test_tokens_weigh_and_not_texts():
    x, y, model, *_ = TASKS["characters"]
    result = run(fd.aggregators.fedavg(), "characters", num_rounds=2, metrics=[fd.metrics.perplexity(padding=-1)])
    logits = np.asarray(jax.nn.log_softmax(model.apply({"params": result.params}, x[200:])))
    real = y[200:] >= 0
    wanted = -logits[real, y[200:][real]].mean()
    np.testing.assert_allclose(result.history["test_loss"][-1], wanted, rtol=1e-4)
    np.testing.assert_allclose(result.history["test_perplexity"][-1], np.exp(wanted), rtol=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": None}, "loss must be given, such as fd.losses.mse()"),
        ({"attack": fd.attacks.backdoor(), "num_byzantine": 1}, "attack=backdoor: needs one label for each example"),
        (
            {"attack": fd.attacks.during(fd.attacks.dba(), stop=2), "num_byzantine": 1},
            "attack=during: needs one label for each example, which is not in data=FederatedDataset(arrays: 200 + 40",
        ),
        ({"loss": fd.losses.cross_entropy()}, "loss: must take outputs float32[B, 1] and targets float32[B]"),
        ({"metric": "f1"}, "metric='f1': must be one of r2, loss"),
        ({"metric": fd.metrics.r2()}, "metric=r2(center=0.0): must be one of r2, loss"),
        ({"metrics": [fd.metrics.perplexity()]}, "metrics: perplexity: must take outputs float32[B, 1]"),
        ({"metrics": [fd.metrics.r2(), fd.metrics.r2(center=1.0)]}, "metrics: two are called 'r2'"),
        ({"metrics": fd.metrics.r2()}, "metrics=r2(center=0.0): must be a list of metrics"),
        ({"model": fd.models.mlp(4, ())}, "must take outputs float32[B, 4]"),
    ],
)
def test_what_does_not_fit_the_targets_is_refused(changes, message):
    with pytest.raises(ValueError) as error:
        run(fd.aggregators.fedavg(), "regression", **changes)
    assert message in str(error.value).splitlines()[0]


def test_a_run_is_judged_by_its_metric_where_there_is_no_accuracy():
    options = {"eval_every": 1, "patience": 2}
    rising = run(fd.aggregators.fedavg(), "regression", step_size=1e-3, num_rounds=6, **options)
    assert rising.ended_early is None
    r2, loss = rising.history["test_r2"], rising.history["test_loss"]
    assert rising.rounds_to(float(r2[3])) == 4
    assert f"test r2: {r2[-1]:.4g}, best: {r2[-1]:.4g} at round 6, test loss" in repr(rising)
    by_loss = rising._replace(criterion=fd.simulation.criterion.LOSS)
    assert (by_loss.rounds_to(float(loss[2])), by_loss.rounds_to(0.5 * loss.min())) == (3, None)
    falling = run(fd.aggregators.fedavg(), "regression", step_size=1.5, **options)
    assert (falling.history["test_r2"][1:] <= falling.history["test_r2"][0]).all()
    assert falling.ended_early.startswith("test_r2 has not risen above")
    error = fd.metrics.mean_squared_error()
    options |= {"metrics": [fd.metrics.r2(), error], "metric": "mean_squared_error", "step_size": 1.5}
    worse = run(fd.aggregators.fedavg(), "regression", **options)
    assert len(worse.history["round"]) == len(falling.history["round"]) == 3
    assert worse.ended_early.startswith("test_mean_squared_error has not fallen below")
    stopped = run(fd.aggregators.fedavg(), "regression", eval_every=1, metric="loss", stop_when=float(loss[0]))
    assert stopped.ended_early.startswith("test_loss has reached stop_when=")
