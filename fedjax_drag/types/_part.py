"""Parts of a run: frozen dataclasses that JAX knows as pytrees."""

import dataclasses
import inspect
import operator
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any, Self

import jax
import numpy as np
from jax.core import Tracer

from fedjax_drag import checks
from fedjax_drag.naming import name_of

Scalar = float | jax.Array
"""A number that may be traced, and differs between the cells of a sweep that share a program."""


@typing.dataclass_transform(frozen_default=True)
class Part:
    """A component of a run, such as a rule or an attack: a frozen dataclass.

    Every subclass is made a dataclass and registered with JAX. Fields annotated as :data:`Scalar`, an array or another
    part, also as optional ones, are its leaves: a compiled program takes them as inputs. All other fields are static:
    they decide what is compiled, and are compared by value. So two parts share a program exactly if their
    ``jax.tree.structure`` is equal; they are equal if their leaves are as well. ``repr`` is that of the dataclass.

    A subclass that is used as a function is named like one: ``sign_flip(scale=2.0)``.
    """

    _scalars: typing.ClassVar[tuple[str, ...]] = ()
    _flags: typing.ClassVar[tuple[str, ...]] = ()
    _made_of: typing.ClassVar[tuple[str, ...]] = ()
    """Of a part of functions their fields: it is named by the first that is given."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__annotations__ = _annotations(cls)
        for name, hint in cls.__annotations__.items():
            if name not in vars(cls) and hasattr(cls, name) and typing.get_origin(hint) is not typing.ClassVar:
                setattr(cls, name, dataclasses.field())  # what is inherited under the name of a field is no default
        if cls._made_of and "__repr__" not in vars(cls):
            cls.__repr__ = Part.__repr__  # and not that of a dataclass
        dataclasses.dataclass(frozen=True, eq=False)(cls)
        fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
        leaves = tuple(field.name for field in fields if _is_leaf(field.type))
        static = tuple(field.name for field in fields if field.name not in leaves)
        cls._scalars = tuple(field.name for field in fields if is_scalar(field.type))
        cls._flags = tuple(field.name for field in fields if field.type is bool)

        def flatten(part: Self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
            return tuple(getattr(part, name) for name in leaves), tuple(
                comparable(getattr(part, name)) for name in static
            )

        def flatten_with_keys(part: Self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
            values, others = flatten(part)
            return tuple(zip(map(jax.tree_util.GetAttrKey, leaves), values, strict=True)), others

        def unflatten(others: tuple[Any, ...], values: Iterable[Any]) -> Self:
            part = object.__new__(cls)  # not by its arguments: what JAX puts in their place is not checked
            for name, value in zip((*leaves, *static), (*values, *others), strict=True):
                object.__setattr__(part, name, value.value if isinstance(value, _Same) else value)
            return part

        jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)

    def __post_init__(self) -> None:
        for name in self._scalars:
            if callable(value := getattr(self, name)) and not isinstance(value, Part):
                object.__setattr__(self, name, Function(value))
        for name in self._flags:
            checks.flag(name, getattr(self, name))
        self.check()

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        (leaves, structure), (others, theirs) = jax.tree.flatten(self), jax.tree.flatten(other)
        return structure == theirs and all(map(_is_same, leaves, others))

    def __hash__(self) -> int:
        return hash(jax.tree.structure(self))  # not of numbers: equal ones may be of different types

    def __repr__(self) -> str:  # of a part of functions
        return f"{type(self).__bases__[0].__name__}({self.name})"

    def check(self) -> None:
        """Raises ValueError for an argument that is out of range; scalars that are traced are not checked."""

    @property
    def name(self) -> str:
        """The name of the class, such as ``drag``; of a part of functions that of the function that made it."""
        functions = [given for name in self._made_of if (given := getattr(self, name)) is not None]
        return name_of(functions[0]) if functions else type(self).__name__


def _is_same(leaf: Any, other: Any) -> bool:
    is_traced = isinstance(leaf, Tracer) or isinstance(other, Tracer)
    return leaf is other or (not is_traced and bool(np.array_equal(leaf, other)))


def _annotations(cls: type) -> dict[str, Any]:
    """Those of the class itself; texts, as ``from __future__ import annotations`` makes them, are evaluated."""
    try:
        return inspect.get_annotations(cls, eval_str=True, locals={**vars(cls), cls.__name__: cls})
    except NameError as error:
        said = "must be defined where the class is, not only for type checkers: it decides what is a traced number"
        raise NameError(f"{cls.__name__}: {error.name} in the type of a field {said}", name=error.name) from None


def is_scalar(hint: Any) -> bool:
    """Whether a type is :data:`Scalar`, or that or something else."""
    return set(typing.get_args(Scalar)) <= set(_options(hint))


def _options(hint: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def _is_leaf(hint: Any) -> bool:
    classes = [option for option in _options(hint) if isinstance(option, type)]
    return is_scalar(hint) or any(issubclass(option, Part | jax.Array) for option in classes)


class CallablePart(Part):
    """A part that is a function, such as a loss, a schedule or an augmentation."""

    def __call__(self, *args: Any) -> Any:
        """The function's value."""
        raise undefined(self, "__call__")


