"""All ways to leave some clients out of a cohort, for rules that try every one of them."""

import functools
import itertools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fedjax_drag.checks import ArgumentError

_BATCH = 256  # subsets that are measured side by side


def left_out(rule: str, size: int, num_byzantine: int, most: int) -> Int[np.ndarray, "subsets byzantine"]:
    """The places of the clients that each subset leaves out, one subset a row.

    Args:
      rule: its name, for the message.
      size: S, of the cohort.
      num_byzantine: f, how many clients each subset leaves out.
      most: subsets that the rule tries at most.

    Raises:
      ValueError: there are more subsets than that.
    """
    number = math.comb(size, num_byzantine)
    if number > most:
        raise ArgumentError(
            "num_byzantine",
            f"leaves {number} subsets of a cohort of {size} to try; must leave at most {most} ({rule}); where the "
            "simulation sets it, lower byzantine_fraction or cohort_size",
            given=num_byzantine,
        )
    return _table(size, num_byzantine)


@functools.cache
def _table(size: int, num_byzantine: int) -> np.ndarray:
    rows = list(itertools.combinations(range(size), num_byzantine))
    return np.array(rows, np.int32).reshape(len(rows), num_byzantine)


def least(
    measure: Callable[[Bool[Array, " clients"]], tuple[Float[Array, ""], Float[Array, ""]]],
    table: Int[np.ndarray, "subsets byzantine"],
    valid: Bool[Array, " clients"],
) -> Bool[Array, " clients"]:
    """The clients ``[S]`` of the subset with the smallest measure; nobody if there is no subset to measure.

    Args:
      measure: ``(kept [S]) -> (measure, second)``; among subsets of equal measure the second decides, and then their
        place in the table.
      table: of :func:`left_out`.
      valid: ``[S]`` bool; a subset counts if all the clients that it leaves out are valid, so that each keeps n - f.
    """
    rows = jnp.asarray(table)

    def measured(out: jax.Array) -> tuple[jax.Array, jax.Array]:
        first, second = measure(valid.at[out].set(False))
        return jnp.where(valid[out].all(), first, jnp.inf), second

    first, second = jax.lax.map(measured, rows, batch_size=min(len(table), _BATCH))
    best = jnp.lexsort((second, first))[0]
    return valid.at[rows[best]].set(False) & jnp.isfinite(first[best])
