"""Freeloaders, which send back the last global update instead of training."""

from typing import Any

import jax

from fedjax_drag.attacks._attack import replace_malicious
from fedjax_drag.types import Attack, Params, Uplink


class freeloader(Attack):
    """Malicious clients do not train: they send back the last global update, in the first round zeros.

    ``aux`` is what an honest client would send; for TACO, whose clients report their number of steps, that takes no
    work.

    Knows:
      what the server sent to it: the parameters of this round and of the one before.

    References:
      Liu et al., TACO: Tackling over-correction in federated learning with tailored adaptive correction, Section IV-A.
    """

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"last_update"})

    def forge(self, key: jax.Array, uplink: Uplink, malicious: jax.Array, *, last_update: Params, **_: Any) -> Uplink:
        del key
        return uplink._replace(delta=replace_malicious(uplink.delta, malicious, last_update))
