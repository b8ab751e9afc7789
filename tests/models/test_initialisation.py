"""Every parameter of every model against the formula of its initialisation, and PyTorch where it is installed."""

import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from scipy import stats
from tiny import SYNTHETIC, TINY

import fedjax_drag as fd
from fedjax_drag import models
from fedjax_drag.experiment.build.experiment import load_experiment
from fedjax_drag.experiment.run.run import execute, plan, run
from fedjax_drag.experiment.sweep.sweep import sweep
from fedjax_drag.models.initialisation import INITS
from fedjax_drag.simulation import prepare

DRAWS = 60
"""Initial models that are put together, so that small parameters have enough entries for a test."""

LEVEL = 1e-4
"""Of a test of a distribution; the smallest of a hundred p-values is some 0.01."""

BUILDERS = {
    "mlp": functools.partial(models.mlp, 10, hidden=(16, 8)),
    "cnn": functools.partial(models.cnn, 10, "small"),
    "lenet": functools.partial(models.lenet, 10),
    "lstm": functools.partial(models.lstm, 11, embedding=6, hidden=5),
    "resnet18": functools.partial(models.resnet18, 10, width=4, groups=2),
    "resnet18 batch": functools.partial(models.resnet18, 10, width=4, norm="batch"),
}
LONGER = {"lenet": [pytest.mark.thorough], "resnet18": [pytest.mark.slow], "resnet18 batch": [pytest.mark.thorough]}
NAMES = [pytest.param(name, marks=LONGER.get(name, [])) for name in BUILDERS]
CASES = [
    pytest.param(name, init, marks=LONGER.get(name, []))
    for name in BUILDERS
    for init in ("torch", "normal")
    if (name, init) != ("lstm", "normal")
]
TOKENS, IMAGES = jax.ShapeDtypeStruct((1, 4), jnp.int32), jax.ShapeDtypeStruct((1, 16, 16, 3), jnp.float32)


@functools.cache
def drawn(name, init):
    """Parameters of several initial models, by path, stacked."""
    model, x = BUILDERS[name](init=init), TOKENS if name == "lstm" else IMAGES
    return stacked(lambda key: model.lazy_init(key, x)["params"])


def stacked(init):
    keys = jax.vmap(jax.random.key)(np.arange(DRAWS))
    draws = jax.vmap(lambda key: flatten_dict(init(key)))(keys)  # by small programs that all models share
    return {path: np.asarray(draw, np.float64) for path, draw in draws.items()}


def formula(init, path, params):
    """A parameter's distribution by its docstring; a number for a constant."""
    layer = {name: params[*path[:-1], name].shape[1:] for *rest, name in params if tuple(rest) == path[:-1]}
    kind, kernel = path[-1], layer.get("kernel", ())
    if "scale" in layer:
        return {"scale": 1.0, "bias": 0.0}[kind]
    if init == "normal":
        return {"kernel": stats.norm(0, 0.1), "bias": 0.1}[kind]
    if kind == "embedding":
        return stats.norm(0, 1)
    recurrent = layer.get("recurrent_kernel")
    bound = 1 / np.sqrt(recurrent[0] if recurrent else np.prod(kernel[:-1]))
    if recurrent and kind == "bias":
        return stats.triang(0.5, -2 * bound, 4 * bound)
    return stats.uniform(-bound, 2 * bound)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("name", "init"), CASES)
def test_every_parameter_has_the_distribution_of_the_formula(name, init):
    params = drawn(name, init)
    for path, leaf in params.items():
        expected = formula(init, path, params)
        if isinstance(expected, float):
            np.testing.assert_array_equal(leaf, np.float32(expected), err_msg=str(path))
            continue
        low, high = np.float32(expected.support())
        assert np.all((low <= leaf) & (leaf <= high)), path
        assert stats.kstest(leaf.ravel(), expected.cdf).pvalue > LEVEL, path
        assert abs(leaf.mean()) < 5 * expected.std() / np.sqrt(leaf.size), path
        assert len(np.unique(leaf[0])) > 0.99 * leaf[0].size, path
    shapes = lambda found: {path: leaf.shape for path, leaf in found.items()}
    assert shapes(params) == shapes(drawn(name, "flax"))


def begin(path, hidden):
    """Initialiser of a parameter before there was a choice."""
    initial = nn.initializers
    if path[-1] == "recurrent_kernel":
        square = lambda keys: [initial.orthogonal()(key, (hidden, hidden)) for key in keys]
        return lambda key, shape: jnp.concatenate(square(jax.random.split(key, 4)), 1)
    if path[-2].startswith("LSTMLayer") and path[-1] == "bias":
        return lambda key, shape: jnp.repeat(jnp.array([0.0, 1.0, 0.0, 0.0]), hidden)
    return {
        "kernel": initial.he_normal() if path[-2].startswith("_Conv") else initial.lecun_normal(),
        "embedding": initial.variance_scaling(1.0, "fan_in", "normal", out_axis=0),
        "scale": initial.ones,
        "bias": initial.zeros,
    }[path[-1]]


class Bare(nn.Module):
    """Parameters by path, without layers; Flax draws each by a key of its path and of its place in the layer."""

    shapes: tuple
    above: tuple = ()

    @nn.compact
    def __call__(self):
        order = ("kernel", "recurrent_kernel", "scale", "bias", "embedding")
        for name in sorted({path[0] for path, _ in self.shapes}, key=lambda n: order.index(n) if n in order else 0):
            inner = tuple((path[1:], shape) for path, shape in self.shapes if path[0] == name)
            if inner[0][0]:
                Bare(inner, (*self.above, name), name=name)()
            else:
                self.param(name, begin((*self.above, name), 5), inner[0][1])


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", NAMES)
def test_flax_is_the_default_and_gives_the_bits_that_it_gave(name):
    """Against the initialisers that were written in the layers before there was a choice."""
    assert BUILDERS[name]() == BUILDERS[name](init="flax")
    params = drawn(name, "flax")
    shapes = tuple((path, leaf.shape[1:]) for path, leaf in params.items())
    chex.assert_trees_all_equal(stacked(lambda key: Bare(shapes).init(key)["params"]), params)


