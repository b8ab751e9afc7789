"""MoNNA's nearest neighbour averaging: the mean of the clients nearest to a trusted vector."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.kernels.geometric_median import distances_to
from fedjax_drag.ops.rules import ByzantineAggregator, Moved, moved_by_mean
from fedjax_drag.types import Deltas, Params, State


class monna(ByzantineAggregator):
    """Moves by the mean of the n - f deltas that are nearest to a trusted one.

    With the trusted vector ``r``, over the n valid clients::

        Delta = mean of the n - f deltas with the smallest ||g_m - r||

    Args:
      num_byzantine: f, how many of the cohort may be malicious, >= 0; needs S > 2 f. Default: what the simulation tells
        by the extra of this name.
      trusted: place in the cohort, from 0, of a client that is never malicious, whose delta is ``r`` and is averaged
        too, as ByzFL's ``idx``; where it is absent or rejected, nothing moves. Default: ``r`` is the root delta, which
        is not averaged.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator` that needs ``root_delta`` where no client is trusted, and else
      ``client_ids``, since a place stands for a client. Metrics: ``selected`` (1 or 0), ``weight`` (1 / (n - f) on the
      selected), ``cosine`` to the update. ``apply`` raises ValueError for too small a cohort. The choice has no
      gradient; through each selected delta it is 1 / (n - f). Of clients that tie, the first.

    Raises:
      ValueError: if an argument is not a count.

    Breakdown point:
      f / S with S > 2 f, if the trusted vector is one that an honest client might have sent

    Cost:
      4 passes over the deltas, and a local pass over root data where no client is trusted

    References:
      Farhadkhani et al., Robust collaborative learning with linear gradient overhead, 2023. Interpretations: there,
      without a server, every node averages what is nearest to its own vector; here the server takes a node's part, and
      its own vector is the delta of its pass over root data. A node that waits for n - f messages averages n - 2 f of
      them; the server has all n and averages n - f, as in ByzFL. The momentum in the name is the clients' part
      (:func:`~fedjax_drag.clients.momentum_sgd`).
    """

    trusted: int | None = None
    reports = ("selected",)
    split = "clients"

    def check(self) -> None:
        super().check()
        if self.trusted is not None:
            checks.count("trusted", self.trusted)

    @property
    def needs(self) -> frozenset[str]:
        # Another rule may not put anything else in the place of a trusted client, as a bucket would be.
        return super().needs | {"root_delta" if self.trusted is None else "client_ids"}

    @property
    def requires(self) -> frozenset[str]:
        return frozenset({"root_delta"} if self.trusted is None else ())

    def combine(self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, **extras: Any) -> Moved:
        del state
        f, size = self.assumed(extras, len(valid)), len(valid)
        if self.trusted is not None and self.trusted >= size:
            raise checks.ArgumentError(
                "trusted", f"must be at most {size - 1}, the last of a cohort of {size}", given=self.trusted
            )
        vector = extras["root_delta"] if self.trusted is None else jax.tree.map(lambda g: g[self.trusted], deltas)
        here = valid if self.trusted is None else valid & valid[self.trusted]
        vector = jax.tree.map(lambda r: jnp.where(here.any(), tree.accurate(r), 0.0), vector)
        distance = distances_to(*jax.lax.stop_gradient((vector, deltas)), tree.uniform_weights(here))
        rank = jnp.argsort(jnp.argsort(jnp.where(here, distance, jnp.inf)))
        return moved_by_mean(params, deltas, here & (rank < jnp.maximum(valid.sum() - f, 1)))
