"""A push in one fixed direction over all rounds, which needs no message of a benign client."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri
from jaxtyping import Array, Bool, Float

from fedjax_drag import checks, tree
from fedjax_drag.attacks._attack import replace_malicious
from fedjax_drag.attacks._harm import unit
from fedjax_drag.types import Attack, Params, Scalar, Uplink


class Push(NamedTuple):
    """What the attackers of :func:`poisonedfl` remember; arrays are like the parameters.

    Attributes:
      signs: ``s``, int8.
      message: ``k_t s``, which all of them send next.
      factor: ``c_t``, scalar.
      progress: the change of the global parameters since the last test.
    """

    signs: Params
    message: Params
    factor: Float[Array, ""]
    progress: Params


class poisonedfl(Attack):
    """All malicious clients push the model along one random vector of signs in every round, as strongly as is heeded.

    The signs ``s`` are drawn once. In round t all malicious clients send ``k_t s`` (coordinatewise), with the last
    change ``g`` of the global parameters and their own last message ``k_{t-1} s``::

        k_t = c_t ||g|| v_t
        v_t = |g - ||g|| / ||k_{t-1} s|| k_{t-1} s| / || the same ||

    so that coordinates in which benign clients move the model most are pushed most. After every ``period`` rounds the
    attackers test whether the model moved with them: of the D coordinates of its change over these rounds, X have the
    sign in ``s``, which by chance alone would be binomial. Unless ``P(B > X) <= level`` for B of Bin(D, 1/2), what was
    sent had no effect, and ``c_{t+1} = shrink c_t``, if that is no less than ``least``.

    In the first round zeros are sent. ``aux`` is what an honest client would send.

    Knows:
      what the server sent to it: the parameters of every round.

    Args:
      factor: ``c_0``, > 0: length of the message, in units of that of the last change.
      period: rounds between two tests, >= 1.
      shrink: in (0, 1].
      least: ``c_t`` does not fall below it by a test, >= 0.
      level: of the test, in (0, 1).

    Raises:
      ValueError: if an argument is out of range.

    References:
      Xie, Fang and Gong, Model poisoning attacks to federated learning via multi-round consistency, CVPR 2025
      (PoisonedFL). Interpretations: the defaults are those of its code, github.com/xyq7/PoisonedFL; the threshold of
      the test is that of the normal distribution with a correction for whole numbers, which gives the four counts
      that are written into that code; it compares with the parameters after the round of the last test, here it is
      before it, so that every test looks at ``period`` rounds; a coordinate that did not change counts as one that
      did not follow, there its parameter's sign is taken; and clients that are malicious take part here, where that
      code adds clients without data.
    """

    factor: Scalar = 8.0
    period: int = 50
    shrink: Scalar = 0.7
    least: Scalar = 0.5
    level: Scalar = 0.01

    def check(self) -> None:
        checks.positive("factor", self.factor)
        checks.count("period", self.period, 1)
        checks.in_range("shrink", self.shrink, 0.0, 1.0, open_low=True)
        checks.in_range("least", self.least, 0.0)
        checks.in_range("level", self.level, 0.0, 1.0, open_low=True, open_high=True)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"memory"})

    def init(self, key: jax.Array, params: Params) -> Push:
        leaves, structure = jax.tree.flatten(params)
        keys = jax.random.split(key, len(leaves))
        signs = [jax.random.rademacher(one, x.shape, jnp.int8) for one, x in zip(keys, leaves, strict=True)]
        nothing = tree.zeros_like(params)
        return Push(structure.unflatten(signs), nothing, jnp.asarray(self.factor, jnp.float32), nothing)

    def forge(self, key: jax.Array, uplink: Uplink, malicious: jax.Array, *, memory: Push, **_: Any) -> Uplink:
        del key
        return uplink._replace(delta=replace_malicious(uplink.delta, malicious, memory.message))

    def observe(self, memory: Push, update: Params, round_index: jax.Array) -> Push:
        progress = tree.add(memory.progress, update)
        tested = (round_index + 1) % self.period == 0
        smaller = self.shrink * memory.factor
        shrinks = tested & ~follows(progress, memory.signs, self.level) & (smaller >= self.least)
        factor = jnp.where(shrinks, smaller, memory.factor).astype(memory.factor.dtype)

        length = tree.norm(update)
        alike = tree.scale(length * tree.inverse(tree.norm(memory.message)), memory.message)
        v = unit(jax.tree.map(jnp.abs, tree.subtract(update, alike)))
        push = jax.tree.map(lambda v, s, like: (factor * length * v * s).astype(like.dtype), v, memory.signs, update)
        return Push(memory.signs, push, factor, tree.where(tested, tree.zeros_like(progress), progress))


def follows(progress: Params, signs: Params, level: Any) -> Bool[Array, ""]:
    """Whether more coordinates have their sign in ``signs`` than chance explains at this level of a one-sided test."""
    alike = jax.tree.map(lambda x, s: (jnp.sign(x) == s).sum(), progress, signs)
    number, size = sum(jax.tree.leaves(alike)), sum(x.size for x in jax.tree.leaves(progress))
    return 2 * number + 1 - size >= -ndtri(jnp.asarray(level, jnp.float32)) * size**0.5
