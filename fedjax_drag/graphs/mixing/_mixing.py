"""What mixing is: the model of a node after it has met its neighbours."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from fedjax_drag import tree
from fedjax_drag.graphs._graph import Neighbours
from fedjax_drag.kinds import Kind
from fedjax_drag.types import Deltas, Params, Part
from fedjax_drag.types._part import undefined

Mixed = tuple[Params, Float[Array, " degree"]]
"""A node's model, and how much each of its neighbours counts in it."""

Forge = Callable[..., Deltas]
"""``(own, others, weight, nodes) -> others``, where a node's neighbours ``nodes`` ``[D]`` send it something else.

The node does without what is not usable, as :func:`fedjax_drag.tree.usable_rows` says.
"""

_AT_ONCE = 1 << 22
"""Numbers in the neighbours' models of the nodes that are mixed at once."""


class Mixing(Part):
    """What a node makes of its own model and its neighbours': a subclass says it for one node, by :meth:`mix`."""

    def mix(self, own: Params, others: Deltas, weight: Float[Array, " degree"], key: PRNGKeyArray) -> Mixed:
        """The model of a node after a round.

        Args:
          own: its model after its local steps.
          others: what its neighbours have sent, ``[D, *p]``.
          weight: of each neighbour in the graph, ``[D]``; 0 where there is none.
          key: of the node and the round.

        Returns:
          The model, and the weight of each neighbour in it ``[D]``, for the history.
        """
        raise undefined(self, "mix")

    def everywhere(
        self,
        own: Deltas,
        sent: Deltas,
        near: Neighbours,
        keys: PRNGKeyArray,
        forge: Forge | None = None,
    ) -> tuple[Deltas, Float[Array, "nodes degree"]]:
        """:meth:`mix` of all nodes, some of them at a time.

        Args:
          own: the models of the nodes, ``[N, *p]``.
          sent: what each node sends, ``[N, *p]``.
          near: their neighbours.
          keys: of the nodes, ``[N]``.
          forge: see :data:`Forge`; None where all neighbours of a node receive the same.
        """

        def one(node: Any) -> Mixed:
            own, index, weight, key = node
            others = tree.take(sent, index)
            if forge is not None:
                others = forge(own, others, weight, index)
                weight = jnp.where(tree.usable_rows(others), weight, 0.0)
            return self.mix(own, others, weight, key)

        numbers = near.nodes.shape[1] * sum(math.prod(x.shape[1:]) for x in jax.tree.leaves(sent))
        return jax.lax.map(one, (own, *near, keys), batch_size=max(_AT_ONCE // numbers, 1))


MIXING = Kind(Mixing, "a mixing, such as fd.graphs.mixing.gossip()", ("graphs.mixing",))


def toward(own: Params, others: Deltas, weight: Float[Array, " degree"]) -> Params:
    """``own + sum_j weight_j (others_j - own)``, in the dtype of ``own``."""
    return tree.move(own, tree.weighted_sum(weight, jax.tree.map(lambda x, y: y - x, own, others)))
