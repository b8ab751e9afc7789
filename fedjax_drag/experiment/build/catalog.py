"""Lists of the names that a configuration can choose, made from the builders' signatures and docstrings."""

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from fedjax_drag import checks, data
from fedjax_drag.experiment.build import registry
from fedjax_drag.experiment.build.own_parts import installed_points, load_installed
from fedjax_drag.experiment.build.resolve import arguments as arguments_of
from fedjax_drag.experiment.config import components

KINDS: Mapping[str, str] = {kind.listed: kind.keys[0] for kind in components.KINDS}
"""Kinds of things that can be listed, with the configuration key that chooses one, or the type of argument."""

SECTIONS = ("Breakdown point", "Cost", "Knows")
"""Sections of a docstring that are facts of one line."""


def describe(kind: str) -> str:
    """Lists the builders of a kind.

    Args:
      kind: one of :data:`KINDS`.

    Returns:
      For each builder its name and arguments with their defaults, what it does, the facts in :data:`SECTIONS` and
      its paper.

    Raises:
      ValueError: an unknown kind.
    """
    checks.one_of("kind", kind, KINDS)
    key = KINDS[kind]
    entries = [_entry(key, name, builder) for name, builder in _builders(key).items()]
    if any("=auto" in entry for entry in entries):
        entries.append("auto: taken from the experiment when it is left out")
    return "\n\n".join(entries)


def table(kind: str) -> str:
    """The builders of a kind as a Markdown table.

    Args:
      kind: one of :data:`KINDS`.

    Returns:
      A row for each: name, arguments with their defaults, paper, and the facts in :data:`SECTIONS`; without the
      columns that are empty throughout.

    Raises:
      ValueError: an unknown kind.
    """
    checks.one_of("kind", kind, KINDS)
    key = KINDS[kind]
    head = ["Rule" if kind == "aggregators" else "Name", "Arguments", "Paper", *SECTIONS]
    rows = [_row(key, name, builder) for name, builder in registry.TABLES[key].items()]
    kept = [column for column in range(len(head)) if any(row[column] for row in rows)]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line[column] for column in kept)} |" for line in lines)


def paper(key: str, builder: Callable[..., Any]) -> str:
    """The citation of the paper that a builder follows; empty if its docstring has none."""
    # The first sentence is the paper; readings follow it. A point after "al" or an initial ends no sentence.
    return re.split(r"(?<!\bal)(?<!\b[A-Z])\.\s+(?=[A-Z*])", _references(key, builder))[0].rstrip(".")


def _builders(key: str) -> dict[str, Callable[..., Any]]:
    """The builders of the registry, then those of installed packages."""
    own = registry.TABLES[key]
    return {**own, **{name: load_installed(name, at) for name, at in installed_points(key).items() if name not in own}}


def _entry(key: str, name: str, builder: Callable[..., Any]) -> str:
    lines = [f"{name}({_arguments(key, builder)})"]
    datasets = dict(data.DATASETS) if key == "data" else {}
    about = datasets.get(name) or _first_sentence(builder)
    facts = [f"{title}: {fact}" for title, fact in _facts(builder).items() if fact]
    for text in (about, *facts, _references(key, builder)):
        lines += textwrap.wrap(text, 100, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines)


def _row(key: str, name: str, builder: Callable[..., Any]) -> list[str]:
    arguments = _arguments(key, builder)
    cells = [f"`{name}`", f"`{arguments}`" if arguments else "", paper(key, builder)]
    cells += _facts(builder).values()
    return [cell.replace("|", "\\|") for cell in cells]


def _arguments(key: str, builder: Callable[..., Any]) -> str:
    words = []
    for argument, (parameter, _) in arguments_of(key, builder).items():
        supplied = argument in components.KIND_OF[key].supplied
        required = parameter.default is parameter.empty
        words.append(f"{argument}=auto" if supplied else argument if required else f"{argument}={parameter.default!r}")
    return ", ".join(words)


def _first_sentence(builder: Callable[..., Any]) -> str:
    return _plain((inspect.getdoc(builder) or "").split("\n\n")[0].replace("\n", " "))


def _references(key: str, builder: Callable[..., Any]) -> str:
    """The paper that a builder follows; one builder loads all data sets, and names none."""
    return "" if key == "data" else _section(builder, "References")


def _facts(builder: Callable[..., Any]) -> dict[str, str]:
    return {title: _section(builder, title).rstrip(".") for title in SECTIONS}


def _section(builder: Callable[..., Any], title: str) -> str:
    """A section of the docstring as one line; empty if it has none."""
    _, _, rest = (inspect.getdoc(builder) or "").partition(f"\n{title}:\n")
    section = " ".join(textwrap.dedent(rest.split("\n\n")[0]).split())
    return _plain(section)


def _plain(text: str) -> str:
    """Without the marks of reStructuredText."""
    return re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`", r"\1", text).replace("``", "")
