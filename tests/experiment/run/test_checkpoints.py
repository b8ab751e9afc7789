import dataclasses
import json
import shutil
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import TINY

import fedjax_drag as fd
from fedjax_drag.experiment.build.experiment import load
from fedjax_drag.experiment.build.resolve import resolve
from fedjax_drag.experiment.run.checkpoints import Checkpoints, load_params, load_variables
from fedjax_drag.experiment.run.errors import FolderError


class State(NamedTuple):
    params: Any
    clients: Any
    key: jax.Array
    round: jax.Array
    nothing: Any = ()


@pytest.fixture
def state():
    """Leaves of one shape in an order that is not alphabetic, an empty one and a random key."""
    params = {"b": jnp.arange(3.0), "a": [jnp.ones(3), jnp.zeros((0, 3))]}
    return State(params, {"h": jnp.full((4, 3), np.nan)}, jax.random.key(7), jnp.int32(5))


@pytest.mark.parametrize("abstract", [False, True])
def test_state_comes_back_bit_for_bit(tmp_path, state, abstract):
    Checkpoints(tmp_path).save(5, state, 0.5)
    back = Checkpoints(tmp_path).restore(5, jax.eval_shape(lambda: state) if abstract else state).state
    assert jax.tree.structure(back) == jax.tree.structure(state)
    assert jax.random.key_data(back.key).tolist() == jax.random.key_data(state.key).tolist()
    for old, new in zip(jax.tree.leaves(state._replace(key=0)), jax.tree.leaves(back._replace(key=0)), strict=True):
        np.testing.assert_array_equal(old, new)
        assert jnp.result_type(old) == jnp.result_type(new)


def test_a_key_of_another_kind_comes_back(tmp_path, state):
    kept = state._replace(key=jax.random.key(7, impl="rbg"))
    Checkpoints(tmp_path).save(5, kept, 0.5)
    for like in (kept, jax.eval_shape(lambda: kept)):
        key = Checkpoints(tmp_path).restore(5, like).state.key
        assert key.dtype == kept.key.dtype
        assert jax.random.key_data(key).tolist() == jax.random.key_data(kept.key).tolist()


def test_names_with_separators_come_back(tmp_path):
    """Dots within names are no steps of a path: two leaves had one name, and others came back below another."""
    params = {
        "a.b": jnp.ones(2),
        "a": {"b": jnp.zeros(2)},
        "c/d": jnp.ones(1),
        "e%2Ef": jnp.zeros(1),
        "e.f": jnp.ones(1),
    }
    kept = State(params, (), jax.random.key(0), jnp.int32(5))
    Checkpoints(tmp_path).save(5, kept, 0.5)
    chex.assert_trees_all_equal(Checkpoints(tmp_path).restore(5, kept).state.params, params)
    chex.assert_trees_all_equal(load_params(tmp_path), params)


def test_newest_are_kept(tmp_path, state):
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.rounds() == []
    for round_number in (2, 10, 30):
        checkpoints.save(round_number, state, 0.5)
    assert Checkpoints(tmp_path).rounds()[-1] == 30
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["10", "30"]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"b": jnp.zeros(4), "a": [jnp.ones(3)]}, r"has \(3,\) at params.b; must have \(4,\)"),
        ({"b": jnp.zeros(3)}, r"has \(3,\) at params.a.0; must have nothing"),
        ({"b": jnp.zeros(3), "a": [jnp.ones(3)], "c": jnp.zeros(2)}, r"has nothing at params.c; must have \(2,\)"),
    ],
)
def test_state_of_another_structure_is_refused_in_one_line(tmp_path, state, other, message):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(5, state, 0.5)
    with pytest.raises(ValueError, match=f"round 5: {message}") as caught:
        checkpoints.restore(5, state._replace(params=other))
    assert "\n" not in str(caught.value)


# Which are kept, and which can be read.


def saved(folder, state, accuracies, **options):
    """Checkpoints of rounds 1, 2, ... with these test accuracies."""
    for round_number, accuracy in enumerate(accuracies, start=1):
        Checkpoints(folder, **options).save(round_number, state._replace(round=jnp.int32(round_number)), accuracy)
    return sorted(int(path.name) for path in (folder / "checkpoints").iterdir())


def newest(folder, state, **options):
    found = Checkpoints(folder, **options).newest(state)
    return None if found is None else (found[0], int(found[1].state.round))


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("options", "kept"),
    [({}, [3, 5, 6]), ({"keep_best": False}, [5, 6]), ({"keep": 1}, [3, 6]), ({"keep": 9}, [1, 2, 3, 4, 5, 6])],
)
def test_the_last_ones_and_the_best_are_kept(tmp_path, state, options, kept):
    assert saved(tmp_path, state, [0.1, 0.5, 0.5, 0.2, 0.1, 0.3], **options) == kept


