"""Parameters that a run is given to start from: as a pytree, in a file, of a checkpoint."""

import importlib.util
import json
import sys

import chex
import flax.linen as nn
import jax
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict
from tiny import SYNTHETIC, TINY

import fedjax_drag as fd
from fedjax_drag.experiment.run.checkpoints import Checkpoints, load_params
from fedjax_drag.files import sha256
from fedjax_drag.simulation import prepare
from fedjax_drag.simulation.model.initial_params import Start, given, located
from fedjax_drag.simulation.model.model import ModelState
from fedjax_drag.simulation.run import RunState

KERNEL, BIAS = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([0.5, -0.5], np.float32)
PARAMS = {"Dense_0": {"kernel": KERNEL, "bias": BIAS}}
STATISTICS = {"batch_stats": {"BatchNorm_0": {"mean": np.ones(2, np.float32), "var": np.zeros(2, np.float32)}}}


def state(params=PARAMS, model=None):
    return RunState(params, {"metrics": {}}, np.int32(7), (), model or ModelState())


LIKE = jax.eval_shape(state)


def save(folder, kept):
    Checkpoints(folder).save(3, jax.tree.map(np.zeros_like, kept), 0.9)
    Checkpoints(folder).save(7, kept, 0.1)


@pytest.mark.parametrize("separator", ["/", "."])
def test_a_safetensors_file_and_a_pytree_are_the_same_start(tmp_path, separator):
    numpy = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "start.safetensors"
    flat = flatten_dict(PARAMS, sep=separator)
    numpy.save_file({name: leaf.astype(np.float64) for name, leaf in flat.items()}, path)
    for value in (path, str(path), PARAMS, {"params": PARAMS}):
        chex.assert_trees_all_equal(given(value, LIKE).params, PARAMS, strict=True)
    assert given(None, LIKE) is None


def test_a_checkpoint_gives_parameters_and_statistics(tmp_path):
    whole = state(model=ModelState((), STATISTICS))
    save(tmp_path, whole)
    for path, zeros in ((tmp_path, False), (tmp_path / "checkpoints" / "7", False), (tmp_path / "checkpoints/3", True)):
        found = given(path, jax.eval_shape(lambda: whole))
        wanted = (PARAMS, STATISTICS)
        chex.assert_trees_all_equal(
            (found.params, found.statistics), jax.tree.map(np.zeros_like, wanted) if zeros else wanted, strict=True
        )
    assert located(tmp_path) == tmp_path / "checkpoints" / "7"
    before = sha256(located(tmp_path))
    (next((tmp_path / "checkpoints" / "7").rglob("*METADATA"))).write_text("{}")
    assert sha256(located(tmp_path)) != before


def test_parameters_may_be_a_single_array(tmp_path):
    whole = state(params=KERNEL)
    save(tmp_path, whole)
    np.testing.assert_array_equal(load_params(tmp_path), KERNEL)
    for value in (tmp_path, KERNEL, {"params": KERNEL}):
        np.testing.assert_array_equal(given(value, jax.eval_shape(lambda: whole)).params, KERNEL)


