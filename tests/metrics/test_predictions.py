"""Metrics against scikit-learn, over any division into batches, and losses against what they are by definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import metrics as sklearn
from sklearn.preprocessing import label_binarize

import fedjax_drag as fd

CLASSES, EXAMPLES = 5, 211
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(EXAMPLES, CLASSES)).astype(np.float32) * 2
LABELS = np.where(
    RNG.random(EXAMPLES) < 0.4, LOGITS.argmax(-1), RNG.integers(0, CLASSES - 1, EXAMPLES)
)  # the last: rare
HOT = (RNG.random((EXAMPLES, CLASSES)) < 0.3).astype(np.int32)
HOT[0] = 1
PREDICTED, CHOSEN = LOGITS > 0, LOGITS.argmax(-1)
PROBABILITIES = np.asarray(jax.nn.softmax(LOGITS))
NUMBERS = LOGITS @ RNG.normal(size=(CLASSES, 3)).astype(np.float32) + RNG.normal(size=(EXAMPLES, 3)).astype(np.float32)
OUTPUTS = NUMBERS + RNG.normal(size=NUMBERS.shape).astype(np.float32)

CASES = {
    "accuracy": (fd.metrics.accuracy(), LOGITS, LABELS, sklearn.accuracy_score(LABELS, CHOSEN)),
    "accuracy of labels": (fd.metrics.accuracy(), LOGITS, HOT, sklearn.accuracy_score(HOT, PREDICTED)),
    "accuracy of two classes": (fd.metrics.accuracy(), LOGITS[:, :1], HOT[:, 0], np.mean(HOT[:, 0] == PREDICTED[:, 0])),
    "top 2": (
        fd.metrics.top_k_accuracy(k=2),
        LOGITS,
        LABELS,
        sklearn.top_k_accuracy_score(LABELS, LOGITS, k=2, labels=range(CLASSES)),
    ),
    "mean squared error": (
        fd.metrics.mean_squared_error(),
        OUTPUTS,
        NUMBERS,
        sklearn.mean_squared_error(NUMBERS, OUTPUTS),
    ),
    "r2": (fd.metrics.r2(), OUTPUTS, NUMBERS, sklearn.r2_score(NUMBERS, OUTPUTS)),
    "r2 of one": (fd.metrics.r2(), OUTPUTS[:, :1], NUMBERS[:, 0], sklearn.r2_score(NUMBERS[:, 0], OUTPUTS[:, 0])),
    "r2 far from 0": (
        fd.metrics.r2(center=1e4),
        OUTPUTS[:, 0] + 1e4,
        NUMBERS[:, 0] + np.float32(1e4),
        sklearn.r2_score(NUMBERS[:, 0] + np.float32(1e4), OUTPUTS[:, 0] + 1e4),
    ),
    "perplexity": (
        fd.metrics.perplexity(),
        LOGITS,
        LABELS,
        np.exp(sklearn.log_loss(LABELS, PROBABILITIES, labels=range(CLASSES))),
    ),
    **{
        f"{name} {average} of {kind}": (
            getattr(fd.metrics, name)(average=average),
            LOGITS,
            actual,
            getattr(sklearn, f"{name}_score")(actual, predicted, average=average, zero_division=0),
        )
        for name in ("precision", "recall", "f1")
        for average in ("macro", "micro")
        for kind, actual, predicted in (("classes", LABELS, CHOSEN), ("labels", HOT, PREDICTED))
    },
}


@pytest.mark.parametrize(
    "sizes",
    [[50] * 4 + [11], *(pytest.param(sizes, marks=pytest.mark.thorough) for sizes in ([EXAMPLES], [1, 100, 7, 103]))],
)
@pytest.mark.parametrize("case", CASES)
def test_a_metric_is_scikit_learns_over_any_division_into_batches(case, sizes):
    metric, outputs, targets, wanted = CASES[case]
    assert sum(sizes) == EXAMPLES
    sums = metric.init(outputs, targets)
    for start, size in zip(np.cumsum([0, *sizes]), sizes, strict=False):
        batch = (x[start : start + size] for x in (outputs, targets))
        sums = jax.tree.map(lambda total, added: total + added.sum(0), sums, jax.jit(metric.update)(*batch))
    np.testing.assert_allclose(metric.result(sums), wanted, rtol=1e-5)
    np.testing.assert_allclose(metric(outputs, targets), wanted, rtol=1e-5)


@pytest.mark.parametrize("bins", [10, 1000])
@pytest.mark.parametrize(
    ("outputs", "targets", "scores", "actual"),
    [
        (LOGITS, HOT, jax.nn.sigmoid(LOGITS), HOT),
        (LOGITS[:, 0], HOT[:, 0], jax.nn.sigmoid(LOGITS[:, 0]), HOT[:, 0]),
        (LOGITS[:, :4], LABELS % 4, jax.nn.softmax(LOGITS[:, :4]), label_binarize(LABELS % 4, classes=range(4))),
    ],
)
def test_auc_is_scikit_learns_within_its_stated_error(outputs, targets, scores, actual, bins):
    metric = fd.metrics.auc(bins=bins)
    sums = metric.update(outputs, targets).sum(0)
    wanted = sklearn.roc_auc_score(actual, scores, average="macro")
    assert abs(metric.result(sums) - wanted) <= metric.error_bound(sums) + 1e-6
    assert metric.error_bound(sums) < 2 / bins * 5


@pytest.mark.parametrize(
    "metric",
    [fd.metrics.f1(), fd.metrics.precision(), fd.metrics.recall(), fd.metrics.auc(), fd.metrics.calibration_error()],
    ids=lambda metric: metric.name,
)
def test_positions_are_pooled_and_those_without_a_class_do_not_count(metric):
    logits, labels = RNG.normal(size=(6, 9, CLASSES)).astype(np.float32), RNG.integers(-1, CLASSES, (6, 9))
    counted = labels.reshape(-1) >= 0
    assert 0 < counted.sum() < counted.size
    wanted = metric(logits.reshape(-1, CLASSES)[counted], labels.reshape(-1)[counted])
    np.testing.assert_allclose(metric(logits, labels), wanted, rtol=1e-5)


def test_pixels_without_a_class_have_no_loss():
    logits, labels = RNG.normal(size=(2, 9, CLASSES)).astype(np.float32), RNG.integers(0, CLASSES, (2, 9))
    labels[0, 3:], labels[1] = -1, -1
    loss = fd.losses.cross_entropy()
    wanted = [loss(logits[0, :3], labels[0, :3]).mean(), 0.0]
    np.testing.assert_allclose(loss(logits, labels), wanted, rtol=1e-5)


def test_r2_of_equal_targets_is_not_defined():
    equal = np.full(3, 3.7, np.float32)
    assert np.isnan(fd.metrics.r2()(equal + 0.1, equal))
    assert np.isnan(fd.metrics.r2()(equal[:1] + 0.1, equal[:1]))


def test_the_calibration_error_is_that_of_guo_et_al():
    bins, confidence = 15, PROBABILITIES.max(-1)
    wanted = 0.0
    for lower in np.arange(bins) / bins:
        inside = (confidence > lower) & (confidence <= lower + 1 / bins)
        if inside.any():
            wanted += inside.mean() * abs((CHOSEN == LABELS)[inside].mean() - confidence[inside].mean())
    np.testing.assert_allclose(fd.metrics.calibration_error()(LOGITS, LABELS), wanted, rtol=1e-4)


@pytest.mark.parametrize(
    "metric",
    [fd.metrics.accuracy(padding=-1), fd.metrics.top_k_accuracy(k=2, padding=-1), fd.metrics.perplexity(padding=-1)],
)
def test_padding_does_not_count_however_much_there_is(metric):
    logits, labels = RNG.normal(size=(6, 9, CLASSES)), RNG.integers(0, CLASSES, (6, 9))
    labels[np.arange(9) >= np.array([9, 4, 1, 0, 7, 2])[:, None]] = -1
    longer = np.pad(logits, ((0, 0), (0, 5), (0, 0))), np.pad(labels, ((0, 0), (0, 5)), constant_values=-1)
    flat = labels.reshape(-1) >= 0
    plain = type(metric)(**({"k": 2} if isinstance(metric, fd.metrics.top_k_accuracy) else {}))
    wanted = plain(logits.reshape(-1, CLASSES)[flat], labels.reshape(-1)[flat])
    np.testing.assert_allclose(metric(logits, labels), wanted, rtol=1e-5)
    np.testing.assert_allclose(metric(*longer), wanted, rtol=1e-5)


@pytest.mark.parametrize(
    "metric",
    [
        fd.metrics.accuracy(),
        fd.metrics.top_k_accuracy(k=2),
        fd.metrics.perplexity(),
        fd.metrics.auc(),
        fd.metrics.f1(),
        fd.metrics.calibration_error(),
    ],
)
def test_negative_classes_do_not_count(metric):
    logits, labels = LOGITS[:210].reshape(30, 7, CLASSES), LABELS[:210].reshape(30, 7).copy()
    labels[:, 4:] = -1
    np.testing.assert_allclose(metric(logits, labels), metric(logits[:, :4], labels[:, :4]), rtol=1e-5)


def test_classes_may_be_false_and_true():
    logits, large = LOGITS[:, :2], LABELS > 1
    for metric in (fd.metrics.accuracy(), fd.metrics.auc(), fd.metrics.f1()):
        np.testing.assert_array_equal(metric(logits, large), metric(logits, large.astype(int)))


def test_labels_that_are_padding_do_not_count():
    """What is left of each example must be right; an example of padding alone is none."""
    outputs, targets = RNG.normal(size=(40, 3)), RNG.integers(-1, 2, (40, 3))
    left = [(row > 0, target) for row, target in zip(outputs, targets, strict=True) if (target >= 0).any()]
    wanted = np.mean([(row == target)[target >= 0].all() for row, target in left])
    assert 0 < wanted < 1
    assert len(left) < 40
    np.testing.assert_allclose(fd.metrics.accuracy(padding=-1)(outputs, targets), wanted, rtol=1e-6)
    alone = fd.metrics.accuracy(padding=-1)(outputs[:, :1], targets[:, 0])
    there = targets[:, 0] >= 0
    np.testing.assert_allclose(alone, ((outputs[:, 0] > 0) == targets[:, 0])[there].mean(), rtol=1e-6)


def test_the_mean_of_a_token_loss_over_examples_is_that_over_tokens():
    logits, labels = RNG.normal(size=(6, 9, CLASSES)), RNG.integers(0, CLASSES, (6, 9))
    labels[np.arange(9) >= np.array([9, 4, 1, 0, 7, 2])[:, None]] = -1
    loss = fd.losses.token_cross_entropy()
    weights = loss.weights(labels)
    real = labels >= 0
    wanted = -np.asarray(jax.nn.log_softmax(logits))[real, labels[real]].mean()
    np.testing.assert_allclose((weights * loss(logits, labels)).sum() / weights.sum(), wanted, rtol=1e-5)
    gradient = jax.grad(lambda x: (weights * loss(x, labels)).sum())(jnp.asarray(logits))
    assert not gradient[~real].any()
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize(
    ("loss", "outputs", "targets", "wanted"),
    [
        (fd.losses.mse(), OUTPUTS, NUMBERS, ((OUTPUTS - NUMBERS) ** 2).mean(-1)),
        (fd.losses.mse(), OUTPUTS[:, :1], NUMBERS[:, 0], (OUTPUTS[:, 0] - NUMBERS[:, 0]) ** 2),
        (
            fd.losses.huber(delta=0.5),
            OUTPUTS[:, 0],
            NUMBERS[:, 0],
            np.where(
                abs(OUTPUTS - NUMBERS) <= 0.5, (OUTPUTS - NUMBERS) ** 2 / 2, 0.5 * (abs(OUTPUTS - NUMBERS) - 0.25)
            )[:, 0],
        ),
        (
            fd.losses.binary_cross_entropy(),
            LOGITS,
            HOT,
            -np.log(np.where(HOT, jax.nn.sigmoid(LOGITS), jax.nn.sigmoid(-LOGITS))).mean(-1),
        ),
        (
            fd.losses.cross_entropy(),
            LOGITS[:, None],
            LABELS[:, None],
            -np.log(PROBABILITIES[np.arange(EXAMPLES), LABELS]),
        ),
    ],
)
def test_a_loss_is_one_number_an_example(loss, outputs, targets, wanted):
    np.testing.assert_allclose(loss(outputs, targets), wanted, rtol=2e-5, atol=1e-6)
    assert loss.weights(targets) is None


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: fd.losses.huber(delta=0.0), "delta"),
        (lambda: fd.metrics.auc(bins=1), "bins"),
        (lambda: fd.metrics.f1(average="weighted"), "average='weighted'"),
        (lambda: fd.metrics.top_k_accuracy(k=0), "k"),
        (lambda: fd.losses.mse()(OUTPUTS, NUMBERS[:, 0]), r"must be \(211,\) as of the targets"),
        (lambda: fd.losses.cross_entropy()(LOGITS, LABELS[:, None]), r"labels: shape \(211, 1\); must be \(211,\)"),
        (lambda: fd.losses.token_cross_entropy()(LOGITS, HOT.astype(int)), "labels: shape"),
        (lambda: fd.metrics.perplexity()(OUTPUTS, NUMBERS), "perplexity: outputs"),
    ],
)
def test_what_cannot_be_is_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()
