"""Networks as they are published, with their dropout and BatchNorm, under one rule of every kind."""

import jax
import numpy as np
import pytest
from flax import linen, nnx
from nets import NNX, apply, init

import fedjax_drag as fd

ATTACKED = {"attack": fd.attacks.sign_flip(), "byzantine_fraction": 0.25, "root_size": 16}
METHODS = {
    "fedavg": (fd.aggregators.fedavg(), {}),
    "scaffold": (fd.algorithms.scaffold(8), {}),
    "drag": (fd.aggregators.drag(c=0.25, alpha=0.25), {}),
    "krum": (fd.aggregators.krum(num_byzantine=1), ATTACKED),
    "br_drag": (fd.aggregators.br_drag(c=0.5), ATTACKED),
}


def federation(shape):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, 200)
    x = (rng.normal(0, 40, (200, *shape)) + 20 * y.reshape(-1, 1, 1, 1)).clip(0, 255).astype(np.uint8)
    return fd.data.partition.iid(fd.data.from_arrays(x[:160], y[:160], x[160:], y[160:]), num_clients=8)


MODELS = {
    "pfl-research": (lambda: fd.models.cnn(10, "pooled_once", dropout=(0.25, 0.5)), (32, 32, 3), 3),
    "resnet18": (lambda: fd.models.resnet18(10, width=8, norm="batch"), (32, 32, 3), 1),
    "nnx": (lambda: NNX(nnx.Rngs(0)), (8, 8, 1), 3),
    "pair": (lambda: (init, apply), (8, 8, 1), 3),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", MODELS)
def test_every_form_of_model_trains_under_every_kind_of_rule(model, method):
    make, shape, rounds = MODELS[model]
    rule, options = METHODS[method]
    length = {"num_rounds": rounds, "eval_every": rounds, "cohort_size": 4, "local_steps": 2, "batch_size": 8}
    result = fd.simulate(rule, model=make(), data=federation(shape), step_size=0.05, **length, **options)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((result.params, result.state.model)))
    assert np.isfinite(result.history["test_loss"]).all()


def test_the_network_of_bucketing_is_linear_before_its_pooling_and_drops_channels():
    """Beside ``pooled_once``, which has a ReLU there: where all inputs of the pooling are negative they differ."""
    x = np.random.default_rng(0).normal(size=(4, 8, 8, 1)).astype(np.float32)
    linear, rectified = (fd.models.cnn(10, name, dropout=(0.5, 0.0)) for name in ("bucketing", "pooled_once"))
    params = rectified.init(jax.random.key(0), x)
    params["params"]["Conv_1"]["bias"] -= 100.0  # below any activation
    hidden = lambda model, **train: model.apply(
        params,
        x,
        capture_intermediates=lambda module, _: isinstance(module, linen.Dropout),
        mutable=["intermediates"],
        **train,
    )[1]["intermediates"]["Dropout_0"]["__call__"][0]
    assert (hidden(rectified) == 0).all()
    assert (hidden(linear) < -50).all()
    dropped = hidden(linear, train=True, rngs={"dropout": jax.random.key(1)}) == 0
    assert (dropped == dropped[:, :1, :1]).all()
    assert 0.2 < dropped.mean() < 0.8


def test_the_network_of_pfl_research_has_its_parameters():
    model = fd.models.cnn(10, "pooled_once", dropout=(0.25, 0.5))
    shapes = jax.eval_shape(model.init, jax.random.key(0), np.zeros((1, 32, 32, 3), np.float32))["params"]
    assert sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) == 1_626_442
    with pytest.raises(ValueError, match=r"dropout=0.5: must be two rates"):
        fd.models.cnn(10, dropout=0.5)
    with pytest.raises(ValueError, match=r"dropout\[1\]=1.5"):
        fd.models.cnn(10, dropout=(0.1, 1.5))
