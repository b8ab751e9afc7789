"""Configurations with selections: what they build, what they refuse, sweeps over their numbers, and resumed folders."""

import chex
import pytest
from tiny import SYNTHETIC, TINY

import fedjax_drag as fd
from fedjax_drag.experiment.build import build
from fedjax_drag.experiment.build.experiment import load, load_experiment
from fedjax_drag.experiment.build.resolve import resolve
from fedjax_drag.experiment.run.planning import Federations
from fedjax_drag.experiment.sweep.grid import load_grid
from fedjax_drag.simulation.cells import likeness

COMPONENTS = {
    "uniform": "uniform",
    "weighted": {"name": "weighted", "replacement": True},
    "round_robin": "round_robin",
    "power_of_choice": {"name": "power_of_choice", "d": 6, "batch_size": 3},
    "oort": {"name": "oort", "exploration": 0.5},
    "asynchronous": {"name": "asynchronous", "concurrency": 4, "max_staleness": 8},
}


def resolved(**keys):
    return resolve(load(TINY | keys))


@pytest.mark.parametrize("name", COMPONENTS)
def test_every_name(name):
    component = COMPONENTS[name]
    arguments = {} if isinstance(component, str) else {key: x for key, x in component.items() if key != "name"}
    assert build.part(resolved(selection=component), "selection") == getattr(fd.selection, name)(**arguments)


def test_none_is_the_default():
    assert resolved().selection is None
    assert build.part(resolved(), "selection") is None


def test_one_of_ones_own(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import fedjax_drag as fd\n\n\ndef mine(d: int):\n    return fd.selection.power_of_choice(d)\n"
    )
    own = {"path": str(tmp_path / "mine.py"), "name": "mine", "d": 7}
    config = load_experiment(TINY | {"selection": own}, allow_code=True).config
    assert build.part(config, "selection") == fd.selection.power_of_choice(d=7)


@pytest.mark.parametrize(
    ("component", "text"),
    [
        ("ort", "selection.name='ort': must be one of uniform, weighted, round_robin, power_of_choice, oort"),
        ({"name": "oort", "epsilon": 1}, "unknown key 'epsilon' of selection oort"),
        ("power_of_choice", "selection.d: missing; power_of_choice needs it"),
        ({"name": "power_of_choice", "d": 0}, "selection.d=0: must be an integer >= 1"),
        ({"name": "power_of_choice", "d": 6, "loss": "worst"}, "selection.loss='worst': must be one of local, last"),
        ({"name": "oort", "decay": 2}, "selection.decay=2: must be in (0, 1]"),
        ({"name": "asynchronous", "concurrency": 0}, "selection.concurrency=0: must be an integer >= 1"),
    ],
    ids=str,
)
def test_mistakes_name_the_key(component, text):
    with pytest.raises(ValueError) as caught:
        build.part(resolved(selection=component), "selection")
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize(
    ("axes", "programs"),
    [({"selection.exploration": [0.1, 0.5], "selection.clip": [0.9, 1.0]}, 1), ({"selection": [None, "oort"]}, 2)],
    ids=["numbers", "selections"],
)
def test_cells_that_share_a_program(axes, programs):
    points = load_grid(TINY | {"selection": COMPONENTS["oort"], "axes": axes}).points
    federations = Federations()
    cells = [build.settings(point.config, federations.split(point.config)) for point in points]
    assert len({likeness(cell) for cell in cells}) == programs


@pytest.mark.thorough
def test_a_resumed_folder_goes_on_with_what_the_selection_has_kept(tmp_path):
    keys = TINY | SYNTHETIC | {"selection": COMPONENTS["oort"], "checkpoint_every_seconds": 0}
    whole = fd.run(keys, out=tmp_path / "whole", quiet=True)
    fd.run(keys, ["rounds=4"], out=tmp_path / "half", quiet=True)
    resumed = fd.run(keys, out=tmp_path / "half", resume=True, quiet=True)
    chex.assert_trees_all_equal(resumed.state, whole.state)
    assert int((whole.state.selection.last > 0).sum()) > 4
