"""Configurations with clocks: what they build, what they refuse, and sweeps over their numbers."""

import pytest
from tiny import TINY

import fedjax_drag as fd
from fedjax_drag.experiment.build import build
from fedjax_drag.experiment.build.experiment import load
from fedjax_drag.experiment.build.resolve import resolve
from fedjax_drag.experiment.run.planning import Federations

PHONES = {"seconds_per_step": [0.5, 2.0], "bandwidth": 1000.0}
COMPONENTS = {
    "constant": ("constant", fd.clocks.constant()),
    "log_normal": ({"name": "log_normal", "sigma": 0.5, "bandwidth": 1e4}, fd.clocks.log_normal(0.5, bandwidth=1e4)),
    "table": ({"name": "table", **PHONES}, fd.clocks.table(**PHONES)),
    "attackers": (
        {"name": "attackers", "clock": {"name": "constant", "latency": 1.0}, "factor": 0.5},
        fd.clocks.attackers(fd.clocks.constant(latency=1.0), 0.5),
    ),
}


def resolved(**keys):
    return resolve(load(TINY | keys))


@pytest.mark.parametrize("name", COMPONENTS)
def test_every_clock_by_name(name):
    component, expected = COMPONENTS[name]
    assert build.part(resolved(clock=component), "clock") == expected


def test_no_clock_is_the_default():
    assert resolved().clock is None
    assert build.part(resolved(), "clock") is None


def test_clients_that_start_are_drawn_by_another_selection():
    chosen = {"name": "asynchronous", "concurrency": 3, "selection": {"name": "oort", "decay": 0.9}}
    expected = fd.selection.asynchronous(3, fd.selection.oort(decay=0.9))
    assert build.part(resolved(selection=chosen), "selection") == expected


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"clock": "cnstant"}, "clock.name='cnstant': must be one of constant, log_normal, table, attackers"),
        ({"clock": {"name": "log_normal", "mu": 1}}, "unknown key 'mu' of clock log_normal"),
        ({"clock": {"name": "log_normal", "sigma": -1}}, "clock.sigma=-1: must be in [0, 10]"),
        ({"clock": {"name": "attackers", "clock": "constant"}}, "clock.factor: missing; attackers needs it"),
        ({"clock": {"name": "table", "file": "nowhere.csv"}}, "clock.file='nowhere.csv': must be a CSV file"),
        ({"clock": "constant", "deadline_seconds": 0}, "deadline_seconds=0"),
        ({"deadline_seconds": 2}, "deadline_seconds=2.0: needs a clock"),
    ],
    ids=str,
)
def test_refused_in_a_configuration(keys, text):
    def made():
        config = resolved(**keys)
        return build.settings(config, Federations().split(config))

    with pytest.raises(ValueError) as caught:
        made()
    assert text in str(caught.value)
