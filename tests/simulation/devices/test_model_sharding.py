"""Models divided among devices: which axis of which parameter, and the results of one device, to rounding."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P
from model_axis_worker import ALONE, RUNS

import fedjax_drag as fd
from fedjax_drag.accelerators import counts
from fedjax_drag.experiment.build.experiment import load_experiment
from fedjax_drag.per_client import PerClient
from fedjax_drag.simulation.devices.model_sharding import SMALLEST, divides_model, spec_of, specs_of, split_among

MESH: Mesh = AbstractMesh((2, 4), ("clients", "model"))  # pyright: ignore[reportAssignmentType]


def shape(*lengths):
    return jax.ShapeDtypeStruct(lengths, np.float32)


PARAMS = {"Dense_0": {"kernel": shape(64, 12), "bias": shape(12)}, "big": shape(8, SMALLEST // 8), "odd": shape(3, 3)}


def specs(*rules, params=PARAMS):
    return {one.path: one.spec for one in specs_of(rules, params, MESH)}


def test_the_first_rule_that_matches_counts_and_large_parameters_are_divided_without_one():
    found = specs(("kernel$", P("model")), ("Dense", [None]), ("kernel", P(None, "model")))
    assert found == {
        "Dense_0/kernel": ("model", None),
        "Dense_0/bias": (None,),
        "big": (None, ("model",)),
        "odd": (None, None),
    }
    assert specs((".", P()))["big"] == (None, None)


def test_of_equal_axes_the_last_is_divided_and_one_that_does_not_divide_never():
    tall = {"w": shape(256, 256), "v": shape(2**15 + 1, 8)}
    assert specs(params=tall) == {"w": (None, ("model",)), "v": (None, ("model",))}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (["tensor"], r"\['tensor'\] of 'kernel' for Dense_0/kernel \[64, 12\]: must name axes of model"),
        (["clients"], "must name axes of model, each once"),
        (["model", "model"], "must name axes of model, each once"),
        ([None, None, "model"], "must have at most 2 entries"),
    ],
)
def test_a_spec_that_does_not_fit(spec, message):
    with pytest.raises(ValueError, match=message):
        specs(("kernel", spec))


def test_a_spec_must_divide_its_axes():
    with pytest.raises(ValueError, match=r"for odd \[3, 3\]: must divide each axis; 3 is no multiple of 4 devices"):
        specs(("odd", ["model"]))


def test_what_is_like_a_parameter_is_divided_like_it():
    state = {
        "optimizer": jax.eval_shape(optax.adam(0.1).init, PARAMS),
        "rows": PerClient({"Dense_0": {"kernel": shape(10, 64, 12)}}),
        "other": {"kernel": shape(64, 12)},
        "small": {"Dense_0": {"kernel": shape(64)}},
    }
    known = specs_of([("kernel", P("model", None))], PARAMS, MESH)
    found = {
        jax.tree_util.keystr(path, simple=True, separator="/"): spec_of(path, leaf.shape, known)
        for path, leaf in jax.tree.leaves_with_path(state)
    }
    assert found["optimizer/0/mu/Dense_0/kernel"] == ["model", None]
    assert found["rows/rows/Dense_0/kernel"] == [None, "model", None]
    assert found["other/kernel"] is found["small/Dense_0/kernel"] is found["optimizer/0/count"] is None


def test_rules_by_coordinate_are_split_over_both_axes():
    assert split_among([None, None, "model"], (5, 4, 8), MESH) == [None, ("clients",), "model"]
    assert split_among([None, None, "model"], (5, 3, 8), MESH) == [None, None, ("model", "clients")]
    assert split_among([None, None, "model"], (5, 3, 4), MESH) == [None, None, "model"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mesh": {"clients": 2, "model": 4}}, "is for 8 devices, and there are 2"),
        ({"mesh": {"model": 2}}, "must be one of auto, cores, all, None, sizes of axes such as {clients: 2"),
        ({"mesh": {"clients": 1, "model": 0}}, r"mesh\.model=0: must be"),
        ({"mesh": {"clients": 2, "model": 1}, "cohort_size": 5}, "cohort_size=5: must be a multiple of the 2 devices"),
        ({"sharding_rules": []}, "need an axis beside that of the clients"),
        ({"sharding_rules": [("kernel", "model")]}, "spec 'model' of 'kernel': must be a list"),
        ({"sharding_rules": [("(", P())]}, "must be a regular expression"),
        ({"sharding_rules": "kernel"}, "must be a list of pairs of a pattern and a spec"),
        ({"mesh": {"clients": 1, "model": 2}, "time_clients": True}, "needs a model that one device holds"),
        (
            {"mesh": {"clients": 1, "model": 2}, "sharding_rules": [["kernel", ["tensor"]]]},
            "must name axes of model, each once",
        ),
    ],
)
def test_a_mesh_or_rules_that_do_not_fit(refused, fedavg, changes, message):
    refused(message, fedavg, **changes)


def test_a_configuration_has_sizes_of_axes_and_lists(tiny):
    rules = [["kernel", ["model", None]]]
    config = load_experiment(tiny | {"sharding_rules": rules}, ["mesh={clients: 1, model: 2}"]).runs["tiny"]
    assert (config.mesh, config.sharding_rules) == ({"clients": 1, "model": 2}, rules)


def test_which_meshes_divide_the_model():
    """Cells of a sweep with such a mesh run one by one."""
    assert divides_model({"clients": 1, "model": 2})
    assert divides_model(MESH)
    assert not any(map(divides_model, ({"clients": 2}, Mesh(jax.devices(), ("clients",)), "all", None)))


RULES = [("kernel", P("model", None))]


def on_two(settings):
    """A run in which two devices divide each client's model."""
    return settings(mesh=jax.make_mesh((1, 2), ("clients", "model")), sharding_rules=RULES)


