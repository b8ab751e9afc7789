"""Per-client state of a method: on the device, divided among devices, or on the host."""

import functools

import chex
import jax
import numpy as np
import pytest

import fedjax_drag as fd
from fedjax_drag import per_client
from fedjax_drag.simulation.devices.host_state import FileRows, HostRows

METHODS = {
    "scaffold": lambda: fd.algorithms.scaffold(12),
    "feddyn": lambda: fd.algorithms.feddyn(12, a=0.1),
    "adabest": lambda: fd.algorithms.adabest(12, mu=0.02, beta=0.8),
    "feddc": lambda: fd.algorithms.feddc(12),
    "foolsgold": lambda: fd.algorithms.from_aggregator(fd.aggregators.foolsgold(12)),
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
    for place, kind in (("host", HostRows), ("disk", FileRows)):
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


def test_an_unknown_place_of_client_state_is_refused(settings):
    with pytest.raises(ValueError, match="client_state='tape': must be one of device, host, disk"):
        fd.simulation.prepare(METHODS["fedavg"](), client_state="tape", **settings())


@pytest.mark.optimised
@pytest.mark.thorough
def test_sums_over_rounds_do_not_depend_on_the_stretches(settings):
    """The mean loss since the last evaluation has the same bits however often the host looked in."""
    method = METHODS["fedavg"]()
    whole = fd.simulate(method, **settings(num_rounds=7, eval_every=7))
    assert_same_bits(
        whole.history, fd.simulate(method, **settings(num_rounds=7, eval_every=7, rounds_per_compile=2)).history
    )
