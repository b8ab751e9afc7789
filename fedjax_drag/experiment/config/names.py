"""Names of results folders, made from labels and overrides."""

import hashlib
import json
import re
from collections.abc import Collection, Iterable

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


def folder_name(name: str, overrides: Iterable[str]) -> str:
    """The name of a results folder, such as ``quickstart-aggregator_krum-attack_sign_flip``.

    Args:
      name: of the configuration.
      overrides: ``key=value`` strings, in the order in which they appear in the folder's name; ``name`` is left out.

    Returns:
      Letters, digits and ``._+-`` only. A name with overrides has at most 100 bytes; a longer one ends with a hash.
    """
    kept = [override for override in overrides if _key(override) != "name"]
    plain = [re.sub(r"[^\w.=+-]+", "-", re.sub(r"[]['\"{}\s]+", "", override)).strip("-.") for override in kept]
    whole = "-".join([slug(name), *plain]).replace(",", "-").replace("=", "_")
    if not kept or len(whole.encode()) <= _MOST_BYTES_WITH_OVERRIDES:
        return whole
    checksum = hashlib.sha256(json.dumps([name, *kept]).encode()).hexdigest()[:8]
    begin = whole.encode()[: _MOST_BYTES_WITH_OVERRIDES - len(checksum) - 1].decode(errors="ignore")
    return f"{begin.rstrip('-._')}-{checksum}"


def earlier_names(name: str, overrides: Iterable[str], free: Collection[str]) -> list[str]:
    """Names of the folder before the overrides of ``free`` keys were added, the last first; the first has them all."""
    kept = list(overrides)
    names = [folder_name(name, kept)]
    for place in reversed(range(len(kept))):
        if _key(kept[place]) in free:
            del kept[place]
            names.append(folder_name(name, kept))
    return names


def without_keys(folder: str, keys: Iterable[str]) -> str:
    """The name of a results folder without its overrides of ``keys``, whose values are numbers or single words.

    One that ends with a hash cannot be changed.
    """
    return re.sub(rf"-(?:{'|'.join(map(re.escape, keys))})_(?:e-\d|[^-])*", "", folder)


def _key(override: str) -> str:
    return override.partition("=")[0]
