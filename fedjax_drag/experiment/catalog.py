"""What there is to choose from, told from the builders' own signatures and docstrings."""

import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from fedjax_drag import checks, data
from fedjax_drag.experiment import build

KINDS: Mapping[str, str] = {
    "aggregators": "aggregator",
    "algorithms": "algorithm",
    "clients": "client",
    "attacks": "attack",
    "partitions": "partition",
    "models": "model",
    "datasets": "data",
}
"""Kinds of things that can be listed, with the configuration key that chooses one."""


def describe(kind: str) -> str:
    """Lists the builders of a kind.

    Args:
      kind: one of :data:`KINDS`.

    Returns:
      For each builder its name and arguments with their defaults, what it does and its paper.

    Raises:
      ValueError: an unknown kind.
    """
    checks.one_of("kind", kind, KINDS)
    key = KINDS[kind]
    entries = [_entry(key, name, builder) for name, builder in build.TABLES[key].items()]
    if any("=auto" in entry for entry in entries):
        entries.append("auto: taken from the experiment when it is left out")
    return "\n\n".join(entries)


def _entry(key: str, name: str, builder: Callable[..., Any]) -> str:
    words = []
    for argument, (parameter, _) in build.arguments(key, builder).items():
        supplied = argument in build.SUPPLIED[key]
        required = parameter.default is parameter.empty
        words.append(f"{argument}=auto" if supplied else argument if required else f"{argument}={parameter.default!r}")
    lines = [f"{name}({', '.join(words)})"]
    about = dict(data.DATASETS)[name] if key == "data" else _first_sentence(builder)
    for text in (about, "" if key == "data" else _references(builder)):
        lines += textwrap.wrap(text, 100, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def _first_sentence(builder: Callable[..., Any]) -> str:
    return (inspect.getdoc(builder) or "").split("\n\n")[0].replace("``", "").replace("\n", " ")


def _references(builder: Callable[..., Any]) -> str:
    """The docstring's References section as one line."""
    _, _, rest = (inspect.getdoc(builder) or "").partition("References:\n")
    section = textwrap.dedent(rest.split("\n\n")[0])
    return " ".join(section.replace("``", "").split())
