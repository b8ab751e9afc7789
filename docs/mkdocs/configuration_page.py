"""Writes docs/configuration.md from the code: ``python docs/mkdocs/configuration_page.py``."""

import dataclasses
import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedjax_drag.experiment.build import catalog
from fedjax_drag.experiment.build.experiment import load
from fedjax_drag.experiment.config.components import COMPONENTS, KIND_OF, OPTIONAL
from fedjax_drag.experiment.config.config import Config
from fedjax_drag.simulation.settings import Settings

PAGE = Path(__file__).parents[1] / "configuration.md"

IN_PYTHON = {
    "rounds": "`num_rounds`",
    "partition": "`data`, after `fd.data.partition`",
    "aggregator": "part of `algorithm`",
    "client": "part of `algorithm`",
}
"""Keys that ``fd.simulate`` takes under another name; one that it does not take at all is not here."""

ELSEWHERE = {"aggregators": "rules.md", "attacks": "attacks.md"}
"""Kinds of components whose table is a page."""

USES = {
    "optimizer": "For the argument `server_optimizer` of `fedavg`.",
    "schedule": "For the key `step_size`, and for arguments that are schedules of the round.",
}
"""Where a component that is no key of its own is used."""

WRONG = ("~", -1)
"""Values that few keys allow: the errors name the allowed type and the allowed range."""

HEAD = """# Configuration

A configuration is a YAML file with the keys below; keys that it leaves out take their defaults. On the command line
`key=value` changes a key, with dots to reach into a component: `rounds=50 aggregator=krum partition.beta=0.5`.

A *component* is a name, `aggregator: krum`, or a mapping with a name and arguments, `aggregator: {name: drag, c: 0.5}`.
An argument may be a component too: `aggregator: {name: nnm, aggregator: median}`. An override that names another
component replaces the old one and its arguments. Arguments that the experiment knows, such as the number of classes,
are supplied when they are left out (`auto`).

The column *in Python* is the argument of `fd.simulate`; there a component is the object itself, such as
`fd.models.mlp(num_classes=10)`. A dash means that the key exists in configurations only. A sweep has one more key,
`axes` ([sweeps](sweeps.md)).

This page is written by `python docs/mkdocs/configuration_page.py`.

## Keys
"""


def page() -> str:
    """The page as Markdown."""
    parts = [HEAD, _table(["key", "default", "allowed", "in Python", "meaning"], [_row(f) for f in _fields()])]
    for kind, key in catalog.KINDS.items():
        parts.append(f"\n## {kind.replace('_', ' ').capitalize()}\n")
        if kind in ELSEWHERE:
            parts.append(f"Names, arguments and facts of `{key}` are on [a page of their own]({ELSEWHERE[kind]}).")
        else:
            parts += [f"{_use(key)}\n", catalog.table(kind)]
    return "\n".join(parts) + "\n"


def _fields() -> tuple[Any, ...]:
    order = list(Config().to_mapping())
    return tuple(sorted(dataclasses.fields(Config), key=lambda field: order.index(field.name)))


def _row(field: Any) -> list[str]:
    return [f"`{field.name}`", _default(field.name), _allowed(field.name), _in_python(field.name), _meaning(field.name)]


def _default(key: str) -> str:
    return f"`{_yaml(Config().to_mapping()[key])}`"


def _yaml(value: Any) -> str:
    if isinstance(value, Mapping):
        if set(value) == {"name"}:
            return value["name"]
        return f"{{{', '.join(f'{name}: {_yaml(inner)}' for name, inner in value.items())}}}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def _allowed(key: str) -> str:
    if key in COMPONENTS:
        kind = KIND_OF[key].listed
        target = ELSEWHERE.get(kind, f"#{kind.replace('_', '-')}")
        return f"one of the [{kind.replace('_', ' ')}]({target}){', or null' if key in OPTIONAL else ''}"
    phrases = list(dict.fromkeys(filter(None, (_refusal(key, value) for value in WRONG))))
    if not phrases:  # a text of any kind
        phrases = ["a string"]
    if key == "local_epochs":  # both say the pair
        del phrases[1:]
    if len(phrases) == 2 and phrases[1].startswith(phrases[0].removesuffix(" or null")):
        phrases = [phrases[1] + (", or null" if phrases[0].endswith(" or null") else "")]
    elif type(None) in _types(key) and not any("null" in phrase for phrase in phrases):
        phrases.append("or null")
    return "; ".join(phrases).replace("2147483647", "2^31 - 1").replace("4294967295", "2^32 - 1")


def _refusal(key: str, value: Any) -> str:
    """What the error for a wrong value says is allowed; empty if the value is allowed."""
    try:
        load({key: value})
    except ValueError as error:
        return (
            str(error).partition(": must ")[2].removeprefix("be ").removeprefix("have ").partition("; did you mean")[0]
        )
    return ""


def _types(key: str) -> tuple[Any, ...]:
    annotation = next(field.type for field in _fields() if field.name == key)
    return getattr(annotation, "__args__", (annotation,))


def _in_python(key: str) -> str:
    known = {field.name for field in dataclasses.fields(Settings)}
    return IN_PYTHON.get(key, f"`{key}`" if key in known else "-")


def _meaning(key: str) -> str:
    """The key's entry under "Attributes" in the docstring, in one line."""
    text = (inspect.getdoc(Config) or "").partition("\nAttributes:\n")[2]
    entry = re.search(rf"^  {key}: (.*(?:\n    .*)*)", text, re.MULTILINE)
    if entry is None:
        raise ValueError(f"{key}: has no entry in the docstring of Config")
    line = " ".join(entry[1].split()).replace("``", "`").replace("|", "\\|").rstrip(".")
    line = re.sub(r" \(:\w+:`[^`]*`\)", "", line)
    return re.sub(r":\w+:`~?([^`]*)`", r"`\1`", line)


def _use(key: str) -> str:
    keys = [key, *{"client": ["root_client"], "compression": ["downlink_compression"]}.get(key, [])]
    return USES.get(key, f"For the key{'s' * (len(keys) > 1)} {' and '.join(f'`{key}`' for key in keys)}.")


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
