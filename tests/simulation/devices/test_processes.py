"""Many devices, also of several processes: the results of one device, and the values that they exchange."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import together

from fedjax_drag.simulation.devices import processes
from fedjax_drag.simulation.devices.placement import fetch, place, resolve_mesh
from fedjax_drag.simulation.program.clients_axis import ClientBatching

NAMES = ("fedavg", "drag", "median", "krum", "scaffold", "taco")


def outcome(folder, num_processes, num_devices, names):
    worker = Path(__file__).with_name("mesh_worker.py")
    together(lambda i, port: [worker, i, num_processes, port, num_devices, folder, *names], num_processes)
    return folder


def check_equal(folder, name):
    """Sums of the same terms in another order: the tolerance is that of float32 after three rounds."""
    with np.load(folder / f"{name}.npz") as found:
        number = len(found.files) // 2
        assert number
        for i in range(number):
            np.testing.assert_allclose(found[f"all-{i}"], found[f"one-{i}"], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_two_processes_give_the_results_of_one_device(tmp_path):
    check_equal(outcome(tmp_path, 2, 2, ["scaffold-host"]), "scaffold")


@pytest.fixture(scope="module")
def eight_devices(tmp_path_factory):
    return outcome(tmp_path_factory.mktemp("eight"), 1, 8, NAMES)


@pytest.fixture(scope="module")
def two_by_four(tmp_path_factory):
    return outcome(tmp_path_factory.mktemp("two-by-four"), 2, 4, NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("devices", ["eight_devices", "two_by_four"])
def test_eight_devices_give_the_results_of_one(request, devices, name):
    check_equal(request.getfixturevalue(devices), name)


def largest_result(program, operation):
    """Entries of the largest array that such operations of a compiled program give, 0 without any."""
    lines = [line for line in program.splitlines() if re.search(rf" {operation}(-start)?\(", line)]
    shapes = [shape for line in lines for shape in re.findall(r"\w+\[([\d,]*)\]", line.split(f" {operation}")[0])]
    return max((int(np.prod([int(n) for n in shape.split(",") if n])) for shape in shapes), default=0)


def test_results_are_found_in_a_program():
    lines = """
      %a = f32[8,64,10]{2,1,0} all-gather(%b), channel_id=1, dimensions={0}
      %c = (f32[1,8]{1,0}, f32[8,8]{1,0}) all-gather-start(f32[999]{0} %d), dimensions={0}
      %e = f32[10000]{0} add(%all-gather, %f)
    """
    assert largest_result(lines, "all-gather") == 8 * 64 * 10
    assert largest_result(lines, "all-to-all") == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name != "scaffold"])
def test_no_device_gathers_the_stacked_deltas(eight_devices, name):
    """Not of SCAFFOLD: its clients' own rows go to the devices that keep them."""
    stacked = 8 * 64 * 10  # the kernel's deltas, of all clients
    program = (eight_devices / f"{name}.hlo").read_text()
    assert largest_result(program, "all-gather") < stacked
    if name in ("median", "krum"):
        assert largest_result(program, "all-to-all") * 8 == 64 * 10, "its client's delta leaves a device in 8 parts"
    else:
        assert largest_result(program, "all-to-all") == 0
        assert 64 * 10 <= largest_result(program, "all-reduce") < stacked


def test_all_devices_of_one_process():
    mesh = resolve_mesh("all", 6)
    assert mesh is not None
    assert mesh.size == 2
    with pytest.raises(ValueError, match="cohort_size=5: must be a multiple of the 2 devices"):
        resolve_mesh("all", 5)


def test_a_single_process_is_the_first():
    assert processes.is_first()
    assert processes.from_first(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        processes.from_first(divmod, 7, 0)
    processes.check_same("data", {"x": np.ones(3)})


def test_values_are_placed_and_fetched():
    values = {"a": np.arange(4.0, dtype=np.float32), "b": np.int32(3)}
    for sharding in (None, jax.sharding.SingleDeviceSharding(jax.devices()[1])):
        placed = place(values, sharding)
        assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(placed))
        assert all(jax.tree.leaves(jax.tree.map(np.array_equal, fetch(placed), values)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("10.0.0.1", 2, 0), "coordinator_address='10.0.0.1': must be host:port"),
        (("host:99999", 2, 0), "coordinator_address='host:99999': must be host:port"),
        (("host:1", 0, 0), "num_processes=0: must be an integer >= 1"),
        (("host:1", 2, 2), r"process_id=2: must be an integer in \[0, 1\]"),
        (("host:1", 2, 0), "must be called before"),
    ],
)
def test_wrong_arguments_of_initialize(arguments, message):
    jax.devices()  # JAX is in use
    with pytest.raises(ValueError, match=message) as error:
        processes.initialize(*arguments)
    assert "\n" not in str(error.value)


@pytest.mark.thorough
def test_missing_arguments_outside_of_a_cluster():
    command = "from fedjax_drag.simulation.devices import processes; processes.initialize()"
    clean = {key: x for key, x in os.environ.items() if not key.startswith(("SLURM", "OMPI", "JAX_COORDINATOR"))}
    done = subprocess.run([sys.executable, "-c", command], env=clean, capture_output=True, text=True, check=False)
    assert "ValueError: coordinator_address=None, num_processes=None, process_id=None: outside of" in done.stderr


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
