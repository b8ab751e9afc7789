"""Inner product manipulation, with a strength searched for through the rule."""

import jax

from fedjax_drag import tree
from fedjax_drag.attacks._line_search import Searched
from fedjax_drag.types import Uplink


class optimal_ipm(Searched):
    """All malicious clients send ``-epsilon mean`` with the epsilon that does the most harm through the server's rule.

    The mean is over the benign clients; epsilon is searched for in every round, in the way of :func:`optimal_alie`: it
    is at least as harmful as every start and every trial, in the harm of this round.

    Args:
      objective: as for :func:`optimal_alie`.
      evaluations: of the rule in a round, at least as many as ``starts``.
      starts: values of epsilon that are tried first, in [-1e9, 1e9].
      step: > 0, the first step beyond them.
      ratio: in (0, 1), by which steps shrink.

    Raises:
      ValueError: if an argument is out of range.

    Knows:
      Everything: the messages of all benign clients, the server's rule with its state, and the root delta if the rule
      uses one. Of the rule's random draws it knows only their distribution.

    References:
      González et al., ByzFL: Research framework for robust federated learning, 2025, Optimal_InnerProductManipulation,
      whose search and defaults these are. The attack is that of Xie, Koyejo and Gupta, 2020, as in :func:`ipm`.
    """

    def push(self, strength: jax.Array, mean: Uplink, std: Uplink) -> Uplink:
        """``-epsilon mean``."""
        del std
        return tree.scale(-strength, mean)
