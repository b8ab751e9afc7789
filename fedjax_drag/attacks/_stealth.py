"""An attack that keeps the length and the direction of what it sends near those of honest messages."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag import checks, kinds, tree
from fedjax_drag.attacks._attack import Knowledge, check_knowledge, known, mean_of, replace_malicious
from fedjax_drag.attacks._harm import unit
from fedjax_drag.types import Attack, Scalar, Uplink, WrappedAttack

_ROUNDING = 1e-5  # of a cosine, and of a delta's part aside of the mean as a share of its length


class stealth(WrappedAttack):
    """Another attack, whose deltas are turned towards the honest mean and shortened until bounds hold.

    With the mean ``g`` of the honest deltas and the mean ``r`` of their lengths, a delta ``v`` that the attack inside
    sends becomes, with the part ``o`` of ``v`` orthogonal to ``g``::

        v <- ||v|| (cosine g / ||g|| + sqrt(1 - cosine^2) o / ||o||)   if <v, g> < cosine ||v|| ||g||
        v <- min(1, norm r / ||v||) v

    So a delta within the bounds keeps its bits, one at a smaller cosine is turned in the plane of ``v`` and ``g`` just
    as far as it must be, at the same length, and what is still too long is shortened. Of a delta exactly against
    ``g``, which has no ``o``, ``||v|| max(cosine, 0) g / ||g||`` is left.

    Around :func:`~fedjax_drag.attacks.backdoor` with a large ``boost`` it is model replacement under a bound of the
    norm: scaled up as far as a server that clips lets it pass; around :func:`~fedjax_drag.attacks.dba` the same with a
    distributed trigger.

    Args:
      attack: the attack inside.
      norm: bound of the length, > 0, in units of the mean length of the honest deltas; None for none.
      cosine: least cosine to the honest mean, in [-1, 1]; None for none.
      knowledge: whose messages are the honest ones.

    Raises:
      ValueError: if ``attack`` is none, both bounds are None or one is out of range, or ``knowledge`` is unknown.

    Knows:
      the messages of the round: with ``"full"`` those of all benign clients, with ``"partial"`` what its own clients
      have computed before the attack changes it; and what the attack inside knows.

    References:
      Bagdasaryan et al., How to backdoor federated learning, AISTATS 2020, train-and-scale; Sun et al., Can you
      really backdoor federated learning?, 2019, the norm-constrained attack. Interpretations: the papers know the
      server's bound, here it is told by the lengths of honest messages; the first one's other way is
      :func:`~fedjax_drag.attacks.constrain_and_scale`. The bound of the cosine is the same idea for servers that
      compare directions, and is of no paper.
    """

    attack: Attack
    norm: Scalar | None = 1.0
    cosine: Scalar | None = None
    knowledge: Knowledge = "full"

    def check(self) -> None:
        kinds.ATTACK.check("attack", self.attack)
        if self.norm is None and self.cosine is None:
            raise checks.ArgumentError("norm", "must be a number, or cosine one: without a bound nothing is kept")
        if self.norm is not None:
            checks.positive("norm", self.norm)
        if self.cosine is not None:
            checks.in_range("cosine", self.cosine, -1.0, 1.0)
        check_knowledge(self.knowledge)

    @property
    def forges(self) -> bool:
        return True

    def forge(
        self, key: jax.Array, uplink: Uplink, malicious: jax.Array, *, valid: Any = None, **knowledge: Any
    ) -> Uplink:
        observed = known(malicious, self.knowledge, uplink, valid)
        if self.attack.forges:
            told = knowledge if valid is None else knowledge | {"valid": valid}
            sent = self.attack.forge(key, uplink, malicious, **told)
        else:
            sent = uplink
        delta = sent.delta
        if self.cosine is not None:
            delta = turned(delta, mean_of(uplink.delta, observed), self.cosine)
        if self.norm is not None:
            lengths = jnp.where(observed, tree.norms(uplink.delta), 0)
            longest = self.norm * lengths.sum() / jnp.maximum(observed.sum(), 1)
            norms = tree.norms(delta)
            factor = jnp.where(norms > longest, longest * tree.inverse(norms), 1)
            delta = jax.tree.map(lambda x: tree.expand(factor, x) * x, delta)
        return sent._replace(delta=replace_malicious(sent.delta, malicious & observed.any(), delta))


def turned(deltas: Any, mean: Any, cosine: Any) -> Any:
    """The deltas ``[S, *p]``, those at a smaller cosine to ``mean`` ``[*p]`` turned to this one at the same length."""
    ahead = unit(mean)
    lengths, found = tree.norms(deltas), tree.cosines(deltas, mean)
    along = lengths * found
    aside = jax.tree.map(lambda x, g: x - tree.expand(along, x) * g, deltas, ahead)
    apart = tree.norms(aside)
    apart = jnp.where(apart > _ROUNDING * lengths, apart, 0)
    sideways = jnp.sqrt(1 - jnp.square(jnp.asarray(cosine, lengths.dtype))) * lengths * tree.inverse(apart)
    onwards = jnp.where(apart > 0, cosine, jnp.maximum(cosine, 0)) * lengths
    turns = (found < cosine - _ROUNDING) & (tree.norm(mean) > 0)

    def leaf(x: jax.Array, o: jax.Array, g: jax.Array) -> jax.Array:
        new = tree.expand(onwards, x) * g + tree.expand(sideways, x) * o
        return jnp.where(tree.expand(turns, x), new, x)

    return jax.tree.map(leaf, deltas, aside, ahead)
