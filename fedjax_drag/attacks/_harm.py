"""The harm that an attack does through the server's rule."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_drag import tree
from fedjax_drag.types import Params

Objective = Literal["against", "distance"]
"""The harm to maximise: ``-<u(v), g> / ||g||`` or ``||u(v) - g||``."""

OBJECTIVES: tuple[Objective, ...] = ("against", "distance")


def harm_of(objective: Objective, update: Params, mean: Params) -> Float[Array, ""]:
    """The harm of an update ``u(v)`` of the global parameters, given the benign mean ``g``; -inf if not finite."""
    update = jax.tree.map(tree.accurate, update)
    if objective == "distance":
        value = tree.norm(tree.subtract(update, mean))
    else:
        value = -along(update, unit(mean))
    return jnp.where(tree.is_finite(update) & jnp.isfinite(value), value, -jnp.inf)


def along(a: Params, b: Params) -> Float[Array, ""]:
    """The inner product of two vectors; of a unit vector, the length of the other along it."""
    products = jax.tree.map(lambda x, y: tree.product(x.reshape(-1), y.reshape(-1)), a, b)
    return sum(jax.tree.leaves(products), jnp.zeros(()))


def unit(vector: Params) -> Params:
    """``vector`` at length 1; zeros if it has none or is not finite."""
    length = tree.norm(vector)
    return tree.where(length > 0, tree.scale(tree.inverse(length), vector), tree.zeros_like(vector))
