"""A warning where a configuration chooses no data or no partition, and the defaults are taken."""

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from fedjax_drag.experiment.config.config import DEFAULTS

CHOSEN = ("data", "partition")
"""Keys that decide what an experiment is about: their defaults are for first steps."""


def warn_of_fallbacks(*written: Mapping[str, Any], axes: Iterable[str] = (), stacklevel: int = 2) -> None:
    """Warns, in one line, of data or a partition that nobody chose.

    Args:
      *written: a configuration as read, and its overrides.
      axes: dotted keys of a sweep's axes.
      stacklevel: of the caller to whom the warning points.
    """
    variants = [change for part in written for change in _mappings(part.get("compare"))]
    chosen = {key for part in (*written, *variants) for key in part} | {axis.partition(".")[0] for axis in axes}
    missing = [key for key in CHOSEN if key not in chosen]
    if missing:
        taken = ", ".join(f"{key}={_described(DEFAULTS[key])}" for key in missing)
        keys = " and ".join(missing)
        warnings.warn(f"{keys} not given: takes {taken}; set {keys} to choose", stacklevel=stacklevel)


def _mappings(compare: Any) -> list[Mapping[str, Any]]:
    variants = compare.values() if isinstance(compare, Mapping) else ()
    return [changes for changes in variants if isinstance(changes, Mapping)]


def _described(component: Mapping[str, Any]) -> str:
    """``dirichlet(beta=0.1)``."""
    arguments = ", ".join(f"{key}={value}" for key, value in component.items() if key != "name")
    return f"{component['name']}({arguments})" if arguments else str(component["name"])
