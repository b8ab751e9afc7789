"""Names of results folders without --out, made from the configuration's name and its overrides."""

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from fedjax_drag.experiment.config.config import slug
from fedjax_drag.experiment.run import folders

_MOST_BYTES_WITH_OVERRIDES = 100
"""Of a folder's name that is made of overrides; a longer one is hard to read."""


def default_folder(name: str, overrides: Sequence[str], resume: bool) -> Path:
    """Where results go without --out.

    With ``resume`` it is the folder of the same overrides; if there is none, that of the same overrides before the
    last of those that may change in between, such as more rounds; if there is none of these, the only one whose name
    differs in nothing else.

    Raises:
      ValueError: several folders differ in nothing else.
    """
    runs, free = Path("runs"), ("rounds", "num_rounds", *folders.FREE)
    names = earlier_names(name, overrides, free)
    if not resume:
        return runs / names[0]
    there = {path.name: path for path in runs.glob("*/")}
    others = sorted(path for name, path in there.items() if without_keys(name, free) == names[-1])
    found = [there[earlier] for earlier in names if earlier in there]
    if not found and len(others) > 1:
        raise ValueError(f"--resume: {', '.join(map(str, others))} could go on; name one by --out")
    return (found or others or [runs / names[0]])[0]


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
