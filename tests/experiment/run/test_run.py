import dataclasses
import json
import shutil

import chex
import jax
import numpy as np
import pytest
import yaml

from fedjax_drag.experiment.build.experiment import load, load_experiment
from fedjax_drag.experiment.build.resolve import resolve
from fedjax_drag.experiment.plain import write_json
from fedjax_drag.experiment.run import environment, folders, lock, planning, results
from fedjax_drag.experiment.run.checkpoints import Checkpoints
from fedjax_drag.experiment.run.run import plan, run
from fedjax_drag.experiment.sweep.sweep import sweep
from fedjax_drag.files import write_text
from fedjax_drag.simulation import runner


def snapshot(folder):
    files = (path for path in folder.rglob("*") if path.name not in lock.FILES)
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in files}


@pytest.mark.thorough
def test_without_a_folder_nothing_is_written(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(tiny, overrides=["rounds=2"])
    assert result.history["round"].tolist() == [2]
    assert list(tmp_path.iterdir()) == []


def test_folder_holds_what_a_run_writes(finished):
    folder, result = finished
    assert {path.name for path in folder.iterdir()} == {*results.WRITTEN, lock.LOCK} - {*results.FIGURES}

    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [2, 4, 6]
    assert [np.float32(line["test_accuracy"]) for line in lines] == result.history["test_accuracy"].tolist()
    assert all(len(line["cosine"]) == 4 for line in lines)
    assert environment.read(folder)["mesh_devices"] == 1

    said = json.loads((folder / "environment.json").read_text())
    assert said["packages"]["jax"] == jax.__version__
    assert said["seed"] == 0
    assert said["devices"]
    assert said["device_kind"] == "cpu"

    summary = json.loads((folder / "summary.json").read_text())
    assert summary["rounds"] == 6
    assert summary["final_accuracy"] == pytest.approx(result.history["test_accuracy"][-1])
    assert summary["interrupted"] is False
    assert summary["seconds"] > summary["compile_seconds"] > 0
    assert summary["rounds_per_second"] > 0

    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["4", "6"]

    (back,) = results.read(folder)
    assert {name: back.history[name].dtype for name in back.history} == {
        name: np.asarray(result.history[name]).dtype for name in back.history
    }


@pytest.mark.optimised
def test_a_script_can_always_resume(tiny, finished, tmp_path):
    """Where there is no folder, or an empty one, a run starts; the next time it is finished."""
    (tmp_path / "empty").mkdir()
    for name in ("absent", "empty", "empty"):
        ended = run(tiny, out=tmp_path / name, resume=True, quiet=True)
        assert (tmp_path / name / "metrics.jsonl").read_bytes() == (finished[0] / "metrics.jsonl").read_bytes()
        assert ended.history["test_accuracy"].dtype == finished[1].history["test_accuracy"].dtype


def test_a_finished_run_is_not_compiled_again(tiny, finished, tmp_path, monkeypatch):
    shutil.copytree(finished[0], tmp_path / "again")
    monkeypatch.setattr(runner.Simulation, "_compiled", None)
    again = run(tiny, out=tmp_path / "again", resume=True, quiet=True)
    chex.assert_trees_all_equal(again.params, finished[1].params)


def test_a_run_goes_on_under_the_options_of_jax_that_it_began_with(tiny, finished):
    config = resolve(load(tiny))
    folders.check_same(finished[0], config)
    for name, other in (
        ("JAX_ENABLE_X64=True", jax.enable_x64(True)),
        ("JAX_DEFAULT_PRNG_IMPL=rbg", jax.default_prng_impl("rbg")),
        ("JAX_THREEFRY_PARTITIONABLE=False", jax.threefry_partitionable(False)),
        ("JAX_DEFAULT_MATMUL_PRECISION=float32", jax.default_matmul_precision("float32")),
        ("JAX_NUMPY_DTYPE_PROMOTION=strict", jax.numpy_dtype_promotion("strict")),
    ):
        with other, pytest.raises(ValueError, match=f"^{name}: the run to resume in .* has .*; must be that$"):
            folders.check_same(finished[0], config)


@pytest.mark.optimised
def test_stored_configuration_runs_again_to_the_same_end(finished, tmp_path):
    folder, result = finished
    stored = yaml.safe_load((folder / "config.yaml").read_text())
    assert stored["aggregator"]["divergence"] == "cosine", "defaults are written out"
    again = run(folder / "config.yaml", out=tmp_path / "again")
    chex.assert_trees_all_equal(again.params, result.params)
    assert (tmp_path / "again" / "metrics.jsonl").read_text() == (folder / "metrics.jsonl").read_text()


@pytest.mark.parametrize(
    ("overrides", "options", "message"),
    [
        ([], {}, r"already holds a run; choose --resume, .*resume=True"),
        (["cohort_size=9"], {"overwrite": True}, "cohort_size"),
        (["aggregator.c=0.5"], {"resume": True}, "aggregator.c=0.5: the run to resume in .* has aggregator.c=0.25"),
        (["rounds=4"], {"resume": True}, "rounds=4: the run to resume in .* has rounds=6; must be that or more"),
        (["aggregator=median"], {"resume": True}, "aggregator.name='median': the run to resume"),
        (["seed=1"], {"resume": True}, "seed=1: the run to resume"),
        ([], {"resume": True, "overwrite": True}, "only one of them"),
    ],
)
def test_a_folder_with_a_run_is_left_alone(tiny, finished, overrides, options, message):
    before = snapshot(finished[0])
    with pytest.raises(ValueError, match=message):
        run(tiny, overrides, out=finished[0], **options)
    assert snapshot(finished[0]) == before


@pytest.mark.thorough
def test_overwrite_leaves_other_runs_in_the_folder(tiny, tmp_path):
    """Variants of the comparison that was there and of the new one go, a run beside them stays."""
    one = ["rounds=1", "compare={a: {}, b: {}}"]
    run(tiny, overrides=one, out=tmp_path)
    run(tiny, overrides=["rounds=1"], out=tmp_path / "mine")
    run(tiny, overrides=["rounds=1"], out=tmp_path, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["checkpoints", "mine"]
    assert (tmp_path / "mine" / "summary.json").is_file()
    with pytest.raises(ValueError, match=r"initial_params='.*': lies in out='.*', which would be overwritten"):
        run(tiny, overrides=["rounds=1", f"initial_params={tmp_path}"], out=tmp_path, overwrite=True)
    assert (tmp_path / "summary.json").is_file()


def test_a_run_is_not_put_beside_a_sweep(tiny, tmp_path):
    (tmp_path / "sweep.yaml").touch()
    with pytest.raises(ValueError, match="holds a sweep or an arena; choose another folder"):
        run(tiny, out=tmp_path)


def test_overwrite_removes_what_runs_wrote_and_nothing_else(tiny, tmp_path):
    out = tmp_path / "out"
    run(tiny | {"compare": {"A": {}, "B": {}}}, overrides=["rounds=2"], out=out)
    (out / "notes.txt").write_text("mine")
    (out / "b" / "notes.txt").write_text("mine")
    run(tiny, overrides=["rounds=2"], out=out, overwrite=True)
    written = {*results.WRITTEN, lock.LOCK} - {*results.FIGURES}
    assert {path.name for path in out.iterdir()} == written | {"notes.txt", "b"}
    assert {path.name for path in (out / "b").iterdir()} == {"notes.txt", lock.LOCK}


@pytest.mark.parametrize(
    ("name", "out", "options", "message"),
    [
        ("config.yaml", ".", {"overwrite": True}, "not a results folder"),
        ("notes.txt", ".", {"resume": True}, "holds no run to resume"),
        ("out", "out", {}, "must be a folder"),
    ],
)
def test_something_else_in_place_of_a_run_is_left_alone(tiny, tmp_path, name, out, options, message):
    (tmp_path / name).write_text("mine: 1\n")
    with pytest.raises(ValueError, match=message):
        run(tiny, out=tmp_path / out, **options)
    with pytest.raises(ValueError, match="need the results folder"):
        run(tiny, resume=True)
    assert (tmp_path / name).read_text() == "mine: 1\n"


def test_a_process_that_was_killed_at_its_first_file_leaves_nothing_in_the_way(tmp_path):
    """What it had begun to write was taken for something else than a run."""
    for name in (".lock.json.partial", ".config.yaml.partial"):
        (tmp_path / name).write_text("na")
        folders.check_folder(tmp_path, resume=True, overwrite=False)


@pytest.mark.parametrize("name", ["z" * 300, "/".join(["x" * 200] * 19), "bad\udcff"])
def test_a_folder_that_cannot_hold_a_run_is_refused_before_it(tiny, tmp_path, name):
    """It was found out at the first checkpoint, or at the end."""
    for call, config in ((run, tiny), (sweep, tiny | {"axes": {"seed": [0, 1]}})):
        with pytest.raises(ValueError, match=r"^out=.{1,100}: must be UTF-8 of at most 3,700 bytes") as caught:
            call(config, out=tmp_path / name)
        str(caught.value).encode()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "bad",
    [
        {"cohort_size": 9},
        {"aggregator": {"name": "krum", "num_byzantine": 3}},
        {"partition": {"name": "iid", "num_clients": 9999}},
        {"compare": {"good": {}, "bad": {"cohort_size": 9}}},
    ],
)
def test_a_bad_configuration_leaves_no_folder(tiny, tmp_path, bad):
    """Every variant is checked before the first one runs."""
    with pytest.raises(ValueError, match=r"compare.bad: .*cohort_size=9" if "compare" in bad else "=") as caught:
        run(tiny | bad, out=tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.optimised
def test_interrupted_and_resumed_equals_uninterrupted(tiny, finished, tmp_path, interrupt_after):
    folder, whole = finished
    out = tmp_path / "out"
    with interrupt_after(2), pytest.raises(KeyboardInterrupt):
        run(tiny, out=out)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["interrupted"] is True
    assert summary["rounds"] == 4

    # As if it had been stopped after the line of an evaluation and before its checkpoint.
    with (out / "metrics.jsonl").open("a") as stream:
        stream.write('{"round": 6, "test_acc')
    resumed = run(tiny, out=out, resume=True)

    chex.assert_trees_all_equal(resumed.state, whole.state)
    chex.assert_trees_all_equal(resumed.history, whole.history)
    assert {k: v.dtype for k, v in resumed.history.items()} == {k: v.dtype for k, v in whole.history.items()}
    assert (out / "metrics.jsonl").read_text() == (folder / "metrics.jsonl").read_text()
    before, summary = summary, json.loads((out / "summary.json").read_text())
    assert summary["interrupted"] is False
    assert summary["resumed_from_round"] == 4
    assert summary["seconds"] > before["seconds"], "both sessions count"
    sessions = json.loads((out / "environment.json").read_text())["earlier_sessions"]
    assert [session["seed"] for session in sessions] == [0]
    assert "earlier_sessions" not in sessions[0]


@pytest.mark.slow
def test_accuracies_of_clients_are_resumed(tiny, tmp_path):
    config = load(tiny, ["evaluate_clients=0.3", "partition={name: dirichlet, num_clients: 8, beta: 0.05}"])
    whole = run(config, out=tmp_path / "whole")
    assert whole.history["client_accuracy"].shape == (3, 8)
    run(dataclasses.replace(config, rounds=4), out=tmp_path / "out")
    resumed = run(config, out=tmp_path / "out", resume=True)
    chex.assert_trees_all_equal(resumed.history, whole.history)
    assert (tmp_path / "out" / "metrics.jsonl").read_text() == (tmp_path / "whole" / "metrics.jsonl").read_text()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "place", ["host", *(pytest.param(place, marks=pytest.mark.slow) for place in ("device", "disk"))]
)
def test_state_of_clients_is_resumed(tiny, tmp_path, place):
    config = load(tiny, ["algorithm=scaffold", "aggregator=median", f"client_state={place}"])
    whole = run(config)
    run(dataclasses.replace(config, rounds=4), out=tmp_path / "out")
    chex.assert_trees_all_equal(run(config, out=tmp_path / "out", resume=True).state, whole.state)


@pytest.mark.thorough
def test_rows_on_the_disk_that_are_damaged_or_were_being_written(tiny, tmp_path, capsys):
    """The checkpoint before serves; a kill while one is written costs nothing."""
    config, folder = load(tiny, ["algorithm=scaffold", "client_state=disk"]), tmp_path / "out"
    whole = run(config, out=folder)
    checkpoints = folder / "checkpoints"

    def resumed():
        (folder / "summary.json").unlink()
        return run(config, out=folder, resume=True, quiet=True).state

    (checkpoints / "8.partial").mkdir()
    (checkpoints / "8.partial" / "client_rows").write_bytes(b"begun")
    chex.assert_trees_all_equal(resumed(), whole.state)
    assert sorted(path.name for path in checkpoints.iterdir()) == ["4", "6"]
    assert (checkpoints / "6" / "client_rows").is_file()

    content = bytearray((checkpoints / "6" / "client_rows").read_bytes())
    content[-1] ^= 1
    (checkpoints / "6" / "client_rows").write_bytes(content)
    chex.assert_trees_all_equal(resumed(), whole.state)
    assert "damaged: client_rows: does not match its checksum; set aside" in capsys.readouterr().err


@pytest.mark.thorough
def test_interrupt_before_the_first_evaluation(tiny, tmp_path, interrupt_after):
    with interrupt_after(0), pytest.raises(KeyboardInterrupt):
        run(tiny, out=tmp_path / "out")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["rounds"] == 0
    assert summary["final_accuracy"] is None
    assert run(tiny, out=tmp_path / "out", resume=True).history["round"].tolist() == [2, 4, 6]


@pytest.mark.thorough
def test_a_session_that_is_killed_keeps_the_time_of_those_before(tiny, tmp_path, interrupt_after):
    out = tmp_path / "out"
    with interrupt_after(1), pytest.raises(KeyboardInterrupt):
        run(tiny, out=out)
    first = json.loads((out / "summary.json").read_text())["seconds"]
    with interrupt_after(1), pytest.raises(KeyboardInterrupt):
        run(tiny, out=out, resume=True)
    (out / "summary.json").unlink()  # as if it had been killed
    run(tiny, out=out, resume=True)
    environment = json.loads((out / "environment.json").read_text())
    assert environment["earlier_seconds"] == pytest.approx(first)
    assert len(environment["earlier_sessions"]) == 2
    assert json.loads((out / "summary.json").read_text())["seconds"] >= first


@pytest.mark.optimised
@pytest.mark.thorough
def test_a_run_that_keeps_no_checkpoints_writes_none_and_begins_anew(tiny, finished, tmp_path, capsys, interrupt_after):
    light = tiny | {"keep_checkpoints": 0}
    with interrupt_after(2), pytest.raises(KeyboardInterrupt):
        run(light, out=tmp_path / "out", quiet=True)
    capsys.readouterr()
    run(light, out=tmp_path / "out", resume=True, quiet=True)
    assert capsys.readouterr().err == f"{str(tmp_path / 'out')!r}: no checkpoint to go on from; begins anew\n"
    assert (tmp_path / "out" / "metrics.jsonl").read_bytes() == (finished[0] / "metrics.jsonl").read_bytes()
    assert not (tmp_path / "out" / "checkpoints").exists()
    run(tiny, out=tmp_path / "out", resume=True, quiet=True)
    assert "no checkpoint to go on from; begins anew" in capsys.readouterr().err
    folder, grid = tmp_path / "sweep", light | {"axes": {"seed": [0, 1], "step_size": [0.1, 0.2]}}
    for resume in (False, True):
        ended = sweep(grid, out=folder, resume=resume, quiet=True)
        assert {cell.status for cell in ended.cells} == {"done"}
        assert not [path for path in folder.rglob("*") if path.name == "checkpoints"]


@pytest.mark.optimised
@pytest.mark.thorough
def test_resume_of_a_finished_run_gives_its_result(tiny, finished, tmp_path):
    _, whole = finished
    run(tiny, out=tmp_path / "out")
    stored = {name: (tmp_path / "out" / name).read_text() for name in ("summary.json", "environment.json")}
    (tmp_path / "out" / "config.yaml").unlink()  # what a message says to do to go on under another one
    again = run(tiny, out=tmp_path / "out", resume=True)
    assert (tmp_path / "out" / "config.yaml").is_file()
    after = {name: (tmp_path / "out" / name).read_text() for name in stored}
    assert after["environment.json"] == stored["environment.json"]
    times = ("seconds", "compile_seconds", "rounds_per_second")
    earlier, later = (json.loads(files["summary.json"]) for files in (stored, after))
    assert [later[name] for name in times] == [earlier[name] for name in times]
    chex.assert_trees_all_equal(again.params, whole.params)
    assert again.history["test_accuracy"].tolist() == pytest.approx(whole.history["test_accuracy"].tolist())
    assert again.rounds_to(0.0) == 2


def test_resume_of_a_finished_run_times_no_client_again(tiny, tmp_path, monkeypatch):
    def timed(seconds):
        monkeypatch.setattr(runner, "measure_seconds", lambda *_: seconds)
        result = run({**tiny, "time_clients": True}, out=tmp_path, resume=True)
        return json.loads((tmp_path / "summary.json").read_text())["seconds_per_local_step"], result

    (first, whole), (second, again) = timed(1.0), timed(2.0)
    assert first == second == whole.seconds_per_step == again.seconds_per_step
    assert again.history["client_seconds"].tolist() == whole.history["client_seconds"].tolist()


def test_resume_of_a_run_that_was_stopped_times_no_client_again(tiny, tmp_path, monkeypatch, interrupt_after):
    config = {**tiny, "time_clients": True, "eval_every": 1}
    monkeypatch.setattr(runner, "measure_seconds", lambda *_: 1.0)
    with interrupt_after(1), pytest.raises(KeyboardInterrupt):
        run(config, out=tmp_path)
    first = json.loads((tmp_path / "summary.json").read_text())["seconds_per_local_step"]
    monkeypatch.setattr(runner, "measure_seconds", lambda *_: 2.0)
    again = run(config, out=tmp_path, resume=True)
    assert first == again.seconds_per_step
    assert again.history["client_seconds"].tolist() == (np.cumsum(again.history["slowest_steps"]) * first).tolist()


@pytest.mark.thorough
def test_configurations_older_and_newer_than_the_program(tiny, finished, tmp_path):
    stored, asked = yaml.safe_load((finished[0] / "config.yaml").read_text()), load_experiment(tiny).config
    for key in ("keep_checkpoints", "stop_on_divergence", "compute_dtype"):
        del stored[key]
    del stored["aggregator"]["divergence"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(stored))
    folders.check_same(tmp_path, asked)
    folders.check_same(tmp_path, dataclasses.replace(asked, keep_checkpoints=5, keep_best=False))
    with pytest.raises(ValueError, match="compute_dtype='bfloat16': the run to resume in"):
        folders.check_same(tmp_path, dataclasses.replace(asked, compute_dtype="bfloat16"))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(stored | {"invented_later": 1}))
    with pytest.raises(ValueError, match=r"the run to resume in .*: unknown key 'invented_later'") as caught:
        folders.check_same(tmp_path, asked)
    assert "\n" not in str(caught.value)


