import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_drag import models
from fedjax_drag.models.resnet import BasicBlock

CASES = [
    (models.mlp(10), (28, 28, 1), 397_510),
    (models.mlp(2, hidden=(32, 16, 8)), (108,), 108 * 32 + 32 + 32 * 16 + 16 + 16 * 8 + 8 + 8 * 2 + 2),
    (models.mlp(3, hidden=()), (4,), 15),
    (models.cnn(10), (28, 28, 1), 1_663_370),
    (models.cnn(10, variant="cifar10"), (32, 32, 3), 2_156_490),
    (models.cnn(100, variant="cifar100"), (32, 32, 3), 632_420),
    (models.cnn(10, variant="pooled_once"), (32, 32, 3), 1_626_442),
    (models.cnn(10, variant="bucketing"), (28, 28, 1), 1_199_882),
    (models.cnn(10, variant="pfllib"), (28, 28, 1), 582_026),
    (models.cnn(10, variant="mnist"), (28, 28, 1), 431_080),
    (models.cnn(10, variant="small"), (8, 8, 1), 3_658),
    (models.lenet(10), (28, 28, 1), 44_426),
    (models.lenet(10), (32, 32, 3), 62_006),
    (models.resnet18(10), (32, 32, 3), 11_173_962),
    (models.resnet18(100), (32, 32, 3), 11_220_132),
]

MODELS = {
    "cnn": models.cnn(2, "small"),
    "lenet": models.lenet(2),
    "mlp": models.mlp(2),
    "resnet18": models.resnet18(2, width=8, groups=4),
}


@pytest.mark.parametrize(("model", "input_shape", "count"), CASES)
def test_shapes_and_parameter_count(model, input_shape, count):
    x = jax.ShapeDtypeStruct((2, *input_shape), jnp.float32)
    variables = jax.eval_shape(model.init, jax.random.key(0), x)
    assert set(variables) == {"params"}
    assert sum(leaf.size for leaf in jax.tree.leaves(variables)) == count
    logits = jax.eval_shape(model.apply, variables, x)
    assert logits.shape == (2, model.num_classes)
    assert logits.dtype == jnp.float32


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(model, id=name, marks=(name in ("resnet18", "cnn")) * [pytest.mark.slow])
        for name, model in MODELS.items()
    ],
)
@pytest.mark.thorough
def test_a_few_steps_fit_a_batch(model):
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(8, 16, 16, 1)), jnp.float32)
    y = jnp.asarray(rng.integers(0, 2, 8))
    params = jax.jit(model.init)(jax.random.key(0), x)

    def loss(p):
        return -jnp.take_along_axis(jax.nn.log_softmax(model.apply(p, x)), y[:, None], 1).mean()

    @jax.jit
    def step(p):
        return jax.tree.map(lambda w, g: w - 0.1 * g, p, jax.grad(loss)(p))

    before = float(jax.jit(loss)(params))
    for _ in range(30):
        params = step(params)
    assert float(jax.jit(loss)(params)) < 0.5 * before


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (models.cnn(10), (1, 3, 8, 1)),
        (models.cnn(10, "cifar100"), (1, 7, 7, 3)),
        (models.cnn(10, "pooled_once"), (1, 5, 9, 3)),
        (models.cnn(10, "mnist"), (1, 15, 28, 1)),
        (models.lenet(10), (1, 15, 28, 1)),
        (models.lenet(10), (1, 784)),
        (models.resnet18(10), (1, 784)),
    ],
)
def test_too_small_inputs(model, shape):
    with pytest.raises(ValueError, match=r"^x\.shape=\(") as error:
        jax.eval_shape(model.init, jax.random.key(0), jax.ShapeDtypeStruct(shape, jnp.float32))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: models.mlp(0), "num_classes=0"),
        (lambda: models.mlp(10, hidden=500), "hidden=500"),
        (lambda: models.mlp(10, hidden=(5, 0)), r"hidden\[1\]=0"),
        (lambda: models.cnn(2.5), r"num_classes=2\.5"),
        (lambda: models.cnn(10, variant="emnits"), "variant='emnits'.*'emnist'"),
        (lambda: models.lenet(True), "num_classes=True"),
        (lambda: models.resnet18(10, width=48), "width=48: must be a multiple of groups=32"),
        (lambda: models.transformer(80, width=30), "heads=4: must divide width=30"),
        (lambda: models.transformer(80, size="gpt3"), "size='gpt3'"),
        (lambda: models.vit(10, patch=0), "patch=0"),
        (lambda: models.lora(models.mlp(10), rank=0), "rank=0"),
        (lambda: models.lora("mlp"), "model='mlp': must be a linen module"),
    ],
)
def test_wrong_arguments(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_builders_are_equal_when_their_arguments_are():
    assert models.cnn(10) == models.cnn(10, variant="emnist")
    assert hash(models.mlp(10, hidden=[500])) == hash(models.mlp(10))


@pytest.mark.slow
@pytest.mark.parametrize("side", [8, 7])
def test_a_basic_block_is_the_usual_one(side):
    """Against the block of Flax's own layers, which would pad an odd image at both ends: it is padded beforehand."""

    class Usual(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = jnp.pad(x, ((0, 0), (0, side % 2), (0, side % 2), (0, 0)))
            y = nn.relu(nn.GroupNorm(4)(nn.Conv(16, (3, 3), (2, 2), use_bias=False)(x)))
            y = nn.GroupNorm(4)(nn.Conv(16, (3, 3), use_bias=False)(y))
            return nn.relu(nn.GroupNorm(4)(nn.Conv(16, (1, 1), (2, 2), use_bias=False)(x)) + y)

    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, side, side, 8)), jnp.float32)
    block = BasicBlock(16, halve=True, groups=4)
    params = jax.jit(block.init)(jax.random.key(0), x)["params"]
    names = {"_Conv_0": "Conv_0", "_Conv_1": "Conv_1", "Dense_0": "Conv_2"}
    theirs = {names.get(name, name): dict(leaf) for name, leaf in params.items()}
    theirs["Conv_2"]["kernel"] = theirs["Conv_2"]["kernel"][None, None]

    def gradients(apply, params):
        return jax.jit(jax.value_and_grad(lambda p, x: (apply({"params": p}, x) ** 2).sum(), (0, 1)))(params, x)

    value, (own, own_x) = gradients(block.apply, params)
    expected, (usual, usual_x) = gradients(Usual().apply, theirs)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(own_x, usual_x, rtol=1e-4, atol=1e-4)
    for name, leaf in own.items():
        for part, found in leaf.items():
            np.testing.assert_allclose(
                found, usual[names.get(name, name)][part].reshape(found.shape), rtol=1e-4, atol=1e-3
            )


def test_fixed_dropout_takes_the_same_activations_in_every_step():
    x = np.random.default_rng(0).normal(size=(3, 28, 28, 1)).astype(np.float32)
    model = models.cnn(10, "bucketing", (0.25, 0.5), fixed_dropout=True)
    params = model.init(jax.random.key(0), x)
    trained = [model.apply(params, x, train=True, rngs={"dropout": jax.random.key(seed)}) for seed in (1, 2)]
    np.testing.assert_array_equal(*trained)
    assert not np.allclose(trained[0], model.apply(params, x))
