"""Where the clients of a round are shared among CPU cores without being asked for."""

import types

import pytest

import fedjax_drag as fd
from fedjax_drag.simulation.planning import setup
from fedjax_drag.simulation.planning.setup import run_of
from fedjax_drag.simulation.settings import Settings, as_algorithm

MEAN, STACK = fd.aggregators.fedavg(), fd.aggregators.geometric_median()
LONG = {"num_rounds": 10**4, "local_steps": 500}


def asked(rule, given):
    made = Settings(algorithm=as_algorithm("algorithm", rule), **given)
    return made, run_of(made)


@pytest.mark.parametrize(
    ("rule", "changes", "expected"),
    [
        (MEAN, {"num_rounds": 10**6}, False),  # a round waits longer than it computes
        (MEAN, LONG, True),
        (MEAN, {"num_rounds": 20, "local_steps": 500}, False),  # over before another program is compiled
        (STACK, LONG, False),  # iterations in which devices wait for each other
        (STACK, {"num_rounds": 10**4, "local_steps": 5000}, True),
        (MEAN, {"num_rounds": 10**4, "local_steps": None, "local_epochs": 20.0}, True),
    ],
)
def test_long_rounds_of_long_runs_are_shared(settings, rule, changes, expected):
    assert setup.is_worthwhile(*asked(rule, settings(cohort_size=6, **changes))) == expected


def test_copies_of_the_examples_fit_the_memory(settings, monkeypatch):
    given = asked(MEAN, settings(**LONG))
    monkeypatch.setattr(setup.psutil, "virtual_memory", lambda: types.SimpleNamespace(total=10**5))
    assert not setup.is_worthwhile(*given)
    monkeypatch.setattr(setup.psutil, "virtual_memory", lambda: types.SimpleNamespace(total=10**8))
    assert setup.is_worthwhile(*given)


def test_auto_is_the_default(settings):
    def mesh(**changes):
        return setup.mesh_of(*asked(MEAN, settings(**LONG | changes)))

    assert mesh(cohort_size=6).size == 2
    assert mesh(cohort_size=6, mesh=None) is None
    assert mesh(cohort_size=6, num_rounds=2) is None
    assert mesh(cohort_size=5) is None, "two devices do not divide it"
