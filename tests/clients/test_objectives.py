"""Client rules with losses of their own: MOON, FedLC and FedNTD beside their equations in NumPy, and what they promise.

The references take gradients as central differences of the losses, example by example, in float64.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fedjax_drag as fd
from fedjax_drag.clients import fedlc, fedntd, moon, sgd
from fedjax_drag.clients._moon import cosine
from fedjax_drag.simulation.model.forms import form_of
from fedjax_drag.simulation.model.model import Model

FEATURES, HIDDEN, CLASSES, STEPS, STEP_SIZE = 3, 4, 3, 2, 0.4


class Net(nn.Module):
    """Two dense layers; the representation is what lies between them."""

    @nn.compact
    def __call__(self, x):
        z = nn.tanh(nn.Dense(HIDDEN)(x))
        return nn.Dense(CLASSES)(z)


def clients():
    """Examples of three clients that differ in number, features and labels; two of them lack a class."""
    rng = np.random.default_rng(0)
    labels = [np.array([0, 0, 0, 1]), np.array([1, 2, 2, 2, 2, 1]), np.array([0, 1, 2, 2, 0])]
    return [(rng.normal(index, 1, (len(y), FEATURES)).astype(np.float32), y) for index, y in enumerate(labels)]


FED = fd.data.from_clients(clients(), test=clients()[0], mean=(0.0,), std=(1.0,))


START = jax.tree.map(np.asarray, Net().init(jax.random.key(0), np.zeros((1, FEATURES)))["params"])


def run(client, aggregator=None, **changes):
    settings = {"num_rounds": 4, "cohort_size": 2, "local_steps": STEPS, "batch_size": "full", "eval_every": 1}
    settings |= {"step_size": STEP_SIZE, "model": Net(), "data": FED, "initial_params": START}
    method = fd.algorithms.from_aggregator(aggregator or fd.aggregators.fedavg(), client=client)
    return fd.simulate(method, **settings | changes)


def forward(w, x):
    """Representation and logits of one example."""
    z = np.tanh(x @ w["Dense_0"]["kernel"] + w["Dense_0"]["bias"])
    return z, z @ w["Dense_1"]["kernel"] + w["Dense_1"]["bias"]


def softmax(logits):
    return np.exp(logits) / np.exp(logits).sum()


def similarity(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def moon_loss(w, x, y, theta, previous, counts, mu=2.0, tau=0.3):
    del counts
    (z, logits), z_glob, z_prev = forward(w, x), forward(theta, x)[0], forward(previous, x)[0]
    positive, negative = np.exp(similarity(z, z_glob) / tau), np.exp(similarity(z, z_prev) / tau)
    return -np.log(softmax(logits)[y]) - mu * np.log(positive / (positive + negative))


def fedlc_loss(w, x, y, theta, previous, counts, tau=0.7):
    del theta, previous
    calibrated = [f - tau * max(n, 1e-8) ** (-1 / 4) for f, n in zip(forward(w, x)[1], counts, strict=True)]
    return -np.log(np.exp(calibrated[y]) / sum(np.exp(f) for f in calibrated))


def fedntd_loss(w, x, y, theta, previous, counts, beta=1.5, tau=2.0):
    del previous, counts
    logits, known = forward(w, x)[1], forward(theta, x)[1]
    q, q_g = softmax(np.delete(logits, y) / tau), softmax(np.delete(known, y) / tau)
    return -np.log(softmax(logits)[y]) + beta * sum(q_g * np.log(q_g / q))


def gradient(loss, w):
    """Central differences."""
    leaves, structure = jax.tree.flatten(w)

    def slope(number, place, h=1e-5):
        values = []
        for side in (h, -h):
            moved = [leaf.copy() for leaf in leaves]
            moved[number][place] += side
            values.append(loss(jax.tree.unflatten(structure, moved)))
        return (values[0] - values[1]) / (2 * h)

    slopes = [
        np.array([slope(number, place) for place in np.ndindex(leaf.shape)]).reshape(leaf.shape)
        for number, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, slopes)


def reference(example_loss, theta, cohorts):
    """FedAvg of clients with this loss."""
    previous = dict.fromkeys(range(3), theta)
    for cohort in cohorts:
        ends = []
        for m in cohort:
            x, y = clients()[m]
            known = {"theta": theta, "previous": previous[m], "counts": np.bincount(y, minlength=CLASSES)}
            mean = lambda w, x=x, y=y, known=known: np.mean(
                [example_loss(w, a, b, **known) for a, b in zip(x.astype(np.float64), y, strict=True)]
            )
            w = theta
            for _ in range(STEPS):
                w = jax.tree.map(lambda p, g: p - STEP_SIZE * g, w, gradient(mean, w))
            ends.append(w)
        previous |= dict(zip(cohort, ends, strict=True))
        theta = jax.tree.map(lambda *rows: np.mean(rows, axis=0), *ends)
    return theta


@pytest.mark.parametrize(
    ("client", "loss"),
    [(moon(mu=2.0, temperature=0.3), moon_loss), (fedlc(0.7), fedlc_loss), (fedntd(1.5, temperature=2.0), fedntd_loss)],
    ids=["moon", "fedlc", "fedntd"],
)
def test_agrees_with_its_equation(client, loss):
    """Two of three clients in each of four rounds, all of whose examples are a mini-batch, with padding."""
    theta = jax.tree.map(np.float64, START)
    result = run(client)
    cohorts = [tuple(map(int, ids)) for ids in result.history["client_ids"]]
    assert len({m for cohort in cohorts[:-1] for m in cohort}) == 3
    expected = reference(loss, theta, cohorts)
    assert far(result.params, expected) <= 1e-5 * far(theta, expected)
    assert far(run(sgd()).params, expected) > 1e-2 * far(theta, expected), "the objective matters"


def far(one, other):
    """The distance of two models."""
    return np.sqrt(sum(((a - b) ** 2).sum() for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True)))


@pytest.mark.sample(1)
@pytest.mark.parametrize("client", [moon(mu=0.0), fedlc(0.0), fedntd(0.0)], ids=lambda client: client.name)
def test_without_its_term_it_is_sgd(client):
    plain, found = run(sgd()), run(client)
    assert far(found.params, plain.params) <= 1e-6 * far(START, plain.params)
    np.testing.assert_allclose(found.history["train_loss"], plain.history["train_loss"], rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("client", "changes"),
    [
        (moon(mu=5.0), {"num_rounds": 1}),  # every client's previous model is the global one
        (fedntd(5.0), {"local_steps": 1}),  # the first step is from the global model, which is close to itself
    ],
    ids=["moon", "fedntd"],
)
def test_near_the_global_model_it_is_sgd(client, changes):
    plain = run(sgd(), **changes).params
    assert far(run(client, **changes).params, plain) <= 1e-5 * far(START, plain)


@pytest.mark.thorough
def test_classes_that_are_equally_frequent_need_no_calibration():
    x = np.random.default_rng(1).normal(size=(12, FEATURES)).astype(np.float32)
    even = fd.data.from_clients([(x[:6], np.arange(6) % 3), (x[6:], np.arange(6) % 3)], test=(x, np.arange(12) % 3))
    plain, found = (run(client, data=even).params for client in (sgd(), fedlc(2.0)))
    assert far(found, plain) <= 1e-5 * far(START, plain)


@pytest.mark.parametrize("length", [1e-30, 1e-15, 1e-10, 1e12, 1e30])
def test_representations_may_be_short_or_long(length):
    a, b = length * jnp.array([[3.0, 4.0]]), length * jnp.array([[4.0, 3.0]])
    value, slope = jax.value_and_grad(lambda a: cosine(a, b).sum())(a)
    assert value == pytest.approx(24 / 25, rel=1e-6)
    np.testing.assert_allclose(5 * length * slope, [[4 / 5 - 24 / 25 * 3 / 5, 3 / 5 - 24 / 25 * 4 / 5]], rtol=1e-4)


@pytest.mark.thorough
def test_what_a_client_keeps_is_its_last_model():
    result = run(moon(), num_rounds=1)
    (one, other), rows = map(int, result.history["client_ids"][0]), result.state.clients.carry.rows
    ends = [jax.tree.map(lambda x, m=m: x[m], rows) for m in (one, other)]
    assert far(result.params, jax.tree.map(lambda a, b: (a + b) / 2, *ends)) < 1e-6
    (absent,) = {0, 1, 2} - {one, other}
    assert far(jax.tree.map(lambda x: x[absent], rows), START) == 0


@pytest.mark.thorough
@pytest.mark.parametrize("client", [moon(), fedlc(), fedntd()], ids=lambda client: client.name)
def test_learns_with_krum_under_an_attack(client):
    rng = np.random.default_rng(2)
    labels = rng.integers(0, CLASSES, (6, 15))
    x = (4 * np.eye(CLASSES)[labels] + rng.normal(size=(6, 15, FEATURES))).astype(np.float32)
    data = fd.data.from_clients(list(zip(x, labels, strict=True)), test=(x[0], labels[0]))
    attacked = {"attack": fd.attacks.sign_flip(4.0), "num_byzantine": 1, "data": data, "cohort_size": 6}
    history = run(client, fd.aggregators.krum(num_byzantine=1), num_rounds=15, **attacked).history
    assert history["malicious_weight"][-1] == 0
    assert history["test_accuracy"][-1] > 0.9
    assert history["test_loss"][-1] < history["test_loss"][0] / 2


@pytest.mark.thorough
def test_padding_statistics_dropout_and_local_noise_go_with_it():
    class Layers(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            x = nn.BatchNorm(use_running_average=not train)(nn.Dense(4)(x))
            return nn.Dense(CLASSES)(nn.Dropout(0.2, deterministic=not train)(x))

    changes = {"local_epochs": 2, "local_steps": None, "batch_size": 3, "model": Layers(), "initial_params": None}
    private = fd.privacy.local_dp(moon(), clip=0.1, noise_multiplier=0.0)
    result = run(private, model_state="frozen", num_rounds=2, **changes)
    assert np.isfinite(result.history["train_loss"]).all()
    assert (result.history["train_loss"] > np.log(2)).all(), "the contrastive loss begins at log 2"


class ByName(nn.Module):
    """Calls a dense layer with its input by name."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(CLASSES)(inputs=x)


