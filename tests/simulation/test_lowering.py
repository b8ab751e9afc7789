"""Programs lowered from shapes: those that a run compiles, for the platform that is asked for."""

import dataclasses
import gc

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from tiny import SYNTHETIC, TINY

import fedjax_drag as fd
from fedjax_drag.experiment.build import build
from fedjax_drag.experiment.build.experiment import load_experiment
from fedjax_drag.experiment.run.planning import Federations
from fedjax_drag.simulation.batch import lower_batch, prepare_batch
from fedjax_drag.simulation.engine import lower_settings, prepare
from fedjax_drag.simulation.planning.setup import resolve_batching, run_of
from fedjax_drag.simulation.program.clients_axis import ClientBatching


def settings(**changes):
    config = load_experiment(TINY | SYNTHETIC | changes).runs["tiny"]
    return build.settings(config, Federations().split(config))


def arguments(**changes):
    own = settings(**changes)
    return {name: getattr(own, name) for name in own.__dataclass_fields__}


class Elsewhere:
    """A device of a platform that is not here; what is asked of it is its platform."""

    platform = "gpu"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "changes",
    [
        {"mesh": None},
        pytest.param({"mesh": "all"}, marks=pytest.mark.slow),  # which the next has too
        {"mesh": "all", "shard_data": True, "evaluate_clients": True},
        {"mesh": None, "algorithm": {"name": "scaffold"}, "client_state": "host"},
        {"mesh": None, "aggregator": "median", "byzantine_fraction": 0.3, "attack": "sign_flip"},
    ],
    ids=["one device", "mesh", "shared data", "rows on the host", "attack"],
)
def test_the_programs_are_those_of_a_run(changes):
    given = arguments(**changes)
    ours, theirs = fd.simulation.lower(**given), prepare(**given)
    for one, other in zip(ours.programs, theirs.lowered, strict=True):
        assert (one is None) == (other is None)
        assert one is None or one.as_text() == other.as_text()
    assert ours.outline.shapes == theirs.shapes
    assert (ours.batching, ours.mesh) == (theirs.batching, theirs.mesh)


def sweep():
    """Four cells, of other seeds and step sizes."""
    first = settings()
    return [dataclasses.replace(first, seed=n, step_size=0.1 * (1 + n)) for n in range(4)]


@pytest.mark.thorough
def test_programs_of_cells_are_those_of_a_sweep():
    cells = sweep()
    ours = lower_batch(cells)
    theirs = prepare_batch(cells)
    assert (ours.width, ours.batching, ours.mesh) == (4, theirs.spec.batching, None)
    assert [one is None for one in ours.programs] == [False, False, True, True, False]
    for one, other in zip(filter(None, ours.programs), filter(None, theirs.lowered), strict=True):
        assert one.as_text() == other.as_text()


@pytest.mark.thorough
def test_programs_of_cells_on_several_devices_are_those_of_a_sweep():
    cells = sweep()
    shared = lower_batch(cells, width=3, devices=jax.local_devices())
    theirs = prepare_batch(cells, width=3, mesh=Mesh(jax.local_devices(), ("cells",)))
    assert shared.width == theirs.width == 4
    assert shared.programs.advance.as_text() == theirs.lowered.advance.as_text()


@pytest.mark.thorough
def test_nothing_is_placed():
    own = settings()
    largest = min(leaf.nbytes for leaf in jax.tree.leaves(own.data.train))
    gc.collect()
    before = {id(array) for array in jax.live_arrays()}
    lowered = lower_settings(own)
    new = [array for array in jax.live_arrays() if id(array) not in before]
    assert sum(array.nbytes for array in new) < largest
    assert lowered.programs.advance.compile().memory_analysis() is not None


@pytest.mark.thorough
def test_data_may_be_shapes_that_take_no_memory():
    own = settings()
    huge = own.data.train.x.shape[0], 3000, 3000  # gigabytes
    train = own.data.train._replace(x=np.broadcast_to(np.float32(0), huge))
    data = dataclasses.replace(own.data, train=train, test=train, input_shape=huge[1:])
    program = fd.simulation.lower(**arguments() | {"data": data}).programs.advance
    assert f"tensor<{huge[0]}x3000x3000xf32>" in program.as_text()


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_choices_follow_the_platform(platform):
    device = Elsewhere()
    device.platform = platform
    assert run_of(settings(), [device] * 4).batching.clients_axis == ("map" if platform == "cpu" else "vmap")


@pytest.mark.parametrize(
    ("platform", "cohort_size", "batching"),
    [
        ("cpu", 513, ClientBatching("map")),
        ("gpu", 512, ClientBatching("vmap")),
        ("gpu", 513, ClientBatching("map", 512)),
        ("tpu", 9999, ClientBatching("map", 512)),
    ],
)
def test_large_cohorts_are_not_all_at_once(platform, cohort_size, batching):
    assert resolve_batching("auto", None, platform, cohort_size) == batching
    assert resolve_batching("vmap", None, platform, cohort_size) == ClientBatching("vmap")
    assert resolve_batching("auto", 3, platform, cohort_size) == ClientBatching("map", 3)


@pytest.mark.parametrize("devices", [[], "h100", [1]])
def test_other_devices_are_refused(devices):
    with pytest.raises(ValueError, match=r"^devices=.*: must be a list of JAX devices"):
        fd.simulation.lower(devices=devices, **arguments())