def test_a_trace_that_has_changed_is_named_when_a_run_goes_on(tmp_path):
    np.save(tmp_path / "trace.npy", np.ones((3, 40), bool))
    config = resolve(load({"availability": str(tmp_path / "trace.npy")}))
    results.begin(tmp_path / "out", config)
    folders.check_same(tmp_path / "out", config)  # a warning would be an error
    np.save(tmp_path / "trace.npy", np.zeros((3, 40), bool))
    with pytest.warns(UserWarning, match=r"trace\.npy has changed since the run in"):
        folders.check_same(tmp_path / "out", config)


@pytest.mark.thorough
def test_comparison_has_a_folder_for_each_label_and_can_be_resumed(tiny, tmp_path, interrupt_after):
    config = tiny | {"compare": {"Fed Avg": {"aggregator": "fedavg"}, "DRAG": {}}}
    out = tmp_path / "out"
    with interrupt_after(2), pytest.raises(KeyboardInterrupt):
        run(config, out=out)
    assert not (out / "drag").exists()
    finished = run(config, out=out, resume=True)
    assert list(finished) == ["Fed Avg", "DRAG"]
    for label, whole in run(config).items():
        chex.assert_trees_all_equal(finished[label].state, whole.state)
        chex.assert_trees_all_equal(finished[label].history, whole.history)
    assert [read.config.name for read in results.read(out)] == ["Fed Avg", "DRAG"]
    assert yaml.safe_load((out / "fed-avg" / "config.yaml").read_text())["compare"] is None