def test_statistics_and_frozen_parameters_are_found_by_name():
    frozen = {"Dense_0": {"kernel": KERNEL, "bias": None}}
    like = jax.eval_shape(lambda: state({"Dense_0": {"kernel": None, "bias": BIAS}}, ModelState(frozen, STATISTICS)))
    start = given({"params": PARAMS, **STATISTICS}, like)
    wanted = Start({"Dense_0": {"kernel": None, "bias": BIAS}}, frozen, STATISTICS)
    chex.assert_trees_all_equal(start, wanted, strict=True)
    assert given(PARAMS, like).statistics is None, "those that the model begins with"
    with pytest.raises(ValueError, match="initial_params: has no batch_stats/BatchNorm_0/var; the model has it"):
        given({"params": PARAMS, "batch_stats": {"BatchNorm_0": {"mean": BIAS}}}, like)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kernel": KERNEL}, r"has no Dense_0/bias; the model has it with shape \(2,\); there are Dense_0/kernel"),
        ({"kernel": KERNEL.T, "bias": BIAS}, r"Dense_0/kernel with shape \(2, 3\): must be \(3, 2\), as in the model"),
        ({"kernel": KERNEL, "bias": BIAS, "scale": BIAS}, "has Dense_0/scale, which the model has not; there are "),
        ({"kernel": KERNEL > 0, "bias": BIAS}, "Dense_0/kernel of type bool: must be real numbers"),
    ],
    ids=["missing", "shape", "too many", "type"],
)
def test_the_first_leaf_that_differs_is_named(changed, message):
    with pytest.raises(ValueError, match=f"^initial_params: {message}") as caught:
        given({"Dense_0": changed}, LIKE)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_read_is_one_line(refused, tmp_path, monkeypatch, fedavg):
    (tmp_path / "start.safetensors").write_bytes(b"no such thing")
    (tmp_path / "run").mkdir()
    save(tmp_path / "run", state())
    broken = next((tmp_path / "run/checkpoints/7").rglob("d/*"))
    broken.write_bytes(b"\0" * 64)
    cases = [
        (tmp_path / "none", "no such file or folder in "),
        (tmp_path, "a folder without a checkpoint; must be a results folder or one of its checkpoints"),
        (tmp_path / "run", "checkpoint 7 "),
    ]
    if importlib.util.find_spec("safetensors"):
        cases.append((tmp_path / "start.safetensors", "must be a safetensors file, a results folder or one of its"))
    for path, message in cases:
        with pytest.raises(ValueError, match=rf"^initial_params='.*': {message}") as caught:
            given(path, LIKE)
        assert "\n" not in str(caught.value)
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(ValueError, match=r"needs safetensors; pip install 'fedjax-drag\[safetensors\]'$"):
        given(tmp_path / "start.safetensors", LIKE)
    refused(r"^initial_params=3: must be a pytree of arrays like the model's parameters", fedavg, initial_params=3)


@pytest.mark.thorough
def test_runs_from_two_starts_share_their_programs_and_not_their_starts(settings, fedavg):
    short = settings(num_rounds=1, eval_every=1, local_steps=1)
    drawn = prepare(fedavg, **short)
    starts = [jax.tree.map(lambda x, by=by: np.full(x.shape, by, x.dtype), drawn.shapes.params) for by in (0.1, 0.2)]
    assert drawn.run().history["round"].tolist() == [1]
    for start in starts:
        simulation = prepare(fedavg, **short, initial_params=start)
        chex.assert_trees_all_equal(simulation.initial_state().params, start)
        replaced = drawn.initial_state()._replace(params=start)
        chex.assert_trees_all_equal(simulation.run().state, drawn.run(initial=replaced).state)
        chex.assert_trees_all_equal(simulation.initial_state().params, start)


@pytest.mark.thorough
def test_a_method_s_first_state_sees_the_parameters_that_are_given(settings):
    method = fd.algorithms.adabest(12)
    start = jax.tree.map(lambda x: np.full(x.shape, 0.1, x.dtype), prepare(method, **settings()).shapes.params)
    first = prepare(method, **settings(initial_params=start)).initial_state()
    chex.assert_trees_all_equal(first.algorithm, method.init(start))


class Dotted(nn.Module):
    """A model with a dot in a name that is also the beginning of another."""

    @nn.compact
    def __call__(self, x):
        x = x.reshape(len(x), -1)
        return nn.Dense(10, name="head")(x) + nn.Dense(10, name="head.extra")(x)


@pytest.mark.thorough
def test_a_checkpoint_of_names_with_dots(tmp_path):
    config = TINY | SYNTHETIC | {"model": Dotted()}
    first = fd.run(config, out=tmp_path / "first", quiet=True)
    chex.assert_trees_all_equal(load_params(tmp_path / "first"), first.params)
    again = fd.run(config | {"initial_params": str(tmp_path / "first"), "step_size": 1e-9}, quiet=True)
    chex.assert_trees_all_close(again.params, first.params, atol=1e-6)


