"""Parameters that are not finite stop a run, and nothing that came before is lost."""

import dataclasses
import json

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from small_runs import SMALL, kept
from typer.testing import CliRunner

import fedjax_drag as fd
from fedjax_drag.cli.app import app
from fedjax_drag.experiment.build import build
from fedjax_drag.experiment.report.reading import read
from fedjax_drag.experiment.run import results
from fedjax_drag.experiment.run.checkpoints import load_params
from fedjax_drag.experiment.run.run import run
from fedjax_drag.experiment.sweep.sweep import sweep
from fedjax_drag.simulation import prepare
from fedjax_drag.simulation.result import rejected_since

AVERAGE = fd.aggregators.fedavg()


class NotANumber(nn.Module):
    @nn.compact
    def __call__(self, x):
        return jnp.log(-1 - nn.Dense(3)(x) ** 2)


@pytest.fixture(scope="module")
def settings():
    rows = np.arange(40) % 3
    x = np.eye(3, dtype=np.float32)[rows]
    fed = fd.data.partition.iid(fd.data.from_arrays(x, rows, x, rows, num_classes=3), num_clients=4)
    given = {
        "model": nn.Dense(3),
        "data": fed,
        "step_size": 0.1,
        "num_rounds": 8,
        "cohort_size": 2,
        "local_steps": 1,
        "batch_size": 4,
    }
    return given | {"time_clients": False, "clients_axis": "map"}


def infinite_from(first):
    """A rule whose step is infinite from a round on, which counts from 0."""

    def apply(params, deltas, state, round, **extras):
        params, state = AVERAGE.apply(params, deltas, state, round=round, **extras)
        return jax.tree.map(lambda leaf: leaf + jnp.where(round >= first, jnp.inf, 0.0), params), state

    return fd.algorithms.from_aggregator(AVERAGE._replace(apply=apply))


@pytest.mark.thorough
def test_the_round_is_exact_however_rounds_are_chunked(settings):
    algorithm = infinite_from(4)
    for chunking, ends in (({"eval_every": 1}, 5), ({"eval_every": 3, "rounds_per_compile": 2}, 6)):
        events = []
        found = fd.simulate(algorithm, callbacks=[events.append], **settings, **chunking)
        assert found.diverged_at == 5
        assert found.history["round"][-1] == ends
        assert [event.diverged_at for event in events] == [None] * (len(events) - 1) + [5]
        assert not np.isfinite(found.params["kernel"]).all()
    simulation = dataclasses.replace(prepare(algorithm, **settings, eval_every=3), stop_on_divergence=False)
    on = simulation.run()
    assert (on.diverged_at, on.history["round"].tolist()) == (5, [3, 6, 8])
    for name, column in found.history.items():
        np.testing.assert_array_equal(on.history[name][:2], column)


@pytest.mark.thorough
def test_model_that_is_not_a_number(settings):
    fedavg = fd.algorithms.from_aggregator(AVERAGE)
    model = settings | {"model": NotANumber(), "num_rounds": 2}
    found = fd.simulate(fedavg, **model)
    assert found.diverged_at is None
    assert np.isnan(found.history["test_loss"]).all()
    assert found.history["num_rejected"].tolist() == [4], "every message"
    assert "every message rejected: since round 0" in repr(found)
    assert fd.simulate(fedavg, nonfinite="propagate", **model).diverged_at == 1


def test_since_when_every_message_was_rejected():
    def since(rejected, sent=(4, 4, 4)):
        history = {"round": [2, 4, 6], "num_rejected": rejected, "participants": sent}
        return rejected_since({name: np.array(column) for name, column in history.items()})

    assert since((0, 4, 4)) == 2
    assert since((4, 4, 4)) == 0, "none ever counted"
    assert since((4, 4, 3)) is None
    assert since((4, 0, 0), (4, 4, 0)) is None, "nobody answered"
    assert rejected_since({"round": np.array([1])}) is None, "of a rule that counts none"


