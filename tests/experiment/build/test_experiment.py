"""What is refused of a single run, and warned of, before anything is built."""

import warnings

import pytest
import yaml
from tiny import TINY

from fedjax_drag.experiment.build.experiment import load_experiment
from fedjax_drag.experiment.run.run import run
from fedjax_drag.experiment.sweep.grid import load_grid
from fedjax_drag.experiment.sweep.sweep import sweep


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attack": "sign_flip"}, "byzantine_fraction=None: must be given with an attack"),
        ({"byzantine_fraction": 0.3}, "byzantine_fraction=0.3: must be 0 or left out without an attack"),
        ({"num_byzantine": 2}, "num_byzantine=2: must be 0 or left out without an attack"),
    ],
)
def test_a_single_run_has_an_attack_and_a_number_or_neither(changes, message):
    with pytest.raises(ValueError, match=message) as error:
        load_experiment(TINY, [changes])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("fraction", [{}, {"byzantine_fraction": 0.3}])
@pytest.mark.parametrize(("name", "meant"), [("sing_flip", "'sign_flip'"), ("none", "attack=null")])
def test_an_unknown_attack_is_what_is_refused(name, meant, fraction):
    with pytest.raises(ValueError, match=rf"^attack.name='{name}': must be one of .*; did you mean {meant}\?$"):
        load_experiment(TINY, [{"attack": name, **fraction}])


@pytest.mark.parametrize("zero", [{"byzantine_fraction": 0.0}, {"num_byzantine": 0}])
def test_an_explicit_zero_goes_with_an_attack_and_without_one(zero):
    load_experiment(TINY, [{"attack": "sign_flip", **zero}])
    load_experiment(TINY, [zero])


def test_null_is_the_honest_baseline_beside_other_attacks():
    shared = TINY | {"byzantine_fraction": 0.3}
    assert len(load_grid(shared | {"axes": {"attack": [None, "sign_flip"]}}).points) == 2
    compare = {"honest": {"attack": None}, "attacked": {"attack": "sign_flip"}}
    assert len(load_experiment(shared | {"compare": compare}).runs) == 2


WITHOUT = {key: value for key, value in TINY.items() if key not in ("data", "partition")}


def warned(function, *args):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function(*args)
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    ("load", "mapping", "expected"),
    [
        (
            load_experiment,
            WITHOUT,
            "data and partition not given: takes data=digits, partition=dirichlet(num_clients=40, ",
        ),
        (
            load_experiment,
            WITHOUT | {"data": "digits"},
            "partition not given: takes partition=dirichlet(num_clients=40, ",
        ),
        (load_grid, WITHOUT | {"axes": {"seed": [0, 1]}}, "data and partition not given"),
        (load_grid, WITHOUT | {"axes": {"partition.beta": [0.1, 1.0]}}, "data not given: takes data=digits; set data"),
    ],
)
def test_one_warning_names_the_data_and_the_partition_that_nobody_chose(load, mapping, expected):
    (message,) = warned(load, mapping)
    assert message.startswith(expected)
    assert "\n" not in message


@pytest.mark.parametrize(
    ("load", "mapping"),
    [
        (load_experiment, TINY),
        (load_experiment, WITHOUT | {"compare": {"a": {"data": "digits", "partition": TINY["partition"]}, "b": None}}),
        (load_grid, WITHOUT | {"axes": {"data": ["digits"], "partition": [TINY["partition"]]}}),
    ],
)
def test_what_is_chosen_is_not_warned_of(load, mapping):
    assert warned(load, mapping) == []


@pytest.mark.parametrize(("function", "more"), [(run, {}), (sweep, {"axes": {"seed": [0]}})])
def test_the_warning_points_to_the_caller(function, more):
    with pytest.warns(UserWarning, match="data and partition not given") as caught, pytest.raises(ValueError):
        function(WITHOUT | more, out="")  # refused after it
    assert caught[0].filename == __file__


def test_overrides_choose_as_well():
    assert warned(load_experiment, WITHOUT, ["data=digits", "partition.beta=1.0"]) == []


def test_a_resolved_configuration_has_chosen(tmp_path):
    """As a results folder keeps it."""
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(load_experiment(TINY).config.to_mapping()))
    assert warned(load_experiment, tmp_path / "config.yaml") == []
