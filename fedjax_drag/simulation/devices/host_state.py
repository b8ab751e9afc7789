"""Per-client state in host memory: a round's program receives its cohort's rows and returns them.

Each of several processes keeps all rows, so that any of its devices may work on any client.
"""

from typing import Any

import jax
import numpy as np

from fedjax_drag import per_client
from fedjax_drag.per_client import PerClient
from fedjax_drag.simulation.devices.placement import fetch, place


def first_row(state: Any) -> Any:
    """``state`` with the first client's row alone; before the first round all rows are the same."""
    return per_client.convert(lambda node: PerClient(jax.tree.map(lambda x: x[:1], node.rows)), state)


def repeat(state: Any, num_clients: int) -> Any:
    """``state`` from :func:`first_row` with ``num_clients`` rows, in host memory."""

    def leaf(x: Any) -> np.ndarray:
        return np.repeat(np.asarray(x), num_clients, axis=0)

    return per_client.convert(lambda node: PerClient(jax.tree.map(leaf, node.rows)), state)


def with_rows_of(state: Any, on_device: Any) -> Any:
    """``on_device``, a state without rows, with a copy of the rows of ``state`` in host memory."""
    return per_client.convert(lambda _, whole: PerClient(jax.tree.map(np.array, fetch(whole.rows))), on_device, state)


def take(state: Any, client_ids: np.ndarray, shardings: Any) -> Any:
    """``state`` with one cohort's rows ``[S, *p]`` on the devices of ``shardings``; None for the default device."""

    def node(whole: PerClient) -> PerClient:
        return PerClient(jax.tree.map(lambda x: x[client_ids], whole.rows), gathered=True)

    cohort = per_client.convert(node, state)
    return place(cohort, shardings)


def store(state: Any, cohort: Any, client_ids: np.ndarray) -> Any:
    """``cohort``, the state after a round, with its rows written into the rows of ``state``, which are overwritten."""

    def node(mine: PerClient, whole: PerClient) -> PerClient:
        for rows, fresh in zip(jax.tree.leaves(whole.rows), jax.tree.leaves(fetch(mine.rows)), strict=True):
            rows[client_ids] = fresh
        return whole

    return per_client.convert(node, cohort, state)
