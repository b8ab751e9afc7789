"""The content of a rule, a model or another part of a run, as a key: equal for two only if they compute the same.

Functions of this package, JAX, Flax, Optax and NumPy are compared by their code and by what they have captured; those
of a user also by the globals that they read, so that a changed global is seen. Numbers, arrays and named tuples are
compared by value, classes of a user by identity, except for Flax modules. What cannot be read in this way has no key,
such as an object that is implemented in C, or a function that uses a clock or NumPy's random numbers.

As for ``jax.jit``, functions must be pure: a file or a clock that they read while they are traced is not seen.
"""

import dataclasses
import dis
import enum
import functools
import hashlib
import sys
import types
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.core import FrozenDict
from jax.core import Tracer

from fedjax_drag.simulation.model.functions import is_nnx

PURE = frozenset({"fedjax_drag", "flax", "jax", "jaxlib", "jaxtyping", "ml_dtypes", "numpy", "optax", "chex"}) | {
    *("_operator", "abc", "builtins", "collections", "dataclasses", "enum", "functools", "itertools", "math"),
    *("operator", "typing"),
}
"""Packages whose modules are taken as constant."""

IMPURE = frozenset({"eval", "exec", "globals", "input", "locals", "open", "vars", "__import__"})
"""Builtins with which a function reads what its code does not name."""

_BASES = frozenset({"object", "Generic", "Protocol", "ABC"})
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented), range, slice)
_IN_C = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)
_ABOUT = frozenset({"__wrapped__", "__signature__"})  # of a function, not what it does
_FIELDS = (types.MemberDescriptorType, types.GetSetDescriptorType)


class UnreadableError(Exception):
    """A part whose content is not known."""


class Same:
    """Equal to another one of the same object, which it keeps alive."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def read(part: Any) -> Hashable | None:
    """The content of a part of a run, such as a rule or a model; None if it cannot be read."""
    try:
        return _Reader().read(part)
    except Exception:  # beside UnreadableError, whatever an object of a user raises when it is looked at
        return None


class _Reader:
    """Reads one part; an object that is met again is a reference to the first time, which also ends circles."""

    def __init__(self) -> None:
        self.met: dict[int, tuple[int, Any]] = {}  # the objects too, so that no other one gets their ids

    def read(self, value: Any) -> Hashable:
        """The content of a value.

        Raises:
          UnreadableError: if it cannot be read.
        """
        if type(value) in _PLAIN:  # repr tells 0.0 from -0.0, and the type 1 from True
            return type(value), repr(value)
        if id(value) in self.met:
            return "met", self.met[id(value)][0]
        self.met[id(value)] = len(self.met), value
        if _is_named(value):
            return "named", Same(value)
        return self._container(value) or self._array(value) or self._callable(value) or self._instance(value)

    def _all(self, values: Any) -> Hashable:
        return tuple(self.read(value) for value in values)

    def _items(self, values: Any) -> Hashable:
        return self._all(values.keys()), self._all(values.values())

    def _container(self, value: Any) -> Hashable | None:
        if type(value) in (tuple, list):
            return type(value), self._all(value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return self.read(type(value)), self._all(value)
        if type(value) in (dict, FrozenDict, types.MappingProxyType):
            return type(value), self._items(value)
        if type(value) in (set, frozenset):
            if not all(isinstance(entry, str) for entry in value):  # others may come in another order in every call
                raise UnreadableError
            return type(value), tuple(sorted(value))
        return None

    def _array(self, value: Any) -> Hashable | None:
        if isinstance(value, Tracer):
            raise UnreadableError
        if isinstance(value, jax.Array):
            if not value.is_fully_addressable:
                raise UnreadableError
            is_key = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
            content = self._array(np.asarray(jax.random.key_data(value) if is_key else value))
            kind = str(value.dtype), bool(getattr(value, "weak_type", False)), getattr(value, "committed", None)
            return *kind, value.sharding, content
        if isinstance(value, np.dtype):
            return np.dtype, value.str, str(value)
        if type(value) is np.ndarray or isinstance(value, np.generic):
            if value.dtype.hasobject:
                raise UnreadableError
            digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).digest()
            return type(value), value.shape, str(value.dtype), digest
        return None

    def _callable(self, value: Any) -> Hashable | None:
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            return types.MethodType, self.read(value.__func__), self.read(value.__self__)
        if type(value) is functools.partial:
            return functools.partial, self.read(value.func), self._all(value.args), self._items(value.keywords)
        if isinstance(value, staticmethod | classmethod):
            return type(value), self.read(value.__func__)
        if isinstance(value, property | functools.cached_property):
            return type(value), self.read(value.fget if isinstance(value, property) else value.func)
        if isinstance(value, np.ufunc) and getattr(np, value.__name__, None) is value:
            return np.ufunc, value.__name__
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, enum.Enum):
            return self.read(type(value)), value.name
        if isinstance(value, types.ModuleType):
            if not _is_pure(value.__name__):
                raise UnreadableError
            return types.ModuleType, value.__name__
        return None

    def _function(self, function: types.FunctionType) -> Hashable:
        captured = [cell.cell_contents if _is_filled(cell) else None for cell in function.__closure__ or ()]
        attributes = {name: value for name, value in vars(function).items() if name not in _ABOUT}
        own = self._all((function.__defaults__, function.__kwdefaults__, attributes, captured))
        # Not __module__, which a wrapper takes over from what it wraps.
        if _is_pure(function.__globals__.get("__name__", "")):
            return function.__code__, own
        return function.__code__, own, self._all(_globals_of(function.__code__, function.__globals__))

    def _class(self, cls: type) -> Hashable:
        """A user's class; its functions too, because of the globals that they read."""
        is_model = issubclass(cls, nn.Module)  # is in no result, and can therefore be another one of the same content
        identity = (cls.__module__, cls.__qualname__) if is_model else Same(cls)
        parts = [(name, self.read(value)) for name, value in vars(cls).items() if _is_content(cls, name, value)]
        factories = [field.default_factory for field in _own_fields(cls)]
        return identity, self._all((type(cls), *cls.__bases__)), tuple(parts), self._all(factories)

    def _graph(self, module: Any) -> Hashable:
        """An nnx module: its graph, its arrays, and the classes and functions in it."""
        from flax import nnx  # here: takes 0.2 s

        graph, state = nnx.split(module)
        nodes = [node for _, node in nnx.iter_graph(module) if isinstance(node, nnx.Module)]
        functions = [part for node in nodes for part in vars(node).values() if isinstance(part, types.FunctionType)]
        arrays = {path: jax.tree.leaves(variable) for path, variable in nnx.to_flat_state(state)}
        return graph, self._items(arrays), self._all([*map(type, nodes), *functions])

    def _instance(self, value: Any) -> Hashable:
        if is_nnx(value):
            return self._graph(value)
        classes = [cls for cls in type(value).__mro__ if cls.__name__ not in _BASES]
        if any(isinstance(entry, _IN_C) for cls in classes for entry in vars(cls).values()):
            wrapped = getattr(value, "__wrapped__", None)
            if not callable(value) or wrapped is None:
                raise UnreadableError
            return Same(value), self.read(wrapped)  # a user's jax.jit or functools.cache
        if isinstance(value, nn.Module):
            values = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        else:
            slots = {name for cls in classes for name in _slots(cls) if hasattr(value, name)}
            values = {name: getattr(value, name) for name in sorted(slots)} | getattr(value, "__dict__", {})
        return self.read(type(value)), self._items(values)