def test_parameters_are_loaded_without_the_run(tmp_path, state):
    params = {"Dense_0": {"bias": jnp.arange(3.0), "kernel": jnp.ones((2, 3))}}
    state = state._replace(params=params)
    saved(tmp_path, state, [0.1, 0.9, 0.2, 0.3])
    for which in ("latest", "best", 3, np.int64(3)):
        found = load_params(tmp_path, which)
        assert jax.tree.structure(found) == jax.tree.structure(params)
        jax.tree.map(np.testing.assert_array_equal, found, params)
    with pytest.raises(FileNotFoundError, match="no checkpoint 1; there are those of rounds 2, 3, 4"):
        load_params(tmp_path, 1)
    with pytest.raises(ValueError, match="which='first': must be 'latest', 'best' or the round"):
        load_params(tmp_path, "first")
    with pytest.raises(FileNotFoundError, match="none': no such results folder"):
        load_params(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="no checkpoint 'latest'; there is none"):
        load_params(tmp_path / "empty")


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def largest(folder):
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


DAMAGE = {
    "a bit": lambda folder: flip(largest(folder)),
    "the end": lambda folder: largest(folder).write_bytes(largest(folder).read_bytes()[:100]),
    "a file": lambda folder: largest(folder).unlink(),
    "its description": lambda folder: (folder / "default" / "_METADATA").unlink(),
    "the state": lambda folder: shutil.rmtree(folder / "default"),
    "everything": lambda folder: (shutil.rmtree(folder), folder.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.sample(1)
def test_damaged_one_is_reported_and_the_one_before_it_used(tmp_path, state, damage, capsys):
    state = state._replace(params={"w": jax.random.normal(jax.random.key(0), (40, 50))})
    saved(tmp_path, state, [0.1, 0.2, 0.3])
    damage(tmp_path / "checkpoints" / "3")
    with pytest.raises(ValueError, match="checkpoint of round 3: damaged: "):
        load_params(tmp_path)
    capsys.readouterr()
    assert newest(tmp_path, state) == (2, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("checkpoint of round 3: damaged: ")
    assert line.endswith("; set aside in checkpoints.damaged, going on from round 2")
    assert (tmp_path / "checkpoints.damaged" / "3").is_dir()
    assert newest(tmp_path, state) == (2, 2), "and is not in the way"
    Checkpoints(tmp_path).save(3, state._replace(round=jnp.int32(3)), 0.3)
    assert newest(tmp_path, state) == (3, 3)
    assert capsys.readouterr().err == ""


def test_one_whose_removal_was_interrupted_is_removed(tmp_path, state):
    kept = saved(tmp_path, state, [0.1, 0.9, 0.2, 0.3])
    shutil.copytree(tmp_path / "checkpoints" / "3", tmp_path / "checkpoints" / "1")
    (tmp_path / "checkpoints" / "1" / "record.json").unlink()
    for name in ("5.partial", "6.partial"):
        (tmp_path / "checkpoints" / name / "default").mkdir(parents=True)
    assert newest(tmp_path, state) == (4, 4)
    assert sorted(int(path.name) for path in (tmp_path / "checkpoints").iterdir()) == kept == [2, 3, 4]


def test_none_that_can_be_read(tmp_path, state):
    assert newest(tmp_path, state) is None
    saved(tmp_path, state, [0.1, 0.2])
    for name in ("1", "2"):
        DAMAGE["the state"](tmp_path / "checkpoints" / name)
    with pytest.raises(
        ValueError, match="no checkpoint can be read; to begin anew, remove that folder and resume"
    ) as caught:
        newest(tmp_path, state)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "checkpoints" / "2").exists(), "nothing is removed"


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"crc32": 1}', "[" * 100_000, "0.9"])
def test_what_chooses_among_checkpoints_is_under_a_checksum(tmp_path, state, content):
    saved(tmp_path, state, [0.1, 0.9, 0.3])
    record = tmp_path / "checkpoints" / "2" / "record.json"
    record.write_text(record.read_text().replace("0.9", "0.2") if content == "0.9" else content)
    with pytest.raises(ValueError, match=r"^checkpoint of round 2: damaged: record\.json: ") as caught:
        load_params(tmp_path, "best")
    assert "\n" not in str(caught.value)
    load_params(tmp_path, "latest")
    assert newest(tmp_path, state, keep=1) == (3, 3)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["3"]


def test_a_checkpoint_knows_its_round_its_run_and_its_configuration(tmp_path, state, capsys):
    """Folders that were renamed, exchanged or copied went on from other parameters than they said."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "environment.json").write_text(json.dumps({"run": name}))
        saved(tmp_path / name, state, [0.1, 0.2, 0.3])
    place, elsewhere = tmp_path / "one" / "checkpoints", tmp_path / "other" / "checkpoints"
    (place / "3").rename(place / "7")
    with pytest.raises(ValueError, match=r"^checkpoint of round 7: is that of round 3$"):
        load_params(tmp_path / "one")
    shutil.rmtree(place / "7")
    shutil.copytree(elsewhere / "3", place / "3")
    with pytest.raises(ValueError, match=r"^checkpoint of round 3: is of another run \(other\) than the folder"):
        load_params(tmp_path / "one")
    assert newest(tmp_path / "one", state) == (2, 2)
    assert "checkpoint of round 3: is of another run" in capsys.readouterr().err
    shutil.rmtree(place / "2" / "default")
    shutil.copytree(elsewhere / "3" / "default", place / "2" / "default")
    with pytest.raises(ValueError, match=r"^checkpoint of round 2: damaged: does not match its checksum$"):
        load_params(tmp_path / "one", 2)
    shutil.rmtree(place)
    shutil.copytree(elsewhere, place)
    with pytest.raises(FolderError, match="no checkpoint is of this run: ") as caught:
        newest(tmp_path / "one", state)
    assert "remove" not in str(caught.value)


def test_a_checkpoint_of_another_configuration_is_named(tmp_path, state):
    configs = [resolve(load(TINY | {"seed": seed})) for seed in (0, 1)]
    saved(tmp_path, state, [0.1], config=configs[0])
    assert newest(tmp_path, state, config=dataclasses.replace(configs[0], rounds=99, keep_best=False)) == (1, 1)
    with pytest.raises(FolderError, match=r"round 1: is of a run with seed=0, and this one has 1$"):
        newest(tmp_path, state, config=configs[1])


def test_another_dtype_is_named_and_no_damage(tmp_path, state):
    with jax.enable_x64(True):
        wide = state._replace(params={"b": jnp.ones(3, float), "a": [jnp.ones(3, float), jnp.ones((0, 3), float)]})
    for place, x64, kept, wanted in (("x64", True, wide, state), ("usual", False, state, wide)):
        (tmp_path / place).mkdir()
        with jax.enable_x64(x64):
            saved(tmp_path / place, kept, [0.1])
        match = r"no checkpoint is of this run: .*has float\d\d at params.*; this run has .*; JAX_ENABLE_X64 must be"
        with jax.enable_x64(not x64), pytest.raises(FolderError, match=match) as caught:
            newest(tmp_path / place, wanted)
        assert "damaged" not in str(caught.value)
        assert load_params(tmp_path / place)["b"].dtype == kept.params["b"].dtype, "whatever this process has"


@pytest.mark.parametrize("name", ["0020", "٢", "20 ", "-1", "x"])
def test_other_folders_are_no_checkpoints(tmp_path, state, name):
    saved(tmp_path, state, [0.1])
    (tmp_path / "checkpoints" / name / "default").mkdir(parents=True)
    assert newest(tmp_path, state) == (1, 1)
    load_params(tmp_path, "best")
    assert (tmp_path / "checkpoints" / name).exists()


@pytest.mark.slow
def test_statistics_and_frozen_parameters_are_kept(tmp_path):
    """Of a run in two parts, with a model that has BatchNorm and dropout, and a head that is trained alone."""
    from nets import Net

    config = {"data": "digits", "partition": {"name": "iid", "num_clients": 8}, "cohort_size": 4, "rounds": 4}
    config |= {"eval_every": 2, "model": Net(), "trainable": ["b"], "model_state": "local"}
    whole = fd.run(config, out=tmp_path / "whole", quiet=True)
    fd.run(config, overrides=["rounds=2"], out=tmp_path / "parts", quiet=True)
    parts = fd.run(config, out=tmp_path / "parts", resume=True, quiet=True)
    jax.tree.map(np.testing.assert_array_equal, parts.state, whole.state)
    found = load_variables(tmp_path / "parts")
    jax.tree.map(np.testing.assert_array_equal, found, whole.variables)
    assert Net().apply(found, np.zeros((2, 8, 8, 1)), train=False).shape == (2, 10)
