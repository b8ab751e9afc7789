"""A configuration, its overrides and the defaults, merged into one mapping with every key."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_drag.experiment.config.components import COMPONENTS, SCHEDULED, unknown_key
from fedjax_drag.experiment.config.config import DEFAULTS
from fedjax_drag.simulation.options import SAME, renamed

EITHER: Mapping[str, str] = {
    "local_steps": "local_epochs",
    "local_epochs": "local_steps",
    "byzantine_fraction": "num_byzantine",
    "num_byzantine": "byzantine_fraction",
}
"""Keys that give one quantity in two ways: setting one sets the other to None, which stands for "not given"."""


def as_keys(written: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping of keys, of which some may have the name of the argument of ``fd.simulate``, such as ``num_rounds``.

    Raises:
      ValueError: a key is there by both of its names.
    """
    return renamed(written, {argument: key for key, argument in SAME.items()})


def merged(mapping: Mapping[str, Any], changes: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Every key with its value: the defaults, changed by a configuration, changed by its overrides.

    A component is merged argument by argument, and so are those inside it, unless a change gives it another
    name: then it is replaced, since the old one's arguments mean nothing to the new one.

    Args:
      mapping: the configuration.
      changes: the keys that each override changes, applied in turn.

    Raises:
      ValueError: a key is unknown, or two changes give one quantity in two ways.
    """
    _check_either(changes)
    written = dict(mapping)
    for change in changes:
        written = _merged(written, change, DEFAULTS)
    return _merged(DEFAULTS, written, {})


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``changes``; ``defaults`` are merged into components that ``base`` leaves out."""
    result = dict(base)
    changes = as_keys(changes)
    for key, value in changes.items():
        if key not in DEFAULTS:
            raise unknown_key(key, [*DEFAULTS, "axes"])
        if key in COMPONENTS or (key in SCHEDULED and isinstance(value, Mapping)):
            result[key] = _merged_component(base.get(key, defaults.get(key)), value)
        elif key == "compare" and isinstance(base.get(key), Mapping) and isinstance(value, Mapping):
            result[key] = _merged_compare(base[key], value)
        else:
            result[key] = value
            if key in EITHER and value is not None and EITHER[key] not in changes:
                result[EITHER[key]] = None
    return result


def _merged_component(old: Any, new: Any) -> Any:
    """``old`` with the arguments that ``new`` gives it, and with those inside them; ``new`` if that is another one."""
    old, new = ({"name": value} if isinstance(value, str) else value for value in (old, new))
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    if new.get("name", old.get("name")) != old.get("name"):
        return dict(new)
    nested = [key for key in new if isinstance(old.get(key), Mapping) or isinstance(new[key], Mapping)]
    return {**old, **new, **{key: _merged_component(old.get(key), new[key]) for key in nested}}


def _merged_compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(old)
    for label, changes in new.items():
        both = isinstance(result.get(label), Mapping) and isinstance(changes, Mapping)
        result[label] = _merged(result[label], changes, {}) if both else changes
    return result


def _check_either(overrides: Sequence[Mapping[str, Any]]) -> None:
    """Refuses overrides that give one quantity in two ways, of which one would silently win."""
    given = {key: value for changes in overrides for key, value in changes.items() if key in EITHER}
    for key, value in given.items():
        other = EITHER[key]
        if value is not None and given.get(other) is not None:
            raise ValueError(f"{key}={value!r}, {other}={given[other]!r}: must be exactly one of the two")
