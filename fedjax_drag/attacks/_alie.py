"""A little is enough."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri
from jaxtyping import Array, Bool, Float

from fedjax_drag import checks
from fedjax_drag.attacks._attack import Knowledge, check_knowledge, known, mean_and_std, replace_malicious
from fedjax_drag.types import Attack, Scalar, Uplink


class alie(Attack):
    """All malicious clients send ``mean - z std``, which lies within the spread of the others in every coordinate.

    Args:
      z: how many standard deviations. Default: the paper's for f malicious of the S clients of the round,
        ``Phi^-1((S - f - s) / (S - f))`` with ``s = floor(S/2 + 1) - f``, which is 0 or less for f <= 2 of an even S
        and f <= 1 of an odd one. See :func:`largest_hidden_z` for where it is not defined.
      knowledge: whose messages mean and standard deviation are taken over.
      side: ``"below"``, as in its authors' code, or ``"above"``, ``mean + z std``.

    Raises:
      ValueError: if ``z`` is not finite, or ``knowledge`` or ``side`` is unknown.

    Knows:
      the messages of the round: with ``"full"`` those of all benign clients, with ``"partial"`` what its own clients
      would honestly have sent. How many clients take part, and how many of them are malicious.

    References:
      Baruch, Baruch and Goldberg, A little is enough: circumventing defenses for distributed learning, 2019, Algorithm
      3. The paper estimates from its own clients, which is ``"partial"``. Interpretations: the variance is divided by
      the number of clients. Its authors' code subtracts ``z std`` from the mean of gradients, here it is subtracted
      from that of deltas, whose sign is the opposite: on gradients ``"above"`` is what that code sends, and ``"below"``
      what ByzFL, Blades and others do. Where the benign clients spread symmetrically, the two sides are alike.
    """

    z: Scalar | None = None
    knowledge: Knowledge = "full"
    side: Literal["below", "above"] = "below"

    def check(self) -> None:
        if self.z is not None:
            checks.in_range("z", self.z)
        check_knowledge(self.knowledge)
        checks.one_of("side", self.side, ("below", "above"))

    def forge(self, key: jax.Array, uplink: Uplink, malicious: jax.Array, *, valid: Any = None, **_: Any) -> Uplink:
        del key
        observed = known(malicious, self.knowledge, uplink, valid)
        mean, std = mean_and_std(uplink, observed)
        steps = largest_hidden_z(malicious, valid) if self.z is None else self.z
        steps = -steps if self.side == "above" else steps
        forged = jax.tree.map(lambda mean, std: mean - steps * std, mean, std)
        return replace_malicious(uplink, malicious & observed.any(), forged)


def largest_hidden_z(
    malicious: Bool[Array, " clients"], valid: Bool[Array, " clients"] | None = None
) -> Float[Array, ""]:
    """The z (scalar) beyond which so many benign clients lie that they and the malicious ones form a majority.

    Of S clients, f of them malicious, ``s = floor(S/2 + 1) - f`` more make a majority, and for normal values
    ``z = Phi^-1((S - f - s) / (S - f))``. That is 0 or less if few are malicious: even at the mean they are then too
    few for a majority. If they are the majority themselves, or S < 3, the share is not inside (0, 1) and z would be
    infinite; the share is then ``1 - 1/(2S)``, or ``1/(2S)``, beyond every share that S clients can have. Where clients
    may be absent, S and f are numbers of those that are ``valid``.
    """
    size: Any = malicious.shape[0]
    if valid is not None:
        size, malicious = jnp.maximum(valid.sum(), 1), malicious & valid
    benign = size - malicious.sum()
    share = (size - (size // 2 + 1)) / jnp.maximum(benign, 1).astype(jnp.float32)
    return ndtri(jnp.clip(share, 1 / (2 * size), 1 - 1 / (2 * size)))
