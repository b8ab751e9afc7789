"""What was played with code of one's own is found again in any process, and not once the code has changed."""

import importlib
import os
import subprocess
import sys

import numpy as np
import pytest

import fedjax_drag as fd
from fedjax_drag.experiment.arena.own_code import codes
from fedjax_drag.experiment.config.own import with_own_names


def code_of(part):
    (code,) = codes(with_own_names({"aggregator": {"name": part}}))
    return code


def scaled(by):
    return lambda c=1.0: fd.aggregators.norm_clipping(by * c)


def test_equal_code_is_equal_and_other_code_is_not():
    assert code_of(scaled(2.0)) == code_of(scaled(2.0))
    others = [
        scaled(3.0),
        lambda c=2.0: fd.aggregators.norm_clipping(2.0 * c),
        lambda c=1.0: fd.aggregators.norm_clipping(2.0 + c),
        lambda c=1.0: fd.aggregators.centered_clipping(2.0 * c),
        fd.aggregators.norm_clipping,
        fd.aggregators.norm_clipping(1.0),
        fd.aggregators.norm_clipping(2.0),
    ]
    assert len({code_of(part) for part in [scaled(2.0), *others]}) == 1 + len(others)


def test_the_whole_file_counts(tmp_path, monkeypatch):
    """So that what a function reads beside its arguments counts too."""
    monkeypatch.syspath_prepend(tmp_path)
    texts = "SHARED = 0.5\ndef rule(c=1.0): return SHARED * c\n", "SHARED = 0.25\ndef rule(c=1.0): return SHARED * c\n"
    found = []
    for number, text in enumerate((*texts, texts[0])):
        (tmp_path / f"file{number}.py").write_text(text)
        rule = importlib.import_module(f"file{number}").rule
        rule.__module__ = "the_same"
        found.append(code_of(rule))
    assert found[0] == found[2] != found[1]


def test_what_cannot_be_read_is_equal_to_itself():
    class Odd:
        def __init__(self, where):
            self.where = where

        def __call__(self):
            return fd.aggregators.fedavg()

    rng = np.random.default_rng(0)
    one, other = Odd(rng.random), Odd(rng.random)
    assert code_of(one) == code_of(one)
    assert code_of(one) != code_of(other)


def test_files_count(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = {"aggregator": {"name": "my_rules.py:mine"}}
    (tmp_path / "my_rules.py").write_text("def mine(): ...")
    before = codes(config)
    (tmp_path / "my_rules.py").write_text("def mine(): pass")
    assert len(before) == 1
    assert codes(config) != before
    assert codes({"aggregator": {"name": "krum"}}) == []


PROGRAM = """
import jax
import fedjax_drag as fd
from fedjax_drag.experiment.arena.own_code import codes
from fedjax_drag.experiment.config.own import with_own_names

def helper(deltas, names={"b", "a"}):
    return jax.tree.map(lambda d: d.mean(0), deltas) if "a" in ("a", "b") else names

def mine(c: float = 1.0):
    def apply(params, deltas, state, **_):
        return fd.tree.move(params, helper(deltas)), state
    return fd.types.Aggregator(lambda params: (), apply)

print(*codes(with_own_names({"aggregator": {"name": mine}, "again": mine(2.0)})))
"""


@pytest.mark.slow
def test_another_process_finds_the_same(tmp_path):
    seen = []
    for seed in ("1", "2"):
        options = os.environ | {"PYTHONHASHSEED": seed, "JAX_PLATFORMS": "cpu"}
        program = tmp_path / "program.py"
        program.write_text(PROGRAM)
        command = [sys.executable, str(program)]
        seen.append(subprocess.run(command, env=options, capture_output=True, text=True, check=True).stdout)
    assert seen[0] == seen[1]
    assert "unread" not in seen[0]
    assert len(set(seen[0].split())) == 2
