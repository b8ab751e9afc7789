"""Gaussian noise on whole models."""

from typing import Any

import jax
from jaxtyping import PRNGKeyArray

from fedjax_drag import checks, tree
from fedjax_drag.types import Params


def with_noise(key: PRNGKeyArray, vector: Params, deviation: Any) -> Params:
    """``vector + N(0, deviation^2 I)``, at least in float32."""
    leaves, structure = jax.tree.flatten(vector)
    keys = [jax.random.fold_in(key, index) for index in range(len(leaves))]
    exact = [tree.accurate(leaf) for leaf in leaves]
    draws = [jax.random.normal(k, leaf.shape, leaf.dtype) for k, leaf in zip(keys, exact, strict=True)]
    return structure.unflatten([leaf + deviation * draw for leaf, draw in zip(exact, draws, strict=True)])


def check_gaussian(clip: Any, noise_multiplier: Any, delta: Any) -> None:
    """Refuses numbers that are no clip, no standard deviation or no probability."""
    checks.positive("clip", clip)
    checks.in_range("noise_multiplier", noise_multiplier, 0.0)
    if delta is not None:
        checks.in_range("delta", delta, 0.0, 1.0, open_low=True, open_high=True)