def _is_pure(module: str) -> bool:
    return module.partition(".")[0] in PURE and not f"{module}.".startswith("numpy.random.")


def _is_named(value: Any) -> bool:
    """Whether a pure module holds this very function, class or object under its own name."""
    module, path = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(path, str) or not _is_pure(module):
        return False
    found: Any = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    return found is value


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # of a name that is not assigned yet
        return False


def _is_content(cls: type, name: str, value: Any) -> bool:
    """Whether an entry of a class is a part of what its objects do."""
    function = getattr(value, "__func__", value)
    if isinstance(function, types.FunctionType):
        module = str(function.__globals__.get("__name__"))
        by_dataclasses = function.__code__.co_filename == "<string>" or module in ("dataclasses", "reprlib")
        is_generated = dataclasses.is_dataclass(cls) and by_dataclasses
        is_tuple = module.startswith(("collections", "namedtuple_"))
        return not is_generated and not is_tuple and name not in ("__annotate__", "__annotate_func__")
    if isinstance(value, property | functools.cached_property):
        return True
    is_field = isinstance(value, _FIELDS) or type(value).__name__ == "_tuplegetter"
    is_about = name.startswith("__") and name.endswith("__") and not callable(value)
    return not is_field and not is_about and name != "_abc_impl"


def _own_fields(cls: type) -> list[Any]:
    fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
    return [field for field in fields if field.default_factory is not dataclasses.MISSING]


def _slots(cls: type) -> tuple[str, ...]:
    slots = vars(cls).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _globals_of(code: types.CodeType, namespace: Mapping[str, Any]) -> Iterator[Any]:
    """What a function of a user reads beside its arguments and what it has captured: names and values.

    Of a module it is the attribute that is read.

    Raises:
      UnreadableError: if the function may read what its code does not name.
    """
    instructions = list(dis.get_instructions(code))
    for place, instruction in enumerate(instructions):
        if instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            raise UnreadableError
        if instruction.opname == "IMPORT_NAME" and not _is_pure(instruction.argval):
            raise UnreadableError
        if instruction.opname not in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
            continue
        if instruction.argval in namespace:
            yield instruction.argval
            yield _attribute(namespace[instruction.argval], instructions[place + 1 :])
        elif instruction.argval in IMPURE:
            raise UnreadableError
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _globals_of(constant, namespace)


def _attribute(value: Any, following: list[dis.Instruction]) -> Any:
    """What is read of a module: the value at the end of a chain of modules, or a pure module itself."""
    for instruction in following:
        if not isinstance(value, types.ModuleType) or instruction.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
            break
        if _is_pure(value.__name__) and not isinstance(getattr(value, instruction.argval, None), types.ModuleType):
            break
        value = getattr(value, instruction.argval, None)
    return value
