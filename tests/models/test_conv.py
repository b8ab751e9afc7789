import functools
import re

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from fedjax_drag.kernels.convolution import FORMS
from fedjax_drag.models.conv import Conv, conv2d, max_pool

SHAPES = [  # N, H, W, Cin, Cout, k
    (3, 9, 7, 1, 4, 5),
    (2, 8, 8, 3, 5, 3),
    (4, 7, 7, 6, 3, 5),
    (2, 5, 6, 32, 8, 3),
    (1, 6, 5, 2, 3, 2),
    (1, 5, 5, 2, 3, 1),
    (2, 9, 8, 3, 33, 3),
    (2, 10, 11, 6, 32, 5),
    (2, 22, 23, 16, 5, 3),
]
BANDED, WIDE = SHAPES[1], SHAPES[6]  # the two are computed by different forms


def reference(x, kernel, padding):
    return lax.conv_general_dilated(x, kernel, (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def arrays(shape, lead=(), seed=0):
    n, h, w, cin, cout, k = shape
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(*lead, n, h, w, cin))
    kernel = rng.normal(size=(*lead, k, k, cin, cout))
    return jnp.asarray(x, jnp.float32), jnp.asarray(kernel, jnp.float32)


def loss_of(convolve, padding):
    # Nonlinear, so that the gradient arriving at the convolution depends on its output.
    return lambda x, kernel: jnp.sum(jnp.sin(convolve(x, kernel, padding)))


close = functools.partial(chex.assert_trees_all_close, rtol=1e-4, atol=2e-4)


def both(convolve, padding):
    """Value and both gradients."""
    return lambda x, kernel: (
        convolve(x, kernel, padding),
        jax.grad(loss_of(convolve, padding), argnums=(0, 1))(x, kernel),
    )


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.sample(2)
def test_value_and_gradients(shape, padding):
    x, kernel = arrays(shape)
    close(jax.jit(both(conv2d, padding))(x, kernel), jax.jit(both(reference, padding))(x, kernel))


@pytest.mark.parametrize("shape", [BANDED, WIDE], ids=str)
@pytest.mark.parametrize("padding", ["SAME", pytest.param("VALID", marks=pytest.mark.slow)])
@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)])
@pytest.mark.thorough
def test_vmap(axes, padding, shape):
    x, kernel = arrays(shape, lead=(3,))
    args = [a if axis == 0 else a[0] for a, axis in zip((x, kernel), axes, strict=True)]
    ours = jax.jit(jax.vmap(both(conv2d, padding), in_axes=axes))(*args)
    close(ours, jax.jit(jax.vmap(both(reference, padding), in_axes=axes))(*args))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [BANDED, WIDE], ids=str)
@pytest.mark.parametrize(
    "outer", [(0, 0), *(pytest.param(axes, marks=pytest.mark.slow) for axes in [(0, None), (None, 0)])]
)
@pytest.mark.parametrize("inner", [(0, 0), (0, None), (None, 0)])
def test_nested_vmap(outer, inner, shape):
    x, kernel = arrays(shape, lead=(2, 3))

    def pick(array, which):
        array = array if outer[which] == 0 else array[0]
        return array if inner[which] == 0 else array[(slice(None),) * (outer[which] == 0) + (0,)]

    nested = lambda f: jax.vmap(jax.vmap(f, in_axes=inner), in_axes=outer)
    args = pick(x, 0), pick(kernel, 1)
    close(jax.jit(nested(both(conv2d, "SAME")))(*args), jax.jit(nested(both(reference, "SAME")))(*args))


@pytest.mark.sample(1)
@pytest.mark.parametrize("shape", [BANDED, WIDE], ids=str)
def test_gradient_through_vmap(shape):
    x, kernel = arrays(shape, lead=(3,))
    total = lambda convolve: lambda k: jax.vmap(loss_of(convolve, "SAME"))(x, k).sum()
    close(*(jax.jit(jax.grad(total(convolve)))(kernel) for convolve in (conv2d, reference)))


