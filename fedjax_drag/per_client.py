"""State that a method, or the engine, keeps for every client, one row each.

Such state is the only part of a run whose memory grows with the federation and not with the cohort. The engine
recognises it inside any state by its type :class:`PerClient`: it can be counted, divided among devices, or kept in host
memory while a round receives the rows of its cohort only.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from fedjax_drag import tree
from fedjax_drag.kernels.arithmetic import axes_of_params


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PerClient:
    """One row for each client of the federation, or of a cohort.

    Attributes:
      rows: pytree with a leading axis, ``[M, *p]``; ``[S, *p]`` if ``gathered``.
      gathered: whether the rows are those of one cohort, in its order. Static.
    """

    rows: Any
    gathered: bool = dataclasses.field(default=False, metadata={"static": True})

    def take(self, client_ids: Int[Array, " clients"]) -> Any:
        """The rows of a cohort, ``[S, *p]``; if these are gathered, all of them without regard to the ids."""
        return self.rows if self.gathered else tree.take(self.rows, client_ids)

    def put(self, client_ids: Int[Array, " clients"], rows: Any, counted: Bool[Array, " clients"]) -> "PerClient":
        """With new ``rows`` ``[S, *p]`` for the clients of a cohort that are ``counted``.

        The rows of the others keep their bits, also where the new ones are not finite.
        """

        def kept(new: jax.Array, old: jax.Array) -> jax.Array:
            return jnp.where(tree.expand(counted, old), new.astype(old.dtype), old)

        return self.scatter(client_ids, jax.tree.map(kept, rows, self.take(client_ids)))

    def gather(self, client_ids: Int[Array, " clients"]) -> "PerClient":
        """The rows of one cohort only."""
        return PerClient(self.take(client_ids), gathered=True)

    def scatter(self, client_ids: Int[Array, " clients"], rows: Any) -> "PerClient":
        """With the rows of one cohort ``[S, *p]`` replaced; if these are gathered, with all rows replaced."""
        if self.gathered:
            return PerClient(rows, gathered=True)
        return PerClient(jax.tree.map(lambda whole, part: whole.at[client_ids].set(part), self.rows, rows))


def zeros(params: Any, num_clients: int, dtype: Callable[[Any], Any] = jnp.result_type) -> PerClient:
    """A row of zeros like ``params`` for each client; every client must start from the same row.

    Args:
      params: a parameter pytree.
      num_clients: M.
      dtype: of a row's leaf, given that of ``params``.
    """
    return PerClient(jax.tree.map(lambda p: jnp.zeros((num_clients, *jnp.shape(p)), dtype(p)), params))


def repeat(row: Any, num_clients: int) -> PerClient:
    """The same row for each of M clients.

    Args:
      row: a pytree of arrays, without an axis of clients.
      num_clients: M.
    """
    return PerClient(jax.tree.map(lambda x: jnp.broadcast_to(x, (num_clients, *jnp.shape(x))), row))


def is_per_client(node: Any) -> bool:
    """Whether a node of a state is :class:`PerClient`."""
    return isinstance(node, PerClient)


def rows_or(node: Any, otherwise: Callable[[], Any]) -> Any:
    """The rows of a :class:`PerClient`, and what ``otherwise`` gives of any other node."""
    return node.rows if is_per_client(node) else otherwise()


def kept_like(before: Any, row: Any) -> Any:
    """``row`` as what a client keeps, if ``before`` was kept; else ``()``."""
    return PerClient(row, gathered=True) if is_per_client(before) else ()


def convert(function: Callable[..., Any], state: Any, *rest: Any) -> Any:
    """``state`` with ``function`` applied to every :class:`PerClient` in it; ``rest`` are states of the same form."""

    def leaf(node: Any, *others: Any) -> Any:
        return function(node, *others) if is_per_client(node) else node

    return jax.tree.map(leaf, state, *rest, is_leaf=is_per_client)


def gather(state: Any, client_ids: Int[Array, " clients"]) -> Any:
    """``state`` with only the rows of one cohort in every :class:`PerClient`."""
    return convert(lambda node: node.gather(client_ids), state)


def scatter(state: Any, cohort: Any, client_ids: Int[Array, " clients"]) -> Any:
    """``cohort``, a state with the rows of one cohort, completed by the other rows of ``state``."""
    return convert(lambda mine, whole: whole.scatter(client_ids, mine.rows), cohort, state)


def put(
    state: Any, cohort: Any, client_ids: Int[Array, " clients"], counted: Bool[Array, " clients"] | None = None
) -> Any:
    """``state`` with the rows of those clients of a cohort that are counted and whose new rows are finite.

    Args:
      state: whose rows are replaced; of all clients, or of the cohort alone.
      cohort: of the same form, with the new rows of the cohort.
      client_ids: ``[S]``, of the cohort.
      counted: ``[S]``; default everybody.
    """
    nodes = found_in(cohort)
    if not nodes:  # the program of a run that keeps nothing has nothing of this
        return state
    kept = jnp.ones(client_ids.shape, bool) if counted is None else counted
    for rows in jax.tree.leaves(nodes):
        if jnp.issubdtype(rows.dtype, jnp.inexact):
            kept &= jnp.isfinite(rows).all(axes_of_params(rows))
    return convert(lambda whole, mine: whole.put(client_ids, mine.rows, kept), state, cohort)


def found_in(state: Any) -> list[PerClient]:
    """Every :class:`PerClient` in ``state``."""
    return [node for node in jax.tree.leaves(state, is_leaf=is_per_client) if is_per_client(node)]


def num_bytes(state: Any) -> int:
    """Memory of all :class:`PerClient` in ``state`` (arrays or shapes), in bytes."""
    leaves = jax.tree.leaves(found_in(state))
    return sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)


def without_rows(state: Any) -> Any:
    """``state`` with every :class:`PerClient` empty: the part that stays on the device."""
    return convert(lambda node: PerClient((), gathered=True), state)
