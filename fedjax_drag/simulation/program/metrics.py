"""Metrics of a round: of the clients' work, and of what an attack achieves."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped

from fedjax_drag import tree
from fedjax_drag.simulation.run import LocalResult
from fedjax_drag.types import Deltas, Params

UNDEFINED = ("detection_tpr", "detection_fpr")
"""Metrics that are NaN where there is nobody of whom they are a share."""


def sum_of_benign(
    honest: Deltas, malicious: Bool[Array, " clients"], valid: Bool[Array, " clients"] | None = None
) -> Params:
    """Sum of the benign clients' deltas, like the parameters.

    Args:
      honest: the deltas ``[S, *p]`` as the clients computed them, before any was forged; those that are not
        usable, see :func:`fedjax_drag.tree.usable_rows`, do not count.
      malicious: ``[S]`` bool.
      valid: which clients take part, ``[S]``; default everybody.
    """
    counted = ~malicious & tree.usable_rows(honest) & (True if valid is None else valid)
    return tree.weighted_sum(counted.astype(jnp.float32), honest)


def attack_metrics(
    benign: Params,
    update: Params,
    malicious: Bool[Array, " clients"],
    weight: Shaped[Array, " clients"] | None = None,
    valid: Bool[Array, " clients"] | None = None,
    present: Bool[Array, " clients"] | None = None,
) -> dict[str, Float[Array, ""]]:
    """What malicious clients reached in a round.

    Args:
      benign: of :func:`sum_of_benign`.
      update: change of the global parameters.
      malicious: ``[S]`` bool.
      weight: each client's weight in the rule, ``[S]``; None if the rule has none.
      valid: which clients take part, ``[S]``; default everybody.
      present: which clients are not absent, ``[S]``, whether the method lets them take part or not; default everybody.

    Returns:
      Scalars. ``cosine_to_benign``: of ``update`` with the benign clients' mean delta, 0 if either is zero.
      If there are weights, ``malicious_weight``: the malicious clients' share of the sum of the weights' absolute
      values; and of a rule that rejects clients, be it by weight 0 or by expelling them, ``detection_tpr`` and
      ``detection_fpr``: the shares of the malicious and of the benign clients present that it rejected, NaN where there
      are none.
    """
    valid = jnp.ones(malicious.shape, bool) if valid is None else valid
    metrics = {"cosine_to_benign": tree.cosines(jax.tree.map(lambda u: u[None], update), benign)[0]}
    if weight is None:
        return metrics
    size = jnp.where(valid, jnp.abs(weight), 0.0)
    rejected = size == 0
    there = lambda clients: clients if present is None else clients & present
    return metrics | {
        "malicious_weight": jnp.where(malicious, size, 0.0).sum() * tree.inverse(size.sum()),
        "detection_tpr": (rejected & there(malicious)).sum() / there(malicious).sum(),
        "detection_fpr": (rejected & there(~malicious)).sum() / there(~malicious).sum(),
    }


def work_metrics(
    local: LocalResult,
    malicious: Bool[Array, " clients"],
    valid: Bool[Array, " clients"] | None = None,
    drawn: Bool[Array, " clients"] | None = None,
    may_be_absent: bool = False,
    accepted: Bool[Array, " clients"] | None = None,
) -> dict[str, jax.Array]:
    """Metrics of the local passes of a round, scalars.

    ``train_loss``: the mean mini-batch loss of the benign clients whose answer was accepted, NaN if there are none. As
    int32 ``participants``: how many answered; ``local_steps``: the steps of all that worked; ``slowest_steps``: those
    of the one with most, on whom a synchronous round waits. Where clients may be absent also ``drawn``: how many
    worked; and ``silent_rounds``: 1 if no benign client answered, ``train_loss`` then being 0.

    Args:
      local: results with a leading axis ``[S]``.
      malicious: ``[S]`` bool.
      valid: which clients answer, ``[S]``; default everybody.
      drawn: which clients work, ``[S]``; default those that answer.
      may_be_absent: whether a client may be missing for another reason than the method's.
      accepted: whose messages are usable, ``[S]``; default everybody's.
    """
    valid = jnp.ones(malicious.shape, bool) if valid is None else valid
    drawn = valid if drawn is None else drawn
    benign, steps = ~malicious & valid, jnp.where(drawn, local.steps, 0)
    counted = benign if accepted is None else benign & accepted
    metrics = {
        "train_loss": jnp.where(counted, local.loss, 0.0).sum() / counted.sum(),
        "participants": valid.sum(dtype=jnp.int32),
        "local_steps": steps.sum(),
        "slowest_steps": steps.max(),
    }
    if may_be_absent:
        silent = ~benign.any()
        metrics["train_loss"] = jnp.where(silent, 0.0, metrics["train_loss"])
        metrics |= {"drawn": drawn.sum(dtype=jnp.int32), "silent_rounds": silent.astype(jnp.int32)}
    return metrics