def sgd_steps(convolve, padding):
    def run(kernel, xs):
        def step(k, x):
            return k - 1e-3 * jax.grad(loss_of(convolve, padding), argnums=1)(x, k), None

        return lax.scan(step, kernel, xs)[0]

    return run


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [BANDED, WIDE], ids=str)
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_inside_scan_alone_and_vmapped(padding, shape):
    xs, kernels = arrays(shape, lead=(4,))
    ours, theirs = sgd_steps(conv2d, padding), jax.jit(sgd_steps(reference, padding))
    close(jax.jit(ours)(kernels[0], xs), theirs(kernels[0], xs))
    many = jnp.stack([xs, xs[::-1]])
    expected = jnp.stack([theirs(k, x) for k, x in zip(kernels[:2], many, strict=True)])
    close(jax.jit(jax.vmap(ours))(kernels[:2], many), expected)
    close(jax.jit(lambda k, x: lax.map(lambda a: ours(*a), (k, x)))(kernels[:2], many), expected)


@pytest.mark.sample(2)
@pytest.mark.parametrize("over_clients", [jax.vmap, lambda f: lambda *args: lax.map(lambda a: f(*a), args)])
@pytest.mark.parametrize("shape", [BANDED, WIDE], ids=str)
def test_shard_map(shape, over_clients):
    xs, kernels = arrays(shape, lead=(2,))
    spec = PartitionSpec("clients")
    mesh = Mesh(np.array(jax.devices()[:1]), ("clients",))
    run = over_clients(lambda k, x: sgd_steps(conv2d, "SAME")(k, x[None]))
    sharded = jax.jit(jax.shard_map(run, mesh=mesh, in_specs=(spec, spec), out_specs=spec))
    theirs = jax.jit(jax.vmap(lambda k, x: sgd_steps(reference, "SAME")(k, x[None])))
    close(sharded(kernels, xs), theirs(kernels, xs))


@pytest.mark.sample(1)
@pytest.mark.parametrize("shape", [BANDED, WIDE], ids=str)
@pytest.mark.parametrize("argnums", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_second_derivative_by_reverse_over_reverse(argnums, shape):
    x, kernel = arrays(shape)
    first, second = argnums
    twice = lambda f: jax.grad(lambda *a: jnp.sum(jax.grad(f, argnums=first)(*a) ** 2), argnums=second)
    ours, theirs = (jax.jit(twice(loss_of(c, "SAME")))(x, kernel) for c in (conv2d, reference))
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3 * float(jnp.abs(theirs).max()))


def convolutions_in(function, *args, platform="cpu"):
    """The feature group counts of the convolutions in the lowered program."""
    text = jax.jit(function).trace(*args).lower(lowering_platforms=(platform,)).as_text()
    return re.findall(r"stablehlo\.convolution.*feature_group_count = (\d+)", text)


def test_the_form_is_that_of_the_platform():
    x, kernel = arrays(SHAPES[7], lead=(3,))
    gradient = jax.grad(loss_of(conv2d, "SAME"), argnums=(0, 1))
    assert convolutions_in(gradient, x[0], kernel[0]) == ["1"] * 3
    assert convolutions_in(jax.vmap(conv2d, in_axes=(0, None)), x, kernel[0]) == ["1"]
    assert set(convolutions_in(jax.vmap(gradient), x, kernel)) == {"1"}  # one client after another
    # On a TPU a group for each client, on a GPU products; of one kernel a convolution.
    assert convolutions_in(jax.vmap(conv2d), x, kernel, platform="tpu") == ["3"]
    assert len(convolutions_in(jax.vmap(gradient), x, kernel, platform="tpu")) == 3
    assert convolutions_in(jax.vmap(gradient), x, kernel, platform="cuda") == []
    for platform in ("cuda", "tpu"):
        assert convolutions_in(gradient, x[0], kernel[0], platform=platform) == ["1"] * 3


