"""Values sent between processes arrive unchanged, and no other types can be sent or built."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_drag.simulation.devices import processes
from fedjax_drag.simulation.program.clients_axis import ClientBatching

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
)


@given(plain)
@settings(max_examples=30, deadline=None)
def test_plain_values_come_back(value):
    assert processes.unpack(processes.pack(value)) == value


def test_arrays_come_back_bit_for_bit():
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "b": np.array([np.nan, -0.0, np.inf]),
        "c": jnp.arange(3, dtype=jnp.bfloat16),
        "d": np.zeros((0, 4), np.int32),
        "e": np.float32(2.5),
        "f": np.array([True, False]),
        "g": np.array(["one", "three"]),
        "array": [np.arange(2, dtype=">u2"), {"list": np.int64(7)}],
    }
    found = processes.unpack(processes.pack(arrays))
    assert list(found) == list(arrays)
    for name in "abcdefg":
        assert found[name].dtype == arrays[name].dtype
        assert found[name].shape == arrays[name].shape
        assert found[name].tobytes() == np.asarray(arrays[name]).tobytes()
        found[name][...] = found[name]
    assert found["array"][0].tolist() == [0, 1]
    assert found["array"][1]["list"] == 7


def test_a_named_tuple_is_a_tuple_afterwards():
    assert ClientBatching(*processes.unpack(processes.pack(ClientBatching("map", 2)))) == ClientBatching("map", 2)


@pytest.mark.parametrize("value", [object(), {1: 2}, {3}, b"x", Path("x"), np.array([object()]), len])
def test_other_values_are_refused(value):
    with pytest.raises(TypeError):
        processes.pack([value])


class OwnError(FileNotFoundError):
    pass


class UnknownError(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ValueError("rounds=0: no"), ValueError, "rounds=0: no"),
        (OwnError("gone"), FileNotFoundError, "gone"),
        (UnknownError("what"), RuntimeError, "UnknownError: what"),
        (json.JSONDecodeError("bad", "x", 0), ValueError, "bad: line 1 column 1 (char 0)"),
        (KeyError("round"), KeyError, "'round'"),
    ],
)
def test_an_exception_becomes_a_built_in_one(error, kind, text):
    found = processes.unpack_error(processes.pack_error(error))
    assert (type(found), str(found)) == (kind, text)


def test_a_message_builds_only_plain_values():
    message = processes.pack(["SystemExit", "x"])
    assert type(processes.unpack_error(message)) is RuntimeError
