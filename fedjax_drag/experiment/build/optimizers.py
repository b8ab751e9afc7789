"""Server and local optimisers and schedules of optax, with the arguments that a configuration can express.

The server optimisers of the federated papers are in :mod:`fedjax_drag.server_optimizers`.

A *schedule* is a number that changes with the round: a function of the number of rounds done.
"""

from typing import Any

import optax

from fedjax_drag import checks
from fedjax_drag.server_optimizers import fedavgm


def sgd(
    learning_rate: Any | optax.Schedule = 1.0, momentum: float = 0.0, nesterov: bool = False
) -> optax.GradientTransformation:
    """A plain server step size, or with momentum FedAvgM.

    Args:
      learning_rate: server step size.
      momentum: in [0, 1).
      nesterov: whether to look ahead.

    References:
      Hsu et al., Measuring the effects of non-identical data distribution for federated visual classification, 2019.
    """
    return fedavgm(learning_rate, momentum, nesterov)


def adam(
    learning_rate: Any | optax.Schedule, b1: float = 0.9, b2: float = 0.99, eps: float = 1e-3
) -> optax.GradientTransformation:
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
    _check_moments(learning_rate, b1, b2, eps)
    return optax.adam(learning_rate, b1, b2, eps)


def yogi(
    learning_rate: Any | optax.Schedule, b1: float = 0.9, b2: float = 0.99, eps: float = 1e-3
) -> optax.GradientTransformation:
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
    _check_moments(learning_rate, b1, b2, eps)
    return optax.yogi(learning_rate, b1, b2, eps)


def adagrad(
    learning_rate: Any | optax.Schedule, initial_accumulator_value: float = 1e-6, eps: float = 1e-6
) -> optax.GradientTransformation:
    """Adagrad of optax: each coordinate's step shrinks with the sum of its squared updates.

    :func:`~fedjax_drag.server_optimizers.fedadagrad` adds ``tau`` to the root instead of ``eps`` under it.

    Args:
      learning_rate: server step size.
      initial_accumulator_value: where the sums of squares start, >= 0.
      eps: added to the sums of squares, under the root, > 0.

    References:
      Duchi, Hazan and Singer, Adaptive subgradient methods for online learning and stochastic optimization, 2011.
    """
    _check_rate(learning_rate)
    checks.in_range("initial_accumulator_value", initial_accumulator_value, 0.0)
    checks.positive("eps", eps)
    return optax.adagrad(learning_rate, initial_accumulator_value, eps)


def local_sgd(momentum: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0) -> optax.GradientTransformation:
    """Momentum and weight decay of the local steps; momentum starts afresh in every round unless its state is kept.

    ::

        d += weight_decay w;   v = momentum v + d;   w -= step_size v

    With ``nesterov`` the step is along ``d + momentum v``.

    Args:
      momentum: in [0, 1).
      nesterov: whether to look ahead.
      weight_decay: >= 0.
    """
    checks.in_range("momentum", momentum, 0.0, 1.0, open_high=True)
    checks.in_range("weight_decay", weight_decay, 0.0)
    decay = optax.add_decayed_weights(weight_decay) if weight_decay else optax.identity()
    return optax.chain(decay, optax.trace(momentum, nesterov) if momentum else optax.identity())


def linear_schedule(
    init_value: float, end_value: float, transition_steps: int, transition_begin: int = 0
) -> optax.Schedule:
    """A linear change from one value to another.

    Args:
      init_value: at first.
      end_value: at last.
      transition_steps: rounds in between.
      transition_begin: round in which the change begins.
    """
    checks.count("transition_steps", transition_steps, 1)
    checks.count("transition_begin", transition_begin)
    return optax.linear_schedule(init_value, end_value, transition_steps, transition_begin)


def cosine_decay_schedule(init_value: float, decay_steps: int, alpha: float = 0.0) -> optax.Schedule:
    """A decay to a fraction of the first value along half a cosine wave.

    Args:
      init_value: at first.
      decay_steps: rounds until the last value.
      alpha: the last value, as a fraction of the first.

    References:
      Loshchilov and Hutter, SGDR: Stochastic gradient descent with warm restarts, 2017.
    """
    checks.count("decay_steps", decay_steps, 1)
    return optax.cosine_decay_schedule(init_value, decay_steps, alpha)


def exponential_decay(
    init_value: float, transition_steps: int, decay_rate: float, transition_begin: int = 0, staircase: bool = False
) -> optax.Schedule:
    """A decay by a constant factor over a given number of rounds.

    Args:
      init_value: at first.
      transition_steps: rounds for one multiplication.
      decay_rate: the rate, > 0.
      transition_begin: round in which the change begins.
      staircase: whether to change in steps rather than smoothly.
    """
    checks.count("transition_steps", transition_steps, 1)
    checks.positive("decay_rate", decay_rate)
    checks.count("transition_begin", transition_begin)
    return optax.exponential_decay(init_value, transition_steps, decay_rate, transition_begin, staircase)


def _check_rate(learning_rate: Any | optax.Schedule) -> None:
    if not callable(learning_rate):
        checks.positive("learning_rate", learning_rate)


def _check_moments(learning_rate: Any | optax.Schedule, b1: float, b2: float, eps: float) -> None:
    _check_rate(learning_rate)
    checks.in_range("b1", b1, 0.0, 1.0, open_high=True)
    checks.in_range("b2", b2, 0.0, 1.0, open_high=True)
    checks.positive("eps", eps)
