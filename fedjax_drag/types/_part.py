"""Parts of a run: frozen dataclasses that JAX knows as pytrees."""

import dataclasses
import typing
from collections.abc import Iterable
from typing import Any, Self

import jax

Scalar = float | jax.Array
"""A number that may be traced, and differs between the cells of a sweep that share a program."""


@typing.dataclass_transform(frozen_default=True)
class Part:
    """A component of a run, such as a rule or an attack: a frozen dataclass.

    Every subclass is made a dataclass and registered with JAX. Fields annotated as :data:`Scalar`, an array or another
    part, also as optional ones, are its leaves: a compiled program takes them as inputs. All other fields are static:
    they decide what is compiled, and are compared by value. So two parts share a program exactly if their
    ``jax.tree.structure`` is equal, and ``repr`` and equality are those of the dataclass.

    A subclass that is used as a function is named like one: ``sign_flip(scale=2.0)``.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(frozen=True)(cls)
        fields = dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
        leaves = tuple(field.name for field in fields if _is_leaf(field.type))
        static = tuple(field.name for field in fields if field.name not in leaves)

        def flatten(part: Self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
            return tuple(getattr(part, name) for name in leaves), tuple(getattr(part, name) for name in static)

        def flatten_with_keys(part: Self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
            values, others = flatten(part)
            return tuple(zip(map(jax.tree_util.GetAttrKey, leaves), values, strict=True)), others

        def unflatten(others: tuple[Any, ...], values: Iterable[Any]) -> Self:
            part = object.__new__(cls)  # not by its arguments: what JAX puts in their place is not checked
            for name, value in zip((*leaves, *static), (*values, *others), strict=True):
                object.__setattr__(part, name, value)
            return part

        jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raises ValueError for an argument that is out of range; scalars that are traced are not checked."""

    @property
    def name(self) -> str:
        """The name of the class, such as ``drag``."""
        return type(self).__name__


def is_scalar(hint: Any) -> bool:
    """Whether a type is :data:`Scalar`, or that or None."""
    options = {arg for arg in typing.get_args(hint) if arg is not type(None)}
    return options == set(typing.get_args(Scalar))


def _is_leaf(hint: Any) -> bool:
    options = [arg for arg in typing.get_args(hint) if arg is not type(None)] or [hint]
    classes = [option for option in options if isinstance(option, type)]
    return is_scalar(hint) or any(issubclass(option, Part | jax.Array) for option in classes)
