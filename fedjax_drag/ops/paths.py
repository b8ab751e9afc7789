"""Parameters of a model that are chosen by their paths, such as ``Dense_0/kernel``."""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import jax

from fedjax_drag import checks
from fedjax_drag.types import Params

Trainable = str | Sequence[str] | Callable[[str], bool]
"""Patterns of parameter paths such as ``head`` or ``*/lora_*``, or a function of the path."""


def check_trainable(name: str, value: Any) -> None:
    """Refuses what is neither patterns of paths nor a function of one."""
    if not callable(value):
        check_patterns(name, value, ", or a function of a path")


def check_patterns(name: str, value: Any, also: str = "") -> None:
    """Refuses what is no pattern of paths and no list of them; the message names what is allowed ``also``."""
    patterns = [value] if isinstance(value, str) else value
    if not isinstance(patterns, Sequence) or not patterns or not all(isinstance(one, str) for one in patterns):
        allowed = f"a pattern of parameter paths such as 'head' or '*/lora_*', or a list of them{also}"
        raise ValueError(f"{name}={checks.shown(value)}: must be {allowed}")


def split(params: Params, chosen: Trainable, name: str = "trainable") -> tuple[Params, Params]:
    """The parameters that are chosen and the others, each with None in the place of the others.

    Args:
      params: of a model.
      chosen: which are chosen. A pattern (``*`` stands for any characters) is matched with the whole path, its
        parts joined by ``/``, and with each of its beginnings, so that ``head`` means all that is below ``head``.
      name: of the argument, for messages.

    Raises:
      ValueError: a pattern, or the function, matches no parameter.
    """
    paths = [path_of(path) for path, _ in jax.tree.leaves_with_path(params)]
    for one in [chosen] if isinstance(chosen, str) or callable(chosen) else chosen:
        if not any(matches(path, one) for path in paths):
            shown = ", ".join(paths[:8]) + (" ..." if len(paths) > 8 else "")
            raise ValueError(f"{name}={checks.shown(one)}: matches no parameter; there are {shown}")
    marked = jax.tree_util.tree_map_with_path(lambda path, _: matches(path_of(path), chosen), params)
    matching = jax.tree.map(lambda leaf, keep: leaf if keep else None, params, marked)
    others = jax.tree.map(lambda leaf, keep: None if keep else leaf, params, marked)
    return matching, others


def joined(params: Params, others: Params) -> Params:
    """All parameters of a model from those of :func:`split`; ``params`` itself where ``others`` is ``()``."""
    if isinstance(others, tuple) and not others:
        return params
    return jax.tree.map(lambda own, rest: rest if own is None else own, params, others, is_leaf=lambda x: x is None)


def path_of(path: Any) -> str:
    """A parameter's path, its parts joined by ``/``, such as ``Dense_0/kernel``."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def matches(path: str, chosen: Trainable) -> bool:
    """Whether a path, or one of its beginnings, is chosen."""
    if callable(chosen):
        return bool(chosen(path))
    patterns = [chosen] if isinstance(chosen, str) else chosen
    parts = path.split("/")
    beginnings = ["/".join(parts[:length]) for length in range(1, len(parts) + 1)]
    return any(fnmatchcase(beginning, pattern) for beginning in beginnings for pattern in patterns)
