"""Which clients count in a round: not those that are absent or expelled, or whose message is unusable."""

import contextlib
import functools
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fedjax_drag import checks, tree
from fedjax_drag.types import EXTRAS, PER_CLIENT_EXTRAS, ApplyFn, Deltas, InitFn, Params, State, extras_of


class MetricsOnly(NamedTuple):
    """State of a rule that carries nothing from round to round: the metrics of the last one."""

    metrics: dict[str, jax.Array]


class Screening(NamedTuple):
    """Who counts in a round, or in a chunk of its cohort.

    Attributes:
      counted: ``[S]`` bool, the clients that do.
      broken: ``[S]`` bool, clients that take part with a message that is not finite or too long.
    """

    counted: jax.Array
    broken: jax.Array

    @property
    def num_rejected(self) -> jax.Array:
        """Number of clients that were rejected for their message, int32 scalar."""
        return (self.broken & ~self.counted).sum()


def screen(messages: Any, valid: Any = None, reject_nonfinite: bool = True, start_loss: Any = None) -> Screening:
    """Determines which clients count.

    Args:
      messages: pytree with a leading axis ``[S]``.
      valid: mask ``[S]`` of the clients that take part; default all.
      reject_nonfinite: whether a message that is not usable, see :func:`fedjax_drag.tree.usable_rows`, excludes its
        client: one with an entry that is not finite, or too long for sums in its dtype.
      start_loss: ``[S]``, of rules that use it; where it is not finite, the message is not usable.
    """
    present = jnp.ones(tree.cohort_size(messages), bool) if valid is None else jnp.asarray(valid, bool)
    usable = tree.usable_rows(messages)
    if start_loss is not None:
        usable &= jnp.isfinite(start_loss)
    return Screening(present & usable if reject_nonfinite else present, present & ~usable)


def screened(apply: ApplyFn) -> ApplyFn:
    """Gives ``apply`` the mask of the clients that count, and adds the common metrics.

    The wrapped rule accepts two more extras, ``valid`` ``[S]`` (default: all) and
    ``reject_nonfinite`` (a Python bool, default True: a delta with an entry that is not finite is as if
    it had not been sent; with False it makes the parameters NaN, whatever the rule). A finite delta that is too long
    for sums in float32 is treated in the same way: of d parameters, one with an entry above ``2.0e31 / sqrt(d)``. No
    delta of a norm above 2.0e31 is left then; :func:`fedjax_drag.tree.usable_rows` says why the bound lies there.

    The rule itself receives ``valid`` with both extras taken into account, and the deltas unchanged; it leaves the
    weights of clients that are not valid at 0. The statistics in :mod:`fedjax_drag.tree` ignore rows without a
    finite norm. Of a rule that uses ``start_loss``, one that is not finite excludes its client too.

    If no client is left, parameters and state stay as they were. ``state.metrics`` gains
    ``num_rejected``, the number of clients rejected for what they sent.
    """
    required = extras_of(apply)

    @functools.wraps(apply)
    def screened_apply(params: Params, deltas: Deltas, state: State, **extras: Any) -> tuple[Params, State]:
        return apply_screened(apply, required, None, params, deltas, state, **extras)

    return screened_apply


def apply_screened(
    apply: ApplyFn,
    required: Collection[str],
    num_clients: int | None,
    params: Params,
    deltas: Deltas,
    state: State,
    *,
    valid: Any = None,
    reject_nonfinite: bool = True,
    **extras: Any,
) -> tuple[Params, State]:
    """One round of a rule that leaves clients out, as :func:`screened` describes it.

    Args:
      apply: the rule.
      required: names of the extras that it must be given.
      num_clients: M, of the federation; None if it is not known.
      params: the global parameters.
      deltas: of the cohort, ``[S, *p]``.
      state: of the rule.
      valid: ``[S]`` bool, the clients that take part; default all.
      reject_nonfinite: as of :func:`screened`.
      **extras: of the rule.
    """
    size = tree.check_cohort(params, deltas)
    params = jax.tree.map(lambda p: jnp.asarray(p, jnp.result_type(p)), params)  # plain floats among them
    given = check_extras({**extras, "valid": valid}, required, params, size, num_clients)
    who = screen(deltas, given.pop("valid"), reject_nonfinite, given.get("start_loss"))
    with own(state):
        after = apply(params, deltas, state, valid=who.counted, **given)
        return concluded((params, state), after, who, reject_nonfinite)


