"""The geometric median of group means."""

from typing import Any, Literal

import chex
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_drag import checks, tree
from fedjax_drag.aggregators._geometric_median import check_solver, median_metrics
from fedjax_drag.kernels.geometric_median import geometric_median_of
from fedjax_drag.ops.rules import Moved, PlainAggregator
from fedjax_drag.ops.screening import MetricsOnly, stateless
from fedjax_drag.types import Deltas, Params, Scalar, State


def draw_groups(key: chex.PRNGKey, valid: Bool[Array, " clients"], num_groups: Any) -> Int[Array, " clients"]:
    """A group in ``[0, num_groups)`` for each client ``[S]``: at random, in nearly equal numbers of valid clients."""
    ticket = jnp.where(valid, jax.random.uniform(key, valid.shape, jnp.float32), jnp.inf)
    rank = jnp.argsort(jnp.argsort(ticket))
    return rank % jnp.maximum(num_groups, 1)


class geomed(PlainAggregator):
    """Moves by the geometric median of the means of k disjoint groups of clients.

    ``theta += argmin_z sum_j ||z - mean of group j||``. The groups are drawn anew in every round, evenly among the
    clients that take part and by their places in the cohort. Averaging first lowers the variance; a malicious client
    costs a whole group.

    Args:
      num_groups: k, >= 1 and at most S, with 1 the mean; or ``"clients"``, every client a group of its own, which is
        :func:`geometric_median`. The guarantee needs more than twice as many groups as malicious clients. If fewer
        clients take part, each is a group. Default: half the number of clients, rounded up.
      smoothing: lower bound nu on a distance, > 0, in the units of the deltas.
      tolerance: how far the result may be from the median, as a share of the median distance to the means, >= 0.
      max_iterations: bound on the number of iterations, >= 1.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator`, which needs the extra ``key`` if it draws groups. Metrics:
      ``weight`` (coefficient of ``g_m``), ``cosine`` to the median, ``iterations`` and ``residual`` as for
      :func:`geometric_median`. ``apply`` raises ValueError if ``num_groups`` exceeds S. The gradient is that of the
      minimiser, the groups given.

    Raises:
      ValueError: if an argument is out of range.

    Breakdown point:
      k / 2S: fewer malicious clients than half the groups; 1/4 by default

    Cost:
      geometric_median of k rows, and 1 product [k, S] x [S, d]

    References:
      Chen, Su and Xu, Distributed statistical machine learning in adversarial settings: Byzantine gradient
      descent, 2017, Algorithm 2. Interpretation: ClusterGuardFL cites it for its GeoMed, but describes the point with
      the smallest sum of distances to all clients' updates, without groups: ``num_groups="clients"``.
    """

    num_groups: int | Literal["clients"] | None = None
    smoothing: Scalar = 1e-6
    tolerance: Scalar = 1e-5
    max_iterations: int = 100

    def check(self) -> None:
        if isinstance(self.num_groups, str) and self.num_groups != "clients":
            raise checks.ArgumentError("num_groups", "must be an integer >= 1, or 'clients'", given=self.num_groups)
        if not (self.num_groups is None or isinstance(self.num_groups, str)):
            checks.count("num_groups", self.num_groups, 1)
        check_solver(self.smoothing, self.tolerance, self.max_iterations)

    @property
    def requires(self) -> frozenset[str]:
        return frozenset() if self.num_groups == "clients" else frozenset({"key"})

    def init(self, params: Params) -> MetricsOnly:
        return stateless(iterations=0, residual=0.0)(params)

    def combine(self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, **extras: Any) -> Moved:
        del state
        settings = self.smoothing, self.tolerance, self.max_iterations
        if self.num_groups == "clients":
            median = geometric_median_of(deltas, tree.uniform_weights(valid), *settings)
        else:
            share = _shares(extras["key"], valid, self.num_groups)
            median = geometric_median_of(tree.mix(share, deltas), tree.uniform_weights(share.any(1)), *settings)
            median = median._replace(weight=tree.product(median.weight, share))
        return tree.move(params, median.point), MetricsOnly(median_metrics(median, deltas))


def _shares(
    key: chex.PRNGKey, valid: Bool[Array, " clients"], num_groups: int | None
) -> Float[Array, "groups clients"]:
    """Each client's share in the mean of its group; rows of zeros are empty groups."""
    size = len(valid)
    if num_groups is not None and num_groups > size:
        raise checks.ArgumentError(
            "num_groups", f"must be at most S = {size}, the number of clients in a round", given=num_groups
        )
    rows = (size + 1) // 2 if num_groups is None else num_groups
    wanted = (valid.sum() + 1) // 2 if num_groups is None else num_groups
    member = valid * jax.nn.one_hot(draw_groups(key, valid, wanted), rows, axis=0)
    return member * tree.inverse(member.sum(1, keepdims=True))