def counterpart(torch, layer):
    """A layer of PyTorch's own, of the shapes of one here, as the same parameters."""
    by_numpy = lambda tensor: tensor.detach().numpy().astype(np.float64)
    if "scale" in layer:
        made = torch.nn.GroupNorm(1, layer["scale"][0])
        return {"scale": by_numpy(made.weight), "bias": by_numpy(made.bias)}
    if "embedding" in layer:
        return {"embedding": by_numpy(torch.nn.Embedding(*layer["embedding"]).weight)}
    inputs, outputs = layer["kernel"][-2:]
    if "recurrent_kernel" in layer:
        made = torch.nn.LSTM(inputs, outputs // 4)
        biases = made.bias_ih_l0 + made.bias_hh_l0
        return {
            "kernel": by_numpy(made.weight_ih_l0),
            "recurrent_kernel": by_numpy(made.weight_hh_l0),
            "bias": by_numpy(biases),
        }
    size = layer["kernel"][:-2]
    made = torch.nn.Conv2d(inputs, outputs, size) if size else torch.nn.Linear(inputs, outputs)
    return {"kernel": by_numpy(made.weight)} | ({"bias": by_numpy(made.bias)} if "bias" in layer else {})


@pytest.mark.parametrize("name", NAMES)
def test_torch_is_what_pytorch_draws(name):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    torch.manual_seed(0)
    layers = {}
    for path, leaf in drawn(name, "torch").items():
        layers.setdefault(path[:-1], {})[path[-1]] = leaf
    for path, ours in layers.items():
        shapes = {part: leaf.shape[1:] for part, leaf in ours.items()}
        theirs = [counterpart(torch, shapes) for _ in range(DRAWS)]
        for part, leaf in ours.items():
            other = np.concatenate([draw[part].ravel() for draw in theirs])
            if part == "scale" or (part == "bias" and "scale" in shapes):
                np.testing.assert_array_equal(other, leaf.ravel())
            else:
                assert leaf.size == other.size
                assert stats.ks_2samp(leaf.ravel(), other, method="asymp").pvalue > LEVEL, (path, part)


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("wrong", ["tocrh", None, ["torch"]])
def test_a_bad_name_is_one_line(name, wrong):
    allowed = "flax, torch" if name == "lstm" else ", ".join(INITS)
    with pytest.raises(ValueError, match=r"^init=.*: must be one of") as error:
        BUILDERS[name](init=wrong)
    hint = "; did you mean 'torch'?" if wrong == "tocrh" else ""
    assert str(error.value).startswith(f"init={wrong!r}: must be one of {allowed}{hint}")
    assert "\n" not in str(error.value)


def test_normal_is_refused_for_an_lstm():
    with pytest.raises(ValueError, match=r"^init='normal': must be one of flax, torch$"):
        models.lstm(init="normal")


def configured(init):
    return TINY | SYNTHETIC | {"rounds": 2, "model": {"name": "mlp", "hidden": [4], "init": init}}


@pytest.mark.thorough
def test_a_configuration_names_it(tmp_path):
    with plan(load_experiment(configured("normal")), out=tmp_path / "run") as planned:
        (job,) = planned.jobs
        params = job.simulation.initial_state().params
        np.testing.assert_array_equal(params["Dense_0"]["bias"], np.full(4, 0.1, np.float32))
        result = execute(planned)[job.label]
    assert np.all(np.isfinite(result.history["test_loss"]))
    assert job.config.model.arguments["init"] == "normal"
    with pytest.raises(ValueError, match=r"^model\.init='xavier': must be one of flax, torch, normal$"):
        run(configured("xavier"))


@pytest.mark.thorough
def test_a_sweep_goes_over_it(tmp_path):
    swept = sweep(configured("flax") | {"axes": {"model.init": list(INITS)}}, out=tmp_path / "sweep")
    assert [cell.status for cell in swept.cells] == ["done"] * len(INITS), [cell.message for cell in swept.cells]
    losses = [cell.history["test_loss"] for cell in swept.cells]
    assert len({tuple(loss) for loss in losses}) == len(INITS)


@pytest.fixture(scope="module")
def federation():
    data = fd.data.synthetic(num_examples=60, num_test_examples=20, dim=8)
    return fd.data.partition.iid(data, num_clients=6, seed=0)


@pytest.mark.thorough
def test_a_model_that_begins_differently_is_the_same_from_the_same_parameters(federation):
    settings = {"data": federation, "num_rounds": 1, "cohort_size": 2, "local_steps": 1, "batch_size": 4}

    def arguments(init, **changes):
        fixed = {"step_size": 0.1, "time_clients": False, "model": models.mlp(10, hidden=(4,), init=init)}
        return settings | fixed | changes

    rule = fd.aggregators.fedavg()
    begun = {init: prepare(rule, **arguments(init)).initial_state().params for init in ("flax", "torch")}
    assert not np.array_equal(begun["flax"]["Dense_0"]["kernel"], begun["torch"]["Dense_0"]["kernel"])
    result = fd.simulate(rule, **arguments("torch"))
    same = fd.simulate(rule, **arguments("flax", initial_params=begun["torch"]))
    chex.assert_trees_all_equal(same.params, result.params)