def representation(model, example):
    """Shape of the representation, and whether it is the outputs."""
    form = form_of(model, jax.ShapeDtypeStruct((1, *example.shape[1:]), example.dtype))
    whole = Model(form, fd.losses.cross_entropy(), lambda x: x, CLASSES)
    predicted = jax.eval_shape(lambda key, x: whole.predict(*whole.init(key), x), jax.random.key(0), example)
    return predicted.representation.shape, predicted.outputs.shape


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (Net(), (5, HIDDEN)),
        (fd.models.mlp(CLASSES, hidden=(6, 7)), (5, 7)),
        (fd.models.lora(fd.models.mlp(CLASSES, hidden=(6,)), rank=1), (5, 6)),
        (nn.Dense(CLASSES), (5, FEATURES)),
        (ByName(), (5, FEATURES)),
        ((lambda key, x: jnp.zeros((x.shape[-1], CLASSES)), lambda w, x: x @ w), (5, CLASSES)),
        (nnx.Linear(FEATURES, CLASSES, rngs=nnx.Rngs(0)), (5, CLASSES)),
    ],
    ids=["linen", "mlp", "lora", "one layer", "by name", "functions", "nnx"],
)
def test_the_representation_is_the_input_of_the_last_dense_layer_or_the_outputs(model, shape):
    found, outputs = representation(model, jax.ShapeDtypeStruct((5, FEATURES), jnp.float32))
    assert (found, outputs) == (shape, (5, CLASSES))


