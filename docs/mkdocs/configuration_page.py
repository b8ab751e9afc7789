"""Writes docs/configuration.md and docs/keys.md from the code: ``python docs/mkdocs/configuration_page.py``.

The first is to be read, with a line for each key; the second is to look things up.
"""

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
from fedjax_drag.simulation import option_groups as options
from fedjax_drag.simulation import simulate

DOCS = Path(__file__).parents[1]

GROUPS = (
    *(options.LocalWork, options.Participation, options.Adversary),
    *(options.Execution, options.Measurement, options.EarlyStopping),
)
"""The groups of options, in the order of the page."""

IN_PYTHON = {
    "rounds": "`num_rounds`",
    "partition": "`data`, after `fd.data.partition`",
    "aggregator": "part of `algorithm`",
    "client": "part of `algorithm`",
    "privacy": "part of `algorithm`, by `fd.privacy`",
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

MOST_WORDS = 40
"""In a cell of a table."""

HEAD = """# Configuration

A configuration is a YAML file with the keys below; keys that it leaves out take their defaults. On the command line
`key=value` changes a key, with dots to reach into a component: `rounds=50 aggregator=krum partition.beta=0.5`.

```yaml
data: digits
partition: {name: dirichlet, num_clients: 40, beta: 0.1}
model: {name: mlp, hidden: [64]}
aggregator: {name: drag, c: 0.25}
rounds: 200
step_size: 0.02
```

A *component* is a name, `aggregator: krum`, or a mapping with a name and arguments, `aggregator: {name: drag, c: 0.5}`.
An argument may be a component too: `aggregator: {name: nnm, aggregator: median}`. An override that names another
component replaces the old one and its arguments. Arguments that the experiment knows, such as the number of classes,
are supplied when left out. `fedjax-drag list KIND` shows the names, and parts of your own may stand in their place
([parts of your own](own_parts.md)).

Python objects take the place of components in `fd.simulate`, whose arguments have the names of the keys;
`fd.run` takes a mapping of the keys. A wrong key, value or name is [an error of one line](mistakes.md). A sweep has one
more key, `axes` ([sweeps](sweeps.md)); under `compare` a run has variants, each with the keys that it changes.

[All keys and names](keys.md) says of each key what is allowed, what it is called in Python and all that it means, and
lists the components with their arguments.
"""

KEYS_HEAD = """# All keys and names

What [a configuration](configuration.md) can say, to look up. In the column *in Python* is the argument of
`fd.simulate`; there a component is the object itself, such as `fd.models.mlp(num_classes=10)`. A dash means that the
key exists in configurations only. Arguments that are `auto` are supplied by the experiment. Keys whose line on the page
before says all are in the table alone.

This page and the one before are written by `python docs/mkdocs/configuration_page.py`.

## Keys
"""


def page() -> str:
    """The page to be read: a line for each key, in the groups of the code."""
    groups = {_title(group): _names(group) for group in GROUPS}
    own = set(_names(Config)) - {key for keys in groups.values() for key in keys}
    groups = {"The experiment": [key for key in _names(Config) if key in own]} | groups
    parts = [HEAD]
    for title, keys in groups.items():
        rows = [[f"`{key}`", _default(key), _meaning(key, brief=True)] for key in keys]
        parts += [f"## {title}\n", _table(["key", "default", "meaning"], rows), ""]
    return "\n".join(parts)


def keys_page() -> str:
    """The page to look things up."""
    names = _names(Config)
    rows = [[f"`{key}`", _default(key), _allowed(key), _in_python(key)] for key in names]
    parts = [KEYS_HEAD, _table(["key", "default", "allowed", "in Python"], rows), "\n## Meanings in full\n"]
    for key in names:
        if _meaning(key) != _meaning(key, brief=True):
            parts.append(f"- `{key}`: {_meaning(key)}.")
    for kind, key in catalog.KINDS.items():
        parts.append(f"\n## {kind.replace('_', ' ').capitalize()}\n")
        if kind in ELSEWHERE:
            parts.append(f"Names, arguments and facts of `{key}` are on [a page of their own]({ELSEWHERE[kind]}).")
        else:
            parts += [f"{_use(key)}\n", re.sub(r"[^|\n]+", _cut, catalog.table(kind))]
    return "\n".join(parts) + "\n"


def _title(group: type) -> str:
    return (inspect.getdoc(group) or "").partition(".")[0].partition(";")[0]


def _names(options: type) -> list[str]:
    keys = {field.name for field in dataclasses.fields(options)}
    return [field.name for field in _fields() if field.name in keys]


def _cut(cell: re.Match[str]) -> str:
    """A cell of a table, of a long one its first clause."""
    return cell[0] if len(cell[0].split()) <= MOST_WORDS else f"{cell[0].partition('; ')[0]} "


def _fields() -> tuple[Any, ...]:
    order = list(Config().to_mapping())
    return tuple(sorted(dataclasses.fields(Config), key=lambda field: order.index(field.name)))


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
        kind, which = KIND_OF[key].listed, "a list of" if KIND_OF[key].several else "one of"
        target = ELSEWHERE.get(kind, f"#{kind.replace('_', '-')}")
        return f"{which} the [{kind.replace('_', ' ')}]({target}){', or null' if key in OPTIONAL else ''}"
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
    return IN_PYTHON.get(key, f"`{key}`" if key in inspect.signature(simulate).parameters else "-")


def _meaning(key: str, brief: bool = False) -> str:
    """The key's entry under "Attributes" in the docstring, in one line, or its first clause."""
    text = (inspect.getdoc(Config) or "").partition("\nAttributes:\n")[2]
    entry = re.search(rf"^  {key}: (.*(?:\n    .*)*)", text, re.MULTILINE)
    if entry is None:
        raise ValueError(f"{key}: has no entry in the docstring of Config")
    line = " ".join(entry[1].split()).replace("``", "`").replace("|", "\\|").rstrip(".")
    line = re.sub(r":\w+:`~?([^`]*)`", r"`\1`", re.sub(r" \(:\w+:`[^`]*`\)", "", line))
    return re.split(r"[.;:] ", line)[0].removesuffix(", or None") if brief else line


def _use(key: str) -> str:
    keys = [key, *{"client": ["root_client"], "compression": ["downlink_compression"]}.get(key, [])]
    return USES.get(key, f"For the key{'s' * (len(keys) > 1)} {' and '.join(f'`{key}`' for key in keys)}.")


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    (DOCS / "configuration.md").write_text(page(), encoding="utf-8")
    (DOCS / "keys.md").write_text(keys_page(), encoding="utf-8")
