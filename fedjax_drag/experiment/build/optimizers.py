"""Server and local optimisers and schedules of optax, with the arguments that a configuration can express.

The server optimisers of the federated papers are in :mod:`fedjax_drag.server_optimizers`.

A *schedule* is a number that changes with the round: a function of the number of rounds done.
"""

# pyright: reportIncompatibleMethodOverride=false

from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedjax_drag import checks
from fedjax_drag.server_optimizers import check_decay, check_rate, fedavgm
from fedjax_drag.types import Optimizer, Scalar
from fedjax_drag.types._part import CallablePart

__all__ = [  # noqa: RUF022 - the order of lists
    "sgd",
    "adam",
    "yogi",
    "adagrad",
    "linear_schedule",
    "cosine_decay_schedule",
    "exponential_decay",
]


class sgd(fedavgm):
    """A plain server step size, or with momentum FedAvgM.

    Args:
      learning_rate: server step size.
      momentum: in [0, 1).
      nesterov: whether to look ahead.

    References:
      Hsu et al., Measuring the effects of non-identical data distribution for federated visual classification, 2019.
    """

    momentum: Scalar = 0.0


class adam(Optimizer):
    """Adam of optax, with the default decays and ``eps`` of FedAdam's paper.

    Both moments start at 0 and are corrected for it. In :func:`~fedjax_drag.server_optimizers.fedadam` the second
    starts at ``tau^2`` and neither is corrected: the first rounds' steps differ by about a third.

    Args:
      learning_rate: server step size.
      b1: decay of the first moment, in [0, 1).
      b2: decay of the second moment, in [0, 1).
      eps: added to the root of the second moment, > 0.

    References:
      Kingma and Ba, Adam: A method for stochastic optimization, 2015.
    """

    learning_rate: Scalar | optax.Schedule
    b1: Scalar = 0.9
    b2: Scalar = 0.99
    eps: Scalar = 1e-3

    def check(self) -> None:
        check_rate(self.learning_rate)
        check_decay("b1", self.b1)
        check_decay("b2", self.b2)
        checks.positive("eps", self.eps)

    def transformation(self) -> optax.GradientTransformation:
        return optax.adam(self.learning_rate, self.b1, self.b2, self.eps)


class yogi(adam):
    """Yogi of optax, with the default decays and ``eps`` of FedYogi's paper.

    Both moments start at 1e-6 and are corrected as Adam's, which start at 0. In
    :func:`~fedjax_drag.server_optimizers.fedyogi` neither is corrected.

    Args:
      learning_rate: server step size.
      b1: decay of the first moment, in [0, 1).
      b2: decay of the second moment, in [0, 1).
      eps: added to the root of the second moment, > 0.

    References:
      Zaheer et al., Adaptive methods for nonconvex optimization, 2018.
    """

    def transformation(self) -> optax.GradientTransformation:
        return optax.yogi(self.learning_rate, self.b1, self.b2, self.eps)


class adagrad(Optimizer):
    """Adagrad of optax: each coordinate's step shrinks with the sum of its squared updates.

    :func:`~fedjax_drag.server_optimizers.fedadagrad` adds ``tau`` to the root instead of ``eps`` under it.

    Args:
      learning_rate: server step size.
      initial_accumulator_value: where the sums of squares start, >= 0.
      eps: added to the sums of squares, under the root, > 0.

    References:
      Duchi, Hazan and Singer, Adaptive subgradient methods for online learning and stochastic optimization, 2011.
    """

    learning_rate: Scalar | optax.Schedule
    initial_accumulator_value: Scalar = 1e-6
    eps: Scalar = 1e-6

    def check(self) -> None:
        check_rate(self.learning_rate)
        checks.in_range("initial_accumulator_value", self.initial_accumulator_value, 0.0)
        checks.positive("eps", self.eps)

    def transformation(self) -> optax.GradientTransformation:
        return optax.adagrad(self.learning_rate, self.initial_accumulator_value, self.eps)


class local_sgd(Optimizer):
    """Momentum and weight decay of the local steps; momentum starts afresh in every round unless its state is kept.

    ::

        d += weight_decay w;   v = momentum v + d;   w -= step_size v

    With ``nesterov`` the step is along ``d + momentum v``.

    Args:
      momentum: in [0, 1).
      nesterov: whether to look ahead.
      weight_decay: >= 0.
    """

    momentum: float = 0.0  # static: 0 keeps no state
    nesterov: bool = False
    weight_decay: Scalar = 0.0

    def check(self) -> None:
        check_decay("momentum", self.momentum)
        checks.in_range("weight_decay", self.weight_decay, 0.0)

    def transformation(self) -> optax.GradientTransformation:
        decay = optax.add_decayed_weights(self.weight_decay)
        return optax.chain(decay, optax.trace(self.momentum, self.nesterov) if self.momentum else optax.identity())


class linear_schedule(CallablePart):
    """A linear change from one value to another.

    Args:
      init_value: at first.
      end_value: at last.
      transition_steps: rounds in between.
      transition_begin: round in which the change begins.
    """

    init_value: Scalar
    end_value: Scalar
    transition_steps: int
    transition_begin: int = 0

    def check(self) -> None:
        checks.count("transition_steps", self.transition_steps, 1)
        checks.count("transition_begin", self.transition_begin)

    def __call__(self, done: jax.Array) -> Any:
        """The value after so many rounds."""
        whole = optax.linear_schedule(self.init_value, self.end_value, self.transition_steps, self.transition_begin)
        return whole(done)


class cosine_decay_schedule(CallablePart):
    """A decay to a fraction of the first value along half a cosine wave.

    Args:
      init_value: at first.
      decay_steps: rounds until the last value.
      alpha: the last value, as a fraction of the first.

    References:
      Loshchilov and Hutter, SGDR: Stochastic gradient descent with warm restarts, 2017.
    """

    init_value: Scalar
    decay_steps: int
    alpha: Scalar = 0.0

    def check(self) -> None:
        checks.count("decay_steps", self.decay_steps, 1)

    def __call__(self, done: jax.Array) -> Any:
        """The value after so many rounds."""
        return optax.cosine_decay_schedule(self.init_value, self.decay_steps, self.alpha)(done)


class exponential_decay(CallablePart):
    """A decay by a constant factor over a given number of rounds.

    Args:
      init_value: at first.
      transition_steps: rounds for one multiplication.
      decay_rate: the rate, > 0.
      transition_begin: round in which the change begins.
      staircase: whether to change in steps rather than smoothly.
    """

    init_value: Scalar
    transition_steps: int
    decay_rate: Scalar
    transition_begin: int = 0
    staircase: bool = False

    def check(self) -> None:
        checks.count("transition_steps", self.transition_steps, 1)
        checks.positive("decay_rate", self.decay_rate)
        checks.count("transition_begin", self.transition_begin)

    def __call__(self, done: jax.Array) -> Any:
        """The value after so many rounds."""
        steps = jnp.maximum(done - self.transition_begin, 0) / self.transition_steps
        return self.init_value * self.decay_rate ** (jnp.floor(steps) if self.staircase else steps)