def test_two_names_that_are_one_with_slashes_for_dots(settings, fedavg):
    def init(key):
        return {"a.b": jax.random.normal(key, (64, 10)), "a": {"b": jax.numpy.zeros((64, 10))}}

    def apply(params, x):
        return x.reshape(len(x), -1) @ (params["a.b"] + params["a"]["b"])

    given = settings(model=(init, apply), initial_params=init(jax.random.key(0)))
    with pytest.raises(ValueError, match=r"^initial_params: has a/b twice, where a dot in a name counts as /"):
        prepare(fedavg, **given)


class Normalised(nn.Module):
    """A frozen backbone with statistics, and a head."""

    @nn.compact
    def __call__(self, x, train=False):
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(4, name="backbone")(x.reshape(len(x), -1)))
        return nn.Dense(10, name="head")(x)


@pytest.mark.thorough
def test_identical_runs_may_start_with_and_without_statistics(settings, fedavg, digits):
    variables = Normalised().init(jax.random.key(5), np.zeros((1, *digits.input_shape), np.float32))
    changed = jax.tree.map(lambda x: np.asarray(x) + 0.25, variables["batch_stats"])
    prepare(fedavg, **settings(model=Normalised(), initial_params=variables["params"])).run()
    again = prepare(fedavg, **settings(model=Normalised(), initial_params={**variables, "batch_stats": changed}))
    chex.assert_trees_all_equal(again.initial_state().model.statistics["batch_stats"], changed)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "changes",
    [{}, pytest.param({"client_state": "host"}, marks=pytest.mark.slow), {"mesh": "cores"}],
    ids=["one device", "host", "mesh"],
)
def test_frozen_parameters_and_statistics_start_where_they_are_given(settings, digits, changes):
    example = np.zeros((1, *digits.input_shape), np.float32)
    variables = Normalised().init(jax.random.key(5), example)
    variables = jax.tree.map(lambda x: np.asarray(x) + 0.25, variables)
    more = {"model": Normalised(), "trainable": "head", "cohort_size": 4, "initial_params": variables}
    optimizer = {"local_optimizer": optax.trace(0.9), "local_optimizer_state": "keep"}
    simulation = prepare(fd.aggregators.fedavg(), **settings(**more, **optimizer, **changes))
    first = simulation.initial_state()
    assert first.params["backbone"]["kernel"] is None or "backbone" not in first.params
    chex.assert_trees_all_equal(first.params["head"], variables["params"]["head"])
    chex.assert_trees_all_equal(first.model.frozen["backbone"], variables["params"]["backbone"])
    chex.assert_trees_all_equal(first.model.statistics["batch_stats"], variables["batch_stats"])
    end = simulation.run().state
    chex.assert_trees_all_equal(end.model.frozen["backbone"], variables["params"]["backbone"])
    assert not np.allclose(end.params["head"]["kernel"], variables["params"]["head"]["kernel"])


@pytest.mark.slow
@pytest.mark.optimised
def test_a_configuration_names_a_results_folder_and_its_own_folder_has_the_checksum(tmp_path):
    config = TINY | SYNTHETIC
    fd.run(config, out=tmp_path / "first", quiet=True)
    second = fd.run(
        config | {"initial_params": str(tmp_path / "first"), "seed": 1}, out=tmp_path / "second", quiet=True
    )
    last = tmp_path / "first" / "checkpoints" / "6"
    stored = json.loads((tmp_path / "second" / "environment.json").read_text())
    assert stored["initial_params"] == {str(last): sha256(last)}
    assert "initial_params" not in json.loads((tmp_path / "first" / "environment.json").read_text())
    fd.run(config | {"initial_params": str(last), "seed": 1, "rounds": 3}, out=tmp_path / "half", quiet=True)
    more = config | {"initial_params": str(last), "seed": 1}
    resumed = fd.run(more, out=tmp_path / "half", resume=True, quiet=True)
    chex.assert_trees_all_equal(resumed.params, second.params)
    (last / "note").write_text("another")
    with pytest.warns(UserWarning, match="6 has changed since the run in"):
        fd.run(more | {"rounds": 7}, out=tmp_path / "half", resume=True, quiet=True)
