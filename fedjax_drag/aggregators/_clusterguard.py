"""ClusterGuardFL: weights from how ordinary a client's change of predictions is."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num

from fedjax_drag import checks, tree
from fedjax_drag.ops.kmeans import kmeans
from fedjax_drag.ops.rules import Moved, PlainAggregator, moved_along
from fedjax_drag.types import DISSIMILARITIES, Deltas, Params, State


class clusterguard(PlainAggregator):
    """Weights clients by the size of their cluster and by how close they are to its centre.

    Clients are clustered by k-means on their dissimilarity ``D_m``, the earth mover's distance between the global and
    their local model's predictions on their own data. With the cluster ``A(m)`` of client m and its distance ``d_m``
    to the cluster's centroid::

        S_m = |A(m)| / (1 + d_m)
        w = softmax(S),   theta += sum_m w_m g_m

    Args:
      num_clusters: k, >= 1; those without a client do not count. The paper gives no number.
      emd: which distance the engine is to compute: ``"class_histogram"``, between the mean predicted distributions
        over the class index, in [0, C - 1], or ``"flattened"``, between the sets of all predicted probabilities, in
        [0, 1].
      use_num_examples: True clusters on the numbers of examples ``n_m`` as well; they must be standardised then.
      standardise: True gives what is clustered mean 0 and variance 1 over the round's clients; False takes ``D_m`` as
        it is.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that needs ``dissimilarity`` ``[S]``, ``key`` (for the seeds of
      k-means) and ``num_examples`` where that is used. Metrics: ``cluster`` (index, by rising dissimilarity; -1 for
      absent clients), ``dissimilarity``, ``weight`` ``w_m``, ``cosine`` to the update. A client whose dissimilarity
      is not finite is absent. A feature that all clients share up to rounding says nothing and counts as 0. The
      assignment to clusters has no gradient; the weights have one in ``dissimilarity``.

    Raises:
      ValueError: if an argument is out of range, or sizes are to be clustered as they are: of two features of
        different scale the larger, here the sizes, would decide the clusters alone.

    Breakdown point:
      0: one client whose predictions change as usual on its own data moves it anywhere

    Cost:
      3 passes over the deltas; the engine predicts all examples of the cohort with two models each

    References:
      Ranaweera et al., Enhancing federated learning through secure cluster-weighted client aggregation, Algorithm 1.
      Interpretations: line 15 lacks ``w_t +``. The pseudocode names the number of clusters K, like that of the clients;
      with so many, all would weigh the same. The defaults are the pseudocode's: lines 11 and 34 to 49 cluster ``D_m``
      alone, as it is; the text clusters on ``D_m`` and the data set size, and says nothing of their scales
      (``use_num_examples``, ``standardise``). Standardised distances are near 1, so that the softmax, whose scores are
      of the size of a cohort, gives nearly all weight to the few clients nearest the largest cluster's centroid; raw
      ones are mostly much smaller than 1, and a cluster's members weigh nearly the same. Line 32 does not say between
      which distributions the distance is: ``"flattened"`` sorts all probabilities and so forgets which class was
      predicted, ``"class_histogram"`` does not. Seeds are those of k-means++, not uniform, and the best of ten restarts
      counts.
    """

    num_clusters: int = 2
    emd: str = "class_histogram"
    use_num_examples: bool = False
    standardise: bool = False
    reports = ("cluster", "dissimilarity")
    split = "clients"

    def check(self) -> None:
        checks.count("num_clusters", self.num_clusters, 1)
        checks.one_of("emd", self.emd, sorted(DISSIMILARITIES.values()))
        if self.use_num_examples and not self.standardise:
            said = "must be True with use_num_examples, or the sizes alone decide the clusters"
            raise checks.ArgumentError("standardise", said, given=self.standardise)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset(need for need, distance in DISSIMILARITIES.items() if distance == self.emd)

    @property
    def requires(self) -> frozenset[str]:
        return super().requires | ({"num_examples"} if self.use_num_examples else set())

    def combine(
        self,
        params: Params,
        deltas: Deltas,
        state: State,
        *,
        valid: jax.Array,
        dissimilarity: jax.Array,
        key: jax.Array,
        **extras: Any,
    ) -> Moved:
        del state
        features_of = _with_size if self.use_num_examples else _alone
        present = valid & jnp.isfinite(dissimilarity)
        features = [_centred(x, present, self.standardise) for x in features_of(dissimilarity, **extras)]
        cluster = kmeans(jnp.stack(features, 1), present, key, self.num_clusters).assignment
        weight = _softmax(_scores(features, cluster, present), present)
        update = tree.weighted_sum(weight, deltas)
        known = jnp.where(present, tree.accurate(dissimilarity), 0.0)
        return moved_along(params, deltas, update, weight, cluster=cluster.astype(jnp.float32), dissimilarity=known)


def _with_size(dissimilarity: jax.Array, *, num_examples: jax.Array, **_: Any) -> list[jax.Array]:
    return [dissimilarity, num_examples]


def _alone(dissimilarity: jax.Array, **_: Any) -> list[jax.Array]:
    return [dissimilarity]


def _scores(
    features: list[jax.Array], cluster: Int[Array, " clients"], present: Bool[Array, " clients"]
) -> Float[Array, " clients"]:
    """``S_m = |A(m)| / (1 + d_m)``, ``[S]``."""
    same = (cluster[:, None] == cluster[None, :]) & present[:, None] & present[None, :]
    size = same.sum(1)
    share = same * tree.inverse(size.astype(jnp.float32))[:, None]
    centroids = [tree.product(share, x) for x in features]
    return size / (1 + tree.norms(tree.subtract(features, centroids)))


def _centred(
    x: Num[Array, " clients"], present: Bool[Array, " clients"], unit_variance: bool
) -> Float[Array, " clients"]:
    """``x`` ``[S]`` with mean 0, and variance 1 if asked for, over the clients present; 0 where equal up to rounding.

    Neither clusters nor distances depend on the mean.
    """
    share = tree.uniform_weights(present)
    x = jnp.where(present, tree.accurate(x), 0.0)
    mean = tree.product(share, x)
    deviation = jnp.where(present, x - mean, 0.0)
    spread = tree.norm(deviation) * jnp.sqrt(share.max())
    rounding = x.shape[0] * jnp.finfo(x.dtype).eps * jnp.abs(mean)
    differ = spread > rounding
    scale = tree.inverse(jnp.where(differ, spread, 0.0)) if unit_variance else differ
    return deviation * scale


def _softmax(scores: Float[Array, " clients"], present: Bool[Array, " clients"]) -> Float[Array, " clients"]:
    """Softmax over the clients present; 0 for the others, and for all if there is none."""
    terms = jnp.where(present, jnp.exp(jnp.where(present, scores - jnp.max(scores * present), 0.0)), 0.0)
    return terms * tree.inverse(terms.sum())
