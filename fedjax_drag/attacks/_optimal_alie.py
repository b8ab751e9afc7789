"""A little is enough, with a strength searched for through the rule."""

from typing import Literal

import jax

from fedjax_drag import checks
from fedjax_drag.attacks._line_search import Searched
from fedjax_drag.types import Uplink


class optimal_alie(Searched):
    """All malicious clients send ``mean - z std`` with the z that does the most harm through the server's own rule.

    Mean and standard deviation of each coordinate are over the benign clients; z is searched for in every round, in
    ``evaluations`` evaluations of the rule and without its gradient. First all ``starts`` are tried. From the most
    harmful z on, each trial is a step beyond the best one so far: steps double as long as trials are more harmful;
    after the first that is not, each is ``ratio`` times the one before. So z is at least as harmful as every start and
    every trial, in the harm of this round. A harm that is not finite counts as -inf.

    Args:
      objective: the harm of what the rule makes of the messages, ``u``, given the benign mean delta ``g``:
        ``"distance"``, ``||u - g||``, or ``"against"``, ``-<u, g> / ||g||``.
      evaluations: of the rule in a round, at least as many as ``starts``.
      starts: values of z that are tried first, such as those of fixed attacks that this one is to surpass, in
        [-1e9, 1e9].
      step: > 0, the first step beyond them.
      ratio: in (0, 1).
      side: ``"below"`` (default), as of :func:`alie`; or ``"above"``, ``mean + z std``.

    Raises:
      ValueError: if an argument is out of range.

    Knows:
      Everything: the messages of all benign clients, the server's rule with its state, and the root delta if the rule
      uses one. Of the rule's random draws it knows only their distribution.

    References:
      González et al., ByzFL: Research framework for robust federated learning, 2025, Optimal_ALittleIsEnough, whose
      search and defaults these are; the idea is of Shejwalkar and Houmansadr, NDSS 2021. The attack is that of
      Baruch, Baruch and Goldberg, 2019, as in :func:`alie`. Interpretations: the variance is divided by the number of
      clients, as in ByzFL's text; its code divides by one less. ByzFL pushes above the mean of gradients: deltas, which
      have the opposite sign, are then below theirs. The two sides are not alike (``docs/arena.md`` measures both).
      :func:`optimised` follows the gradient through the rule in every direction, within a budget.
    """

    side: Literal["above", "below"] = "below"

    def check(self) -> None:
        super().check()
        checks.one_of("side", self.side, ("above", "below"))

    def push(self, strength: jax.Array, mean: Uplink, std: Uplink) -> Uplink:
        """``mean + z std``, or below ``mean - z std``."""
        z = strength if self.side == "above" else -strength
        return jax.tree.map(lambda mean, std: mean + z * std, mean, std)
