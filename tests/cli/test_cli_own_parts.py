"""Code of one's own through the commands: run, sweep with two axes, resume, report, plot."""

import json

import numpy as np
import pytest
import yaml

from fedjax_drag.experiment.sweep.one_program import run_as_one_program
from fedjax_drag.experiment.sweep.sweep import sweep

RULES = '''
"""Rules of one's own."""

from pathlib import Path

import fedjax_drag as fd

Path("ran").write_text(Path("ran").read_text() + "x" if Path("ran").exists() else "x")


def shrunk(factor: float = 1.0):
    """Moves by a share of the mean."""

    def weigh(clients, state, **_):
        return fd.aggregators.Weights(own=factor * clients.valid, mass=clients.valid)

    return fd.aggregators.weighted_rule(weigh)


class shrunk_by(fd.aggregators.WeightedAggregator):
    """The same, compared by value."""

    factor: fd.types.Scalar = 1.0

    def weigh(self, clients, state, **_):
        return fd.aggregators.Weights(own=self.factor * clients.valid, mass=clients.valid)
'''

SWEEP = {
    "name": "mine",
    "data": "digits",
    "partition": {"name": "iid", "num_clients": 8},
    "model": {"name": "mlp", "hidden": [4]},
    "rounds": 2,
    "eval_every": 1,
    "cohort_size": 4,
    "local_steps": 2,
    "time_clients": False,
    "aggregator": {"path": "my_rules.py", "name": "shrunk"},
    "axes": {"aggregator.factor": [0.5, 1.0], "seed": [0, 1]},
}


@pytest.fixture
def here(tmp_path):
    (tmp_path / "my_rules.py").write_text(RULES)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(SWEEP))
    return tmp_path


def times_run(folder):
    return len((folder / "ran").read_text()) if (folder / "ran").exists() else 0


@pytest.mark.thorough
def test_a_sweep_over_a_rule_of_ones_own(command, here, interrupt_after):
    refused = command("sweep", "mine.yaml", "--quiet")
    assert (refused.exit_code, times_run(here)) == (2, 0)
    assert "is code that this configuration would run; must be allowed by --allow-code" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1

    with interrupt_after(1):
        stopped = command("sweep", "mine.yaml", "--allow-code", "--quiet")
    assert stopped.exit_code == 130, stopped.output
    resumed = command("sweep", "mine.yaml", "--allow-code", "--quiet", "--resume")
    assert (resumed.exit_code, resumed.output) == (0, "")
    folder = here / "runs" / "mine"
    stored = yaml.safe_load((folder / "cells" / "factor-0.5-seed-1" / "config.yaml").read_text())
    assert stored["aggregator"] == {"name": "my_rules.py:shrunk", "factor": 0.5}
    environment = json.loads((folder / "cells" / "factor-0.5-seed-1" / "environment.json").read_text())
    assert list(environment["code"]) == ["my_rules.py"]

    (here / "ran").unlink()
    assert command("report", str(folder), "-o", "report.html").exit_code == 0
    assert command("plot", *map(str, (folder / "cells").iterdir()), "-o", "curves.png").exit_code == 0
    assert times_run(here) == 0, "reading results runs no code"
    assert "shrunk" in (here / "report.html").read_text()


@pytest.mark.slow
def test_cells_that_differ_in_its_numbers_share_a_program(here, monkeypatch):
    sizes = []

    def counted(members, *others):
        sizes.append(len(members))
        return run_as_one_program(members, *others)

    monkeypatch.chdir(here)
    monkeypatch.setattr("fedjax_drag.experiment.sweep.sweep.run_as_one_program", counted)
    by_value = SWEEP | {"aggregator": {"path": "my_rules.py", "name": "shrunk_by"}}
    found = sweep(by_value, allow_code=True, quiet=True)
    assert [cell.status for cell in found.cells] == ["done"] * 4
    assert sizes == [4]
    alone = sweep(SWEEP | {"axes": {"aggregator.factor": [0.5], "seed": [1]}}, allow_code=True, quiet=True)
    assert sizes == [4]
    np.testing.assert_allclose(found.cells[1].history["test_loss"], alone.cells[0].history["test_loss"], rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.filterwarnings("always::UserWarning")
def test_a_run_whose_code_has_changed_is_resumed_with_a_warning(command, here):
    (here / "mine.yaml").write_text(yaml.safe_dump({k: v for k, v in SWEEP.items() if k not in ("axes", "aggregator")}))
    run = "run", "mine.yaml", "aggregator=my_rules.py:shrunk", "--out", "out", "--quiet"
    assert command(*run).exit_code == 0
    (here / "my_rules.py").write_text(RULES + "# changed\n")
    resumed = command(*run, "rounds=3", "--resume")
    assert resumed.exit_code == 0
    assert resumed.stderr == "fedjax-drag: warning: my_rules.py has changed since the run in 'out' began\n"


@pytest.mark.thorough
def test_what_a_results_folder_refers_to_is_not_run(command, here):
    (here / "mine.yaml").write_text(yaml.safe_dump({k: v for k, v in SWEEP.items() if k != "axes"}))
    assert command("run", "mine.yaml", "--allow-code", "--out", "out", "--quiet").exit_code == 0
    (here / "ran").unlink()
    again = command("run", "out/config.yaml", "--out", "again", "--quiet")
    assert (again.exit_code, times_run(here)) == (2, 0)
    other = command("run", "out/config.yaml", "aggregator=median", "--out", "out", "--resume", "--quiet")
    assert (other.exit_code, times_run(here)) == (2, 0)
    assert "must be that" in other.stderr
