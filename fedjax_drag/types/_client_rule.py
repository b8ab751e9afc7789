"""The contract of what a client computes."""
# Fields of FunctionClientRule stand in the place of methods.
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax

from fedjax_drag.checks import ArgumentError
from fedjax_drag.types._guarantee import Guarantee
from fedjax_drag.types._messages import Batch, Downlink, Params, Uplink
from fedjax_drag.types._part import Part, forwards, undefined


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
          ``aux``, a pytree of arrays; ``()`` for none. The engine computes the delta ``w_end - origin`` itself.
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


class Prediction(NamedTuple):
    """What a model computes for a mini-batch.

    Attributes:
      outputs: ``[B, ...]``, of classes their logits.
      representation: ``[B, D]``, the input of the last dense layer of Flax linen that the model calls (``nn.Dense``,
        ``nn.DenseGeneral`` or ``nn.Embed.attend``), flattened; the outputs where it calls none, as an NNX module.
    """

    outputs: jax.Array
    representation: jax.Array


Predict = Callable[[Params, Any], Prediction]
"""What a model with these parameters computes for inputs: the extra ``predict`` of an aggregation rule."""


class Examined(NamedTuple):
    """What the loss of a client rule is made of: the client's model on a mini-batch, in training.

    Attributes:
      outputs: of the client's model, as of :class:`Prediction`.
      representation: of the client's model, as of :class:`Prediction`.
      loss: ``(outputs, targets) -> [B]``, that of the run.
      predict: ``(params) -> Prediction``, of other parameters for the same inputs, in evaluation.
      class_counts: ``[C]`` int32, how many examples of each class the client has, as they were before an attack; None
        where examples do not have one label each.
    """

    outputs: jax.Array
    representation: jax.Array
    loss: Callable[[jax.Array, jax.Array], jax.Array]
    predict: Callable[[Params], Prediction]
    class_counts: jax.Array | None = None


class ClientRule(Part):
    """What one client computes; the methods see one client, without a leading axis.

    A client rule is a subclass with a ``direction``, and what else it needs. ``ClientRule(begin, direction, report)``
    makes one of functions, see :class:`FunctionClientRule`. One with another objective than the run's states its
    ``loss``.

    Attributes:
      keeps_carry: whether a client's next local pass goes on with the carry at the end of its last one. ``begin`` is
        then called once, before the first round, with ``Downlink(initial parameters)``; the server's own pass on its
        root data begins afresh every time. Default False: every pass begins afresh.
      keyed: whether ``direction`` draws random numbers and receives a ``key``.
      guarantee: of differential privacy for what is sent; None for none.
    """

    def __new__(cls, *_: Any, **__: Any) -> Any:
        return object.__new__(FunctionClientRule if cls is ClientRule else cls)

    @property
    def keeps_carry(self) -> bool:
        return False

    @property
    def keyed(self) -> bool:
        return False

    @property
    def guarantee(self) -> Guarantee | None:
        return None

    def receive(self, downlink: Downlink, loss: Callable[[Params], jax.Array]) -> Downlink:
        """What the client's pass goes by, of what the server sent to it; by default all of that.

        A client may begin elsewhere than the others: ``start`` of what is returned is where its steps and its delta
        begin. ``loss`` is the mean loss of a model over all examples of the client, in evaluation, scalar.
        """
        del loss
        return downlink

    def origin(self, downlink: Downlink) -> Params:
        """Where the delta begins, by default where the local steps begin, given what ``receive`` has returned."""
        return downlink.start

    def begin(self, downlink: Downlink) -> Any:
        """The carry at the start of a local pass, by default none; see :class:`BeginFn`."""
        del downlink
        return ()

    def loss(self, examined: Examined, carry: Any, downlink: Downlink, batch: Batch) -> jax.Array:
        """The loss of each example of a mini-batch ``[B]``, in the place of the run's; padding does not count.

        ``grad_fn`` and ``train_loss`` are those of its mean. A rule that does not define it minimises the run's loss.
        """
        del carry, downlink
        return examined.loss(examined.outputs, batch.y)

    @property
    def has_loss(self) -> bool:
        """Whether the rule has a ``loss``."""
        return type(self).loss is not ClientRule.loss

    def direction(self, grad_fn: GradFn, w: Params, carry: Any, downlink: Downlink, batch: Batch) -> tuple[Params, Any]:
        """A local step; see :class:`DirectionFn`, or :class:`KeyedDirectionFn` where the rule is ``keyed``."""
        raise undefined(self, "direction")

    def carried(self, w_end: Params, carry: Any) -> Any:
        """The carry of the client's next local pass where it ``keeps_carry``, by default that of the last step."""
        del w_end
        return carry

    def report(self, downlink: Downlink, w_end: Params, carry: Any, total_step_size: jax.Array) -> Any:
        """The message beside the delta, by default none; see :class:`ReportFn`."""
        del downlink, w_end, carry, total_step_size
        return ()

    def own(self, params: Params, layers: Params) -> Any:
        """What every client has for itself before the first round, by default nothing, ``()``.

        With anything else, ``w`` of all methods is a :class:`ClientParams`: its half ``own`` takes the local steps as
        well, and is kept from round to round.

        Args:
          params: the initial global parameters.
          layers: the initial parameters of :attr:`Algorithm.personal_layers`, None in the place of the others.
        """
        del params, layers
        return ()

    def trained(self, w: Any) -> Params:
        """The model whose training loss is reported, and which ``grad_fn`` differentiates; by default ``w``."""
        return w

    def keep(self, downlink: Downlink, w_end: Any, carry: Any, total_step_size: jax.Array) -> Any:
        """What a client has for itself after a local pass, by default ``w_end.own``; arguments as of :meth:`report`."""
        del downlink, carry, total_step_size
        return w_end.own

    def send(self, key: jax.Array, uplink: Uplink) -> Uplink:
        """What an honest client makes of its message before it leaves it, by default the same; see :class:`SendFn`.

        The server's own pass is not sent.
        """
        del key
        return uplink

    @property
    def sends(self) -> bool:
        """Whether the rule has a ``send``."""
        return self.send is not None and type(self).send is not ClientRule.send


def _nothing(*_: Any) -> tuple[()]:
    return ()


class FunctionClientRule(ClientRule):
    """A client rule of functions, which are compared by identity; ``ClientRule(...)`` makes one.

    Attributes:
      begin: see :class:`BeginFn`; None for no carry.
      direction: see :class:`DirectionFn` and :class:`KeyedDirectionFn`.
      report: see :class:`ReportFn`; None for no message.
      keeps_carry: as of :class:`ClientRule`.
      send: see :class:`SendFn`; None to send messages as they are.
      keyed: as of :class:`ClientRule`.
      guarantee: as of :class:`ClientRule`.
    """

    _made_of = ("direction",)

    begin: BeginFn | None = None
    direction: DirectionFn | KeyedDirectionFn | None = None
    report: ReportFn | None = None
    keeps_carry: bool = False
    send: SendFn | None = None
    keyed: bool = False
    guarantee: Guarantee | None = None

    def __post_init__(self) -> None:
        if self.direction is None:
            raise ArgumentError("direction", "must be a function, see fedjax_drag.types.DirectionFn", given=None)
        for name in ("begin", "report"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, _nothing)


@forwards("client")
class WrappedClientRule(ClientRule):
    """Another client rule with something changed: a subclass overrides what differs."""

    client: ClientRule
