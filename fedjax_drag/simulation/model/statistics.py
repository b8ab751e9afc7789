"""What becomes of the statistics that a model keeps beside its parameters, such as BatchNorm's running means.

They are no part of the deltas, and no rule sees them. Every client starts its local pass from the server's, and the
server makes new ones of the clients':

- ``"average"``: the mean over the clients that took part, each counting as much as the others;
- ``"weighted"``: the same, weighted by numbers of examples;
- ``"median"``: the coordinatewise median over them, which a minority of malicious clients cannot move beyond the values
  of benign ones;
- ``"local"``: every client goes on with its own, as FedBN does with all of BatchNorm; the mean over those that took
  part is the server's for evaluation on the test set, and no client receives it;
- ``"frozen"``: no client changes them: BatchNorm normalises by the running statistics in training as in evaluation.

The statistics of a client count if all of them are finite. Where an attack forges messages, malicious clients forge
their statistics by the same attack: it is given the change of each client's statistics in the place of the deltas. An
attack that needs more than messages, such as the server's root update, is given no statistics, and those of its clients
are honest.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from fedjax_drag import tree
from fedjax_drag.simulation.model.model import Statistics
from fedjax_drag.types import POISON_NEEDS, Attack, Uplink

MODEL_STATES = ("auto", "average", "weighted", "median", "frozen", "local")
"""What can become of the statistics; ``"auto"`` is the average, or the median under an attack that forges."""


def resolved(model_state: str, attack: Attack | None) -> str:
    """What ``"auto"`` stands for."""
    if model_state != "auto":
        return model_state
    return "average" if attack is None or not attack.forges else "median"


def forged(
    attack: Attack | None,
    key: PRNGKeyArray,
    before: Statistics,
    local: Statistics,
    malicious: Bool[Array, " clients"],
    client_ids: Int[Array, " clients"],
    round_index: Int[Array, ""],
    valid: Bool[Array, " clients"] | None = None,
) -> Statistics:
    """The statistics ``[S, ...]`` as they reach the server.

    Args:
      attack: of the run.
      key: of the draw.
      before: the server's.
      local: the clients', leading axis ``[S]``.
      malicious: ``[S]`` bool.
      client_ids: ``[S]``.
      round_index: from 0.
      valid: whose messages reach the server, ``[S]``; None where nobody can be absent.
    """
    if attack is None or not attack.forges or not jax.tree.leaves(local):
        return local
    if any(name not in POISON_NEEDS for name in attack.needs):
        return local
    # Numbers such as counters are no quantities that an attack could scale.
    floating = lambda x: jnp.issubdtype(x.dtype, jnp.floating)
    changes = jax.tree.map(lambda new, old: new - old if floating(new) else None, local, before)
    told = {"client_ids": client_ids, "round": round_index} | ({} if valid is None else {"valid": valid})
    sent = attack.forge(key, Uplink(changes), malicious, **told).delta
    return jax.tree.map(
        lambda change, new, old: new if change is None else jnp.where(tree.expand(malicious, new), old + change, new),
        sent,
        local,
        before,
        is_leaf=lambda x: x is None,
    )


def combined(
    how: str,
    before: Statistics,
    local: Statistics,
    num_examples: Int[Array, " clients"],
    valid: Bool[Array, " clients"] | None,
) -> Statistics:
    """The server's statistics after a round.

    Args:
      how: one of :data:`MODEL_STATES` but ``"auto"``.
      before: the server's; it keeps them where no client counts.
      local: the clients', leading axis ``[S]``.
      num_examples: of the clients, ``[S]``.
      valid: which clients took part, ``[S]``; None for all.
    """
    if how == "frozen" or not jax.tree.leaves(before):
        return before
    counted = _finite(local) & (True if valid is None else valid)
    weights = jnp.where(counted, num_examples if how == "weighted" else 1, 0).astype(jnp.float32)

    def leaf(new: jax.Array, old: jax.Array) -> jax.Array:
        kept = jnp.where(tree.expand(counted, new), new, jnp.zeros((), new.dtype))
        if not jnp.issubdtype(new.dtype, jnp.floating):  # a counter: that of the client which is furthest
            value = kept.max(0)
        elif how == "median":
            value = jnp.nanmedian(jnp.where(tree.expand(counted, new), new, jnp.nan), axis=0)
        else:
            share = weights / jnp.maximum(weights.sum(), 1)
            value = tree.product(share, kept.reshape(len(share), -1)).reshape(old.shape)
        return jnp.where(counted.any(), value, old).astype(old.dtype)

    return jax.tree.map(leaf, local, before)


def _finite(local: Statistics) -> Bool[Array, " clients"]:
    """Which clients' statistics are finite in every entry, ``[S]``."""
    return jnp.stack([jnp.isfinite(x).reshape(x.shape[0], -1).all(1) for x in jax.tree.leaves(local)]).all(0)
