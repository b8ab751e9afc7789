"""What is written in code, as the site shows it.

References in docstrings, such as ``:class:`~package.Name```, become links between the pages. Parts, which their base
class makes dataclasses, are shown with their arguments.
"""

import importlib
import inspect
import re
from typing import Any

import griffe

from fedjax_drag.types import Part

_ROLE = re.compile(r":(?:class|func|data|mod|attr|meth):`(~?)([\w.]+)`")

_OF_PARTS = tuple(
    f"fedjax_drag.{name}."
    for name in ("aggregators", "algorithms", "attacks", "clients", "compression", "ops", "privacy")
)


class Roles(griffe.Extension):
    """Rewrites the docstrings of everything that is loaded; what has no place on the site stays a mere name."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by Griffe with each module, class, function and attribute."""
        if obj.docstring is None:
            return
        home = obj if obj.is_module or obj.is_class else obj.parent
        module = obj if obj.is_module else obj.module
        public = module.parent if module.name.startswith("_") else module  # where it is imported from
        members = home.members if home is not None and home.is_class else {}

        def link(match: re.Match[str]) -> str:
            short, name = match.groups()
            first, path = name.split(".")[0], name
            if first != "fedjax_drag":
                path = f"{home.path if first in members else public.path}.{name}"
            shown = name.rsplit(".", 1)[-1] if short else name
            return f'<autoref identifier="{path}" optional><code>{shown}</code></autoref>'

        obj.docstring.value = _ROLE.sub(link, obj.docstring.value)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Called by Griffe with each class."""
        if cls.parent is not cls.module or not cls.module.path.startswith(_OF_PARTS) or "__init__" in cls.members:
            return
        part = getattr(importlib.import_module(cls.module.path), cls.name)
        if not issubclass(part, Part):
            return
        init = griffe.Function("__init__", parameters=griffe.Parameters(griffe.Parameter("self")))
        for name, given in inspect.signature(part).parameters.items():
            kind = griffe.ParameterKind(given.kind.description)
            default = None if given.default is given.empty else repr(given.default)
            init.parameters.add(griffe.Parameter(name, kind=kind, default=default))
        cls.set_member("__init__", init)
