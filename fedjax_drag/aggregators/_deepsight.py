"""DeepSight: clusters of clients by what their output layers and predictions tell of their data; suspicious ones go."""

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_drag import checks, tree
from fedjax_drag.aggregators._clustering import cosine_distances
from fedjax_drag.aggregators._norm_clipping import clip_scale
from fedjax_drag.kernels.distances import reference
from fedjax_drag.kernels.order_statistics import median_of
from fedjax_drag.ops.linkage import hdbscan
from fedjax_drag.ops.paths import check_patterns, split
from fedjax_drag.ops.rules import Moved, PlainAggregator, moved_along
from fedjax_drag.types import Deltas, Params, Predict, Scalar, State

_BATCH = 500  # random inputs predicted at once


class deepsight(PlainAggregator):
    """Leaves out clusters of which too many clients have trained few classes, and averages the others, clipped.

    With the change ``W_m, b_m`` of client m's output layer of C classes, the probabilities ``p(x; w)`` that parameters
    w predict, and K sets of N random inputs x, uniform in [0, 1]::

        E_m,c = |b_m,c| + sum_h |W_m,hc|,   NEUP_m,c = E_m,c^2 / sum_k E_m,k^2
        TE_m = number of c with NEUP_m,c > max(0.01, 1 / C) max_k NEUP_m,k
        m is suspicious if TE_m <= (median of all TE) / 2
        DDif_m,c = mean over x of p(x; theta + g_m)_c / p(x; theta)_c,   for each of the K sets

    HDBSCAN clusters the clients by ``1 - cos(b_i, b_j)``, by the distances of the NEUPs and by those of the DDifs, K
    times. In each clustering two clients are at distance 0 if they are in the same cluster, else 1; the mean of the
    three, that of the DDifs being the mean over the K sets, is what HDBSCAN clusters at last. A cluster is accepted if
    less than a share ``threshold`` of it is suspicious. With the median ``M`` of the lengths of all n valid deltas::

        Delta = mean of min(1, M / ||g_m||) g_m over the accepted clients

    Args:
      head: path of the output layer, such as ``"Dense_2"``, or a pattern of it: a bias ``[C]``, a kernel ``[..., C]``.
      threshold: the paper's tau, in [0, 1].
      num_seeds: K, >= 1.
      num_samples: N, >= 1; of more than 500, rounded up to batches of the same size.
      min_cluster_size: of HDBSCAN, >= 2.
      min_samples: its number of neighbours, >= 1.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that needs ``key``, ``predict`` and ``example``. Metrics: ``selected``
      (1 for accepted clients, else 0), ``score`` (``TE_m``), ``scale`` (``min(1, M / ||g_m||)``), ``weight`` (``scale /
      k`` on the k accepted ones), ``cosine`` to the update. If nobody is accepted, nothing moves. The choice and ``M``
      have no gradient.

    Raises:
      ValueError: if an argument is out of range, ``head`` is no layer with a bias, or the model takes no real numbers.

    Breakdown point:
      1/2 for the length of the step, at most M; its direction is bounded only if the accepted clusters are honest

    Cost:
      4 passes over the deltas, S^3 for each of K + 3 clusterings, predictions of K N inputs by S + 1 models

    References:
      Rieger, Nguyen, Miettinen and Sadeghi, DeepSight: mitigating backdoor attacks in federated learning through deep
      model inspection, NDSS 2022; num_samples, num_seeds and threshold as there. Interpretations: HDBSCAN's smallest
      cluster and its neighbours are the defaults of the hdbscan package, as in BackFed (FLPoison takes 3 neighbours).
      Points without a cluster are in the same one as nobody, in every clustering, and are judged each alone at last, as
      in BackFed; FLPoison counts them as one cluster first and drops them at last. The last clustering is of the
      distances, as in FLPoison; BackFed clusters their rows. All clients in one cluster are none, as by default in
      HDBSCAN. A DDif above 1e19, whose square float32 cannot hold, is near to no other. Predictions are probabilities,
      as the paper's; the random inputs are what the model takes after preprocessing, drawn anew in every round.
    """

    head: str
    threshold: Scalar = 1 / 3
    num_seeds: int = 3
    num_samples: int = 20000
    min_cluster_size: int = 5
    min_samples: int = 5
    reports = ("selected", "score", "scale")

    def check(self) -> None:
        check_patterns("head", self.head)
        checks.in_range("threshold", self.threshold, 0.0, 1.0)
        checks.count("num_seeds", self.num_seeds, 1)
        checks.count("num_samples", self.num_samples, 1)
        checks.count("min_cluster_size", self.min_cluster_size, 2)
        checks.count("min_samples", self.min_samples, 1)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"predict", "example"})

    def combine(
        self,
        params: Params,
        deltas: Deltas,
        state: State,
        *,
        valid: jax.Array,
        key: jax.Array,
        predict: Predict,
        example: jax.Array,
        **_: Any,
    ) -> Moved:
        del state
        dtypes = [leaf.dtype for leaf in jax.tree.leaves(example)]
        if len(dtypes) != 1 or not jnp.issubdtype(dtypes[0], jnp.floating):
            raise ValueError(f"example of dtypes {dtypes}: must be one array of real numbers, which deepsight draws")
        present = jax.lax.stop_gradient(jax.tree.map(lambda g: jnp.where(tree.expand(valid, g), g, 0), deltas))
        bias, kernel = self._output_layer(present)
        energy = update_energies(bias, kernel)
        share = max(0.01, 1 / energy.shape[1])
        exceeding = (energy > share * energy.max(1, keepdims=True)).sum(1).astype(energy.dtype)  # TE_m
        suspicious = valid & (exceeding <= median_of(exceeding, valid) / 2)
        keys = jax.random.split(key, (self.num_seeds, -(-self.num_samples // _BATCH)))
        shape = (-(-self.num_samples // keys.shape[1]), *example.shape)
        draw = lambda key: jax.random.uniform(key, shape, example.dtype)
        by_prediction = division_differences(predict, draw, params, present, keys)
        alone = jnp.stack([cosine_distances({"bias": bias}), reference({"energy": energy})])
        apart = jnp.concatenate([alone, jax.lax.map(lambda rows: reference({"rows": rows}), by_prediction)])
        separate = 1.0 - jax.vmap(self._together, (0, None))(apart, valid)
        merged = (separate[0] + separate[1] + separate[2:].mean(0)) / 3
        group = self._together(merged, valid)
        accepted = valid & ((group & suspicious).sum(1) / group.sum(1) < self.threshold)

        norm = tree.norms(deltas)
        scale = jnp.where(valid, clip_scale(norm, median_of(jax.lax.stop_gradient(norm), valid)), 0.0)
        weight = scale * tree.uniform_weights(accepted)
        reported = {"selected": accepted.astype(weight.dtype), "score": exceeding, "scale": scale}
        return moved_along(params, deltas, tree.weighted_sum(weight, deltas), weight, **reported)

    def _output_layer(self, deltas: Deltas) -> tuple[jax.Array, jax.Array]:
        """Bias ``[S, C]`` and kernel ``[S, ..., C]`` of the output layer."""
        leaves = sorted(jax.tree.leaves(split(deltas, self.head, "head")[0]), key=jnp.ndim)
        shapes = [leaf.shape[1:] for leaf in leaves]
        if [min(len(shape), 2) for shape in shapes] != [1, 2] or shapes[0][-1] != shapes[1][-1]:
            allowed = "must be the output layer, a bias [C] and a kernel [..., C]"
            raise ValueError(f"head={checks.shown(self.head)}: has parameters of shapes {shapes}; {allowed}")
        return leaves[0], leaves[1]

    def _together(self, apart: jax.Array, valid: jax.Array) -> Bool[Array, "clients clients"]:
        """Who is in the same cluster by distances ``[S, S]``; noise with itself alone."""
        label = hdbscan(apart, valid, self.min_cluster_size, self.min_samples)
        return ((label[:, None] == label) & (label >= 0)) | jnp.eye(len(label), dtype=bool)


def update_energies(
    bias: Float[Array, "clients classes"], kernel: Float[Array, "clients ... classes"]
) -> Float[Array, "clients classes"]:
    """The NEUPs ``[S, C]``; 0 for a layer that has not changed."""
    weights = jnp.abs(tree.accurate(kernel)).reshape(len(kernel), -1, kernel.shape[-1])
    energy = jnp.abs(tree.accurate(bias)) + weights.sum(1)
    squares = jnp.square(energy * tree.inverse(energy.max(1, keepdims=True)))
    return squares * tree.inverse(squares.sum(1, keepdims=True))


def division_differences(
    predict: Predict, draw: Callable[..., jax.Array], params: Params, deltas: Deltas, keys: chex.PRNGKey
) -> Float[Array, "sets clients classes"]:
    """The DDifs ``[K, S, C]`` on inputs drawn with keys ``[K, batches]``; axes of the outputs count as examples."""

    def log_probabilities(w: Params, x: jax.Array) -> jax.Array:
        outputs = tree.accurate(predict(w, x).outputs)
        return jax.nn.log_softmax(outputs.reshape(-1, outputs.shape[-1]))

    def of_batch(key: chex.PRNGKey) -> jax.Array:
        x = draw(key)
        before = log_probabilities(params, x)
        after = lambda delta: log_probabilities(tree.move(params, delta), x)
        return jax.lax.map(lambda delta: jnp.exp(after(delta) - before).mean(0), deltas)

    return jax.lax.map(lambda of_set: jax.lax.map(of_batch, of_set).mean(0), keys)
