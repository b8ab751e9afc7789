"""Inner product manipulation."""

from typing import Any

import jax

from fedjax_drag import checks, tree
from fedjax_drag.attacks._attack import Knowledge, check_knowledge, known, replace_malicious
from fedjax_drag.types import Attack, Scalar, Uplink


class ipm(Attack):
    """All malicious clients send ``-epsilon`` times the mean, so that its product with the aggregate turns negative.

    Args:
      epsilon: > 0. With a small one the message is close to updates near 0 and passes rules such as Krum; above
        (S - f) / f, with f of S clients malicious, it reverses the plain mean.
      knowledge: whose messages the mean is taken over.

    Raises:
      ValueError: if ``epsilon`` is not positive, or ``knowledge`` is unknown.

    Knows:
      the messages of the round: with ``"full"`` those of all benign clients, with ``"partial"`` what its own clients
      would honestly have sent.

    References:
      Xie, Koyejo and Gupta, Fall of empires: breaking Byzantine-tolerant SGD by inner product manipulation, 2020.
    """

    epsilon: Scalar = 0.1
    knowledge: Knowledge = "full"

    def check(self) -> None:
        checks.positive("epsilon", self.epsilon)
        check_knowledge(self.knowledge)

    def forge(self, key: jax.Array, uplink: Uplink, malicious: jax.Array, *, valid: Any = None, **_: Any) -> Uplink:
        del key
        observed = known(malicious, self.knowledge, uplink, valid)
        forged = tree.scale(-self.epsilon, tree.mean(uplink, observed))
        return replace_malicious(uplink, malicious & observed.any(), forged)
