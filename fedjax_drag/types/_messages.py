"""What server and clients exchange in a round, and the pytrees that it is made of."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

Params = Any
"""A pytree of floating point arrays."""

Deltas = Any
"""Like :data:`Params`, every leaf with a leading axis ``[S]``."""

State = Any
"""State of a rule or algorithm: a pytree with a field ``metrics``, a dict of arrays."""


class Batch(NamedTuple):
    """A mini-batch, or a whole set of examples.

    Attributes:
      x: inputs ``[B, *input_shape]``, or a pytree of arrays with a leading axis ``[B]``.
      y: targets: integer labels ``[B]``, other arrays ``[B, ...]``, or a pytree of them.
      real: ``[B]`` bool, False for padding; None if all examples are real.
    """

    x: Any
    y: Any
    real: jax.Array | None = None

    @property
    def num_examples(self) -> int:
        """B."""
        return jax.tree.leaves(self.x)[0].shape[0]


class Downlink(NamedTuple):
    """What the server sends before the local passes.

    A :class:`ClientRule` sees the downlink of one client: there ``own`` is the client's row, without the axis ``[S]``.

    Attributes:
      start: parameters from which every client starts, like ``params``.
      shared: pytree that is the same for all clients.
      own: pytree with a leading axis ``[S]``: one row for each client of the round.
      num_steps: local steps that the client takes, scalar; known in a local pass, None elsewhere.
    """

    start: Params
    shared: Any = ()
    own: Any = ()
    num_steps: Any = None


class ClientParams(NamedTuple):
    """The parameters of a client that has some for itself.

    Attributes:
      shared: where the client begins at the server's, and of which it sends the delta; like ``params``.
      own: what the client keeps from round to round; see :meth:`ClientRule.own`.
    """

    shared: Params
    own: Any


def client_params(start: Params, own: Any) -> Any:
    """Where a client's local pass begins: ``start``, with the client's ``own`` if it has any."""
    return start if isinstance(own, tuple) and not own else ClientParams(start, own)


def shared_params(w: Any) -> Params:
    """The part of a client's parameters of which it sends the delta."""
    return w.shared if isinstance(w, ClientParams) else w


class Exchange(NamedTuple):
    """What only a simulation of clients without a server knows.

    Attributes:
      honest: the deltas that all clients have computed, ``[S, *p]``, before malicious ones forge theirs.
      forge: ``(own, others, weight, index) -> others``, what the neighbours of one client send to it, ``index`` ``[D]``
        being their places in the cohort and the rest as of :meth:`Attack.forge_for`; None where all receive the same.
    """

    honest: Deltas
    forge: Callable[..., Deltas] | None = None


class Uplink(NamedTuple):
    """What the clients of a round send back; both halves have a leading axis ``[S]``.

    Attributes:
      delta: ``w_end - start`` of each client, ``[S, *p]``.
      aux: further message of the method, a pytree; ``()`` where it has none.
    """

    delta: Deltas
    aux: Any = ()