@pytest.mark.thorough
def test_models_of_the_package_have_one_dense_layer_last():
    image, text = jax.ShapeDtypeStruct((5, 32, 32, 3), jnp.float32), jax.ShapeDtypeStruct((5, 8), jnp.int32)
    m = fd.models
    for model, example, width in (
        (m.cnn(CLASSES), image, None),
        (m.lenet(CLASSES), image, 84),
        (m.resnet18(CLASSES, width=8, groups=4), image, 64),
        (m.vit(CLASSES, patch=8, layers=1, heads=2, width=12), image, 12),
        (m.lstm(CLASSES, hidden=9, layers=1), text, 9),
        (m.transformer(CLASSES, layers=1, heads=2, width=10), text, 10),
    ):
        (number, found), outputs = representation(model, example)
        assert number == 5
        assert found == (width or found) != outputs[-1]


@pytest.mark.parametrize("client", [fedlc(), fedntd()], ids=lambda client: client.name)
def test_without_labels_it_says_what_it_needs(client):
    x = np.zeros((6, FEATURES), np.float32)
    data = fd.data.partition.iid(fd.data.from_arrays(x, x[:, 0], x, x[:, 0]), num_clients=3)
    with pytest.raises(ValueError, match=f"client={client.name}: needs one label for each example"):
        run(client, data=data, loss=fd.losses.mse(), model=fd.models.mlp(1, hidden=()), initial_params=None)


def test_bad_arguments_are_named_with_their_value():
    for build, message in (
        (lambda: moon(mu=-1.0), "mu=-1.0"),
        (lambda: moon(temperature=0.0), "temperature=0.0"),
        (lambda: fedlc(-0.5), "tau=-0.5"),
        (lambda: fedntd(beta=-1.0), "beta=-1.0"),
        (lambda: fedntd(temperature=0.0), "temperature=0.0"),
    ):
        with pytest.raises(ValueError, match=message):
            build()
