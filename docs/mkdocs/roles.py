"""References in docstrings, such as ``:class:`~package.Name```, as links between the pages of the site."""

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|func|data|mod|attr|meth):`(~?)([\w.]+)`")


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
