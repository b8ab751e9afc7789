"""Per-client state of a method: on the device, divided among devices, on the host, or in a memory-mapped file."""

import functools
import gc
import os
import tempfile
import weakref

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_drag as fd
from fedjax_drag import per_client
from fedjax_drag.experiment.run.stored import client_rows
from fedjax_drag.per_client import PerClient
from fedjax_drag.simulation.devices import host_state
from fedjax_drag.simulation.devices.host_state import FileRows, RowFile

METHODS = {
    "scaffold": lambda: fd.algorithms.scaffold(12),
    "feddyn": lambda: fd.algorithms.feddyn(12, a=0.1),
    "adabest": lambda: fd.algorithms.adabest(12, mu=0.02, beta=0.8),
    "feddc": lambda: fd.algorithms.feddc(12),
    "foolsgold": lambda: fd.algorithms.from_aggregator(fd.aggregators.foolsgold(12)),
    "fldetector": lambda: fd.algorithms.from_aggregator(fd.aggregators.fldetector(fd.aggregators.fedavg(), window=1)),
    "taco": lambda: fd.algorithms.taco(12, max_strikes=2),
    "fedavg": lambda: fd.algorithms.from_aggregator(fd.aggregators.fedavg()),
}


assert_same_bits = functools.partial(chex.assert_trees_all_equal, strict=True)


@pytest.mark.optimised
@pytest.mark.parametrize(
    "method", [pytest.param(m, marks=pytest.mark.thorough if m == "scaffold" else pytest.mark.slow) for m in METHODS]
)
def test_on_the_host_and_on_the_disk_every_bit_is_the_same(settings, method):
    device = fd.simulate(METHODS[method](), **settings())
    for place, kind in (("host", np.ndarray), ("disk", FileRows)):
        host = fd.simulate(METHODS[method](), client_state=place, **settings())
        assert_same_bits(jax.tree.map(np.asarray, device.state), jax.tree.map(np.asarray, host.state))
        assert_same_bits(device.history, host.history)
        on_host = [type(leaf) for leaf in jax.tree.leaves(per_client.found_in(host.state))]
        assert all(found is kind for found in on_host)
        assert bool(on_host) == (method not in ("taco", "fedavg"))


@pytest.mark.optimised
@pytest.mark.slow
@pytest.mark.parametrize("first", ["host", "disk"])
def test_a_run_is_continued_wherever_its_rows_were(settings, first):
    whole = fd.simulate(METHODS["scaffold"](), **settings(num_rounds=6))
    half = fd.simulate(METHODS["scaffold"](), client_state=first, **settings(num_rounds=3))
    before = jax.tree.map(np.array, half.state)
    for place in ("host", "disk", "device"):
        resumed = fd.simulate(METHODS["scaffold"](), client_state=place, initial=half.state, **settings(num_rounds=6))
        assert_same_bits(jax.tree.map(np.asarray, resumed.state), jax.tree.map(np.asarray, whole.state))
        assert_same_bits(jax.tree.map(np.array, half.state), before)  # the given state stays as it was


@pytest.mark.optimised
@pytest.mark.slow
def test_over_two_devices_the_rows_are_divided(settings):
    simulation = fd.simulation.prepare(METHODS["scaffold"](), mesh="cores", **settings(cohort_size=4))
    start = simulation.initial_state()
    rows = jax.tree.leaves(start.algorithm.client_controls)[0]
    assert {shard.data.shape[0] for shard in rows.addressable_shards} == {6}
    result = simulation.run()
    rows = jax.tree.leaves(result.state.algorithm.client_controls)[0]
    assert {shard.data.shape[0] for shard in rows.addressable_shards} == {6}
    alone = fd.simulate(METHODS["scaffold"](), **settings(cohort_size=4))
    for a, b in zip(jax.tree.leaves(alone.state), jax.tree.leaves(result.state), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    host = fd.simulate(METHODS["scaffold"](), mesh="cores", client_state="host", **settings(cohort_size=4))
    assert_same_bits(jax.tree.map(np.asarray, result.state), jax.tree.map(np.asarray, host.state))


@pytest.mark.thorough
def test_client_state_bytes_before_the_run(settings):
    simulation = fd.simulation.prepare(METHODS["feddc"](), **settings())
    model = sum(leaf.nbytes for leaf in jax.tree.leaves(simulation.initial_state().params))
    assert simulation.client_state_bytes == 2 * 12 * model
    assert fd.simulation.prepare(METHODS["taco"](), **settings()).client_state_bytes == 0


def test_an_unknown_place_of_client_state_is_refused(refused):
    refused("client_state='tape': must be one of device, host, disk", METHODS["fedavg"](), client_state="tape")


@pytest.mark.optimised
@pytest.mark.thorough
def test_sums_over_rounds_do_not_depend_on_the_stretches(settings):
    """The mean loss since the last evaluation has the same bits however often the host looked in."""
    method = METHODS["fedavg"]()
    whole = fd.simulate(method, **settings(num_rounds=7, eval_every=7))
    assert_same_bits(
        whole.history, fd.simulate(method, **settings(num_rounds=7, eval_every=7, rounds_per_compile=2)).history
    )


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
