"""What attacks share."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.types import Attack, Deltas, Params, Uplink

Knowledge = Literal["full", "partial"]
"""Whose messages an attacker knows: those of all benign clients, or what its own clients would honestly have sent."""

Perturbation = Literal["std", "unit", "sign"]
"""A direction away from the mean: against the standard deviation, the mean itself or its signs."""

_ROOM = 1e-4  # of a push, left free so that rounding does not carry it over its bound


def client_keys(key: jax.Array, client_ids: jax.Array) -> jax.Array:
    """One key for each client ``[S]``, whatever its place in the cohort."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, client_ids)


def scale_malicious(uplink: Any, malicious: jax.Array, factor: Any) -> Any:
    """Multiplies all that malicious clients send by ``factor``, ``[S]`` or scalar; the others keep their bits."""
    factor = jnp.broadcast_to(factor, malicious.shape)

    def leaf(x):
        return jnp.where(tree.expand(malicious, x), x * tree.expand(factor, x).astype(x.dtype), x)

    return jax.tree.map(leaf, uplink)


def in_fraction(positions: jax.Array, num_examples: jax.Array, fraction: Any) -> jax.Array:
    """Which places in a client's own list are among its first ``floor(fraction * num_examples)``, ``[B]`` bool."""
    # The margin keeps a product such as 0.29 * 100 from falling just below its integer.
    return positions < jnp.floor(fraction * num_examples + 1e-3)


def known(malicious: jax.Array, knowledge: Knowledge, uplink: Any) -> jax.Array:
    """Whose messages the attacker looks at, ``[S]`` bool; never those that a server rejects."""
    return (malicious if knowledge == "partial" else ~malicious) & tree.usable_rows(uplink)


def replace_malicious(uplink: Any, malicious: jax.Array, forged: Any) -> Any:
    """Malicious clients send ``forged`` in the dtype of their message; the others keep their bits.

    Args:
      uplink: what all would send honestly, or a part of it.
      malicious: ``[S]`` bool.
      forged: like ``uplink``; each leaf ``[*p]``, the same from all of them, or ``[S, *p]``.
    """

    def leaf(x, new):
        return jnp.where(tree.expand(malicious, x), new.astype(x.dtype), x)

    return jax.tree.map(leaf, uplink, forged)


def check_knowledge(knowledge: Knowledge) -> None:
    """Raises ValueError unless ``knowledge`` is one of the two."""
    checks.one_of("knowledge", knowledge, ("full", "partial"))


def mean_of(messages: Any, seen: jax.Array) -> Any:
    """Mean of each number over the clients ``seen`` ``[S]``, without the client axis; zero if there are none.

    For attacks that follow the sign of the mean: values that cancel give exactly 0, not what rounding leaves over. They
    are added up first and divided then, since weights of ``1 / n`` would round every term, and what an addition rounds
    off is kept in a second sum (Neumaier, Rundungsfehleranalyse einiger Verfahren zur Summation endlicher Summen, 1974,
    with Knuth's error-free addition).
    """
    number = jnp.maximum(seen.sum(), 1)

    def leaf(values):
        def add(sums, client):
            total, lost = sums
            value, counts = client
            value = jnp.where(counts, tree.accurate(value), 0)
            after = total + value
            added = after - total
            return (after, lost + ((total - (after - added)) + (value - added))), None

        zero = tree.accurate(jnp.zeros(values.shape[1:], values.dtype))
        (total, lost), _ = jax.lax.scan(add, (zero, zero), (values, seen))
        return (total + lost) / number.astype(total.dtype)

    return jax.tree.map(leaf, messages)


def mean_and_std(uplink: Uplink, seen: jax.Array) -> tuple[Uplink, Uplink]:
    """Mean and standard deviation of each number over the clients ``seen`` ``[S]``, both without the client axis.

    The variance is divided by the number of clients. No square is formed that could over- or underflow.
    """
    weights, mean = tree.uniform_weights(seen), mean_of(uplink, seen)

    def leaf(values, centre):
        def add(total, client):
            value, weight = client
            deviation = jnp.where(weight > 0, tree.accurate(value) - centre, 0)
            return jnp.hypot(total, jnp.sqrt(weight) * deviation), None

        return jax.lax.scan(add, jnp.zeros_like(centre), (values, weights))[0]

    return mean, jax.tree.map(leaf, uplink, mean)


def hidden_push(
    perturbation: Perturbation,
    knowledge: Knowledge,
    reach: Callable[[Deltas, jax.Array, Params], jax.Array],
) -> Attack:
    """All malicious clients send ``mean + gamma p``, the mean pushed as far as a bound on its distances allows.

    Args:
      perturbation: which ``p``.
      knowledge: over whose messages mean, ``p`` and bound are taken.
      reach: ``(centred, seen, p) -> length``: how long ``gamma p`` may be in the delta. ``centred`` ``[S, *p]`` are
        the deltas minus the mean, 0 where not ``seen`` ``[S]``; ``p`` is that of the delta, of any length.

    Raises:
      ValueError: if ``perturbation`` or ``knowledge`` is unknown.
    """
    checks.one_of("perturbation", perturbation, ("std", "unit", "sign"))
    check_knowledge(knowledge)

    def forge(key, uplink, malicious, **_):
        del key
        seen = known(malicious, knowledge, uplink)
        mean, std = mean_and_std(uplink, seen)
        p = {"std": std, "unit": mean, "sign": jax.tree.map(jnp.sign, mean)}[perturbation]
        p = tree.scale(-1, p)

        length = reach(centred(uplink.delta, mean.delta, seen), seen, p.delta)
        gamma = (1 - _ROOM) * length * tree.inverse(tree.norm(p.delta))
        forged = jax.tree.map(lambda centre, push: centre + gamma * push, mean, p)
        return replace_malicious(uplink, malicious & seen.any(), forged)

    return Attack(forge=forge)


def centred(deltas: Deltas, mean: Params, seen: jax.Array) -> Deltas:
    """``deltas - mean`` of the clients ``seen`` ``[S]``, 0 for the others."""

    def leaf(x, centre):
        return jnp.where(tree.expand(seen, x), tree.accurate(x) - centre, 0)

    return jax.tree.map(leaf, deltas, mean)
