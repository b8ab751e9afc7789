"""Local SGD whose mini-batch gradient is a robust reduction of its examples' gradients."""

from typing import Any

import jax

from fedjax_drag import kinds, tree
from fedjax_drag.checks import ArgumentError
from fedjax_drag.types import Aggregator, Batch, ClientRule, Downlink, GradFn, Params


class robust_sgd(ClientRule):
    """Follows the examples' gradients as an aggregation rule reduces them, instead of their mean.

    ::

        w -= eta reduce(grad f(w; z_1), ..., grad f(w; z_B))

    Meant for root data of which some labels may be wrong (``root_client``); as the rule of the clients it protects
    them from wrong labels of their own. Late in training wrong labels give the longest gradients, and the geometric
    median keeps the direction of the clean mean. Coordinate-wise rules keep it less well: with many classes most
    coordinates belong to a class that is a minority of the mini-batch.

    Args:
      reducer: any aggregation rule that needs no extra, such as
        :func:`~fedjax_drag.aggregators.trimmed_mean` or :func:`~fedjax_drag.aggregators.geometric_median`;
        :func:`~fedjax_drag.aggregators.fedavg` gives :func:`~fedjax_drag.clients.sgd`. Its state
        is new in every step, so that a history does not build up. A number of malicious clients in its arguments is a
        number of examples of the mini-batch here.

    Returns:
      A :class:`~fedjax_drag.types.ClientRule`. Examples whose gradient is not finite are left out. A step takes
      the time and the memory of ``B`` gradients at once.

    Raises:
      ValueError: if ``reducer`` is no rule, or needs extras, which a local step does not have.
      TypeError: while a run is built, if a rule within ``reducer`` needs a key.

    References:
      Xiao et al., Divergence-based adaptive aggregation for Byzantine robust federated learning, Section IV-B.
      Interpretation: "over per-sample gradients" states neither the examples nor the time. Here the reducer takes the
      place of the mini-batch mean in each of the U steps of equation 12, so that the reference stays the delta of a
      local pass (equation 13), of the same number of steps as the clients' deltas.
    """

    reducer: Aggregator

    def check(self) -> None:
        kinds.AGGREGATOR.check("reducer", self.reducer)
        needs = self.reducer.requires | self.reducer.needs
        if "num_byzantine" in needs:
            raise ArgumentError("reducer", "num_byzantine=None: must be the number of examples that may be wrong")
        if needs:
            raise ArgumentError("reducer", f"needs {', '.join(sorted(needs))}; must be a rule of the gradients alone")

    def direction(self, grad_fn: GradFn, w: Params, carry: Any, downlink: Downlink, batch: Batch) -> tuple[Params, Any]:
        del downlink
        singles = jax.tree.map(lambda x: x[:, None], batch)  # a batch of one for each example
        gradients = jax.vmap(lambda example: grad_fn(w, Batch(*example)))(singles)
        zeros = tree.zeros_like(w)
        padding = {} if batch.real is None else {"valid": batch.real}
        reduced, _ = self.reducer.apply(zeros, gradients, self.reducer.init(zeros), **padding)
        return reduced, carry
