"""An aggregation rule in every node."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from fedjax_drag import kinds
from fedjax_drag.checks import ArgumentError
from fedjax_drag.graphs.mixing._mixing import Mixed, Mixing
from fedjax_drag.types import Aggregator, Deltas, Params


class from_rule(Mixing):
    """Every client applies an aggregation rule to its own model and those of its neighbours.

    The rule is given their differences from the client's own model, the first being the client's own, 0; the weights of
    the graph do not count. With :func:`~fedjax_drag.aggregators.trimmed_mean` this is BRIDGE-T, with
    ``monna(num_byzantine=f, trusted=0)`` nearest neighbour averaging;
    :func:`~fedjax_drag.aggregators.krum`, :func:`~fedjax_drag.aggregators.median` and
    :func:`~fedjax_drag.aggregators.nnm` around another rule work as well.

    Args:
      aggregator: the rule. Its ``num_byzantine`` says how many of a client's neighbours may be malicious. It keeps
        nothing from round to round, and needs nothing but the models.

    Raises:
      ValueError: if the rule keeps something, or needs more.

    References:
      Fang, Yang and Bajwa, BRIDGE: Byzantine-resilient decentralized gradient descent, 2022; Farhadkhani et al., Robust
      collaborative learning with linear gradient overhead, ICML 2023.
    """

    aggregator: Aggregator

    def check(self) -> None:
        rule = self.aggregator
        kinds.AGGREGATOR.check("aggregator", rule)
        if "num_byzantine" in rule.needs:
            said = "must be given num_byzantine, how many neighbours of a client may be malicious"
            raise ArgumentError(f"aggregator={rule.name}", said)
        if more := sorted(rule.needs - {"key", "client_ids"}):
            raise ArgumentError(f"aggregator={rule.name}", f"needs {', '.join(more)}; must need nothing but the models")
        state = jax.eval_shape(rule.init, {"w": jax.ShapeDtypeStruct((2,), jnp.float32)})
        if rule.num_clients is not None or jax.tree.leaves(state._replace(metrics={})):
            raise ArgumentError(f"aggregator={rule.name}", "must keep nothing from round to round")

    def mix(self, own: Params, others: Deltas, weight: Float[Array, " degree"], key: PRNGKeyArray) -> Mixed:
        deltas = jax.tree.map(lambda x, y: jnp.concatenate([jnp.zeros_like(x)[None], y - x]), own, others)
        there = jnp.append(True, weight > 0)
        places = jnp.arange(len(there))
        moved, state = self.aggregator.apply(
            own, deltas, self.aggregator.init(own), valid=there, key=key, client_ids=places
        )
        return moved, state.metrics["weight"][1:]
