"""Checks on made-up messages that an attack changes those of malicious clients only."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.types import POISON_NEEDS, Attack, Uplink

KNOWLEDGE = ("last_update", "root_delta", "aggregate", "memory", *POISON_NEEDS)
"""What an attack may need."""


def forged(attack: Attack, key: Any, uplink: Uplink, malicious: Any, round: Any = 0, **absence: Any) -> Any:
    """What ``forge`` makes of a cohort's messages, with stand-ins for what it needs: means of the messages.

    ``absence`` is ``valid`` ``[S]``, or empty where nobody can be absent.
    """
    mean = tree.mean(uplink.delta)
    knowledge = {"last_update": mean, "root_delta": mean, "aggregate": lambda messages: tree.mean(messages.delta)}
    knowledge["memory"] = attack.init(key, mean)
    return attack.forge(
        key,
        uplink,
        malicious,
        client_ids=jnp.arange(malicious.shape[0], dtype=jnp.int32),
        round=jnp.asarray(round, jnp.int32),
        **{name: knowledge[name] for name in attack.needs if name not in POISON_NEEDS},
        **absence,
    )


def changed(before: Any, after: Any, rows: Any) -> Any:
    """For each leaf whether its bits differ in one of the rows marked in ``rows`` ``[S]``; a list of scalars."""

    def leaf(x: jax.Array, y: jax.Array) -> jax.Array:
        return (tree.expand(rows, x) & (_bits(x) != _bits(y))).any()

    return [leaf(x, y) for x, y in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)]


def names_of(messages: Any) -> list[str]:
    """The leaves of messages by name, such as ``.delta['kernel']``, in the order of :func:`changed`."""
    return [jax.tree_util.keystr(path).lstrip(".") for path, _ in jax.tree.leaves_with_path(messages)]


def check_forgery(attack: Attack, like: Uplink) -> None:
    """Refuses an attack that changes what benign clients send.

    Args:
      attack: with ``forge``.
      like: shapes of a cohort's messages, leading axis ``[S]``.

    Raises:
      ValueError: ``forge`` does not keep structure, shapes and dtypes, or the bits of a benign client's message.
    """
    check = _check_forgery if checks.has_hash(attack) else _check_forgery.__wrapped__
    check(attack, jax.tree.structure(like), tuple((x.shape, str(x.dtype)) for x in jax.tree.leaves(like)))


@functools.lru_cache(maxsize=64)
def _check_forgery(attack: Attack, structure: Any, leaves: Sequence[tuple[tuple[int, ...], str]]) -> None:
    """:func:`check_forgery` for shapes that can be compared, so that an attack is compiled once."""
    like = structure.unflatten([jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in leaves])
    malicious = jnp.arange(leaves[0][0][0]) % 2 == 1
    key = jax.random.key(0)
    difference = tree.mismatch(jax.eval_shape(functools.partial(forged, attack), key, like, malicious), like)
    if difference:
        raise checks.ArgumentError("attack", f"forge returns {difference}")

    def broken(key: Any) -> list[jax.Array]:
        messages = varied_like(like)
        return changed(messages, forged(attack, key, messages, malicious), ~malicious)

    wrong = [name for name, differs in zip(names_of(like), jax.jit(broken)(key), strict=True) if differs]
    if wrong:
        raise checks.ArgumentError(
            "attack",
            f"forge changes {wrong[0]} of benign clients; must return it bit for bit, as "
            "jnp.where(malicious, forged, honest) does",
        )


def varied_like(like: Any) -> Any:
    """Different numbers in [-1, 1] for floating leaves, zeros for others; they compile faster than random ones."""
    leaves, structure = jax.tree.flatten(like)

    def leaf(number: int, x: Any) -> jax.Array:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return jnp.zeros(x.shape, x.dtype)
        return jnp.sin(1.0 + number + 0.7548777 * jnp.arange(math.prod(x.shape))).reshape(x.shape).astype(x.dtype)

    return structure.unflatten([leaf(number, x) for number, x in enumerate(leaves)])


def _bits(x: jax.Array) -> jax.Array:
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    return jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * x.dtype.itemsize}"))
