"""Inputs and targets that are pytrees of arrays: two inputs, two targets."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fedjax_drag as fd
from fedjax_drag.simulation.batch import lower_batch, prepare_batch
from fedjax_drag.simulation.settings import Settings

RNG = np.random.default_rng(0)
IMAGES, TABLE = RNG.normal(size=(160, 3, 3, 1)).astype(np.float32), RNG.normal(size=(160, 4)).astype(np.float32)
TOGETHER = np.concatenate([IMAGES.reshape(160, 9), TABLE], 1)
LABELS = (TOGETHER @ RNG.normal(size=(13, 3))).argmax(1)
TOKENS = RNG.integers(0, 7, (160, 5)).astype(np.int32)
MASK = np.arange(5) < RNG.integers(2, 6, (160, 1))
SIZES = (TOKENS * MASK).sum(1)
SHORT = {"num_rounds": 4, "cohort_size": 4, "step_size": 0.1, "local_steps": 3, "batch_size": 4, "eval_every": 2}
RULES = {
    "fedavg": fd.aggregators.fedavg(),
    "br_drag": fd.aggregators.br_drag(c=0.5),
    "scaffold": fd.algorithms.scaffold(),
    "drag": fd.aggregators.drag(c=0.25),
    "krum": fd.aggregators.krum(),
}


class Softmax(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(x)


class OfTwo(nn.Module):
    """The same of an image and a row of a table."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(jnp.concatenate([x["image"].reshape(len(x["image"]), -1), x["table"]], 1))


class Bag(nn.Module):
    """Sums embeddings of the tokens that are there."""

    @nn.compact
    def __call__(self, x):
        tokens, mask = x
        assert (tokens.dtype, mask.dtype) == (jnp.int32, jnp.bool_)
        summed = (nn.Embed(7, 4)(tokens) * mask[..., None]).sum(1)
        return {"class": nn.Dense(2)(summed), "size": nn.Dense(1)(summed)[:, 0]}


class class_accuracy(fd.types.Metric):
    """Share of right classes, of one of two targets."""

    def update(self, outputs, targets):
        return outputs["class"].argmax(-1) == targets["class"], jnp.ones(len(targets["size"]))

    def result(self, sums):
        return sums[0] / sums[1]


def of_both(outputs, targets):
    entropy = fd.losses.cross_entropy()(outputs["class"], targets["class"])
    return entropy + 0.01 * fd.losses.mse()(outputs["size"], targets["size"])


def data(x, y, num_clients=6, **options):
    parts = [jax.tree.map(lambda a, part=part: a[part], (x, y)) for part in (slice(120), slice(120, None))]
    return fd.data.partition.iid(fd.data.from_arrays(*parts[0], *parts[1], **options), num_clients)


TWO = data({"image": IMAGES, "table": TABLE}, LABELS)
TEXTS = data((TOKENS, MASK), {"class": (SIZES > 9).astype(int), "size": SIZES.astype(float)})
TASKS = {"model": Bag(), "data": TEXTS, "loss": of_both, "metrics": [class_accuracy()], **SHORT}


def same(one, other, **tolerance):
    for name in one:
        if "seconds" not in name:
            np.testing.assert_allclose(one[name], other[name], err_msg=name, **tolerance)


@pytest.mark.sample(1)
@pytest.mark.parametrize("rule", RULES)
def test_two_inputs_are_those_of_one_array_that_holds_both(rule):
    """Also with an attack on labels."""
    attack = {"attack": fd.attacks.label_flip(), "num_byzantine": 1} if rule != "scaffold" else {}
    rounds = {**SHORT, **attack, "evaluate_clients": True, "seed": 3}
    two = fd.simulate(RULES[rule], model=OfTwo(), data=TWO, **rounds)
    one = fd.simulate(RULES[rule], model=Softmax(), data=data(TOGETHER, LABELS, normalize="none"), **rounds)
    same(two.history, one.history, rtol=1e-4, atol=1e-5)
    for leaf, like in zip(jax.tree.leaves(two.params), jax.tree.leaves(one.params), strict=True):
        np.testing.assert_allclose(leaf, like, rtol=1e-4, atol=1e-6)
    loss = two.history["test_loss"]
    assert rule == "krum" or loss[-1] < loss[0]


def test_two_targets_are_learned_and_evaluated_client_by_client():
    longer = {"num_rounds": 150, "eval_every": 150, "step_size": 0.3, "evaluate_clients": True}
    result = fd.simulate(RULES["fedavg"], **TASKS | longer)
    outputs = Bag().apply({"params": result.params}, jax.tree.map(lambda x: x[120:], (TOKENS, MASK)))
    right = np.asarray(outputs["class"]).argmax(1) == (SIZES[120:] > 9)
    np.testing.assert_allclose(result.history["test_class_accuracy"][-1], right.mean(), rtol=1e-6)
    targets = {"class": (SIZES[120:] > 9).astype(int), "size": SIZES[120:].astype(np.float32)}
    np.testing.assert_allclose(result.history["test_loss"][-1], of_both(outputs, targets).mean(), rtol=1e-4)
    assert right.mean() > 0.8
    held = [row[count - round(0.2 * count) : count] for row, count in zip(TEXTS.rows, TEXTS.counts, strict=True)]
    for client, own in enumerate(held):
        predicted = Bag().apply({"params": result.params}, jax.tree.map(lambda x, own=own: x[own], TEXTS.train.x))
        share = (np.asarray(predicted["class"]).argmax(1) == TEXTS.train.y["class"][own]).mean()
        np.testing.assert_allclose(result.history["client_class_accuracy"][-1][client], share, rtol=1e-6)


