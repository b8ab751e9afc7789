"""The axis of clients on a mesh: what passes through it, and what comes back."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from fedjax_drag.simulation.program.clients_axis import ClientBatching, map_clients, sum_clients

SHARED = {"w": jnp.arange(3.0), "none": jnp.zeros((0, 2))}
INPUTS = {"x": jnp.arange(12.0).reshape(4, 3), "none": jnp.zeros((4, 0)), "ids": jnp.arange(4)}


def one(shared, entry):
    assert shared["none"].shape == (0, 2)
    return {"y": shared["w"] * entry["x"] + entry["ids"], "none": entry["none"]}


def total(shared, entries, outputs):
    assert entries["none"].shape[1:] == (0,)
    return outputs["y"].sum(0) + shared["none"].sum(), outputs


@pytest.fixture
def mesh():
    return Mesh(jax.devices()[:2], ("clients",))


@pytest.mark.parametrize("batching", [ClientBatching("vmap"), ClientBatching("map"), ClientBatching("map", 2)])
def test_arrays_without_entries_stay_as_they_are_on_a_mesh(batching, mesh):
    """A rule's state has such leaves, and XLA of JAX 0.11 ends the process if they are divided among devices."""
    into = {"y": jnp.full((4, 3), 7.0), "none": jnp.zeros((4, 0))}
    for devices in (mesh, None):
        out = jax.jit(partial(map_clients, batching, devices), static_argnums=0)(one, SHARED, INPUTS, into)
        np.testing.assert_array_equal(out["y"], SHARED["w"] * INPUTS["x"] + np.arange(4)[:, None])
        assert out["none"].shape == (4, 0)
    lowered = jax.jit(partial(map_clients, batching, mesh), static_argnums=0).lower(one, SHARED, INPUTS, into).as_text()
    (given,) = (line for line in lowered.splitlines() if "sdy.manual_computation" in line)
    assert "tensor<2x3xf32>" in given
    assert not re.search(r"tensor<(\d+x)*0x", given)


@pytest.mark.parametrize("batching", [ClientBatching("vmap"), ClientBatching("map"), ClientBatching("map", 2)])
def test_totals_over_a_mesh_are_those_without_one(batching, mesh):
    compiled = [jax.jit(partial(sum_clients, batching, own), static_argnums=(0, 1)) for own in (mesh, None)]
    (here, kept), (alone, kept_alone) = (program(one, total, SHARED, INPUTS) for program in compiled)
    np.testing.assert_allclose(here, alone, rtol=1e-6)
    np.testing.assert_array_equal(kept["y"], kept_alone["y"])
    assert kept["none"].shape == kept_alone["none"].shape == (4, 0)
