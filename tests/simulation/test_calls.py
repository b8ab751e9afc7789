"""The arguments of ``fd.simulate`` and ``prepare``: what they show, and names that lead to the right ones."""

import dataclasses
import inspect
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

import fedjax_drag as fd
from fedjax_drag.experiment.build.experiment import load
from fedjax_drag.experiment.sweep.grid import load_grid
from fedjax_drag.simulation.option_groups import EarlyStopping, Watching
from fedjax_drag.simulation.options import ALIASES, ELSEWHERE, WATCHING
from fedjax_drag.simulation.settings import Arguments, Settings, SimulateArguments, as_algorithm

SIGNATURES = [(fd.simulation.prepare, Arguments), (fd.simulate, SimulateArguments)]


@pytest.mark.parametrize(("function", "options"), SIGNATURES)
def test_the_signature_shows_every_option_with_its_default_and_its_type(function, options):
    shown = dict(inspect.signature(function).parameters)
    fields = {field.name: field for field in dataclasses.fields(options)}
    assert shown.keys() == fields.keys() >= {field.name for field in dataclasses.fields(Settings)}
    assert next(iter(shown)) == "algorithm"
    for name, field in fields.items():
        default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
        assert shown[name].default == default
        assert shown[name].annotation == field.type
    required = [one.default is one.empty for one in shown.values()]
    assert required == sorted(required, reverse=True), "what must be given comes first"


@pytest.mark.parametrize(("function", "options"), SIGNATURES)
def test_help_says_what_every_option_means(function, options):
    text = inspect.getdoc(function).partition("\nArgs:\n")[2].partition("\n\nRaises:")[0].partition("\n\nReturns:")[0]
    described = re.findall(r"^  (\S+): ", text, flags=re.MULTILINE)
    expected = [field.name for field in dataclasses.fields(options)]
    assert sorted(described) == sorted([*expected, "**settings"])
    assert "\n\nWhat a client does in a round:\n  batch_size: B, from 1 to" in text
    assert len(inspect.getdoc(function).splitlines()) < 100, "two screens"


def test_other_names_of_options_lead_to_options():
    options = inspect.signature(fd.simulate).parameters.keys()
    assert set(ALIASES.values()) <= options
    assert not (ALIASES.keys() | ELSEWHERE.keys()) & options
    with pytest.raises(ValueError, match=r"^Learning-Rate=1: unknown setting; did you mean 'step_size'\?$"):
        fd.simulate(fd.aggregators.median(), **{"Learning-Rate": 1})
    with pytest.raises(ValueError, match=r"^zzz=1: unknown setting; must be one of algorithm, model, data"):
        fd.simulate(fd.aggregators.median(), zzz=1)


@pytest.mark.parametrize("function", [fd.simulation.prepare, fd.simulation.lower])
def test_options_of_a_run_lead_to_where_it_runs(function):
    options = [field.name for group in (Watching, EarlyStopping) for field in dataclasses.fields(group)]
    assert sorted(WATCHING) == sorted(options)
    for name in [*options, "verbose", "callback"]:
        with pytest.raises(ValueError, match=rf"^{name}=None: unknown setting; (only )?fd\.simulate (takes|shows) it"):
            function(fd.aggregators.median(), **{name: None})


def test_a_rule_stands_for_its_algorithm():
    rule, scaffold = fd.aggregators.median(), fd.algorithms.scaffold(10)
    assert repr(as_algorithm("algorithm", rule)) == "from_aggregator(aggregator=median(), client=sgd())"
    assert as_algorithm("algorithm", scaffold) is scaffold


def test_a_run_of_a_rule_tells_its_progress_where_asked(settings, capsys):
    seen = []
    given = settings(data=settings()["data"], num_rounds=2, eval_every=1)
    result = fd.simulate(algorithm=fd.aggregators.fedavg(), callbacks=[seen.append], progress=True, **given)
    lines = capsys.readouterr().err.splitlines()
    accuracy = [f"{share:.1%}" for share in result.history["test_accuracy"]]
    assert lines == [f"fedavg: round {index + 1}/2, accuracy {accuracy[index]}" for index in range(2)]
    assert [event.round for event in seen] == [1, 2]
    assert np.isfinite(result.history["test_loss"]).all()


EDITOR = """
import fedjax_drag as fd

reveal_type(fd.simulate)
def run(model, data) -> None:
    some = {"model": model, "data": data, "num_rounds": 1}
    fd.simulate(fd.aggregators.median(), model=model, data=data, num_rounds=1, cohort_size=2, batch_size=3, step_size=1)
    fd.simulate(algorithm=fd.algorithms.mime(), **some, cohort_size=2, batch_size=3, step_size=1, progress=True)
    fd.simulate(fd.aggregators.median(), model=model, data=data, num_rounds=1, cohort_size=2, step_size=1)
    fd.simulate(fd.aggregators.median(), **some, cohort_size=2, batch_size=3, step_size=1, batchsize=3)
"""


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("pyright") is None, reason="needs pyright")
def test_editors_know_every_option(tmp_path):
    (tmp_path / "user.py").write_text(EDITOR)
    command = ["pyright", "--pythonpath", sys.executable, str(tmp_path / "user.py")]
    told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    revealed = next(line for line in told.splitlines() if "Type of" in line)
    assert all(f"{name}: " in revealed for name in inspect.signature(fd.simulate).parameters)
    assert 'user.py:9:5 - error: Argument missing for parameter "batch_size"' in told
    assert 'user.py:10:92 - error: No parameter named "batchsize"' in told
    assert told.strip().endswith("2 errors, 0 warnings, 1 information")


def test_rounds_have_their_configurations_name_too(settings):
    given = settings(num_rounds=2)
    data, rounds = given.pop("data"), given.pop("num_rounds")
    names, rule = ("num_rounds", "rounds"), fd.aggregators.fedavg()
    runs = [fd.simulation.prepare(rule, data=data, **given, **{name: rounds}) for name in names]
    assert [run.num_rounds for run in runs] == [2, 2]
    with pytest.raises(ValueError, match="num_rounds, rounds: are one setting; give it once"):
        fd.simulation.prepare(rule, data=data, num_rounds=2, rounds=2, **given)
    assert {load({"rounds": 1}, [f"{name}=7"]).rounds for name in names} == {7}
    grids = [load_grid("quickstart", [f"axes.{name}=[3,4]"]) for name in names]
    assert [[point.config.rounds for point in grid.points] for grid in grids] == [[3, 4]] * 2
