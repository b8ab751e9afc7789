import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedjax_drag import models
from fedjax_drag.models.lstm import recurrence

SMALL = models.lstm(num_classes=11, embedding=3, hidden=5, layers=2)


def tokens(*shape, seed=0, num_classes=11):
    return np.random.default_rng(seed).integers(0, num_classes, shape, dtype=np.int32)


@pytest.fixture(scope="module")
def params():
    """Of the small model, all entries random, so that no bias hides behind zeros."""
    shapes = jax.eval_shape(SMALL.init, jax.random.key(0), tokens(2, 4))
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: rng.normal(0, 0.7, leaf.shape).astype(np.float32), shapes)


def by_numpy(params, x):
    """The model, from the equations of an LSTM, one step and gate at a time in double precision."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["params"])
    sigmoid = lambda z: 1 / (1 + np.exp(-z))
    sequence = [p["Embed_0"]["embedding"][x[:, t]] for t in range(x.shape[1])]
    for layer in itertools.takewhile(p.__contains__, (f"LSTMLayer_{k}" for k in itertools.count())):
        w, r, b = (np.split(p[layer][name], 4, axis=-1) for name in ("kernel", "recurrent_kernel", "bias"))
        h = c = np.zeros((len(x), r[0].shape[0]))
        states = []
        for value in sequence:
            i, f, o, g = (value @ w[k] + h @ r[k] + b[k] for k in range(4))
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            states.append(h)
        sequence = states
    return sequence[-1] @ p["Dense_0"]["kernel"] + p["Dense_0"]["bias"]


def test_parameter_count_by_hand():
    embedding = 80 * 8
    first, second = (4 * ((inputs + 256) * 256 + 256) for inputs in (8, 256))
    dense = 256 * 80 + 80
    variables = jax.eval_shape(models.lstm().init, jax.random.key(0), jax.ShapeDtypeStruct((2, 80), jnp.int32))
    assert set(variables) == {"params"}
    total = sum(leaf.size for leaf in jax.tree.leaves(variables))
    assert total == embedding + first + second + dense == 817_872
    logits = jax.eval_shape(models.lstm().apply, variables, jax.ShapeDtypeStruct((3, 80), jnp.int32))
    assert (logits.shape, logits.dtype) == ((3, 80), jnp.float32)


@pytest.mark.sample(1)
@pytest.mark.parametrize("length", [1, 2, 9])
def test_it_is_the_lstm_of_the_equations(params, length):
    x = tokens(4, length)
    np.testing.assert_allclose(jax.jit(SMALL.apply)(params, x), by_numpy(params, x), rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
def test_gradients_are_those_of_the_equations():
    """The hand-written backward pass against automatic differentiation of the plain recurrence."""
    length, batch, hidden = 6, 3, 4
    rng = np.random.default_rng(2)
    kernel = rng.normal(0, 0.5, (hidden, 4 * hidden)).astype(np.float32)
    projected = rng.normal(0, 1, (length, batch, 4 * hidden)).astype(np.float32)
    weights = rng.normal(0, 1, (length, batch, hidden)).astype(np.float32)

    def plain(kernel, projected):
        def step(carry, z):
            h, c = carry
            i, f, o, g = jnp.split(z + h @ kernel, 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        return lax.scan(step, (jnp.zeros((batch, hidden)),) * 2, projected)[1]

    def value(states):
        return lambda *args: (weights * states(*args) ** 2).sum()

    def steepness(states):
        gradient = jax.grad(value(states), (0, 1))
        return lambda *args: sum((leaf**2).sum() for leaf in gradient(*args))

    def gradients(states):  # the second ones are of second order
        return jax.jit(lambda *args: [jax.grad(q(states), (0, 1))(*args) for q in (value, steepness)])(
            kernel, projected
        )

    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4),
        gradients(recurrence),
        gradients(plain),
    )


def loss(params, x, y):
    logits = SMALL.apply(params, x)
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1).mean()


@pytest.mark.slow
def test_vmap_map_and_scan_agree_with_one_after_another(params):
    """Clients with parameters of their own, two local steps each."""
    clients = jax.tree.map(lambda leaf: np.stack([leaf, 0.5 * leaf, -leaf]), params)
    x, y = tokens(3, 2, 4, 6), tokens(3, 2, 4, seed=1)

    def train(params, x, y):
        def step(params, batch):
            return jax.tree.map(lambda w, g: w - 0.1 * g, params, jax.grad(loss)(params, *batch)), None

        return lax.scan(step, params, (x, y))[0]

    alone = jax.jit(train)
    expected = [alone(jax.tree.map(lambda leaf, m=m: leaf[m], clients), x[m], y[m]) for m in range(3)]
    together = jax.jit(jax.vmap(train))(clients, x, y)
    in_turn = jax.jit(lambda *args: lax.map(lambda one: train(*one), args))(clients, x, y)
    for result in (together, in_turn):
        jax.tree.map(lambda a, *b: np.testing.assert_allclose(a, np.stack(b), rtol=1e-4, atol=1e-5), result, *expected)


@pytest.mark.slow
def test_it_learns_the_character_three_positions_back():
    rng = np.random.default_rng(3)
    x = rng.integers(0, 4, (64, 5), dtype=np.int32)
    y = x[:, -3]
    model = models.lstm(num_classes=4, embedding=4, hidden=16, layers=1)
    params = jax.jit(model.init)(jax.random.key(0), x)

    def loss(params):
        return -jnp.take_along_axis(jax.nn.log_softmax(model.apply(params, x)), y[:, None], 1).mean()

    @jax.jit
    def train(params):
        step = lambda p, _: (jax.tree.map(lambda w, g: w - 0.5 * g, p, jax.grad(loss)(p)), None)
        return lax.scan(step, params, length=300)[0]

    logits = jax.jit(model.apply)(train(params), x)
    assert np.mean(np.argmax(logits, axis=1) == y) > 0.95


@pytest.mark.thorough
def test_forget_gates_begin_open_and_recurrent_kernels_orthogonal():
    layer = models.lstm(num_classes=2, embedding=1, hidden=5, layers=1)
    params = jax.jit(layer.init)(jax.random.key(0), tokens(1, 1, num_classes=2))["params"]["LSTMLayer_0"]
    np.testing.assert_array_equal(params["bias"], np.repeat([0, 1, 0, 0], 5))
    for gate in np.split(np.asarray(params["recurrent_kernel"]), 4, axis=1):
        np.testing.assert_allclose(gate @ gate.T, np.eye(5), atol=1e-5)


@pytest.mark.parametrize(
    "x",
    [
        np.zeros((2, 80), np.float32),
        np.zeros((2, 80), bool),
        np.zeros(80, np.int32),
        np.zeros((2, 80, 1), np.int32),
        np.zeros((2, 0), np.int32),
    ],
)
def test_inputs_other_than_tokens_are_one_clear_line(x):
    with pytest.raises(ValueError, match=r"^x\.shape=\(.* needs integer tokens \[B, L\], L >= 1") as error:
        jax.eval_shape(SMALL.init, jax.random.key(0), x)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["num_classes", "embedding", "hidden", "layers"])
def test_wrong_arguments_are_named(name):
    for value in (0, 1.5, True):
        with pytest.raises(ValueError, match=f"{name}={value}: must be an integer >= 1"):
            models.lstm(**{name: value})