def test_two_devices_divide_the_model(settings):
    rule = fd.aggregators.drag()
    one, two = fd.simulate(rule, **settings(mesh=None)), fd.simulate(rule, **on_two(settings))
    for a, b in zip(jax.tree.leaves(one.state), jax.tree.leaves(two.state), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    for kernel in (two.params["Dense_0"]["kernel"], two.state.algorithm.reference["Dense_0"]["kernel"]):
        assert {shard.data.shape for shard in kernel.addressable_shards} == {(32, 10)}


@pytest.mark.thorough
def test_continued_with_a_divided_model_equals_uninterrupted(settings):
    asked, rule = on_two(settings), fd.aggregators.drag()
    half, whole = fd.simulate(rule, **asked | {"num_rounds": 3}), fd.simulate(rule, **asked)
    stored = jax.device_get(half.state)
    for initial in (half.state, stored):
        resumed = fd.simulate(rule, initial=initial, **asked)
        assert all(jax.tree.leaves(jax.tree.map(np.array_equal, resumed.state, whole.state)))
    assert {shard.data.shape for shard in resumed.params["Dense_0"]["kernel"].addressable_shards} == {(32, 10)}


def test_no_device_has_the_whole_model(settings):
    program = fd.simulation.prepare(fd.aggregators.drag(), **on_two(settings)).lowered.advance.compile().as_text()
    assert "[32,10]" in program
    assert "[64,10]" not in program


@pytest.mark.thorough
@pytest.mark.parametrize("scan_layers", [False, True])
def test_devices_add_up_what_leaves_a_block_and_gather_nothing(scan_layers):
    """So large that positions would be divided without a rule."""
    options = {"layers": 1, "heads": 2, "width": 64, "max_length": 1024, "scan_layers": scan_layers}
    texts, y = np.zeros((16, 8), np.int32), np.arange(16) % 8
    lowered = fd.simulation.lower(
        fd.aggregators.fedavg(),
        devices=jax.devices()[:2],
        mesh={"clients": 1, "model": 2},
        model=fd.models.transformer(8, **options),
        data=fd.data.partition.iid(fd.data.from_arrays(texts, y, texts, y), num_clients=2),
        num_rounds=1,
        cohort_size=2,
        local_steps=1,
        batch_size=4,
        step_size=0.1,
    )
    exchanged = counts.work_of(lowered.programs.advance.compile().as_text() or "").collectives
    assert exchanged.keys() == {"all-reduce"}


@pytest.fixture(scope="module")
def eight_devices(tmp_path_factory):
    """The differences that ``model_axis_worker.py`` found on 2 x 4 devices, by case."""
    folder = tmp_path_factory.mktemp("model")
    worker = Path(__file__).with_name("model_axis_worker.py")
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, worker, folder], check=True, env=environment)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", [*RUNS, *ALONE])
def test_two_by_four_devices_give_the_results_of_one(eight_devices, name):
    with np.load(eight_devices / f"{name}.npz") as found:
        number = len(found.files) // 2
        assert number
        for i in range(number):
            np.testing.assert_allclose(found[f"all-{i}"], found[f"one-{i}"], rtol=1e-5, atol=1e-6)
