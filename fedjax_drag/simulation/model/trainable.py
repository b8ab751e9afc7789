"""Which parameters are trained: the others stay where they are, and travel in no message."""

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
        _check_patterns(name, value, ", or a function of a path")


def check_patterns(name: str, value: Any) -> None:
    """Refuses what is no pattern of paths and no list of them."""
    _check_patterns(name, value, "")


def _check_patterns(name: str, value: Any, also: str) -> None:
    patterns = [value] if isinstance(value, str) else value
    if not isinstance(patterns, Sequence) or not patterns or not all(isinstance(one, str) for one in patterns):
        allowed = f"a pattern of parameter paths such as 'head' or '*/lora_*', or a list of them{also}"
        raise ValueError(f"{name}={checks.shown(value)}: must be {allowed}")


def split(params: Params, trainable: Trainable) -> tuple[Params, Params]:
    """The trained and the frozen parameters, each with None in the place of the others.

    Args:
      params: of a model.
      trainable: which are trained. A pattern (``*`` stands for any characters) is matched with the whole path, its
        parts joined by ``/``, and with each of its beginnings, so that ``head`` means all that is below ``head``.

    Raises:
      ValueError: no parameter is trained, or a pattern of a list matches none.
    """
    paths = [path_of(path) for path, _ in jax.tree.leaves_with_path(params)]
    for one in [trainable] if isinstance(trainable, str) or callable(trainable) else trainable:
        if not any(_matches(path, one) for path in paths):
            shown = ", ".join(paths[:8]) + (" ..." if len(paths) > 8 else "")
            raise ValueError(f"trainable={checks.shown(one)}: matches no parameter; there are {shown}")
    chosen = jax.tree_util.tree_map_with_path(lambda path, _: _matches(path_of(path), trainable), params)
    trained = jax.tree.map(lambda leaf, keep: leaf if keep else None, params, chosen)
    frozen = jax.tree.map(lambda leaf, keep: None if keep else leaf, params, chosen)
    return trained, frozen


def joined(params: Params, frozen: Params) -> Params:
    """All parameters of a model from those of :func:`split`; ``params`` itself where ``frozen`` is ``()``."""
    if isinstance(frozen, tuple) and not frozen:
        return params
    return jax.tree.map(lambda own, rest: rest if own is None else own, params, frozen, is_leaf=lambda x: x is None)


def path_of(path: Any) -> str:
    """A parameter's path, its parts joined by ``/``, such as ``Dense_0/kernel``."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _matches(path: str, trainable: Trainable) -> bool:
    if callable(trainable):
        return bool(trainable(path))
    patterns = [trainable] if isinstance(trainable, str) else trainable
    parts = path.split("/")
    beginnings = ["/".join(parts[:length]) for length in range(1, len(parts) + 1)]
    return any(fnmatchcase(beginning, pattern) for beginning in beginnings for pattern in patterns)
