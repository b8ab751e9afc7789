"""Copies of one benign client."""

import jax
import jax.numpy as jnp

from fedjax_drag import tree
from fedjax_drag.attacks._attack import centred, known, replace_malicious
from fedjax_drag.ops.distances import gram
from fedjax_drag.types import Attack, Deltas


def mimic() -> Attack:
    """All malicious clients send what one benign client sends, so that it counts for more than the others.

    It is the client with the largest absolute projection on the direction in which the benign deltas of the round vary
    most. Nothing sent is out of the ordinary; it hurts where the clients' data differ.

    Knows:
      the messages of all benign clients of the round

    References:
      Karimireddy, He and Jaggi, Byzantine-robust learning on heterogeneous datasets via bucketing, 2022, the mimic
      attack. Deviation: the paper learns the direction over the first rounds and then keeps to one client, which need
      not take part in every round; here direction and client are found anew in each. Reading: a direction has no sign,
      hence the absolute projection.
    """

    def forge(key, uplink, malicious, **_):
        del key
        seen = known(malicious, "full", uplink)
        chosen = most_extreme(uplink.delta, seen)
        return replace_malicious(uplink, malicious & seen.any(), tree.take(uplink, chosen))

    return Attack(forge=forge)


def most_extreme(deltas: Deltas, seen: jax.Array) -> jax.Array:
    """Index (scalar) of the client whose delta is longest along the principal direction of those ``seen`` ``[S]``.

    If they are all the same, the first of them.
    """
    around = centred(deltas, tree.mean(deltas, seen), seen)
    unit = tree.inverse(tree.norms(around).max())
    _, vectors = jnp.linalg.eigh(gram(around, jnp.where(seen, unit, 0)))
    direction = tree.weighted_sum(unit * vectors[:, -1], around)
    projection = jnp.abs(tree.cosines(deltas, direction)) * tree.norms(deltas)
    return jnp.argmax(jnp.where(seen, projection, -1))
