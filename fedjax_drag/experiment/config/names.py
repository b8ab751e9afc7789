"""Names of results folders, made from labels and overrides."""

import hashlib
import json
import re
from collections.abc import Iterable

_MOST_BYTES = 200
"""Of a folder's name; file systems allow 255."""

_MOST_BYTES_WITH_OVERRIDES = 100
"""Of a folder's name that is made of overrides; a longer one is hard to read."""


def slug(label: str) -> str:
    """``label`` as a folder name: lower case, a dash for anything but letters, digits, ``.`` and ``_``; cut if long."""
    plain = re.sub(r"[^\w.]+", "-", label.lower()).strip("-._")
    return plain.encode()[:_MOST_BYTES].decode(errors="ignore").rstrip("-._")


def check_name(key: str, value: str) -> None:
    """Refuses a name that no folder can have."""
    if not slug(value):
        raise ValueError(f"{key}={value!r}: must have at least one letter or digit")


def folder_name(name: str, overrides: Iterable[str], without: Iterable[str] = ()) -> str:
    """The name of a results folder, such as ``quickstart,aggregator=krum,attack=sign_flip``.

    Args:
      name: of the configuration.
      overrides: ``key=value`` strings, in the order in which they appear in the folder's name.
      without: keys that are left out; ``name`` always is.

    Returns:
      Letters, digits and ``._=+-,`` only. A name with overrides has at most 100 bytes; a longer one ends with a hash.
    """
    omitted = {"name", *without}
    kept = [override for override in overrides if override.partition("=")[0] not in omitted]
    plain = [re.sub(r"[^\w.=+-]+", "-", re.sub(r"[]['\"{}\s]+", "", override)).strip("-.") for override in kept]
    whole = ",".join([slug(name), *plain])
    if not kept or len(whole.encode()) <= _MOST_BYTES_WITH_OVERRIDES:
        return whole
    checksum = hashlib.sha256(json.dumps([name, *kept]).encode()).hexdigest()[:8]
    begin = whole.encode()[: _MOST_BYTES_WITH_OVERRIDES - len(checksum) - 1].decode(errors="ignore")
    return f"{begin.rstrip('-._,=')}-{checksum}"
