"""Rows of all clients in a memory-mapped file."""

import gc
import os
import tempfile
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_drag.experiment.run.stored import client_rows
from fedjax_drag.per_client import PerClient
from fedjax_drag.simulation.devices import host_state
from fedjax_drag.simulation.devices.host_state import FileRows, RowFile

M = 40
IDS = np.array([3, 17, 39])


def first_state():
    """One client's row of three leaves, one of them of scalars and one that is not zero."""
    rows = {
        "kernel": jnp.zeros((1, 3, 5)),
        "half": jnp.full((1, 3), 1.5, jnp.bfloat16),
        "steps": jnp.zeros(1, jnp.int32),
    }
    return {"params": jnp.ones(2), "own": PerClient(rows), "second": PerClient(jnp.zeros((1, 1)))}


def cohort(state, seed):
    """A state after a round: the cohort's rows in ``state`` replaced by random ones."""
    rng = np.random.default_rng(seed)
    part = host_state.take(state, IDS, None)
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape) * 9, x.dtype), part)


def file_of(state):
    file = host_state.found_in(state)
    assert file is not None
    return file


def bits(state):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)]


@pytest.fixture(params=["rows of zeros", "rows that are not"])
def states(request):
    """A state in memory and in a file, after two rounds."""
    first = first_state()
    if request.param == "rows of zeros":
        first["own"] = PerClient(jax.tree.map(jnp.zeros_like, first["own"].rows))
    both = [host_state.repeat(first, M, place) for place in ("host", "disk")]
    return [host_state.store(host_state.store(s, cohort(s, 0), IDS), cohort(s, 1), IDS) for s in both]


def test_rows_in_a_file_are_those_in_memory(states):
    in_memory, in_file = states
    assert bits(in_memory) == bits(in_file)
    assert bits(host_state.take(in_memory, IDS + 0, None)) == bits(host_state.take(in_file, IDS + 0, None))
    assert host_state.found_in(in_memory) is None
    file = file_of(in_file)
    assert np.flatnonzero(file.changed).tolist() == IDS.tolist()
    on_device = [type(leaf) for leaf in jax.tree.leaves(host_state.take(in_file, IDS, None))]
    assert FileRows not in on_device


@pytest.mark.parametrize("chunk", [1, 1 << 26])
def test_copies_have_the_bits_of_the_original_and_are_independent(states, monkeypatch, chunk):
    monkeypatch.setattr(host_state, "_CHUNK", chunk)
    expected = bits(states[0])
    for state in states:  # an array and a file
        copy = host_state.with_rows_of(state, host_state.per_client.without_rows(state), "disk")
        assert bits(copy) == expected
        host_state.store(state, cohort(state, 2), IDS)
        assert bits(copy) == expected
        assert bits(state) != expected


@pytest.mark.parametrize("chunk", [1, 1 << 26])
def test_the_changed_rows_are_written_and_read(states, tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(host_state, "_CHUNK", chunk)
    file, like = file_of(states[1]), jax.eval_shape(lambda: jax.tree.map(jnp.asarray, states[0]))
    checksum = client_rows.write(file, tmp_path / "rows")
    assert (tmp_path / "rows").stat().st_size == 8 + 8 * len(IDS) + (len(IDS) + 1) * file.first.size
    restored = client_rows.read(tmp_path / "rows", like, checksum)
    assert bits(restored["own"]) == bits(states[1]["own"])
    assert bits(restored["second"]) == bits(states[1]["second"])
    assert file_of(restored).changed.tolist() == file.changed.tolist()


@pytest.mark.parametrize("place", [0, 20, -1])
def test_a_file_with_another_byte_is_refused(states, tmp_path, place):
    path, like = tmp_path / "rows", jax.eval_shape(lambda: jax.tree.map(jnp.asarray, states[0]))
    checksum = client_rows.write(file_of(states[1]), path)
    whole = bytearray(path.read_bytes())
    for damaged in (whole[:place], b"", whole[:place] + bytes([whole[place] ^ 128]) + whole[place:][1:]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="client_rows: "):
            client_rows.read(path, like, checksum)
    path.unlink()
    with pytest.raises(ValueError, match=r"client_rows: .*No such file"):
        client_rows.read(path, like, checksum)


def test_a_file_takes_the_space_of_what_is_written_and_leaves_nothing(tmp_path, monkeypatch):
    stream = tempfile.TemporaryFile(dir=tmp_path, buffering=0)  # noqa: SIM115 - closed by whom it is given to
    descriptor = os.dup(stream.fileno())
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: stream)
    file = RowFile([np.zeros(25_000, np.float32)], 10_000)  # 1 GB
    file.write(np.array([5, 9000]), file.packed([np.ones((2, 25_000))]))
    assert file.leaves[0][[5, 6, 9000]].any(1).tolist() == [True, False, True]
    assert os.fstat(descriptor).st_size == 10**9
    assert os.fstat(descriptor).st_blocks * 512 < 10**7
    os.close(descriptor)
    assert list(tmp_path.iterdir()) == []
    gone = weakref.ref(file)
    gc.disable()
    try:
        del file
        assert gone() is None
    finally:
        gc.enable()


def test_too_little_space_is_one_line(monkeypatch):
    with pytest.raises(
        MemoryError, match=r"client_state='disk': the rows .* need [\d,.]+ GiB in .* set TMPDIR"
    ) as error:
        RowFile([np.zeros(250_000_000, np.float32)], 10**9)
    assert "\n" not in str(error.value)
