"""Lists the public interface: names with their signatures, configuration keys, commands and their options.

``python tests/interface.py`` prints it; ``test_interface.py`` compares it with ``interface.txt``. An intended change
is recorded by ``python tests/interface.py > tests/interface.txt``.
"""

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import typer.main

from fedjax_drag.cli.app import app
from fedjax_drag.experiment.build.registry import TABLES
from fedjax_drag.experiment.config.config import Config
from fedjax_drag.types import Part

MODULES = (
    "fedjax_drag",
    "fedjax_drag.aggregators",
    "fedjax_drag.algorithms",
    "fedjax_drag.attacks",
    "fedjax_drag.callbacks",
    "fedjax_drag.clients",
    "fedjax_drag.clocks",
    "fedjax_drag.data",
    "fedjax_drag.data.augmentation",
    "fedjax_drag.data.partition",
    "fedjax_drag.experiment.arena",
    "fedjax_drag.interop",
    "fedjax_drag.losses",
    "fedjax_drag.models",
    "fedjax_drag.privacy",
    "fedjax_drag.server_optimizers",
    "fedjax_drag.simulation",
    "fedjax_drag.testing",
    "fedjax_drag.tree",
    "fedjax_drag.types",
)

DOCUMENTED = (
    "fedjax_drag.experiment.checkpoints.load_params",
    "fedjax_drag.experiment.report.write",
)
"""Names outside of these modules to which a page of the documentation leads."""


def main() -> None:
    """Prints the interface."""
    print("\n".join(interface()))


def interface() -> Iterator[str]:
    """One line for each name, key and option, in a fixed order."""
    for module in MODULES:
        yield from _module(importlib.import_module(module))
    for path in DOCUMENTED:
        module, name = path.rsplit(".", 1)
        yield f"{path}{_signature(getattr(importlib.import_module(module), name))}"
    yield from _keys()
    yield from _options("fedjax-drag", typer.main.get_command(app))


def _module(module: ModuleType) -> Iterator[str]:
    listed = getattr(module, "__all__", None)
    names = listed or [name for name, value in vars(module).items() if _is_own(module, name, value)]
    for name in sorted(names):
        value = getattr(module, name)
        if isinstance(value, ModuleType):
            yield f"{module.__name__}.{name}: module"
        elif value is Any:
            yield f"{module.__name__}.{name}"
        elif inspect.isclass(value):
            yield from _class(f"{module.__name__}.{name}", value)
        else:
            yield f"{module.__name__}.{name}{_signature(value)}"


def _is_own(module: ModuleType, name: str, value: Any) -> bool:
    return not name.startswith("_") and getattr(value, "__module__", None) == module.__name__


def _class(path: str, value: type) -> Iterator[str]:
    yield f"{path}{_signature(value)}"
    if issubclass(value, Part) and not value.__module__.startswith("fedjax_drag.types"):
        return  # its methods are those of its contract
    own = [base for base in reversed(value.__mro__) if base.__module__.startswith("fedjax_drag")]
    for name, member in sorted({name: member for base in own for name, member in vars(base).items()}.items()):
        if name.startswith("_") or name in getattr(value, "_fields", ()):
            continue
        yield f"{path}.{name}{_signature(member) if inspect.isfunction(member) else ''}"


def _signature(value: Any) -> str:
    """Names, kinds and defaults of the parameters; annotations are told by the type checker."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return ""
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    text = str(inspect.Signature(bare))
    return re.sub(r"<function (\S+) at 0x[0-9a-f]+>", r"\1", text)


def _keys() -> Iterator[str]:
    for field in dataclasses.fields(Config):
        made = field.default_factory is not dataclasses.MISSING
        default = field.default_factory() if made else field.default
        yield f"key {field.name}={'' if default is dataclasses.MISSING else default!r}"
    for key, builders in sorted(TABLES.items()):
        for name, builder in sorted(builders.items()):
            yield f"key {key}.name={name}{_signature(builder)}"


def _options(path: str, command: Any) -> Iterator[str]:
    for parameter in command.params:
        yield f"{path} {'/'.join(parameter.opts)} default={parameter.default!r}"
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        yield from _options(f"{path} {name}", inner)


if __name__ == "__main__":
    main()
