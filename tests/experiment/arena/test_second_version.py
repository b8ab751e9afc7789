"""The arenas of version 2: their protocols, and each played for a round on data of the same kind."""

from pathlib import Path

import numpy as np
import pytest
import yaml

import fedjax_drag as fd
from fedjax_drag.experiment.arena.protocol import load_arena
from fedjax_drag.experiment.arena.trials import Trials

FILES = {path.stem: path for path in (Path(__file__).parents[3] / "configs" / "arena").glob("*_v2.yaml")}
NUMBER = 400


def drawn(kind):
    """Examples like those of a data set, drawn at random, of which a part is for validation."""
    rng = np.random.default_rng(0)
    users = None
    if kind == "shakespeare":
        x, y = rng.integers(0, 80, (NUMBER, 20)).astype(np.int8), rng.integers(0, 80, NUMBER)
        users = np.repeat(np.arange(20), NUMBER // 20)
    elif kind == "adult":
        x, y = rng.normal(size=(NUMBER, 12)).astype(np.float32), rng.integers(0, 2, NUMBER)
    else:
        shape = (32, 32, 3) if kind == "cifar10" else (28, 28, 1)
        x, y = rng.integers(0, 256, (NUMBER, *shape)).astype(np.uint8), np.arange(NUMBER) % 10
    return fd.data.hold_out(fd.data.from_arrays(x, y, x[:40], y[:40], users=users), 0.1)


def small(name):
    """The protocol with a round of a step, one seed, the first task, one attack and one backdoor."""
    mapping = yaml.safe_load(FILES[name].read_text())
    base = mapping["base"]
    kind = base["data"]["name"]
    base["data"] = {"name": lambda validation_fraction=0.1: drawn(kind), "label": kind, "validation_fraction": 0.1}
    base |= {"rounds": 1, "eval_every": 1, "local_steps": 1, "batch_size": 2, "root_size": 5, "time_clients": False}
    base["model"] |= {"hidden": 4} if base["model"]["name"] == "lstm" else {}
    base["partition"] |= {"min_size": 5} if base["partition"]["name"] == "natural" else {}
    tasks = {axis: values[:1] for axis, values in mapping["tasks"].items()}
    attacks = {label: mapping["attacks"][label] for label in ["late_ipm"]}
    backdoors = dict(list(mapping.get("backdoors", {}).items())[:1])
    for one in backdoors.values():
        one["attack"]["stop"] = 1
    given = {"tasks": tasks, "attacks": attacks, "seeds": [0]} | ({"backdoors": backdoors} if backdoors else {})
    return load_arena(mapping | given)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FILES))
def test_it_is_played(name, tmp_path):
    arena = small(name)
    (entry,) = arena.only(["fltrust"]).entries
    found = Trials(tmp_path, quiet=True).play(arena, entry)
    assert found.accuracy.shape == (1, 2, 1)
    assert not found.failures
    assert "attack.start" in found.choices[0]["strengths"]["late_ipm"]
    assert list(found.backdoors) == [one.label for one in arena.backdoors]


def test_attackers_choose_strength_side_objective_and_timing():
    assert len(FILES) == 5
    for name, path in FILES.items():
        arena = load_arena(path)
        assert (arena.name, arena.version, len(arena.seeds)) == (f"arena_{name}", 2, 5)
        chosen = {key for one in arena.opponents for key in one.strengths}
        assert {"attack.scale", "attack.side", "attack.objective", "attack.start", "attack.norm"} <= chosen
        assert set(arena.tuning_seeds).isdisjoint(arena.seeds)
        assert len(arena.backdoors) == (5 if name in ("fashion_mnist_v2", "cifar10_v2") else 0)
        assert all(one.attack["stop"] < arena.base["rounds"] for one in arena.backdoors)
