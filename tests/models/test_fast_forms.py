"""Models of any library in fast forms: equal to themselves as they are, and without the operations that are slow."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from jaxprs import products

from fedjax_drag.models.fast_forms import in_fast_forms

X = np.random.default_rng(0).normal(size=(3, 12, 12, 2)).astype(np.float32)


class Linen(nn.Module):
    """As the networks of PFLlib, ByzFL, pfl-research and the authors of bucketing, with each way to pool."""

    padding: str = "SAME"
    pool: str = "max"

    @nn.compact
    def __call__(self, x):
        pool = {"max": nn.max_pool, "average": nn.avg_pool}[self.pool]
        x = pool(nn.relu(nn.Conv(4, (5, 5), padding=self.padding)(x)), (2, 2), (2, 2))
        x = nn.relu(pool(nn.Conv(6, (3, 3), padding=self.padding)(x), (2, 2), (2, 2)))
        return nn.Dense(3)(x.reshape(len(x), -1))


class Residual(nn.Module):
    """What comes after a convolution is used twice; 1x1 kernels, strides, no biases, groups and a wide window."""

    @nn.compact
    def __call__(self, x):
        y = nn.Conv(4, (3, 3))(x)
        x = nn.relu(y) + nn.Conv(4, (1, 1), use_bias=False)(x) + y
        x = nn.max_pool(x, (3, 3), (2, 2), "SAME") + nn.Conv(4, (1, 1), (2, 2))(x)
        x = nn.Conv(4, (3, 3), feature_group_count=2)(x) + nn.Conv(4, (2, 3))(x)
        x = nn.Conv(4, (3, 3), (2, 2))(x) * nn.sigmoid(nn.Conv(4, (3, 3), kernel_dilation=2, padding=2)(x))[:, ::2, ::2]
        return nn.Conv(3, (2, 2), use_bias=False)(x).mean((1, 2))


class InNnx(nnx.Module):
    def __init__(self, rngs):
        self.conv, self.dense = nnx.Conv(2, 4, (3, 3), rngs=rngs), nnx.Linear(4 * 36, 3, rngs=rngs)

    def __call__(self, x):
        return self.dense(nnx.max_pool(nnx.relu(self.conv(x)), (2, 2), (2, 2)).reshape(len(x), -1))


def linen(module):
    """``apply``, and the shapes of its parameters."""
    return module.apply, jax.eval_shape(module.init, jax.random.key(0), X)


def in_nnx():
    graph, state = nnx.split(nnx.eval_shape(lambda: InNnx(nnx.Rngs(0))))
    return lambda state, x: nnx.merge(graph, state)(x), state


def channels_first():
    """As PyTorch keeps images and kernels."""
    rng = np.random.default_rng(0)
    params = {
        "kernel": rng.normal(size=(4, 2, 3, 3)).astype(np.float32),
        "bias": np.ones((4, 1, 1), np.float32),
        "dense": rng.normal(size=(4 * 25, 3)).astype(np.float32),
    }

    def apply(params, x):
        y = lax.conv(x.transpose(0, 3, 1, 2), params["kernel"], (1, 1), "VALID") + params["bias"]
        y = lax.reduce_window(jax.nn.relu(y), -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
        return y.reshape(len(y), -1) @ params["dense"]

    return apply, params


MODELS = {
    "max": linen(Linen()),
    "max, no padding": linen(Linen(padding="VALID")),
    "average": linen(Linen(pool="average")),
    "residual": linen(Residual()),
    "nnx": in_nnx(),
    "channels first": channels_first(),
}


def random(params, *leading):
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: rng.normal(0, 0.4, (*leading, *leaf.shape)).astype(np.float32), params)


def assert_close(found, wanted, bound=1e-4):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=bound, atol=bound * np.abs(b).max()), found, wanted)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", MODELS)
def test_outputs_and_gradients_are_those_of_the_model(name):
    apply, params = MODELS[name]
    params = random(params)
    objective = lambda apply: jax.jit(jax.value_and_grad(lambda params, x: (apply(params, x) ** 2).sum(), (0, 1)))
    assert_close(in_fast_forms(apply)(params, X), apply(params, X))
    assert_close(objective(in_fast_forms(apply))(params, X), objective(apply)(params, X))


@pytest.mark.parametrize("name", ["max", "channels first"])
def test_clients_with_parameters_of_their_own(name):
    apply, params = MODELS[name]
    params, x = random(params, 4), np.stack([X] * 4)
    gradient = lambda apply: jax.jit(jax.vmap(jax.grad(lambda params, x: (apply(params, x) ** 2).sum())))
    assert_close(gradient(in_fast_forms(apply))(params, x), gradient(apply)(params, x))


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("k", "stride", "gap", "pads"),
    [
        (3, 2, 1, "SAME"),  # images of 13 x 12: other paddings along each axis
        (3, 2, 1, ((1, 1), (1, 1))),  # as PyTorch pads
        (4, 4, 1, "VALID"),  # patches of a vision transformer
        (1, 2, 1, "VALID"),
        (3, 1, 2, "SAME"),
        (7, 2, 1, ((3, 3), (3, 3))),
        (2, 3, 1, "VALID"),  # pixels that no output sees
        (5, 3, 1, ((2, 0), (0, 4))),
        (3, 1, 1, ((2, 0), (0, 1))),
        (3, 1, 3, ((0, 5), (2, 2))),
        (2, 1, 4, "VALID"),
    ],
)
def test_strides_gaps_and_paddings(k, stride, gap, pads):
    """Convolution, bias, ReLU and pooling with channels first; a convolution at stride 1 is all that is left."""

    def apply(params, x):
        y = lax.conv_general_dilated(x, params["kernel"], (stride, stride), pads, rhs_dilation=(gap, gap))
        y = jax.nn.relu(y + params["bias"])
        return lax.reduce_window(y, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")

    params = random({"kernel": np.zeros((4, 3, k, k)), "bias": np.zeros((4, 1, 1))}, 2)
    x = np.random.default_rng(2).normal(size=(2, 3, 3, 13, 12)).astype(np.float32)
    objective = lambda apply: jax.vmap(jax.value_and_grad(lambda params, x: jnp.sin(apply(params, x)).sum(), (0, 1)))
    fast = objective(in_fast_forms(apply))
    assert_close(jax.jit(fast)(params, x), jax.jit(objective(apply))(params, x), 1e-5)
    left = [one.params for one in products(jax.make_jaxpr(fast)(params, x).jaxpr) if "conv" in one.primitive.name]
    assert {(own["window_strides"], own["rhs_dilation"]) for own in left} <= {((1, 1), (1, 1))}


def test_what_is_slow_is_gone_and_what_there_is_no_form_for_stays():
    def operations(name):
        apply, params = MODELS[name]
        gradient = jax.grad(lambda params: (in_fast_forms(apply)(params, X) ** 2).sum())
        text = str(jax.make_jaxpr(gradient)(params))
        return {one for one in ("select_and_scatter_add", "reduce_window", "feature_group_count=2") if one in text}

    assert operations("max") == operations("average") == operations("nnx") == operations("channels first") == set()
    assert operations("residual") == {"select_and_scatter_add", "reduce_window", "feature_group_count=2"}


@jax.custom_jvp
def straight_through(x):
    return jnp.maximum(x, 0)


@jax.custom_jvp
@jax.jit
def relu(x):
    return jnp.maximum(x, 0)


for function in (straight_through, relu):
    function.defjvp(lambda primals, tangents, function=function: (function(*primals), *tangents))


@pytest.mark.parametrize("function", [straight_through, relu])
def test_another_function_than_relu_keeps_its_gradient(function):
    conv = nn.Conv(4, (3, 3))
    apply = lambda params, x: nn.max_pool(function(conv.apply(params, x)), (2, 2), (2, 2))
    params = random(jax.eval_shape(conv.init, jax.random.key(0), X))
    gradient = lambda apply: jax.jit(jax.grad(lambda params: apply(params, X).sum()))(params)
    assert_close(gradient(in_fast_forms(apply)), gradient(apply))


def test_sums_of_windows_keep_their_dtype():
    windows = (1, 2, 2, 1)
    apply = lambda x: lax.reduce_window(x, np.uint8(0), lax.add, windows, windows, "VALID") // np.uint8(4)
    x = np.arange(2 * 4 * 5, dtype=np.uint8).reshape(2, 4, 5, 1)
    np.testing.assert_array_equal(in_fast_forms(apply)(x), apply(x), strict=True)


def test_a_convolution_with_a_precision_of_its_own_keeps_it():
    def text(precision, usual):
        conv = nn.Conv(4, (3, 3), precision=precision)
        with jax.default_matmul_precision(usual):
            return str(jax.make_jaxpr(in_fast_forms(conv.apply))(conv.init(jax.random.key(0), X), X))

    asked, usual = text("highest", "default"), text(None, "highest")
    assert "conv_general_dilated" in asked
    assert "platform_index" not in asked
    assert "platform_index" in usual


def test_the_equations_of_a_model_without_convolutions_stay():
    dense = nn.Dense(3)
    params = dense.init(jax.random.key(0), X)
    found, wanted = (str(jax.make_jaxpr(apply)(params, X)) for apply in (in_fast_forms(dense.apply), dense.apply))
    assert found == wanted
