"""What every rule does with clients that must not count: rejected, expelled or not finite."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag import tree


def screen(messages: Any, valid: Any = None, reject_nonfinite: bool = True) -> tuple[jax.Array, jax.Array]:
    """Which clients count, and how many were rejected for what they sent.

    Args:
      messages: pytree with a leading axis ``[S]``.
      valid: mask ``[S]`` of the clients that take part at all; default everybody.
      reject_nonfinite: whether a message with an entry that is not finite excludes its client.

    Returns:
      The mask ``[S]`` of clients that count, and the number rejected (int32 scalar).
    """
    present = jnp.ones(tree.cohort_size(messages), bool) if valid is None else jnp.asarray(valid, bool)
    counted = present & tree.finite_rows(messages) if reject_nonfinite else present
    return counted, (present & ~counted).sum()


def screened(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Gives ``apply`` the mask of the clients that count, and the common metrics.

    The wrapped rule accepts two more extras, ``valid`` ``[S]`` (default: everybody) and
    ``reject_nonfinite`` (a Python bool, default True: a delta with an entry that is not finite is as if
    it had not been sent; with False it makes the parameters NaN, whatever the rule). The rule itself receives
    ``valid`` with both taken into account, leaves
    those clients' weights at 0, and finds the deltas unchanged; the statistics in
    :mod:`fedjax_drag.tree` ignore rows that are not finite.

    If no client is left, parameters and state stay as they were. ``state.metrics`` gains
    ``num_rejected``, the number of clients rejected for non-finite values.
    """

    @functools.wraps(apply)
    def screened_apply(params, deltas, state, *, valid=None, reject_nonfinite=True, **extras):
        tree.check_cohort(params, deltas)
        present, _ = screen(deltas, valid, reject_nonfinite=False)
        counted, num_rejected = screen(deltas, valid, reject_nonfinite)
        moved, after = apply(params, deltas, state, valid=counted, **extras)
        if not reject_nonfinite:
            sound = (tree.finite_rows(deltas) | ~present).all()
            moved = tree.where(sound, moved, jax.tree.map(lambda p: jnp.full_like(p, jnp.nan), moved))
        metrics = {**after.metrics, "num_rejected": num_rejected}
        kept = tree.where(counted.any(), (moved, after._replace(metrics={})), (params, state._replace(metrics={})))
        return kept[0], kept[1]._replace(metrics=metrics)

    return screened_apply


def empty_metrics(*per_client: str, **scalars: Any) -> dict[str, Any]:
    """Metrics before any round: the common entries, and those named, for a cohort of nobody yet.

    Args:
      *per_client: names of further entries of shape ``[S]``.
      **scalars: further entries and the values they start from.
    """
    names = ("weight", "cosine", *per_client)
    return {name: jnp.zeros(0) for name in names} | {"num_rejected": jnp.zeros((), int)} | scalars
