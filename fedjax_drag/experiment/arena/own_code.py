"""Checksums of the code of a user's own parts, by which what it has computed is found again."""

import hashlib
import re
import types
import uuid
from typing import Any

from fedjax_drag.experiment.build.own_parts import checksums
from fedjax_drag.experiment.config.own import own_names, references
from fedjax_drag.simulation.planning import content

_SESSION = uuid.uuid4().hex
_unread: list[Any] = []  # kept, so that no other object gets the place of one of them


def codes(config: Any) -> list[str]:
    """A checksum for each Python object in a configuration, and for each file that it refers to.

    Equal in all processes for parts of the same code with the same captured values and globals. A part that cannot be
    read so is equal to itself alone, in this process.

    Args:
      config: mappings, lists and values to any depth.
    """
    files = [f"{path} {digest}" for path, digest in sorted(checksums(references(config)).items())]
    return [*(_digest(name.part) for name in own_names(config)), *files]


def _digest(part: Any) -> str:
    key = content.read(part)
    if key is None:
        if not any(part is other for other in _unread):
            _unread.append(part)
        return f"unread {_SESSION} {next(i for i, other in enumerate(_unread) if other is part)}"
    return hashlib.sha256(_text(key).encode()).hexdigest()


def _text(key: Any) -> str:
    """The content of a part without what differs between processes."""
    if isinstance(key, tuple):
        return f"({','.join(map(_text, key))})"
    if isinstance(key, frozenset):  # of a code's constants
        return f"{{{','.join(sorted(map(_text, key)))}}}"
    if isinstance(key, types.CodeType):
        arguments = key.co_argcount, key.co_posonlyargcount, key.co_kwonlyargcount, key.co_flags
        return _text((arguments, key.co_code, key.co_exceptiontable, key.co_consts, key.co_names, key.co_varnames))
    if isinstance(key, content.Same):
        return _text(key.value if hasattr(key.value, "__qualname__") else type(key.value))
    if hasattr(key, "__qualname__"):
        return f"{key.__module__}.{key.__qualname__}"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(key))