def test_a_layer_that_pools_is_products_of_windows_on_a_gpu():
    x, kernel = arrays(WIDE, lead=(3,))
    layer = Conv(kernel.shape[-1], kernel.shape[1], pool=True)
    params = {"params": {"kernel": kernel, "bias": jnp.zeros((3, kernel.shape[-1]))}}
    assert convolutions_in(jax.vmap(layer.apply), params, x, platform="cuda") == []
    assert convolutions_in(jax.vmap(layer.apply), params, x, platform="tpu") == ["3"]


def test_few_output_channels_make_no_convolution():
    x, kernel = arrays(SHAPES[0])
    gradient = jax.grad(loss_of(conv2d, "SAME"), argnums=(0, 1))
    assert convolutions_in(gradient, x, kernel) == []
    for platform in ("cuda", "tpu"):
        assert convolutions_in(gradient, x, kernel, platform=platform) == ["1"] * 3


@pytest.mark.sample(2)
@pytest.mark.parametrize("batched", [(0, 0), (0, None), (None, 0)], ids=["both", "images", "kernels"])
@pytest.mark.parametrize("form", sorted(FORMS, key=["grouped", "patches"].__contains__, reverse=True))
@pytest.mark.parametrize("shape", [WIDE, BANDED, SHAPES[4]], ids=str)
def test_every_form_is_the_plain_convolution(form, shape, batched):
    # Also those of accelerators, of which there may be none here. Rows may share their kernel or their images.
    x, kernel = (a if axis == 0 else a[0] for a, axis in zip(arrays(shape, lead=(3,)), batched, strict=True))
    ours, theirs = (jax.vmap(both(f, "SAME"), batched) for f in (functools.partial(conv2d, form=form), reference))
    close(jax.jit(ours)(x, kernel), theirs(x, kernel))


@pytest.mark.optimised
@pytest.mark.thorough
def test_unused_input_gradient_costs_nothing():
    x, kernel = arrays(WIDE)
    gradient = jax.jit(jax.grad(loss_of(conv2d, "SAME"), argnums=1))
    assert gradient.lower(x, kernel).compile().as_text().count(" convolution(") == 2


@pytest.mark.thorough
@pytest.mark.parametrize("size", [(4, 6), (5, 7), (2, 2)])
def test_max_pool(size):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, *size, 3)), jnp.float32)
    theirs = lambda a: nn.max_pool(a, (2, 2), (2, 2))
    np.testing.assert_array_equal(max_pool(x), theirs(x))
    gradients = [jax.grad(lambda a, pool=pool: jnp.sum(jnp.sin(pool(a))))(x) for pool in (max_pool, theirs)]
    np.testing.assert_array_equal(*gradients)
    many = jnp.stack([x, -x])
    np.testing.assert_array_equal(jax.vmap(max_pool)(many), jnp.stack([max_pool(x), max_pool(-x)]))


@pytest.mark.thorough
def test_max_pool_sends_a_ties_gradient_to_the_first():
    gradient = jax.grad(lambda a: max_pool(a).sum())(jnp.zeros((1, 2, 2, 1)))
    np.testing.assert_array_equal(gradient.ravel(), [1.0, 0.0, 0.0, 0.0])


def test_max_pool_keeps_not_a_number():
    assert jnp.isnan(max_pool(jnp.full((1, 2, 2, 1), jnp.nan))).all()


@pytest.mark.optimised
def test_a_pooled_layer_keeps_not_a_number():
    """Of a single pixel, in the windows that see it; XLA:CPU, with its optimisations, leaves NaN out of a maximum."""
    layer = Conv(6, 3, "VALID", pool=True, form="pooled", relu=True)
    x = jnp.ones((64, 8, 8, 1)).at[1, 2, 5, 0].set(jnp.nan)
    seen = jnp.zeros((64, 3, 3, 6), bool).at[1, :2, 1:].set(True)
    params = jax.jit(layer.init)(jax.random.key(0), x)
    np.testing.assert_array_equal(jnp.isnan(jax.jit(layer.apply)(params, x)), seen)


