"""The gradient of a client's loss where its local pass starts, estimated during the pass."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import tree
from fedjax_drag.types import Batch, GradFn, Params


class GradientAtStart(NamedTuple):
    """An estimate of ``grad f_m(theta)`` for the start ``theta`` of a pass.

    Attributes:
      estimate: so far, like the parameters in accumulation precision.
      steps: how many steps the pass has taken, int32.
    """

    estimate: Params
    steps: jax.Array

    def after(self, here: Params, grad_fn: GradFn, start: Params, batch: Batch, first: bool) -> "GradientAtStart":
        """The estimate after one more step.

        Args:
          here: the gradient at the client's present parameters on ``batch``.
          grad_fn: gradient of the loss.
          start: the parameters at which the pass starts.
          batch: mini-batch of the step.
          first: True keeps the gradient of the first step, which is one at ``start``; False averages those of all
            mini-batches at ``start``, which costs a second gradient in every step.
        """
        there = here if first else grad_fn(start, batch)
        # Later steps count by their share of the average so far.
        share = jnp.where(self.steps == 0, 1.0, 0.0) if first else 1 / (self.steps + 1.0)
        estimate = jax.tree.map(lambda old, new: (old + share * (new - old)).astype(old.dtype), self.estimate, there)
        return GradientAtStart(estimate, self.steps + 1)

    def like(self, params: Params) -> Params:
        """The estimate in the dtypes of ``params``."""
        return jax.tree.map(lambda g, p: g.astype(p.dtype), self.estimate, params)


def no_gradient_yet(start: Params) -> GradientAtStart:
    """The estimate before the first step of a pass from ``start``."""
    zeros = jax.tree.map(lambda x: tree.accurate(jnp.zeros_like(x)), start)
    return GradientAtStart(zeros, jnp.zeros((), jnp.int32))
