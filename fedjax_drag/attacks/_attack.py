"""Arithmetic that several attacks use."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from fedjax_drag import checks, tree
from fedjax_drag.ops.largest import floor_of
from fedjax_drag.types import Attack, Deltas, Params, Uplink
from fedjax_drag.types._part import undefined

Knowledge = Literal["full", "partial"]
"""Whose messages an attacker knows: those of all benign clients, or what its own clients would honestly send."""

Perturbation = Literal["std", "unit", "sign"]
"""A direction away from the mean: against the standard deviation, the mean itself or its signs."""

_MARGIN = 1e-4  # share of a push left free, so that rounding does not carry it beyond its bound


def client_keys(key: Key[Array, ""], client_ids: Int[Array, " clients"]) -> Key[Array, " clients"]:
    """One key for each client, which does not depend on its place in the cohort."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, client_ids)


def scale_malicious(uplink: Any, malicious: Bool[Array, " clients"], factor: Any) -> Any:
    """Multiplies the messages of malicious clients by ``factor``, ``[S]`` or scalar; the others keep their bits."""
    factor = jnp.broadcast_to(factor, malicious.shape)
    return replace_malicious(uplink, malicious, jax.tree.map(lambda x: tree.expand(factor, x) * x, uplink))


def in_fraction(positions: Int[Array, " batch"], num_examples: Any, fraction: Any) -> Bool[Array, " batch"]:
    """Marks the positions in a client's list that are among its first ``floor(fraction * num_examples)``."""
    return positions < floor_of(fraction, num_examples)


def known(
    malicious: Bool[Array, " clients"],
    knowledge: Knowledge,
    uplink: Any,
    valid: Bool[Array, " clients"] | None = None,
) -> Bool[Array, " clients"]:
    """Marks the clients whose messages the attacker observes; never those that a server rejects, or that are absent."""
    observed = (malicious if knowledge == "partial" else ~malicious) & tree.usable_rows(uplink)
    return observed if valid is None else observed & valid


def replace_malicious(uplink: Any, malicious: Bool[Array, " clients"], forged: Any) -> Any:
    """Replaces the messages of malicious clients, in the dtype of these; the others keep their bits.

    Args:
      uplink: what all clients would honestly send, or a part of it.
      malicious: the clients that attack.
      forged: like ``uplink``; each leaf ``[*p]``, the same for all malicious clients, or ``[S, *p]``.
    """

    def leaf(x: jax.Array, new: jax.Array) -> jax.Array:
        return jnp.where(tree.expand(malicious, x), new.astype(x.dtype), x)

    return jax.tree.map(leaf, uplink, forged)


def check_knowledge(knowledge: Knowledge) -> None:
    """Raises ValueError unless ``knowledge`` is ``"full"`` or ``"partial"``."""
    checks.one_of("knowledge", knowledge, ("full", "partial"))


def mean_of(messages: Any, observed: Bool[Array, " clients"]) -> Any:
    """Mean of each number over the clients ``observed``, without the client axis; zero if there are none.

    For attacks that follow the sign of the mean: values that cancel give exactly 0, without a rounding error. The
    division comes after the sum, since weights of ``1 / n`` would round every term, and a second sum keeps the rounding
    errors of the additions (Neumaier, Rundungsfehleranalyse einiger Verfahren zur Summation endlicher Summen, 1974,
    with Knuth's error-free addition).
    """
    number = jnp.maximum(observed.sum(), 1)

    def leaf(values: jax.Array) -> jax.Array:
        def add(sums: tuple[jax.Array, jax.Array], client: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
            total, lost = sums
            value, counts = client
            value = jnp.where(counts, tree.accurate(value), 0)
            after = total + value
            added = after - total
            return (after, lost + ((total - (after - added)) + (value - added))), None

        zero = tree.accurate(jnp.zeros(values.shape[1:], values.dtype))
        (total, lost), _ = jax.lax.scan(add, (zero, zero), (values, observed))
        return (total + lost) / number.astype(total.dtype)

    return jax.tree.map(leaf, messages)


def mean_and_std(uplink: Uplink, observed: Bool[Array, " clients"]) -> tuple[Uplink, Uplink]:
    """Mean and standard deviation of each number over the clients ``observed``, both without the client axis.

    The variance is divided by the number of clients. It is computed without squares, which could over- or underflow.
    """
    weights, mean = tree.uniform_weights(observed), mean_of(uplink, observed)

    def leaf(values: jax.Array, centre: jax.Array) -> jax.Array:
        def add(total: jax.Array, client: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            value, weight = client
            deviation = jnp.where(weight > 0, tree.accurate(value) - centre, 0)
            return jnp.hypot(total, jnp.sqrt(weight) * deviation), None

        return jax.lax.scan(add, jnp.zeros_like(centre), (values, weights))[0]

    return mean, jax.tree.map(leaf, uplink, mean)


class HiddenPush(Attack):
    """All malicious clients send ``mean + gamma p``, the mean pushed as far as a bound on its distances allows.

    Attributes:
      perturbation: name of ``p``.
      knowledge: whose messages mean, ``p`` and bound are taken over.
    """

    perturbation: Perturbation = "std"
    knowledge: Knowledge = "full"

    def check(self) -> None:
        checks.one_of("perturbation", self.perturbation, ("std", "unit", "sign"))
        check_knowledge(self.knowledge)

    def reach(self, centred: Deltas, observed: Bool[Array, " clients"], p: Params) -> Float[Array, ""]:
        """Computes the largest norm of ``gamma p`` that the bound allows.

        Args:
          centred: the deltas minus their mean ``[S, *p]``, 0 for clients that are not observed.
          observed: the clients whose messages the attacker observes.
          p: the perturbation of the delta, of any length.
        """
        raise undefined(self, "reach")

    def forge(self, key: jax.Array, uplink: Uplink, malicious: jax.Array, *, valid: Any = None, **_: Any) -> Uplink:
        del key
        observed = known(malicious, self.knowledge, uplink, valid)
        mean, std = mean_and_std(uplink, observed)
        p = {"std": std, "unit": mean, "sign": jax.tree.map(jnp.sign, mean)}[self.perturbation]
        p = tree.scale(-1, p)

        length = self.reach(centred(uplink.delta, mean.delta, observed), observed, p.delta)
        gamma = (1 - _MARGIN) * length * tree.inverse(tree.norm(p.delta))
        forged = jax.tree.map(lambda centre, push: centre + gamma * push, mean, p)
        return replace_malicious(uplink, malicious & observed.any(), forged)


def centred(deltas: Deltas, mean: Params, observed: Bool[Array, " clients"]) -> Deltas:
    """``deltas - mean`` of the clients ``observed``, 0 for the others."""

    def leaf(x: jax.Array, centre: jax.Array) -> jax.Array:
        return jnp.where(tree.expand(observed, x), tree.accurate(x) - centre, 0)

    return jax.tree.map(leaf, deltas, mean)
