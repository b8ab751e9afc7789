"""The attack on Krum."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_drag import tree
from fedjax_drag.attacks._attack import Knowledge, check_knowledge, known, mean_of, replace_malicious
from fedjax_drag.kernels.distances import distances
from fedjax_drag.types import Attack, Deltas, Params, Uplink

_HALVINGS = 17  # from the bound to below 1e-5 of it


class krum_attack(Attack):
    """Malicious clients all send ``-lambda s``, with the largest ``lambda`` that Krum still chooses.

    ``s`` is the sign of the mean of the honest deltas, coordinate by coordinate. ``lambda`` starts at the paper's upper
    bound and is halved until Krum, given the number of malicious clients, chooses what they send; below 1e-5 of the
    bound the last one is sent although Krum would not choose it. Being equal, the malicious clients are each other's
    nearest neighbours.

    The search needs the honest deltas' distances from each other once. From ``-lambda s`` they follow from norms and
    cosines, so that a turn costs S^2 operations, independent of the size of the model.

    ``aux`` stays honest: Krum chooses by deltas, and ``lambda`` is in their units.

    Args:
      knowledge: see below.

    Raises:
      ValueError: if ``knowledge`` is neither.

    Knows:
      With ``"full"`` the deltas of all benign clients. With ``"partial"`` only what its own clients would honestly have
      sent: these take the place of the benign ones beside one forged delta, beside two if Krum chooses none of the
      lengths, and so on up to the number of malicious clients.

    References:
      Fang, Cao, Jia, Gong, Local model poisoning attacks to Byzantine-robust federated learning, USENIX Security 2020,
      Section 4.2, applied to deltas instead of parameters. There s has no zeros, and the forged models after
      the first scatter closely around it; here they are equal. The threshold 1e-5 is absolute there. In the bound,
      where the malicious clients are too many for it, at least one neighbour is counted.
    """

    knowledge: Knowledge = "full"

    def check(self) -> None:
        check_knowledge(self.knowledge)

    def forge(self, key: jax.Array, uplink: Uplink, malicious: jax.Array, *, valid: Any = None, **_: Any) -> Uplink:
        del key
        malicious = malicious if valid is None else malicious & valid
        honest = known(malicious, self.knowledge, uplink, valid)
        mean = mean_of(uplink.delta, honest)
        direction = jax.tree.map(jnp.sign, mean)
        number = malicious.sum()
        first = number if self.knowledge == "full" else jnp.ones_like(number)
        length = _longest(_honest_side(uplink.delta, honest, direction), first, number)
        forged = tree.scale(-length * tree.inverse(tree.norm(direction)), direction)
        return uplink._replace(delta=replace_malicious(uplink.delta, malicious & honest.any(), forged))


class _Honest(NamedTuple):
    """Distances and norms of the honest deltas, on which the search works.

    Attributes:
      observed: their rows; entries of other rows are not used.
      unit: the norm of the longest of them; all lengths but this one are in this unit.
      length: their norms.
      cosine: with the direction against which to forge.
      nearest: sums of the j smallest squared distances to other honest deltas, for j from 0 to S; infinite where
        there are fewer than j.
    """

    observed: Bool[Array, " clients"]
    unit: Float[Array, ""]
    length: Float[Array, " clients"]
    cosine: Float[Array, " clients"]
    nearest: Float[Array, "clients clients+1"]


def _honest_side(deltas: Deltas, honest: Bool[Array, " clients"], direction: Params) -> _Honest:
    """Measures the rows ``honest`` of the deltas."""
    norms = jnp.where(honest, tree.norms(deltas), 0.0)
    per_unit = tree.inverse(norms.max())
    others = honest[:, None] & honest & ~jnp.eye(len(honest), dtype=bool)
    apart = jnp.where(others, distances(deltas) * per_unit, jnp.inf)
    return _Honest(
        observed=honest,
        unit=norms.max(),
        length=norms * per_unit,
        cosine=tree.cosines(deltas, direction),
        nearest=_sums(jnp.square(jnp.sort(apart))),
    )


def _sums(values: Float[Array, "*batch n"]) -> Float[Array, "*batch n+1"]:
    """Sums of the first j values along the last axis, for j from 0."""
    return jnp.pad(jnp.cumsum(values, axis=-1), [(0, 0)] * (values.ndim - 1) + [(1, 0)])


def _longest(honest: _Honest, first: Int[Array, ""], last: Int[Array, ""]) -> Float[Array, ""]:
    """Norm of the longest forged delta that Krum chooses, else of the shortest one tried.

    The lengths are the bound and its halves. The number of copies grows from ``first`` to ``last`` until one is chosen.
    """

    def attempt(search: _Bisection) -> _Bisection:
        lengths = _bound(honest, search.copies) * 0.5 ** jnp.arange(_HALVINGS + 1)
        chosen = jax.vmap(_is_chosen, (None, 0, None))(honest, lengths, search.copies)
        longest = jnp.where(chosen.any(), lengths[jnp.argmax(chosen)], lengths[-1])
        return _Bisection(search.copies + 1, chosen.any(), longest)

    def unfinished(search: _Bisection) -> jax.Array:
        return ~search.succeeded & (search.copies <= last)

    start = _Bisection(first, jnp.zeros((), bool), jnp.zeros_like(honest.unit))
    return honest.unit * jax.lax.while_loop(unfinished, attempt, start).length


class _Bisection(NamedTuple):
    """The number of copies to try next, whether Krum chose the last ones, and their length in units."""

    copies: jax.Array
    succeeded: jax.Array
    length: jax.Array


def _neighbours(honest: _Honest, copies: jax.Array) -> jax.Array:
    """Krum's n - f - 2, where ``f`` of all ``n`` deltas are forged; at least one."""
    number = honest.observed.sum()
    return jnp.clip(number - 2, 1, number + copies - 1)


def _bound(honest: _Honest, copies: jax.Array) -> jax.Array:
    """The norm beyond which Krum never chooses a forged delta (Theorem 1), if its copies are a minority.

    The paper's sqrt(d) is the norm of ``s``.
    """
    number = honest.observed.sum()
    neighbours = jnp.minimum(_neighbours(honest, copies), number - 1)
    best = jnp.where(honest.observed, honest.nearest[:, neighbours], jnp.inf).min()
    return jnp.sqrt(best / jnp.maximum(number - copies - 1, 1)) + honest.length.max()


def _is_chosen(honest: _Honest, length: jax.Array, copies: jax.Array) -> jax.Array:
    """Whether Krum prefers one of several equal forged deltas of this norm to every honest one."""
    away = jnp.square(honest.length) + 2 * length * honest.length * honest.cosine + jnp.square(length)
    away = jnp.maximum(away, 0.0)
    neighbours = _neighbours(honest, copies)
    forged = _sums(jnp.sort(jnp.where(honest.observed, away, jnp.inf)))[jnp.maximum(neighbours - copies + 1, 0)]
    # The neighbours of an honest delta are its j nearest honest ones and copies, with the j for which this is least.
    j = jnp.arange(len(away) + 1)
    scores = honest.nearest + (neighbours - j) * away[:, None]
    scores = jnp.where((j <= neighbours) & (j >= neighbours - copies), scores, jnp.inf).min(1)
    return forged < jnp.where(honest.observed, scores, jnp.inf).min()
