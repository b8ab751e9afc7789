"""Free riding on the others' work."""

import jax
import jax.numpy as jnp

from fedjax_drag import tree
from fedjax_drag.types import Attack


def freeloader() -> Attack:
    """Malicious clients do not train: they send back the last global update, in the first round nothing.

    ``aux`` stays what an honest client would send; for TACO, whose clients report their number of steps, that takes
    no work.

    Knows:
      what the server told it: the parameters of this round and of the one before.

    References:
      Liu et al., TACO: Tackling over-correction in federated learning with tailored adaptive correction, Section IV-A.
    """

    def forge(key, uplink, malicious, *, last_update, **_):
        del key

        def leaf(delta, last):
            return jnp.where(tree.expand(malicious, delta), last.astype(delta.dtype), delta)

        return uplink._replace(delta=jax.tree.map(leaf, uplink.delta, last_update))

    return Attack(forge=forge, needs=frozenset({"last_update"}))
