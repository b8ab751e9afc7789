"""Where the clients of a round are shared among CPU cores without being asked for, and who is told of idle ones."""

import types

import jax
import pytest

import fedjax_drag as fd
from fedjax_drag.simulation import engine
from fedjax_drag.simulation.parts import as_algorithm
from fedjax_drag.simulation.planning import calibration, sharing
from fedjax_drag.simulation.planning.setup import federate
from fedjax_drag.simulation.settings import Settings

MEAN, STACK = fd.aggregators.fedavg(), fd.aggregators.geometric_median()


@pytest.fixture
def generous(monkeypatch):
    """Every run is worth sharing, and nobody has been advised yet."""
    monkeypatch.setattr(sharing, "FEWEST_STEPS", 0)
    monkeypatch.setattr(sharing, "SHORTEST_ROUND", {"stream": 0.0, "stack": 0.0})
    monkeypatch.setattr(calibration, "WORTHWHILE_SECONDS", 0.0)
    monkeypatch.setattr(sharing, "_advised", False)


def chosen(rule, given, name=None):
    return sharing.is_worthwhile(Settings(algorithm=as_algorithm("algorithm", rule), **given), name)


@pytest.mark.parametrize(
    ("rule", "changes", "expected"),
    [
        (MEAN, {"num_rounds": 10**6}, False),  # a round waits longer than it computes
        (MEAN, {"num_rounds": 10**4, "local_steps": 500}, True),
        (MEAN, {"num_rounds": 20, "local_steps": 500}, False),  # over before another program is compiled
        (STACK, {"num_rounds": 10**4, "local_steps": 500}, False),  # iterations in which devices wait for each other
        (STACK, {"num_rounds": 10**4, "local_steps": 5000}, True),
        (MEAN, {"num_rounds": 10**4, "local_steps": None, "local_epochs": 20.0}, True),
    ],
)
def test_long_rounds_of_long_runs_are_shared(settings, rule, changes, expected):
    assert chosen(rule, settings(cohort_size=6, **changes)) == expected


def test_copies_of_the_examples_fit_the_memory(settings, monkeypatch):
    given = settings(num_rounds=10**4, local_steps=500)
    monkeypatch.setattr(sharing.psutil, "virtual_memory", lambda: types.SimpleNamespace(total=10**5))
    assert not chosen(MEAN, given)
    monkeypatch.setattr(sharing.psutil, "virtual_memory", lambda: types.SimpleNamespace(total=10**8))
    assert chosen(MEAN, given)


def test_an_identical_run_is_estimated_once(settings, monkeypatch):
    given, estimate = settings(num_rounds=10**4, local_steps=500), calibration.estimate
    calls = []
    monkeypatch.setattr(calibration, "estimate", lambda passes: calls.append(passes) or estimate(passes))
    assert [chosen(MEAN, given, name="the same") for _ in range(2)] == [True, True]
    assert len(calls) == 1


@pytest.mark.usefixtures("generous")
def test_auto_is_the_default(settings):
    def mesh(**changes):
        asked = Settings(algorithm=as_algorithm("algorithm", MEAN), **settings(**changes))
        return engine.mesh_of(asked, federate(asked))

    assert mesh(cohort_size=6).size == 2
    assert mesh(cohort_size=6, mesh=None) is None
    assert mesh(cohort_size=5) is None, "two devices do not divide it"


@pytest.mark.thorough
@pytest.mark.usefixtures("generous")
def test_idle_cores_are_named_once(settings, monkeypatch, capsys):
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    monkeypatch.setattr(sharing, "num_cores", lambda: 8)

    def told(**changes):
        given = settings(num_rounds=3, eval_every=1, local_steps=1, cohort_size=6, mesh="auto")
        fd.simulate(MEAN, **given | changes)
        return [line for line in capsys.readouterr().err.splitlines() if "cores" in line]

    with monkeypatch.context() as patch:  # a program on two devices would be another one
        patch.setattr("fedjax_drag.simulation.engine.can_share", lambda _: False)
        patch.setattr("fedjax_drag.simulation.devices.placement.can_share", lambda _: False)
        assert told(progress=False) == []
        assert told(mesh=None) == []
        assert told() == [
            "fedjax_drag: this run has one device on 8 CPU cores; call fd.use_cores() before anything else in JAX, or "
            "set FEDJAX_DRAG_USE_CORES=1, to share its clients among them"
        ]
        assert told() == []


def test_advice_is_for_those_whom_it_would_help(monkeypatch):
    monkeypatch.setattr(sharing, "_advised", False)
    assert sharing.advisors("auto", 6) == [], "there are two devices"
    monkeypatch.setattr(jax, "device_count", lambda: 1)
    monkeypatch.setattr(sharing, "num_cores", lambda: 4)
    assert [len(sharing.advisors("auto", size)) for size in (6, 5, 7)] == [1, 0, 0]
    assert sharing.advisors(None, 6) == []
