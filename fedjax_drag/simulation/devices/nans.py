"""The search for NaNs (``jax.debug_nans``) in what the programs of a run return.

JAX's own looks at the first call of a program compiled ahead of time alone, and takes an undefined share for an error.
"""

import contextlib
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp


def are_sought() -> bool:
    """Whether JAX is configured to search, for all or for this thread."""
    return bool(jax.config.jax_debug_nans)  # pyright: ignore[reportAttributeAccessIssue]


def unchecked() -> contextlib.AbstractContextManager[Any]:
    """Leaves out JAX's own search, in place of which :func:`check` stands."""
    return jax.debug_nans(False) if are_sought() else contextlib.nullcontext()


def check(done: int, returned: Any, undefined: Iterable[str] = ()) -> None:
    """Refuses a NaN, if NaNs are sought.

    Args:
      done: rounds after which the programs have returned.
      returned: pytree of what they have returned.
      undefined: names of metrics that may be NaN.

    Raises:
      FloatingPointError: one line with the round and the place of the first NaN.
    """
    if not are_sought():
        return
    for path, leaf in jax.tree.leaves_with_path(returned):
        names = {str(getattr(entry, "key", "")) for entry in path}
        if names.isdisjoint(undefined) and jnp.issubdtype(leaf.dtype, jnp.inexact) and bool(jnp.isnan(leaf).any()):
            place = jax.tree_util.keystr(path, simple=True, separator="/")
            raise FloatingPointError(f"a NaN after round {done} in {place}")
