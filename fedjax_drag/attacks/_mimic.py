"""Copies of one benign client."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from fedjax_drag import checks, tree
from fedjax_drag.attacks._attack import centred, known, replace_malicious
from fedjax_drag.kernels.distances import gram
from fedjax_drag.types import Attack, Deltas, Uplink


class mimic(Attack):
    """All malicious clients send what one benign client sends, so that it weighs more than the others.

    By default it is the client with the largest absolute projection on the direction in which the benign deltas of the
    round vary most. Every message is an honest one; the attack does harm where the clients' data differ.

    Args:
      target: number, from 0, of the client that is copied in every round, among the benign clients of the cohort in the
        order of their ids; of a cohort that has fewer, nobody is copied. Default None: chosen in each round.

    Knows:
      the messages of all benign clients of the round.

    References:
      Karimireddy, He and Jaggi, Byzantine-robust learning on heterogeneous datasets via bucketing, 2022, the mimic
      attack. Deviation: the paper learns the direction over the first rounds and then keeps to one client, which need
      not take part in every round; here both are computed in each round, or a client is given by ``target``.
      Interpretation: a direction has no sign, hence the absolute projection.
    """

    target: int | None = None

    def check(self) -> None:
        if self.target is not None:
            checks.count("target", self.target, 0)

    def forge(
        self,
        key: jax.Array,
        uplink: Uplink,
        malicious: jax.Array,
        *,
        client_ids: jax.Array,
        valid: Any = None,
        **_: Any,
    ) -> Uplink:
        del key
        observed = known(malicious, "full", uplink, valid)
        if self.target is None:
            chosen = most_extreme(uplink.delta, observed)
        else:
            smaller = ~malicious & (client_ids < client_ids[:, None])
            observed &= smaller.sum(1) == self.target
            chosen = jnp.argmax(observed)
        return replace_malicious(uplink, malicious & observed.any(), tree.take(uplink, chosen))


def most_extreme(deltas: Deltas, observed: Bool[Array, " clients"]) -> Int[Array, ""]:
    """Index (scalar) of the client whose delta is longest along the principal direction of those ``observed``.

    If these are all equal, it is the first of them.
    """
    around = centred(deltas, tree.mean(deltas, observed), observed)
    unit = tree.inverse(tree.norms(around).max())
    _, vectors = jnp.linalg.eigh(gram(around, jnp.where(observed, unit, 0)))
    direction = tree.weighted_sum(unit * vectors[:, -1], around)
    projection = jnp.abs(tree.cosines(deltas, direction)) * tree.norms(deltas)
    return jnp.argmax(jnp.where(observed, projection, -1))
