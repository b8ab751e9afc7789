"""FLARE: weights from how many others find a client's representations of the server's data near."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_drag import checks, tree
from fedjax_drag.ops.rules import Moved, PlainAggregator, moved_along
from fedjax_drag.types import Batch, Deltas, Params, Predict, Scalar, State


class flare(PlainAggregator):
    """Weights clients by how often they are among the nearest of others, by what their models make of root data.

    With the representations ``R_m`` ``[N, h]`` that client m's model, ``theta + g_m``, has of N root examples before
    its last layer, the kernel ``k(x, y) = exp(-||x - y||^2 / h)`` and n valid clients::

        MMD_ij = mean_a!=b k(R_i,a, R_i,b) + mean_a!=b k(R_j,a, R_j,b) - 2 mean_a,b k(R_i,a, R_j,b)
        c_m = number of clients that have m among their floor(n / 2) - 1 nearest others by MMD
        w_m = exp(c_m / (temperature c)) / sum_k exp(c_k / (temperature c)),   c = mean of all c_m
        theta += sum_m w_m g_m

    Args:
      temperature: the paper's tau, > 0.
      num_examples: N, of the root data the first so many, >= 2.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that needs ``predict`` and ``root_data``. Metrics: ``score`` (``c_m``),
      ``weight`` ``w_m``, ``cosine`` to the update. A client whose representations are not finite is near to nobody. The
      weights have no gradient.

    Raises:
      ValueError: if an argument is out of range.

    Breakdown point:
      0: every client keeps a weight, so that one long delta moves it anywhere

    Cost:
      3 passes over the deltas, predictions of N examples by S models, S^2 N^2 h operations for the kernels

    References:
      Wang, Xiao, Chen, Hu, Lou and Hou, FLARE: defending federated learning against model poisoning attacks via latent
      space representations, AsiaCCS 2022; the kernel, the unbiased estimate, floor(n / 2) - 1, the division by the mean
      and N as in the authors' code. Interpretations: the examples are those of the root data, whatever their class, not
      of one class as there. Estimates below 0 are compared as they are; that code sets them to 0, and ranks those that
      are then equal by the place in the cohort. Of others equally far as the last of the nearest, all count. The
      representation is that of :class:`~fedjax_drag.types.Prediction`.
    """

    temperature: Scalar = 1.0
    num_examples: int = 200
    reports = ("score",)

    def check(self) -> None:
        checks.positive("temperature", self.temperature)
        checks.count("num_examples", self.num_examples, 2)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"predict", "root_data"})

    def combine(
        self,
        params: Params,
        deltas: Deltas,
        state: State,
        *,
        valid: jax.Array,
        predict: Predict,
        root_data: Any,
        **_: Any,
    ) -> Moved:
        del state
        root: Batch = jax.tree.map(lambda x: x[: self.num_examples], root_data)
        present = jax.lax.stop_gradient(jax.tree.map(lambda g: jnp.where(tree.expand(valid, g), g, 0), deltas))
        found = jax.lax.map(lambda delta: predict(tree.move(params, delta), root.x).representation, present)
        real = jnp.ones(root.num_examples, bool) if root.real is None else root.real
        score = times_chosen(discrepancies(tree.accurate(found), real), valid)
        relative = score * valid.sum() * tree.inverse(score.sum()) / self.temperature
        trust = jnp.where(valid, jax.nn.softmax(jnp.where(valid, relative, -jnp.inf)), 0.0)
        return moved_along(params, deltas, tree.weighted_sum(trust, deltas), trust, score=score)


def discrepancies(
    found: Float[Array, "clients examples features"], real: Bool[Array, " examples"]
) -> Float[Array, "clients clients"]:
    """The unbiased estimates of the squared maximum mean discrepancies of all pairs ``[S, S]``, over real examples.

    Of ``1 - k``, which keeps its digits where all representations are near to each other.
    """
    number = real.sum()

    def total(x: jax.Array, y: jax.Array) -> jax.Array:
        middle = jnp.where(real[:, None], x, 0.0).sum(0) / number
        x, y = x - middle, y - middle
        squares = jnp.square(x).sum(1)[:, None] + jnp.square(y).sum(1) - 2 * tree.product(x, y.T)
        unlike = -jnp.expm1(-jnp.maximum(squares, 0.0) / x.shape[1])
        return jnp.where(real[:, None] & real, unlike, 0.0).sum()

    totals = jax.lax.map(lambda x: jax.lax.map(lambda y: total(x, y), found), found)
    within = jnp.diagonal(totals) / (number * (number - 1))
    return 2 * totals / number**2 - within[:, None] - within


def times_chosen(apart: Float[Array, "clients clients"], valid: Bool[Array, " clients"]) -> Float[Array, " clients"]:
    """How many valid clients have each among their floor(n / 2) - 1 nearest others, ``[S]``."""
    others = valid[:, None] & valid & ~jnp.eye(len(valid), dtype=bool) & jnp.isfinite(apart)
    apart, number = jnp.where(others, apart, jnp.inf), valid.sum() // 2 - 1
    last = jnp.sort(apart, axis=1)[:, jnp.maximum(number - 1, 0)]
    return (others & (apart <= last[:, None]) & (number > 0)).sum(0).astype(apart.dtype)
