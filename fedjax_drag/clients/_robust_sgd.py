"""Local SGD whose mini-batch gradient is a robust reduction of its examples' gradients."""

import inspect

import jax

from fedjax_drag import tree
from fedjax_drag.types import Aggregator, Batch, ClientRule


def robust_sgd(reducer: Aggregator) -> ClientRule:
    """Follows what an aggregation rule makes of the examples' gradients, instead of their mean.

    ::

        w -= eta reduce(grad f(w; z_1), ..., grad f(w; z_B))

    Meant for the server's root data where some of its labels may be wrong (``root_client``); as the rule of the
    clients it protects them from their own. Once a model has learnt, wrong labels make the longest gradients, and the
    geometric median holds the direction of the clean mean. Coordinate-wise rules hold it less: with many classes most
    coordinates belong to a class that is a minority of the mini-batch.

    Args:
      reducer: any aggregation rule that needs no extra, such as
        :func:`~fedjax_drag.aggregators.trimmed_mean` or :func:`~fedjax_drag.aggregators.geometric_median`;
        :func:`~fedjax_drag.aggregators.fedavg` gives :func:`~fedjax_drag.clients.sgd`. It begins afresh in every step:
        what a rule remembers from round to round is not used. Where it takes a number of malicious clients, that
        is a number of examples of the mini-batch.

    Returns:
      A :class:`~fedjax_drag.types.ClientRule`. Examples whose gradient is not finite are left out. Time and memory
      of a step are those of ``B`` gradients held at once.

    Raises:
      ValueError: if ``reducer`` needs extras, which a local step does not have.

    References:
      Xiao et al., Divergence-based adaptive aggregation for Byzantine robust federated learning, Section IV-B.
      Reading: "over per-sample gradients" says neither of which examples nor when. Here the reducer takes the place
      of the mini-batch mean in each of the U steps of equation 12, so that the reference stays the delta of a
      local pass (equation 13), as long as those it is compared with.
    """
    asked = inspect.signature(reducer.apply).parameters.values()
    required = {x.name for x in asked if x.kind is x.KEYWORD_ONLY and x.default is x.empty}
    needs = (required | reducer.needs) - {"valid"}
    if needs:
        raise ValueError(f"reducer: needs {', '.join(sorted(needs))}; must be a rule of the gradients alone")

    def direction(grad_fn, w, carry, downlink, batch):
        del downlink
        alone = jax.tree.map(lambda x: x[:, None], batch)  # a batch of one for each example
        gradients = jax.vmap(lambda example: grad_fn(w, Batch(*example)))(alone)
        zeros = tree.zeros_like(w)
        padding = {} if batch.real is None else {"valid": batch.real}
        reduced, _ = reducer.apply(zeros, gradients, reducer.init(zeros), **padding)
        return reduced, carry

    return ClientRule(begin=lambda downlink: (), direction=direction, report=lambda *_: ())