def check_extras(
    extras: Mapping[str, Any], required: Collection[str], params: Params, size: int, num_clients: int | None = None
) -> dict[str, Any]:
    """The extras of a rule, checked: those of clients as arrays ``[S]``, whose numbers are checked unless traced.

    Args:
      extras: as they were given.
      required: names of those that the rule must be given.
      params: the global parameters.
      size: S, of the cohort.
      num_clients: M, of the federation; None if it is not known.

    Raises:
      TypeError: naming the extras that are missing.
      ValueError: ``root_delta`` is not like the parameters, or an extra of clients has not one number for each, or one
        that is none of its kind.
    """
    missing = sorted(set(required) - set(extras))
    if missing:
        meanings = [EXTRAS.get(name, "an extra of this rule") for name in missing]
        pairs = zip(missing, meanings, strict=True)
        raise TypeError("; ".join(f"{name}: must be given to apply by keyword, {meaning}" for name, meaning in pairs))
    if "root_delta" in required:
        tree.check_like("root_delta", extras["root_delta"], "params", params)
        tree.check_arrays("root_delta", extras["root_delta"])
    if "starts" in required:
        tree.check_like("starts", jax.tree.map(lambda x: x[0], extras["starts"]), "params", params)
    given = {name: extras[name] for name in PER_CLIENT_EXTRAS if extras.get(name) is not None and name != "starts"}
    return {**extras, **{name: _of_clients(name, value, size, num_clients) for name, value in given.items()}}


def _of_clients(name: str, value: Any, size: int, num_clients: int | None) -> jax.Array:
    """An extra of clients as an array ``[S]``."""
    given = f"{name}={checks.shown(value)}"
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{given}: must be {size} numbers, one for each client") from error
    if array.shape != (size,):
        raise ValueError(f"{given}: must have shape ({size},), one number for each client")
    if isinstance(array, Tracer):
        return array
    numbers = np.asarray(array)
    if name == "num_examples" and not (np.isfinite(numbers).all() and (numbers >= 0).all() and numbers.any()):
        raise ValueError(f"{given}: must be finite and >= 0, and above 0 for a client")
    if name == "client_ids":
        inside = numbers.dtype.kind in "iu" and (numbers >= 0).all() and (numbers < (num_clients or np.inf)).all()
        if not inside or len(np.unique(numbers)) < size:
            allowed = "integers >= 0" if num_clients is None else f"integers in [0, {num_clients - 1}]"
            raise ValueError(f"{given}: must be different {allowed}")
    return array


@contextlib.contextmanager
def own(state: State) -> Iterator[None]:
    """Says so where a rule is given, or fails on, a state that is not its own."""
    if not hasattr(state, "_replace"):
        raise _not_own(state)
    try:
        yield
    except AttributeError as error:
        if error.obj is not state:
            raise
        raise _not_own(state) from None


def _not_own(state: State) -> ValueError:
    return ValueError(f"state of type {type(state).__name__}: must be rule.init(params), or what apply has returned")


def concluded(
    before: tuple[Params, State], after: tuple[Params, State], who: Screening, reject_nonfinite: bool
) -> tuple[Params, State]:
    """Parameters and state after a round: the rule's, or those before it if no client counts."""
    (params, state), (moved, state_after) = before, after
    if type(state) is not type(state_after):
        raise _not_own(state)
    tree.check_like("params that the rule returns", moved, "the params it was given", params)  # not broadcast to them
    if not reject_nonfinite:
        invalid = jax.tree.map(lambda p: jnp.full_like(p, jnp.nan), moved)
        moved = tree.where(who.broken.any(), invalid, moved)
    metrics = {**state_after.metrics, "num_rejected": who.num_rejected}
    now, then = (moved, state_after._replace(metrics={})), (params, state._replace(metrics={}))
    tree.check_like("state that the rule returns", now[1], "the state it was given", then[1])
    moved, kept = tree.where(who.counted.any(), now, then)
    return moved, kept._replace(metrics=metrics)


def empty_metrics(*per_client: str, **scalars: Any) -> dict[str, Any]:
    """Metrics before the first round: the common entries and those named, per-client ones with length 0.

    Args:
      *per_client: names of further entries of shape ``[S]``.
      **scalars: further entries and the values they start from.
    """
    names = ("weight", "cosine", *per_client)
    return {name: jnp.zeros(0) for name in names} | {"num_rejected": jnp.zeros((), int)} | scalars


@functools.lru_cache(maxsize=256, typed=True)  # rules of equal functions are equal
def stateless(*per_client: str, **scalars: int | float) -> InitFn:
    """``init`` of a rule that carries nothing from round to round.

    Args:
      *per_client: names of metrics ``[S]`` beside ``weight`` and ``cosine``.
      **scalars: scalar metrics and the numbers they start from, whose type gives theirs: int32 or float32.
    """

    def init(params: Params) -> MetricsOnly:
        del params
        first = {name: jnp.asarray(value, type(value)) for name, value in scalars.items()}
        return MetricsOnly(empty_metrics(*per_client, **first))

    return init
