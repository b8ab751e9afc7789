"""A push around the last aggregate, orthogonal to where clients are going."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.attacks._attack import Knowledge, centred, check_knowledge, known, mean_of, replace_malicious
from fedjax_drag.attacks._harm import along, unit
from fedjax_drag.types import Attack, Params, Scalar, Uplink


class rop(Attack):
    """All malicious clients send a point beside the last aggregate: relocated orthogonal perturbation.

    With the mean ``m`` of the benign deltas and the last change ``g`` of the global parameters (zeros in the first
    round, in which ``u`` is ``m``)::

        a = location g + (1 - location) m           where the attack is
        u = reference g + (1 - reference) m         the direction that it turns from
        p = (1 - <1, u> / ||u||^2 u), at length 1   the vector of ones without its part along u
        sent = a + radius (sin(angle) p + cos(angle) u / ||u||)

    A rule that clips around its last aggregate, as :func:`~fedjax_drag.aggregators.centered_clipping` does, clips
    nothing of it if ``radius`` is no more than its own; and as the direction is nearly the same in every round, what it
    does adds up.

    Args:
      radius: length of the perturbation, > 0, in the units of the deltas; None for the mean distance of the benign
        deltas from ``a``.
      location: in [0, 1]; 1 is the last aggregate.
      reference: in [0, 1].
      angle: to ``u``, in degrees; 90 is orthogonal, 180 against it.
      knowledge: whose messages ``m`` is taken over.

    Raises:
      ValueError: if an argument is out of range, or ``knowledge`` is unknown.

    Knows:
      what the server sent to it, and the messages of the round: with ``"full"`` those of all benign clients, with
      ``"partial"`` what its own clients would honestly have sent.

    References:
      Ozfatura, Ozfatura, Küpçü and Gündüz, Byzantines can also learn from history: fall of centered clipping in
      federated learning, IEEE TIFS 2024. Interpretations: the defaults are those of its authors' code,
      github.com/CRYPTO-KU/FL-Byzantine-Library, as are the turned perturbation and its reference. There clients send
      momentum of gradients, here deltas, whose sign is the opposite, so that its 270 degrees are 90 here. There the
      radius is ALIE's ``z``, a number beside momenta that are clipped at 1; deltas have no such unit, hence the
      distance of the benign ones. ``aux`` is what an honest client would send.
    """

    radius: Scalar | None = None
    location: Scalar = 1.0
    reference: Scalar = 0.9
    angle: Scalar = 90.0
    knowledge: Knowledge = "full"

    def check(self) -> None:
        if self.radius is not None:
            checks.positive("radius", self.radius)
        checks.in_range("location", self.location, 0.0, 1.0)
        checks.in_range("reference", self.reference, 0.0, 1.0)
        checks.in_range("angle", self.angle)
        check_knowledge(self.knowledge)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"last_update"})

    def forge(
        self,
        key: jax.Array,
        uplink: Uplink,
        malicious: jax.Array,
        *,
        last_update: Params,
        valid: Any = None,
        **_: Any,
    ) -> Uplink:
        del key
        observed = known(malicious, self.knowledge, uplink, valid)
        m = mean_of(uplink.delta, observed)
        between = lambda share: jax.tree.map(lambda g, m: share * g + (1 - share) * m, last_update, m)
        a, turned_from = between(self.location), between(self.reference)
        u = unit(tree.where(tree.norm(last_update) > 0, turned_from, m))
        ones = jax.tree.map(jnp.ones_like, u)
        p = unit(tree.subtract(ones, tree.scale(along(ones, u), u)))
        radius = self.radius
        if radius is None:
            radius = tree.norms(centred(uplink.delta, a, observed)).sum() / jnp.maximum(observed.sum(), 1)
        turn = jnp.deg2rad(self.angle)
        sent = jax.tree.map(lambda a, p, u: a + radius * (jnp.sin(turn) * p + jnp.cos(turn) * u), a, p, u)
        return uplink._replace(delta=replace_malicious(uplink.delta, malicious & observed.any(), sent))
