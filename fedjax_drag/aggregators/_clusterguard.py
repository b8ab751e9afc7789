"""ClusterGuardFL: weights from how ordinary a client's change of predictions is."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.aggregators._kmeans import kmeans
from fedjax_drag.aggregators._screen import empty_metrics, screened
from fedjax_drag.types import Aggregator


class ClusterGuardState(NamedTuple):
    """State of :func:`clusterguard`: the metrics of the last round."""

    metrics: dict[str, jax.Array]


def clusterguard(num_clusters: int = 2, emd: str = "flattened", use_num_examples: bool = True) -> Aggregator:
    """Weights clients by the size of their cluster and by how close they are to its centre.

    Clients are clustered by k-means on their dissimilarity ``D_m``, the earth mover's distance between the global and
    their local model's predictions on their own data, and their numbers of examples ``n_m``, both standardised over
    the round's clients. With the cluster ``A(m)`` of client m and its distance ``d_m`` to the cluster's centroid::

        S_m = |A(m)| / (1 + d_m)
        w = softmax(S),   theta += sum_m w_m g_m

    Args:
      num_clusters: k, >= 1; those without a client do not count.
      emd: which distance the engine is to compute: ``"flattened"``, between the sets of all predicted probabilities,
        or ``"class_histogram"``, between the mean predicted distributions over the class index.
      use_num_examples: False clusters on the dissimilarity alone.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that needs ``dissimilarity`` ``[S]``, ``key`` (for the seeds of
      k-means) and ``num_examples`` where that is used. Metrics: ``cluster`` (index, by rising dissimilarity; -1 for
      absent clients), ``dissimilarity``, ``weight`` ``w_m``, ``cosine`` to the update. A client whose dissimilarity
      is not finite is absent. A feature that all clients share says nothing and counts as 0. The assignment to
      clusters has no gradient; the weights have one in ``dissimilarity``.

    Raises:
      ValueError: if an argument is out of range.

    Breakdown point:
      0: one client whose predictions change as usual on its own data moves it anywhere

    Cost:
      3 passes over the deltas; the engine predicts all examples of the cohort with two models each

    References:
      Ranaweera et al., Enhancing federated learning through secure cluster-weighted client aggregation, Algorithm 1.
      Readings: line 15 lacks ``w_t +``. The text clusters on dissimilarity and data set size, the pseudocode on
      dissimilarity alone (``use_num_examples``); scales are not mentioned, hence standardised. Scores are of the size
      of a cohort and go into a softmax as they are: the few clients nearest the largest cluster's centroid have
      nearly all the weight. Seeds are those of k-means++, not uniform, and the best of ten restarts counts.
    """
    checks.count("num_clusters", num_clusters, 1)
    checks.one_of("emd", emd, ("flattened", "class_histogram"))

    def init(params):
        del params
        return ClusterGuardState(empty_metrics("cluster", "dissimilarity"))

    def with_size(dissimilarity, *, num_examples, **_):
        return [dissimilarity, num_examples]

    def alone(dissimilarity, **_):
        return [dissimilarity]

    features_of = with_size if use_num_examples else alone

    @screened
    def apply(params, deltas, state, *, valid, dissimilarity, key, **extras):
        del state
        present = valid & jnp.isfinite(dissimilarity)
        features = [_standardised(x, present) for x in features_of(dissimilarity, **extras)]
        cluster = kmeans(jnp.stack(features, 1), present, key, num_clusters).assignment
        together = (cluster[:, None] == cluster[None, :]) & present[:, None] & present[None, :]
        size = together.sum(1)
        share = together * tree.inverse(size.astype(jnp.float32))[:, None]
        centroids = [jnp.dot(share, x, precision=jax.lax.Precision.HIGHEST) for x in features]
        distance = tree.norms(tree.subtract(features, centroids))
        weight = _softmax(size / (1 + distance), present)
        update = tree.weighted_sum(weight, deltas)
        metrics = {
            "weight": weight,
            "cosine": tree.cosines(deltas, update),
            "cluster": cluster.astype(jnp.float32),
            "dissimilarity": jnp.where(present, tree.accurate(dissimilarity), 0.0),
        }
        return tree.move(params, update), ClusterGuardState(metrics)

    # Whoever calls apply gives one extra, dissimilarity; the suffix only tells the engine which distance to compute.
    needs = frozenset({"dissimilarity" if emd == "flattened" else "dissimilarity:class_histogram"})
    return Aggregator(init, apply, needs, split="clients")


def _standardised(x: jax.Array, present: jax.Array) -> jax.Array:
    """``x`` ``[S]`` with mean 0 and variance 1 over the clients present; 0 where all are equal up to rounding."""
    share = tree.uniform_weights(present)
    x = jnp.where(present, tree.accurate(x), 0.0)
    mean = share @ x
    deviation = jnp.where(present, x - mean, 0.0)
    spread = tree.norm(deviation) * jnp.sqrt(share.max())
    rounding = x.shape[0] * jnp.finfo(x.dtype).eps * jnp.abs(mean)
    return deviation * tree.inverse(jnp.where(spread > rounding, spread, 0.0))


def _softmax(scores: jax.Array, present: jax.Array) -> jax.Array:
    """Softmax over the clients present; 0 for the others, and for all if there is none."""
    terms = jnp.where(present, jnp.exp(jnp.where(present, scores - jnp.max(scores * present), 0.0)), 0.0)
    return terms * tree.inverse(terms.sum())