@pytest.mark.thorough
def test_a_run_in_which_nothing_counts_says_so(tmp_path):
    lost = SMALL | {"attack": {"name": "sign_flip", "scale": 1e37}, "rounds": 2, "eval_every": 1}
    config, text = tmp_path / "config.yaml", "every message since round 0 was rejected, as not finite or too long"
    config.write_text(yaml.safe_dump(lost))
    alone = ["run", config, "byzantine_fraction=1.0", "--out", tmp_path / "run"]
    done = CliRunner().invoke(app, [str(part) for part in alone])
    assert (done.exit_code, done.stderr) == (0, f"fedjax-drag: warning: tiny: {text}\n")
    assert "\ntiny (all messages rejected since round 0)  " in done.stdout
    cells = sweep(lost | {"axes": {"byzantine_fraction": [0.0, 1.0]}}, out=tmp_path / "sweep").cells
    assert [(cell.status, cell.message) for cell in cells] == [("done", ""), ("done", text)]
    assert [run.message for run in read(tmp_path / "sweep").runs] == ["", text]


@pytest.mark.thorough
@pytest.mark.parametrize("length", [{"local_steps": 1}, {"local_steps": None, "local_epochs": 1.0}])
def test_clients_of_one_class_and_of_one_example(settings, length):
    rows = np.zeros((4, 7), np.int32)
    rows[0, 0], rows[1], rows[2], rows[3] = 1, np.arange(0, 21, 3), np.arange(1, 22, 3), np.arange(7)
    data = dataclasses.replace(settings["data"], rows=rows, counts=np.array([1, 7, 7, 7], np.int32))
    algorithm = fd.algorithms.scaffold(4, aggregator=fd.aggregators.drag())
    found = fd.simulate(algorithm, **settings | {"data": data, "cohort_size": 4, "step_size": 0.5} | length)
    assert found.diverged_at is None
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found.state))
    assert found.history["test_loss"][-1] < 1


@pytest.mark.slow
def test_comparison_goes_on_and_the_last_good_checkpoint_is_named(tmp_path, monkeypatch):
    config, out, method = tmp_path / "config.yaml", tmp_path / "out", build.method
    monkeypatch.setattr(
        build, "method", lambda one, *given: infinite_from(2) if one.name == "bad" else method(one, *given)
    )
    config.write_text(yaml.safe_dump(SMALL | {"rounds": 4, "eval_every": 1, "compare": {"bad": {}, "good": {}}}))
    for resume in ([], ["--resume"]):
        done = CliRunner().invoke(app, ["run", str(config), "--out", str(out), *resume])
        assert done.exit_code == 1
        (line,) = [line for line in done.stderr.splitlines() if "error" in line]
        assert "\nbad (not finite since round 3)  " in done.stdout
        good = out / "bad" / "checkpoints" / "2"
        assert line.endswith(f"bad diverged: parameters are not finite after round 3; last good checkpoint: {good}")
        assert (out / results.FIGURES[0]).exists()
        assert results.read_summary(out / "bad")["diverged_at"] == 3
        assert results.read_summary(out / "good")["rounds"] == 4
        assert kept(out / "bad")[-1] == "2"
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(load_params(out / "bad")))
        bad, _ = results.read(out)
        assert bad.history["round"].tolist() == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("most", [None, 1])
def test_cell_of_a_sweep_is_its_run_and_the_others_go_on(tmp_path, most):
    base = SMALL | {"nonfinite": "propagate", "rounds": 5, "eval_every": 1, "num_byzantine": 1}
    base |= {"byzantine_of": "cohort", "attack": {"name": "sign_flip", "scale": 0.1}}
    given = base | {"axes": {"attack.scale": [0.1, 1e37], "seed": [0, 1]}}
    found = sweep(given, out=tmp_path / "out", cells_per_program=most)
    assert [cell.status for cell in found.cells] == ["done", "done", "diverged", "diverged"]
    alone = run(base, ["attack.scale=1e37", "seed=1"], out=tmp_path / "alone")
    cell = found.cells[3]
    assert cell.message == f"parameters are not finite after round {alone.diverged_at}"
    for name, column in alone.history.items():
        np.testing.assert_array_equal(cell.history[name], column)
    (folder,) = (tmp_path / "out" / "cells").glob("*1e*37*seed-1*")
    for name in ("metrics.jsonl",):
        assert (folder / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
    assert json.loads((folder / "summary.json").read_text())["diverged_at"] == alone.diverged_at
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "cells").rglob("*")}
    again = sweep(given, out=tmp_path / "out", resume=True)
    assert [(one.status, one.message) for one in again.cells] == [(one.status, one.message) for one in found.cells]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "cells").rglob("*")} == before, "finished"
