"""Per-client state in host memory: a round's program receives its cohort's rows and returns them.

Each of several processes keeps all rows, so that it does not matter whose devices get which.
"""

from typing import Any

import jax
import numpy as np

from fedjax_drag import per_client
from fedjax_drag.per_client import PerClient
from fedjax_drag.simulation.devices.placement import fetch, place


def first_row(state: Any) -> Any:
    """``state`` with one row instead of the federation's: enough to know them all before the first round."""
    return per_client.convert(lambda node: PerClient(jax.tree.map(lambda x: x[:1], node.rows)), state)


def repeated(state: Any, num_clients: int) -> Any:
    """``state`` from :func:`first_row` with ``num_clients`` rows, in host memory."""

    def leaf(x: Any) -> np.ndarray:
        return np.repeat(np.asarray(x), num_clients, axis=0)

    return per_client.convert(lambda node: PerClient(jax.tree.map(leaf, node.rows)), state)


def with_rows_of(state: Any, small: Any) -> Any:
    """``small``, from :func:`without_rows`, with a copy of the rows of ``state`` in host memory."""
    return per_client.convert(lambda _, whole: PerClient(jax.tree.map(np.array, fetch(whole.rows))), small, state)


def taken(state: Any, client_ids: np.ndarray, shardings: Any) -> Any:
    """``state`` with one cohort's rows ``[S, *p]`` in the places that ``shardings`` name; None: the default device."""

    def node(whole: PerClient) -> PerClient:
        return PerClient(jax.tree.map(lambda x: x[client_ids], whole.rows), gathered=True)

    cohort = per_client.convert(node, state)
    return place(cohort, shardings)


def stored(state: Any, cohort: Any, client_ids: np.ndarray) -> Any:
    """``cohort``, the state after a round, with its rows written into those of ``state``, which is used up."""

    def node(mine: PerClient, whole: PerClient) -> PerClient:
        for rows, fresh in zip(jax.tree.leaves(whole.rows), jax.tree.leaves(fetch(mine.rows)), strict=True):
            rows[client_ids] = fresh
        return whole

    return per_client.convert(node, cohort, state)