@pytest.mark.sample(1)
@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_layer_is_interchangeable_with_flax(padding, pool):
    class Ours(nn.Module):
        @nn.compact
        def __call__(self, x):
            return Conv(4, 3, padding, pool)(x)

    class Theirs(nn.Module):
        @nn.compact
        def __call__(self, x):
            y = nn.Conv(4, (3, 3), padding=padding)(x)
            return nn.max_pool(y, (2, 2), (2, 2)) if pool else y

    x, _ = arrays(SHAPES[1])
    ours, theirs = (jax.jit(m.init)(jax.random.key(3), x) for m in (Ours(), Theirs()))
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    shifted = jax.tree.map(lambda a: a + 0.1, theirs)
    close(*(jax.jit(m.apply)(shifted, x) for m in (Ours(), Theirs())))


@pytest.mark.sample(1)
@pytest.mark.parametrize("form", ["auto", "pooled", "grouped", "patches", "banded", "looped"])
@pytest.mark.parametrize(("size", "k", "padding"), [((9, 8), 5, "VALID"), ((7, 6), 3, "SAME"), ((6, 7), 2, "SAME")])
def test_pooled_layer(size, k, padding, form):
    # A black image ties in every window: the gradient goes to the first place, as in max_pool.
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, *size, 2)), jnp.float32).at[0, 0].set(0.0)
    layer = Conv(4, k, padding, pool=True, form=form, relu=True)
    params = jax.jit(layer.init)(jax.random.key(0), x[0])
    params = jax.tree.map(lambda a: jnp.stack([a, 0.5 - a]), params)

    def theirs(p, a):
        return nn.relu(max_pool(reference(a, p["params"]["kernel"], padding)) + p["params"]["bias"])

    def both_of(apply):
        of_one = lambda p, a: (apply(p, a), jax.grad(lambda *i: jnp.sum(jnp.sin(apply(*i))), argnums=(0, 1))(p, a))
        return jax.jit(jax.vmap(of_one))(params, x)

    close(both_of(layer.apply), both_of(theirs))
    unknown = jax.jit(layer.apply)(jax.tree.map(lambda a: a[0], params), x[0] * jnp.nan)
    assert jnp.isnan(unknown).all()


@pytest.mark.parametrize(
    ("x", "kernel", "padding", "message"),
    [
        ((1, 8, 8, 1), (3, 3, 1, 2), "same", "padding='same'"),
        ((8, 8, 1), (3, 3, 1, 2), "SAME", r"x\.shape=\(8, 8, 1\)"),
        ((1, 8, 8, 1), (3, 3, 2, 2), "SAME", r"kernel\.shape=\(3, 3, 2, 2\)"),
        ((1, 8, 8, 1), (3, 5, 1, 2), "SAME", r"kernel\.shape=\(3, 5, 1, 2\)"),
        ((1, 4, 8, 1), (5, 5, 1, 2), "VALID", r"at least the kernel's 5"),
    ],
)
def test_wrong_arguments(x, kernel, padding, message):
    with pytest.raises(ValueError, match=message):
        conv2d(jnp.zeros(x), jnp.zeros(kernel), padding)


def test_unknown_form():
    with pytest.raises(ValueError, match="form='fft'"):
        conv2d(jnp.zeros((1, 8, 8, 1)), jnp.zeros((3, 3, 1, 2)), form="fft")


def test_too_small_to_pool():
    with pytest.raises(ValueError, match=r"x\.shape=\(1, 1, 4, 2\)"):
        max_pool(jnp.zeros((1, 1, 4, 2)))
