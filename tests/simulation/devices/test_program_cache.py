"""Compiled programs that are kept: bounded, and shared only between equal ones."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_drag as fd
from fedjax_drag.simulation.devices import program_cache
from fedjax_drag.simulation.devices.program_cache import Recent, compiled, is_self_contained

pytestmark = pytest.mark.fresh

ONE, TWO = np.float32(1), np.float32(2)


def lower(function, *arguments, **options):
    return jax.jit(function, **options).lower(*(arguments or (ONE, TWO)))


def test_the_least_recently_used_is_dropped():
    recent = Recent(2)
    for name in "ab":
        recent.put(name, name.upper())
    assert recent.get("a") == "A"
    recent.put("c", "C")
    assert [recent.get(name) for name in "abc"] == ["A", None, "C"]
    recent.clear()
    assert len(recent) == 0


def test_equal_programs_are_compiled_once():
    first = compiled(lower(lambda a, b: a + 2 * b), None)
    assert compiled(lower(lambda a, b: a + 2 * b), None) is first
    fd.simulation.clear_cache()
    assert compiled(lower(lambda a, b: a + 2 * b), None) is not first


class Own(NamedTuple):
    value: jax.Array


class Other(NamedTuple):
    value: jax.Array


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda a, b: a + 1, lambda a, b: b + 1),  # the text leaves out what is not used
        (lambda a, b: Own(a + b), lambda a, b: Other(a + b)),
        (lambda a, b: {"sum": a + b}, lambda a, b: {"total": a + b}),
        (lambda a, b: a * jnp.arange(3.0), lambda a, b: a * jnp.array([0.0, 1, 3])),
    ],
    ids=["argument", "type", "name", "constant"],
)
def test_programs_that_are_almost_equal_are_not_shared(one, other):
    for function in (one, other, one):
        expected = function(ONE, TWO)
        found = compiled(lower(function), None)(ONE, TWO)
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        np.testing.assert_array_equal(jax.tree.leaves(found)[0], jax.tree.leaves(expected)[0])


def test_an_argument_that_is_not_used_may_have_another_shape():
    for unused in (ONE, jnp.zeros(3), jnp.zeros(3, jnp.int32)):
        program = compiled(lower(lambda a, b: a + 1, ONE, unused), None)
        np.testing.assert_array_equal(program(ONE, unused), ONE + 1)


def test_what_decides_the_compilation_tells_programs_apart():
    mesh = jax.sharding.Mesh(jax.devices(), ("clients",))
    place = jax.sharding.SingleDeviceSharding(jax.devices()[1])

    def add(a, b):
        return a + b

    programs = [compiled(lower(add), None), compiled(lower(add), mesh), compiled(lower(add, out_shardings=place), None)]
    programs += [compiled(lower(add, donate_argnums=0), None), compiled(lower(add, ONE, np.int32(1)), None)]
    with jax.debug_nans(True):
        programs.append(compiled(lower(add), None))
    with jax.default_device(jax.devices()[1]):
        programs.append(compiled(lower(add), None))
    assert len(set(map(id, programs))) == len(programs)


@pytest.mark.parametrize("call", [jax.debug.callback, jax.debug.print])
def test_programs_that_call_python_are_not_shared(call):
    def calling(a, b):
        call(print if call is jax.debug.callback else "{}", a)
        return a + b

    lowered = lower(calling)
    assert not is_self_contained(lowered)
    assert is_self_contained(lower(jnp.add))
    assert compiled(lowered, None) is not compiled(lower(calling), None)


def test_a_process_with_many_memory_maps_keeps_none(monkeypatch, tmp_path):
    files = {"_MAPS": "map\n" * 600, "_MOST_MAPS": "1000\n"}
    first = compiled(lower(jnp.add), None)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(program_cache, name, tmp_path / name)
    second = compiled(lower(jnp.subtract), None)
    monkeypatch.undo()
    assert compiled(lower(jnp.subtract), None) is second
    assert compiled(lower(jnp.add), None) is not first
    assert program_cache.PROGRAMS >= 4 * program_cache.RUNS
