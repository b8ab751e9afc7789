"""FLAME: the majority by direction, clipped to the median length, with noise."""

from typing import Any

import chex
import jax
import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.aggregators._clustering import cosine_distances
from fedjax_drag.aggregators._norm_clipping import clip_scale
from fedjax_drag.kernels.order_statistics import median_of
from fedjax_drag.ops.linkage import majority_group
from fedjax_drag.ops.rules import Moved, PlainAggregator, moved_along
from fedjax_drag.types import Deltas, Params, Scalar, State


class flame(PlainAggregator):
    """Averages the clipped deltas of the majority that points one way, and adds noise.

    With the median ``M`` of the lengths of all n valid clients' deltas::

        A = the cluster that HDBSCAN finds on 1 - cos(g_i, g_j), of at least floor(n/2) + 1 clients
        Delta = mean of min(1, M / ||g_m||) g_m over A, + N(0, sigma^2) in every coordinate, sigma = noise_factor M

    A cluster of more than half of the clients is the only one that HDBSCAN can find, and every client is in it that
    single linkage has merged when the group of more than half first appears.

    Args:
      noise_factor: the paper's lambda, ``sqrt(2 ln(1.25 / delta)) / epsilon`` for differential privacy, >= 0; 0 adds
        nothing. The paper takes 0.001 for images and words and 0.01 for intrusion detection.
      directions: of what the cosines are, ``"deltas"`` or ``"models"``, the parameters plus the deltas.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that needs ``key``. Metrics: ``selected`` (1 for clients in A, else 0),
      ``scale`` (``min(1, M / ||g_m||)``), ``weight`` (``scale / |A|`` on A), ``cosine`` to the update. A and ``M`` have
      no gradient.

    Raises:
      ValueError: if an argument is out of range.

    Breakdown point:
      1/2 for the length of the step, at most M and the noise; its direction is bounded only if A is honest

    Cost:
      4 passes over the deltas, a Gram product (S^2 d operations), S^3 for the chains, noise of the size of the
      parameters

    References:
      Nguyen et al., FLAME: taming backdoors in federated learning, 2022, Algorithm 1. Interpretations: Algorithm 1
      takes the cosines of the local models, the text those of the model updates; of models that have hardly left a
      common start all cosines are nearly 1. HDBSCAN's smallest cluster is floor(n/2) + 1, a point is its own only
      neighbour (``min_samples=1``), and the root of its tree may be a cluster. ``M`` is the median over all clients,
      with the mean of the two middle lengths of an even number.
    """

    noise_factor: Scalar = 0.001
    directions: str = "deltas"
    reports = ("selected", "scale")

    def check(self) -> None:
        checks.in_range("noise_factor", self.noise_factor, 0.0)
        checks.one_of("directions", self.directions, ("deltas", "models"))

    def combine(
        self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, key: jax.Array, **_: Any
    ) -> Moved:
        del state
        still = jax.lax.stop_gradient(deltas)
        if self.directions == "models":
            still = jax.tree.map(lambda p, g: p + tree.accurate(g), params, still)
        selected = majority_group(cosine_distances(still), valid)
        norm = tree.norms(deltas)
        middle = median_of(jax.lax.stop_gradient(norm), valid)
        scale = jnp.where(valid, clip_scale(norm, middle), 0.0)
        weight = scale * tree.uniform_weights(selected)
        mean = tree.weighted_sum(weight, deltas)
        update = tree.add(mean, normal_noise(key, mean, self.noise_factor * middle))
        return moved_along(params, deltas, update, weight, selected=selected.astype(weight.dtype), scale=scale)


def normal_noise(key: chex.PRNGKey, like: Params, sigma: Any) -> Params:
    """Normal noise of standard deviation ``sigma`` in every coordinate; the same draws in every precision."""
    leaves, structure = jax.tree.flatten(like)
    keys = jax.random.split(key, len(leaves))
    draws = [jax.random.normal(k, leaf.shape, jnp.float32) for k, leaf in zip(keys, leaves, strict=True)]
    return structure.unflatten([sigma * draw.astype(leaf.dtype) for draw, leaf in zip(draws, leaves, strict=True)])
