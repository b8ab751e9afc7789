"""LASA: sparse deltas, averaged layer by layer over the clients of ordinary length and signs."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_drag import checks, tree
from fedjax_drag.aggregators._norm_clipping import clip_scale
from fedjax_drag.kernels.order_statistics import count_entries, median_of
from fedjax_drag.ops.largest import magnitude, smallest_of_top
from fedjax_drag.ops.rules import Moved, PlainAggregator, moved_along
from fedjax_drag.types import Deltas, Params, Scalar, State

_ROUNDING = 1e-5  # a score that is above the bound by this share of it is at the bound


class lasa(PlainAggregator):
    """Averages each layer over the clients whose part of it has an ordinary length and an ordinary share of plus signs.

    With the median ``M`` of the lengths ``||g_m||``, over the n valid clients::

        g_m <- min(1, M / ||g_m||) g_m, without its smallest entries, a share ``sparsity`` of those of its matrices
        for each layer l:
            z(x)_m = |x_m - median x| / std x
            p_m = (1 + sum_i sign(g_m,l,i) / sum_i |sign(g_m,l,i)|) / 2
            S_l = {m: z(||g_l||)_m <= lambda_norm and z(p)_m <= lambda_sign}, or everybody if that is empty
            Delta_l = mean of g_m,l over S_l

    Args:
      sparsity: share of the D entries of all matrices of a client's delta that become 0, in [0, 1);
        ``floor((1 - sparsity) D)`` are kept.
      lambda_norm: bound of the score of the lengths, >= 0.
      lambda_sign: bound of the score of the signs, >= 0.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator`. Metrics: ``selected`` (share of the parameters in whose layer the
      client is in S_l), ``scale`` (``min(1, M / ||g_m||)``), ``weight`` (its mean factor over all parameters),
      ``cosine`` to the update. What is left out, ``M`` and the sets have no gradient.

    Raises:
      ValueError: if an argument is out of range.

    Breakdown point:
      1/2 for the length of the step, at most sqrt(L) M with L layers; its direction is bounded only where S_l is honest

    Cost:
      32 passes that count, and 8 passes over the deltas

    References:
      Xu, Zhang and Hu, Achieving Byzantine-resilient federated learning via layer-adaptive sparsified model
      aggregation, WACV 2025; defaults and what the text leaves open as in the authors' code, JiiahaoXU/LASA.
      Interpretations: a layer is one parameter array, and matrices are those of two and more axes, both as in that
      code; where there are none nothing is left out. What is averaged is sparse, as there. Entries equal to the
      smallest that is kept are kept, where that code drops them. The share of signs is not shrunk by 1 - sparsity,
      which no score sees. Where all clients have the same number the score is 0, where that code divides by zero and
      takes everybody in the layer. A layer of zeros has the share 1/2. ``M`` is the mean of the two middle lengths of
      an even number.
    """

    sparsity: Scalar = 0.3
    lambda_norm: Scalar = 1.0
    lambda_sign: Scalar = 1.0
    reports = ("selected", "scale")
    split = "clients"

    def check(self) -> None:
        checks.in_range("sparsity", self.sparsity, 0.0, 1.0, open_high=True)
        checks.in_range("lambda_norm", self.lambda_norm, 0.0)
        checks.in_range("lambda_sign", self.lambda_sign, 0.0)

    def combine(self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, **_: Any) -> Moved:
        del state
        norm = jax.lax.stop_gradient(tree.norms(deltas))
        scale = jnp.where(valid, clip_scale(norm, median_of(norm, valid)), 0.0)
        layers, structure = jax.tree.flatten(deltas)
        sparse = without_smallest(layers, self.sparsity)
        chosen = [self._ordinary(jax.lax.stop_gradient(layer), scale, valid) for layer in sparse]
        weights = [scale * tree.uniform_weights(members) for members in chosen]
        update = [tree.weighted_sum(weight, layer) for weight, layer in zip(weights, sparse, strict=True)]
        sizes = jnp.asarray([layer[0].size for layer in layers], jnp.float32)
        share = sizes / sizes.sum()
        selected, weight = (tree.product(share, jnp.stack(rows).astype(jnp.float32)) for rows in (chosen, weights))
        return moved_along(params, deltas, structure.unflatten(update), weight, selected=selected, scale=scale)

    def _ordinary(
        self,
        layer: Float[Array, "clients ..."],
        scale: Float[Array, " clients"],
        valid: Bool[Array, " clients"],
    ) -> Bool[Array, " clients"]:
        """``S_l``."""
        positive, negative = (count_entries(sign, layer).astype(jnp.float32) for sign in (_is_positive, _is_negative))
        signs = jnp.where(positive + negative > 0, positive * tree.inverse(positive + negative), 0.5)
        near = is_near(scale * tree.norms(layer), valid, self.lambda_norm) & is_near(signs, valid, self.lambda_sign)
        return jnp.where(near.any(), near, valid)


def _is_positive(values: jax.Array) -> jax.Array:
    return values > 0


def _is_negative(values: jax.Array) -> jax.Array:
    return values < 0


def is_near(numbers: Float[Array, " clients"], valid: Bool[Array, " clients"], bound: Any) -> Bool[Array, " clients"]:
    """The valid clients whose number is within ``bound`` standard deviations of the median, ``[S]``."""
    share = tree.uniform_weights(valid)
    numbers = jnp.where(valid, numbers, 0.0)
    numbers = numbers * tree.inverse(numbers.max())
    deviation = jnp.sqrt((share * jnp.square(numbers - (share * numbers).sum())).sum())
    return valid & (jnp.abs(numbers - median_of(numbers, valid)) <= bound * (1 + _ROUNDING) * deviation)


def without_smallest(layers: list[jax.Array], sparsity: Any) -> list[jax.Array]:
    """The layers ``[S, *l]`` with all but the largest entries of each client's matrices set to 0."""
    matrices = {place: jax.lax.stop_gradient(layer) for place, layer in enumerate(layers) if layer.ndim > 2}
    if not matrices:
        return layers
    least = jax.vmap(smallest_of_top, (0, None))(matrices, 1 - sparsity)
    large = {place: magnitude(matrix, least.dtype) >= tree.expand(least, matrix) for place, matrix in matrices.items()}
    return [jnp.where(large[place], layer, 0) if place in large else layer for place, layer in enumerate(layers)]