class Function(CallablePart):
    """A function, or another object that is no part, in the place of one: static, and compared by value or identity."""

    function: Any

    def __call__(self, *args: Any) -> Any:
        """The function's value."""
        return self.function(*args)

    def __repr__(self) -> str:
        name = getattr(self.function, "__qualname__", None)
        return f"<function {name}>" if name else f"<{type(self.function).__name__}>"


def as_part(value: Any) -> Any:
    """A part as it is, None too; any other object, such as a function or an optimizer of optax, as a static part."""
    return value if value is None or isinstance(value, Part) else Function(value)


def told(part: Any, **facts: Any) -> Any:
    """A part with facts, such as ``num_clients``, in the place of fields of these names that are None, to any depth."""
    fields = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    changes = {name: facts[name] for name, value in fields.items() if value is None and name in facts}
    inner = {name: told(value, **facts) for name, value in fields.items() if isinstance(value, Part)}
    changes |= {name: after for name, after in inner.items() if after is not fields[name]}
    return dataclasses.replace(part, **changes) if changes else part


def value_of(part: Any) -> Any:
    """What :func:`as_part` was given."""
    return part.function if isinstance(part, Function) else part


class _Same:
    """Equal to another one of the same object, or method of it: stands for a static value that has no hash."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self._who = id(getattr(value, "__self__", value)), getattr(value, "__func__", None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other._who == self._who

    def __hash__(self) -> int:
        return hash(self._who)


def comparable(value: Any) -> Any:
    """A value itself if it has a hash, else what is equal where it is of the same object."""
    try:
        hash(value)
    except TypeError:
        return _Same(value)
    return value


Around = typing.TypeVar("Around", bound=type)


class _Forwarded:
    """What another part has; a field of that name takes its place, and the class shows that of the contract."""

    def __init__(self, around: type, to: str, name: str) -> None:
        self._around, self._name, self._get = around, name, operator.attrgetter(f"{to}.{name}")

    def __get__(self, part: Any, owner: Any = None) -> Any:
        return getattr(super(self._around, owner), self._name) if part is None else self._get(part)


def forwards(to: str, *names: str) -> Callable[[Around], Around]:
    """Gives a class of parts around another one what that has under these names.

    Args:
      to: the attribute that is the other part.
      *names: attributes and methods; default all that are public in the class that this one is derived from.
    """

    def decorate(around: Around) -> Around:
        for name in names or [name for name in vars(around.__base__) if not name.startswith("_")]:
            setattr(around, name, _Forwarded(around, to, name))
        return around

    return decorate


def undefined(part: Any, method: str) -> ValueError:
    """The error of a part whose class lacks a method that every one of its kind must have."""
    return ValueError(f"{type(part).__name__}: must define {method}")
