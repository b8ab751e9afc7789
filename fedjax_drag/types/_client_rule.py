"""The contract of what a client computes."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax

from fedjax_drag.naming import name_of
from fedjax_drag.types._guarantee import Guarantee
from fedjax_drag.types._messages import Batch, Downlink, Params, Uplink


@runtime_checkable
class GradFn(Protocol):
    """The gradient of the client's mean loss on a mini-batch."""

    def __call__(self, w: Params, batch: Batch, /) -> Params:
        """Computes the gradient.

        Args:
          w: the point at which it is taken, like ``params``.
          batch: the examples of the mean.

        Returns:
          The gradient, like ``params``.
        """
        ...


@runtime_checkable
class BeginFn(Protocol):
    """Starts the local pass of one client."""

    def __call__(self, downlink: Downlink, /) -> Any:
        """Makes the carry of the first local step.

        Args:
          downlink: what the server sent to this client.

        Returns:
          The carry: a pytree of arrays whose structure, shapes and dtypes every step keeps; ``()`` for none.
        """
        ...


@runtime_checkable
class DirectionFn(Protocol):
    """Computes one local step of one client."""

    def __call__(
        self, grad_fn: GradFn, w: Params, carry: Any, downlink: Downlink, batch: Batch, /
    ) -> tuple[Params, Any]:
        """Gives the direction against which the engine steps: ``w -= step_size * direction``.

        Args:
          grad_fn: gradient of the loss. It may be called several times, at any point; the call at ``w`` on ``batch``
            costs nothing beyond the training loss, which the engine needs anyway.
          w: the client's parameters before the step.
          carry: what the last step, or ``begin``, returned.
          downlink: what the server sent to this client.
          batch: the mini-batch of the step.

        Returns:
          The direction, like ``w``, and the carry of the next step.
        """
        ...


@runtime_checkable
class KeyedDirectionFn(Protocol):
    """:class:`DirectionFn` of a rule that draws random numbers."""

    def __call__(
        self, grad_fn: GradFn, w: Params, carry: Any, downlink: Downlink, batch: Batch, /, *, key: jax.Array
    ) -> tuple[Params, Any]:
        """The same, given a random ``key`` of the client, the round and the step."""
        ...


@runtime_checkable
class ReportFn(Protocol):
    """Ends the local pass of one client."""

    def __call__(self, downlink: Downlink, w_end: Params, carry: Any, total_step_size: jax.Array, /) -> Any:
        """Makes the message that goes with the delta.

        Args:
          downlink: what the server sent to this client.
          w_end: the client's parameters after the last step.
          carry: what the last step returned.
          total_step_size: sum of the step sizes taken (scalar), ``U eta`` for U steps of size eta.

        Returns:
          ``aux``, a pytree of arrays; ``()`` for none. The engine computes the delta ``w_end - start`` itself.
        """
        ...


@runtime_checkable
class SendFn(Protocol):
    """What becomes of a client's message before it leaves the client."""

    def __call__(self, key: jax.Array, uplink: Uplink, /) -> Uplink:
        """Changes a message.

        Args:
          key: random key of this client and round.
          uplink: the delta and what ``report`` has added, of one client.

        Returns:
          The message that is sent, in the same shapes and dtypes.
        """
        ...


class ClientRule(NamedTuple):
    """What one client computes; the functions see one client, without a leading axis.

    Attributes:
      begin: ``(downlink) -> carry`` at the start of a local pass; see :class:`BeginFn`.
      direction: ``(grad_fn, w, carry, downlink, batch) -> (direction, carry)`` in every local step; see
        :class:`DirectionFn`, or :class:`KeyedDirectionFn` where the rule is ``keyed``.
      report: ``(downlink, w_end, carry, total_step_size) -> aux``, the message beside the delta; see
        :class:`ReportFn`.
      keeps_carry: whether a client's next local pass goes on with the carry at the end of its last one. ``begin`` is
        then called once, before the first round, with ``Downlink(initial parameters)``; the server's own pass on its
        root data begins afresh every time. Default False: every pass begins afresh.
      send: ``(key, uplink) -> uplink``, what honest clients make of their message before it leaves them; see
        :class:`SendFn`. None to send it as it is. The server's own pass is not sent.
      keyed: whether ``direction`` draws random numbers and receives a ``key``.
      guarantee: of differential privacy for what is sent; None for none.
    """

    begin: BeginFn
    direction: DirectionFn | KeyedDirectionFn
    report: ReportFn
    keeps_carry: bool = False
    send: SendFn | None = None
    keyed: bool = False
    guarantee: Guarantee | None = None

    def __repr__(self) -> str:
        return f"ClientRule({self.name})"

    @property
    def name(self) -> str:
        """The name of the function that made it, such as ``fedprox``."""
        return name_of(self.direction)
