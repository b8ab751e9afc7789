"""Bucketing: averages random groups of clients before another rule."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.ops.rules import Moved, WrappingAggregator, wrapped
from fedjax_drag.types import Deltas, Params, State

WITHOUT_CLIENT = frozenset({"client_ids", "malicious", "start_loss", "selection_weight", "staleness", "starts"})
"""Extras that a row does not have which is not a client, such as a bucket."""


class bucketing(WrappingAggregator):
    """Puts the clients at random into buckets of s, and gives another rule the means of the buckets.

    Args:
      aggregator: the rule that gets ``ceil(S / s)`` means; its own arguments, such as a number of malicious clients,
        refer to buckets. It must not need ``client_ids``, ``malicious``, ``start_loss``,
        ``selection_weight``, ``staleness`` or ``starts``, which a bucket does not have.
      bucket_size: s, at least 1; with 1 only the order of the clients changes.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that needs what ``aggregator`` needs, and ``key``. The n valid
      clients fill ``ceil(n / s)`` buckets, the others are absent. A bucket's ``num_examples`` are its clients' sum,
      its ``dissimilarity`` their mean. Metrics: ``weight`` (the client's share in its bucket's weight), ``cosine`` of
      the client's own delta to the update, and the wrapped rule's scalars. The gradient is the wrapped rule's, shared
      by the members.

    Raises:
      ValueError: if ``bucket_size`` is not a count of at least 1, or ``aggregator`` needs what a bucket does not have.

    Breakdown point:
      that of the wrapped rule on S / s buckets, where one malicious member spoils a bucket

    Cost:
      that of the wrapped rule on S / s rows, 2 passes and a product (S^2 d / s operations)

    References:
      Karimireddy et al., Byzantine-robust learning on heterogeneous datasets via bucketing, 2022, Algorithm 1.
      Interpretation: n clients that count are put into buckets and the others are ignored.
    """

    bucket_size: int = 2

    def check(self) -> None:
        super().check()
        checks.count("bucket_size", self.bucket_size, 1)
        for name in sorted(self.aggregator.needs & WITHOUT_CLIENT):
            needs = sorted(self.aggregator.needs)
            raise ValueError(f"aggregator with needs={needs}: must not need {name}, as a bucket is not a client")

    def combine(
        self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, key: jax.Array, **extras: Any
    ) -> Moved:
        if self.bucket_size > len(valid) > 1:  # one client is a bucket
            raise checks.ArgumentError(
                "bucket_size", f"must be at most {len(valid)}, the size of the cohort", given=self.bucket_size
            )
        own, key = jax.random.split(key)
        order = jax.random.permutation(own, len(valid))
        place = jnp.argsort(jnp.argsort(jnp.where(valid, order, len(valid))))
        member = (place // self.bucket_size == jnp.arange(-(-len(valid) // self.bucket_size))[:, None]) & valid
        share = jax.vmap(tree.uniform_weights)(member)
        # A bucket is no client, and an explicit number counts spoilt buckets.
        dropped = (WITHOUT_CLIENT | {"num_byzantine"}) - self.aggregator.needs
        inner_extras = {name: value for name, value in extras.items() if name not in dropped}
        if "num_examples" in inner_extras:
            inner_extras["num_examples"] = jnp.where(member, inner_extras["num_examples"], 0).sum(1)
        if "dissimilarity" in inner_extras:
            inner_extras["dissimilarity"] = jnp.where(member, share * inner_extras["dissimilarity"], 0.0).sum(1)
        means = tree.mix(share, deltas)
        moved, inner = self.aggregator.apply(params, means, state.inner, valid=member.any(1), key=key, **inner_extras)
        update = tree.subtract(jax.tree.map(tree.accurate, moved), params)
        metrics = {"weight": (inner.metrics["weight"][:, None] * share).sum(0), "cosine": tree.cosines(deltas, update)}
        return moved, wrapped(inner, metrics)