def test_a_configuration_has_them_from_python():
    config = {name: value for name, value in TASKS.items() if name != "num_rounds"} | {"rounds": TASKS["num_rounds"]}
    found = fd.run(config | {"time_clients": False}, quiet=True).history
    same(found, fd.simulate(RULES["fedavg"], **TASKS).history, rtol=1e-6)


@pytest.mark.thorough
def test_devices_that_divide_the_examples_compute_the_same():
    alone, shared = (
        fd.simulate(RULES["fedavg"], **TASKS, evaluate_clients=True, **devices)
        for devices in ({"mesh": None}, {"mesh": "cores", "shard_data": True})
    )
    same(alone.history, shared.history, rtol=1e-4, atol=1e-6)


@pytest.mark.thorough
def test_a_cell_of_a_sweep_is_the_run_and_a_continued_run_has_the_same_bits():
    rule = fd.algorithms.from_aggregator(RULES["fedavg"])
    steps = [fd.simulate(rule, **TASKS | {"step_size": size}) for size in (0.1, 0.05)]
    settings = [Settings(rule, **TASKS | {"step_size": size}) for size in (0.1, 0.05)]
    assert lower_batch(settings).width == 2
    for cell, alone in zip(prepare_batch(settings).run([0, 1]), steps, strict=True):
        same(cell.history, alone.history, rtol=1e-6)
    half = fd.simulate(rule, **TASKS | {"num_rounds": 2})
    whole = fd.simulate(rule, **TASKS, initial=half.state)
    assert jax.tree.all(jax.tree.map(np.array_equal, whole.params, steps[0].params))


class OfTwoNnx(nnx.Module):
    def __init__(self, rngs):
        self.layer = nnx.Linear(13, 3, rngs=rngs)

    def __call__(self, x):
        return self.layer(jnp.concatenate([x["image"].reshape(len(x["image"]), -1), x["table"]], 1))


def _of_two(params, x):
    return x["table"] @ params["table"] + x["image"].reshape(len(x["image"]), -1) @ params["image"]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "model",
    [OfTwoNnx, (lambda key: {"table": jnp.zeros((4, 3)), "image": jnp.zeros((9, 3))}, _of_two)],
    ids=["nnx", "functions"],
)
def test_models_of_every_form_receive_the_pytree(model):
    loss = fd.simulate(RULES["fedavg"], model=model, data=TWO, compute_dtype="bfloat16", **SHORT).history["test_loss"]
    assert loss[-1] < loss[0]


@pytest.mark.thorough
def test_an_augmentation_and_single_gradients_of_the_pytree_with_padding():
    def forgetful(key, x):
        tokens, mask = x
        return tokens, mask & jax.random.bernoulli(key, 0.9, mask.shape)

    whole = dataclasses.replace(TEXTS, rows=None, counts=None)
    fed = fd.data.partition.quantity_skew(fd.data.hold_out(whole, 0.2), 5, 1)
    assert (fed.train.num_examples, fed.validation.num_examples) == (96, 24)
    options = {"data": fed, "augmentation": forgetful, "local_epochs": 1, "local_steps": None}
    client = fd.clients.dp_sgd(clip=1.0, noise_multiplier=0.0)
    rule = fd.algorithms.from_aggregator(RULES["fedavg"], client)
    history = fd.simulate(rule, **TASKS | options, evaluate_clients=True).history
    assert history["validation_loss"][-1] < history["validation_loss"][0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": TEXTS, "model": Bag()}, "targets {class: int32[N], size: float32[N]}"),
        ({"attack": fd.attacks.backdoor(), "num_byzantine": 1}, "not inputs {'image': (3, 3, 1), 'table': (4,)}"),
        ({"augmentation": fd.data.augmentation.crop_flip()}, "not inputs of shape {'image': (4, 3, 3, 1)"),
        ({"augmentation": lambda key, x: x["table"]}, "returns float32[4, 4] for x of {image: float32[4, 3, 3, 1]"),
        ({"model": Softmax()}, "fails for inputs {image: float32[1, 3, 3, 1], table: float32[1, 4]}"),
        ({**TASKS, "model": OfTwo(), "data": TWO}, "loss: must take outputs float32[B, 3] and targets int32[B]"),
        ({**TASKS, "metrics": [fd.metrics.accuracy()]}, "metrics: accuracy: must take outputs {class: float32[B, 2]"),
        ({**TASKS, "model": lambda: None}, "model="),
        (
            {**TASKS, "attack": fd.attacks.label_flip(), "num_byzantine": 1},
            "label_flip: needs targets of one array, not {class: int32[B]",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(changes, message):
    with pytest.raises(ValueError) as error:
        fd.simulation.prepare(RULES["fedavg"], **{"model": OfTwo(), "data": TWO} | SHORT | changes)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_methods_that_compare_predicted_classes_need_one_array_of_outputs():
    with pytest.raises(ValueError, match="algorithm=clusterguard: compares predicted classes; must not, for outputs"):
        fd.simulation.prepare(fd.aggregators.clusterguard(), **TASKS)


def test_rare_examples_need_one_array():
    with pytest.raises(ValueError, match=r"edge_case: needs one array of inputs with a distance, not {image: float32"):
        fd.attacks.edge_case(TWO)
