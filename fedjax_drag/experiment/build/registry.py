"""Names become functions: the only tables from a configuration's strings to builders.

A class or function is registered by the import that makes it public in the module of its kind.
"""

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fedjax_drag import data
from fedjax_drag.experiment.build import optimizers
from fedjax_drag.experiment.config.components import KIND_OF, ComponentKind

_NAMED_OTHERWISE: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "data": dict.fromkeys([name for name, _ in data.DATASETS], data.load)
    | {"synthetic": data.synthetic, "shakespeare": data.load_shakespeare},
    "local_optimizer": {"sgd": optimizers.local_sgd},
}
"""Builders whose names are not theirs in Python."""


def _builders(kind: ComponentKind) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Names and builders of a kind, in the order in which its modules list them."""
    for name in (kind.listed,) if kind.modules is None else kind.modules:
        module = importlib.import_module(f"fedjax_drag.{name}")
        for public in module.__all__:
            value = getattr(module, public)
            builds = inspect.isclass(value) and issubclass(value, kind.makes) and value not in kind.makes
            if (builds or inspect.isfunction(value)) and public not in kind.others:
                yield public, value


TABLES: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    key: _NAMED_OTHERWISE.get(key) or dict(_builders(kind)) for key, kind in KIND_OF.items()
}
"""Builders of each component key of a configuration, and of the kinds that occur only inside another."""
