"""YAML text, of a file or of an override: read as plain values, within bounds; errors are one line."""

import io
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedjax_drag.checks import first_line, message_of
from fedjax_drag.experiment.config.own import as_text, with_own_names

_MOST_BYTES = 1 << 20
"""Of a configuration's text; one with a page of comments has a few thousand."""

_MOST_VALUES = 20_000
"""Keys and values of a configuration, together; reading one takes some 30 microseconds."""

_DEEPEST = 40
"""Levels of nesting, at most: the readers of YAML and the code after them recurse."""


def read_file(path: Path) -> dict[str, Any]:
    """The keys and values of a file that is there.

    Raises:
      ValueError: it is not the YAML of a mapping.
    """
    try:
        with path.open("rb") as stream:
            text = stream.read(_MOST_BYTES + 1).decode("utf-8-sig")
        _check_text(text)
        mapping = OmegaConf.to_container(OmegaConf.load(io.StringIO(text)), resolve=False)
    except IsADirectoryError:
        raise ValueError(f"configuration {str(path)!r}: must be a YAML file, and this is a folder") from None
    except Exception as error:  # PyYAML raises many kinds for a tag on a value of another type
        raise ValueError(f"configuration {str(path)!r}: {one_line(error)}") from None
    if not isinstance(mapping, dict) or not mapping:
        raise ValueError(f"configuration {str(path)!r}: must be a mapping of keys to values")
    return {str(key): value for key, value in mapping.items()}


def parse(overrides: Iterable[str | Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The keys that overrides change, nested where the override has dots; not yet checked.

    Args:
      overrides: ``key=value`` strings, or mappings of the keys to change.

    Raises:
      ValueError: one is neither.
    """
    if isinstance(overrides, str):
        raise ValueError(f"overrides={overrides!r}: must be a list of key=value strings")
    return [with_own_names(_parse(change) if isinstance(change, str) else change) for change in overrides]


def written(mapping: Mapping[str, Any]) -> str:
    """A configuration as YAML text; parts given as Python objects are their names."""
    return yaml.dump(as_text(mapping), Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False)


def one_line(error: Exception) -> str:
    """An exception's message on one line, with the line and column of a YAML file if it has them."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    known = isinstance(error, ValueError | OSError | yaml.YAMLError | OmegaConfBaseException)
    return message_of(error) if known and str(error) else f"cannot be read ({first_line(error)})"


_SafeDumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_SafeDumper):
    """Quotes texts such as ``1e-3``, which OmegaConf reads as numbers."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?[\d_.]+[eE][-+]?\d+$"), [*"-+.0123456789"])


def _check_text(text: str) -> None:
    """Refuses YAML that is too long, or nested so deeply that reading it would exhaust the stack.

    OmegaConf limits how far aliases multiply their content.
    """
    if len(text.encode()) > _MOST_BYTES:
        raise ValueError(f"must have at most {_MOST_BYTES:,} bytes")
    depth, events = 0, yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # they need no recursion
    for number, event in enumerate(events):
        if number > _MOST_VALUES:
            raise ValueError(f"line {event.start_mark.line + 1}: more than {_MOST_VALUES:,} values")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise ValueError(f"line {event.start_mark.line + 1}: nested more than {_DEEPEST} deep")


def _parse(override: str) -> dict[str, Any]:
    key, equals, value = override.partition("=")
    if not equals or not all(part.strip() for part in key.split(".")) or re.search(r"[][]", key):
        raise ValueError(f"override {override!r}: must be key=value, such as rounds=50 or aggregator.c=0.5")
    try:
        if key.count(".") >= _DEEPEST:
            raise ValueError(f"nested more than {_DEEPEST} deep")
        _check_text(value)
        parsed = OmegaConf.to_container(OmegaConf.from_dotlist([override]), resolve=False)
    except Exception as error:
        raise ValueError(f"override {override!r}: {one_line(error)}") from None
    assert isinstance(parsed, dict)
    return {str(key): value for key, value in parsed.items()}