@pytest.mark.thorough
def test_data_are_loaded_once_for_all_variants(tiny, monkeypatch):
    loads = []
    splits = []
    load_data, split_data = planning.build.dataset, planning.build.federation
    monkeypatch.setattr(planning.build, "dataset", lambda config: loads.append(1) or load_data(config))
    monkeypatch.setattr(planning.build, "federation", lambda *given: splits.append(1) or split_data(*given))
    with plan(load_experiment(tiny | {"compare": {"A": {}, "B": {"step_size": 0.2}, "C": {"seed": 1}}})) as planned:
        assert (len(loads), len(splits)) == (1, 2)
        first, *others = (job.simulation.federation.train.x for job in planned.jobs)
    assert all(other is first for other in others), "placed on the device once"


@pytest.mark.sample(1)
@pytest.mark.parametrize(("seconds", "recorded"), [(0, 1), (3600, 3)])
def test_failed_run_keeps_what_it_recorded(tiny, tmp_path, monkeypatch, seconds, recorded):
    def fail(self, *given):
        raise OSError("disk full")

    monkeypatch.setattr(Checkpoints, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        run(tiny | {"checkpoint_every_seconds": seconds}, out=tmp_path / "out")
    assert len((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()) == recorded


@pytest.mark.parametrize(
    ("record", "stored", "expected"),
    [
        ({"mesh_devices": 2}, "auto", "cores"),
        ({"mesh_devices": 1}, "auto", None),
        ({"mesh_devices": 64}, "auto", "auto"),  # they are not here: chosen anew
    ],
)
def test_a_resumed_run_keeps_its_devices(tiny, tmp_path, monkeypatch, record, stored, expected):
    """Of ``mesh="auto"``, the default, which might choose others for more rounds."""
    monkeypatch.setattr(planning, "trace", lambda asked: asked)
    write_text(tmp_path / results.CONFIG, yaml.safe_dump(tiny | {"mesh": stored}))
    write_json(tmp_path / environment.ENVIRONMENT, record)
    with plan(load_experiment(tiny | {"rounds": 8}), out=tmp_path, resume=True) as resumed:
        assert resumed.jobs[0].simulation.mesh == expected
