"""Server optimisers of federated learning, as their papers define them, for ``fedavg(server_optimizer=...)``.

Each is an optax transformation of the pseudo-gradient, minus the averaged delta. Every other optax transformation can
take its place; but ``optax.adam``, ``optax.yogi`` and ``optax.adagrad`` are not FedAdam, FedYogi and FedAdagrad:

| | here, as in Reddi et al. | optax |
| --- | --- | --- |
| start of the moments | ``m = 0``, ``v = tau^2`` | ``adam``: both 0; ``yogi``: both 1e-6; ``adagrad``: ``v = 0.1`` |
| correction for that start | none | ``adam``, ``yogi``: ``m / (1 - b1^t)``, ``v / (1 - b2^t)`` |
| step | ``m / (sqrt(v) + tau)`` | ``adam``, ``yogi``: the same; ``adagrad``: ``g / sqrt(v + eps)``, without ``m`` |
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedjax_drag import checks, tree
from fedjax_drag.types import Optimizer, Params, Scalar

__all__ = ["fedavgm", "fedadam", "fedyogi", "fedadagrad"]  # noqa: RUF022 - the order of lists


class fedavgm(Optimizer):
    """FedAvgM: the server moves along a decaying sum of the averaged deltas.

    ::

        v_t = momentum v_{t-1} + Delta_t,   theta += eta v_t

    With ``nesterov`` the step is along ``Delta_t + momentum v_t``. It is ``optax.sgd``.

    Args:
      learning_rate: server step size ``eta`` > 0, or a schedule.
      momentum: in [0, 1); 0 is a plain server step size. The sum is in the state of every momentum, 0 among them, so
        that a run alone and in a sweep over momenta have the same state.
      nesterov: whether to look ahead.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Hsu et al., Measuring the effects of non-identical data distribution for federated visual classification, 2019.
    """

    learning_rate: Scalar | optax.Schedule = 1.0
    momentum: Scalar = 0.9
    nesterov: bool = False

    def check(self) -> None:
        check_rate(self.learning_rate)
        check_decay("momentum", self.momentum)

    def transformation(self) -> optax.GradientTransformation:
        return optax.sgd(self.learning_rate, self.momentum, self.nesterov)


class _Moments(NamedTuple):
    """``m`` and ``v``, like the parameters."""

    first: Params
    second: Params


class fedadam(Optimizer):
    """FedAdam: each coordinate's step is divided by the root mean square of its past deltas.

    With the averaged delta ``Delta_t``, coordinate by coordinate::

        m_t = b1 m_{t-1} + (1 - b1) Delta_t
        v_t = b2 v_{t-1} + (1 - b2) Delta_t^2
        theta += eta m_t / (sqrt(v_t) + tau)

    ``m`` starts at 0, ``v`` at ``tau^2``, and neither is corrected for its start, unlike in ``optax.adam``.

    Args:
      learning_rate: server step size ``eta`` > 0, or a schedule.
      b1: decay of the first moment, in [0, 1).
      b2: decay of the second moment, in [0, 1).
      tau: degree of adaptivity, > 0; a smaller one is more adaptive. The paper's default is 1e-3.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Reddi et al., Adaptive federated optimization, 2021, Algorithm 2. Interpretations: the paper requires
      ``v >= tau^2`` at the start; here they are equal. It does not state the start of ``m``; here it is 0.
    """

    learning_rate: Scalar | optax.Schedule
    b1: Scalar = 0.9
    b2: Scalar = 0.99
    tau: Scalar = 1e-3

    def check(self) -> None:
        check_decay("b2", self.b2)
        _check_adaptive(self)

    def transformation(self) -> optax.GradientTransformation:
        return _adaptive(self, self.second_moment)

    def second_moment(self, v: jax.Array, square: jax.Array) -> jax.Array:
        """``v_t`` of ``v_{t-1}`` and ``Delta_t^2``."""
        return self.b2 * v + (1 - self.b2) * square


class fedyogi(fedadam):
    """FedYogi: FedAdam with a second moment that changes by at most the square of the delta, up or down.

    ::

        v_t = v_{t-1} - (1 - b2) Delta_t^2 sign(v_{t-1} - Delta_t^2)

    and ``m_t``, the step, the starts, the arguments and the reference as in :func:`fedadam`. ``optax.yogi`` starts both
    moments at 1e-6 and corrects both.
    """

    def second_moment(self, v: jax.Array, square: jax.Array) -> jax.Array:
        return v - (1 - self.b2) * square * jnp.sign(v - square)


class fedadagrad(Optimizer):
    """FedAdagrad: each coordinate's step shrinks with the sum of its squared deltas.

    ::

        v_t = v_{t-1} + Delta_t^2

    and ``m_t``, the step, the starts, the arguments and the reference as in :func:`fedadam`, without ``b2``. The
    default ``b1 = 0``, the delta itself, is that of the paper's experiments. ``optax.adagrad`` starts ``v`` at 0.1, far
    above the squares of usual deltas, and adds its ``eps`` under the root.
    """

    learning_rate: Scalar | optax.Schedule
    b1: Scalar = 0.0
    tau: Scalar = 1e-3

    def check(self) -> None:
        _check_adaptive(self)

    def transformation(self) -> optax.GradientTransformation:
        return _adaptive(self, lambda v, square: v + square)


def _check_adaptive(own: Any) -> None:
    check_rate(own.learning_rate)
    check_decay("b1", own.b1)
    checks.positive("tau", own.tau)


def _adaptive(own: Any, second_moment: Callable[[jax.Array, jax.Array], jax.Array]) -> optax.GradientTransformation:
    """Algorithm 2 of Reddi et al., with the numbers of ``own``; ``second_moment``: ``(v_{t-1}, Delta_t^2) -> v_t``."""
    b1, tau = own.b1, own.tau

    def init(params: Params) -> _Moments:
        second = jax.tree.map(lambda p: jnp.full(jnp.shape(p), tau**2, jnp.result_type(p)), params)
        return _Moments(tree.zeros_like(params), second)

    def update(updates: Params, state: Any, params: Params | None = None) -> tuple[Params, _Moments]:
        del params
        first = jax.tree.map(lambda m, g: (b1 * m + (1 - b1) * g).astype(m.dtype), state.first, updates)
        second = jax.tree.map(lambda v, g: second_moment(v, jnp.square(g)).astype(v.dtype), state.second, updates)
        step = jax.tree.map(lambda m, v: (m / (jnp.sqrt(v) + tau)).astype(m.dtype), first, second)
        return step, _Moments(first, second)

    return optax.chain(optax.GradientTransformation(init, update), optax.scale_by_learning_rate(own.learning_rate))


def check_rate(learning_rate: Any) -> None:
    if not callable(learning_rate):
        checks.positive("learning_rate", learning_rate)


def check_decay(name: str, value: Any) -> None:
    checks.in_range(name, value, 0.0, 1.0, open_high=True)
