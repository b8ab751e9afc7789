"""Rules that are sums over the clients: written once, for a whole stack of deltas and for chunks of it."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_drag import tree
from fedjax_drag.ops.screening import ScreenedKept, check_extras, extras_of, own, screened_sums
from fedjax_drag.types import DISSIMILARITIES, Aggregator, Deltas, InitFn, Params, State, Sums


def summed_rule(
    init: InitFn,
    rule: Sums,
    needs: frozenset[str] = frozenset(),
    split: Literal["clients", "coordinates"] = "clients",
    hindsight: Mapping[str, Callable[..., jax.Array]] | None = None,
    of_mean: bool = False,
) -> Aggregator:
    """The rule that a pair of sums describes: for a whole stack of deltas, which is one chunk, and for many chunks.

    Args:
      init: as of :class:`~fedjax_drag.types.Aggregator`.
      rule: the sums of the clients that count. ``accumulate``, ``finish`` and ``absorb_first_pass`` receive ``valid``
        ``[B]`` or ``[S]``, in which clients whose delta is not usable are left out, as
        :func:`~fedjax_drag.ops.screening.screened` does for ``apply``.
      needs: as of :class:`~fedjax_drag.types.Aggregator`.
      split: as of :class:`~fedjax_drag.types.Aggregator`.
      hindsight: metrics ``[S]`` that compare a client's delta with the sum over all of them, each as
        ``(deltas, total, valid) -> [S]``. They have length 0 where deltas come in chunks and are not kept.
      of_mean: as of :class:`~fedjax_drag.types.Sums`.
    """
    sums = screened_sums(rule)
    hindsight = hindsight or {}

    def finish(params: Params, total: Any, state: State, kept: ScreenedKept, **extras: Any) -> tuple[Params, State]:
        moved, after = sums.finish(params, total, state, kept, **extras)
        unknown = {name: jnp.zeros(0) for name in hindsight}
        return moved, after._replace(metrics=unknown | after.metrics)

    def apply(params: Params, deltas: Deltas, state: State, **extras: Any) -> tuple[Params, State]:
        def absorbed() -> State:
            assert sums.absorb_first_pass is not None
            total, kept = sums.accumulate(params, deltas, state, first_pass=True, **extras)
            return sums.absorb_first_pass(total, state, kept, **extras)

        check_extras(extras, required, params)
        with own(state):
            if sums.needs_first_pass is not None:
                state = jax.lax.cond(sums.needs_first_pass(state), absorbed, lambda: state)
            total, kept = sums.accumulate(params, deltas, state, **extras)
            moved, after = sums.finish(params, total, state, kept, **extras)
        known = {name: figure(deltas, total, kept.who.counted) for name, figure in hindsight.items()}
        return moved, after._replace(metrics=after.metrics | known)

    required = {"dissimilarity" if name in DISSIMILARITIES else name for name in needs} | extras_of(rule.accumulate)
    apply.__qualname__ = getattr(rule.accumulate, "__qualname__", apply.__qualname__)  # the rule's name, for its repr
    return Aggregator(init, apply, needs, split, sums._replace(finish=finish, whole=apply, of_mean=of_mean))


def average(total: Any, valid: Bool[Array, " clients"]) -> Any:
    """A sum over the valid clients divided by their number; zero if there are none."""
    return tree.scale(tree.inverse(valid.sum().astype(jnp.float32)), total)


def cosine_to_sum(deltas: Any, total: Any, valid: Bool[Array, " clients"]) -> Float[Array, " clients"]:
    """Cosine of each client's delta to the sum, ``[S]``: hindsight of a rule whose update points along it."""
    del valid
    return tree.cosines(deltas, total)
