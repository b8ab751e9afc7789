"""A backdoor in the coordinates that others leave alone, so that it lasts."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag import checks, kinds, tree
from fedjax_drag.attacks._attack import replace_malicious
from fedjax_drag.attacks._backdoor import backdoor
from fedjax_drag.ops.largest import magnitude, smallest_of_top
from fedjax_drag.types import Attack, Params, Scalar, Uplink, WrappedAttack


class neurotoxin(WrappedAttack):
    """Another attack, kept out of the coordinates that the last round changed most.

    Of what malicious clients would send, the coordinates of the delta with the ``share`` largest changes of the global
    parameters in the last round, in absolute value and over all leaves together, are set to 0: benign clients write
    there, and would soon overwrite a backdoor. There are ``floor(share D)`` of them, and those that tie with the
    smallest of these; coordinates that did not change at all are none of them. In the first round all are free.

    Args:
      attack: what is kept out; default :func:`backdoor` with its defaults. Any other, such as :func:`dba`,
        :func:`edge_case`, or one on messages.
      share: of the coordinates, in [0, 1]. Its authors' code leaves out 5 %.

    Raises:
      ValueError: if ``attack`` is none, or ``share`` is out of range.

    Knows:
      what the server sent to it: the parameters of this round and of the one before; and what the attack inside knows.

    References:
      Zhang et al., Neurotoxin: Durable backdoors in federated learning, ICML 2022. Interpretations: the paper projects
      every local gradient, here it is the delta at the end of the local pass, which is the same for one step. Its code
      estimates the coordinates from a gradient on the attacker's own clean examples, the text from the last update of
      the server, as here.
    """

    attack: Attack | None = None
    share: Scalar = 0.05

    def check(self) -> None:
        if self.attack is not None:
            kinds.ATTACK.check("attack", self.attack)
        checks.in_range("share", self.share, 0.0, 1.0)

    @property
    def inner(self) -> Attack:
        """The attack inside."""
        return backdoor() if self.attack is None else self.attack

    @property
    def forges(self) -> bool:
        return True

    @property
    def needs(self) -> frozenset[str]:
        """Those of the attack inside, and the last update."""
        return self.inner.needs | {"last_update"}

    def forge(
        self, key: jax.Array, uplink: Uplink, malicious: jax.Array, *, last_update: Params, **knowledge: Any
    ) -> Uplink:
        inner = self.inner
        if "last_update" in inner.needs:
            knowledge["last_update"] = last_update
        sent = inner.forge(key, uplink, malicious, **knowledge) if inner.forges else uplink
        last_update = tree.stored(last_update)
        least = smallest_of_top(last_update, self.share)
        outside = lambda x, last: jnp.where(magnitude(last, least.dtype) < least, x, jnp.zeros((), x.dtype))
        kept = jax.tree.map(outside, sent.delta, last_update)
        return sent._replace(delta=replace_malicious(sent.delta, malicious, kept))
