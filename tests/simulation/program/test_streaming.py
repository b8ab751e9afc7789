"""Messages added up as they come: the results of the stack, without its memory."""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_drag as fd
from fedjax_drag.types import Attack

RTOL, ATOL = 1e-5, 1e-6  # of the same sums in another order, over a few rounds
DRAG = fd.algorithms.from_aggregator(fd.aggregators.drag())


def broken(key, batch, **_):
    """Poisons a batch so that the client's delta is not finite."""
    del key
    return batch._replace(x=jnp.full_like(batch.x, jnp.nan))


def assert_same_run(one, other, unknown=()):
    for a, b in zip(jax.tree.leaves(one.state), jax.tree.leaves(other.state), strict=True):
        np.testing.assert_allclose(a, b, rtol=RTOL, atol=ATOL)
    assert one.history.keys() - other.history.keys() == set(unknown)
    for name, values in other.history.items():
        np.testing.assert_allclose(values, one.history[name], rtol=1e-4, atol=1e-5, err_msg=name)


WAYS = [
    {"clients_axis": "map"},
    pytest.param({"clients_axis": "map", "clients_per_chunk": 2}, marks=pytest.mark.slow),
    pytest.param({"clients_axis": "vmap"}, marks=pytest.mark.slow),
    pytest.param({"clients_axis": "map", "cohort_size": 6, "mesh": "cores"}, marks=pytest.mark.slow),
]


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS, ids=["one by one", "chunks", "at once", "two devices"])
def test_drag_streamed_equals_drag_stacked(settings, way):
    """From the first round, whose mean delta is the reference; three clients send deltas that are not finite."""
    attacked = settings(attack=Attack(poison=broken), num_byzantine=3, **way)
    stacked, streamed = (fd.simulate(DRAG, aggregation=how, **attacked) for how in ("stack", "stream"))
    assert_same_run(stacked, streamed)
    assert streamed.history["num_rejected"].max() > 0


@pytest.mark.slow
def test_scaffold_with_drag_inside_streamed_equals_stacked(settings):
    """With per-client state, and a rule that needs two passes over the cohort in the first round."""
    method = fd.algorithms.scaffold(12, aggregator=fd.aggregators.drag())
    stacked, streamed = (fd.simulate(method, aggregation=how, **settings()) for how in ("stack", "stream"))
    assert_same_run(stacked, streamed)


@pytest.mark.thorough
def test_expelled_clients_add_nothing(settings, fedavg):
    few = fedavg._replace(eligible=lambda state: jnp.arange(12) < 3)
    stacked, streamed = (fd.simulate(few, aggregation=how, **settings()) for how in ("stack", "stream"))
    assert_same_run(stacked, streamed, unknown={"cosine"})
    np.testing.assert_array_equal((streamed.history["weight"] > 0).sum(1), [3, 3])


class Wide(nn.Module):
    """A model of 20,480 parameters beside its ten biases."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(10)(jnp.tile(x.reshape(x.shape[0], -1), (1, 32)))


def compiled(settings, method, cohort_size, **changes):
    wide = settings(model=Wide(), cohort_size=cohort_size, clients_axis="map", **changes)
    return fd.simulation.prepare(method, **wide).lowered.advance.compile()


@pytest.mark.slow
def test_memory_does_not_grow_with_the_cohort(settings, fedavg):
    few, many = (compiled(settings, fedavg, size) for size in (2, 12))
    stack = compiled(settings, fedavg, 12, aggregation="stack")
    assert "f32[12,2048,10]" in stack.as_text()
    assert not re.search(r"\[12,2048,10\]|\[12,20480\]", many.as_text())
    few, many, stack = (program.memory_analysis().temp_size_in_bytes for program in (few, many, stack))
    of_a_model = 4 * 20_480
    assert many - few < of_a_model, "lists of examples and scalars alone"
    assert stack - many > 9 * of_a_model


@pytest.mark.thorough
def test_devices_exchange_one_sum(settings, fedavg):
    text = compiled(settings, fedavg, 12, mesh="cores").as_text()
    assert "all-reduce" in text
    assert not re.search(r"f32\[\d+,(2048,10|20480)\]\S* all-(gather|to-all)", text)


@pytest.mark.parametrize(
    ("method", "changes", "why"),
    [
        (fd.algorithms.from_aggregator(fd.aggregators.median()), {}, "compares the clients with each other"),
        (fd.algorithms.scaffold(12, tailored=True), {}, "compares the clients with each other"),
        (DRAG, {"attack": fd.attacks.sign_flip(), "num_byzantine": 2}, "the attack forges messages"),
    ],
)
def test_a_method_that_needs_the_stack_is_refused_with_the_reason(refused, method, changes, why):
    refused(f"aggregation='stream': .*{why}.*; must be 'auto' or 'stack'", method, aggregation="stream", **changes)
    refused("aggregation='streem': must be one of auto, stack, stream", method, aggregation="streem", **changes)
