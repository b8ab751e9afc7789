"""A model divided among devices: which axis of which parameter, by rules on the parameters' paths.

A mesh may have axes beside that of the clients, along which the devices divide every client's model, so that it may be
larger than the memory of one. XLA divides what is computed from the parameters and adds the exchanges that this needs.

What is like the parameters is divided as they are: deltas, the states of rules and optimizers, rows of clients. It is
known by its place: its path ends with the path of a parameter, its shape with the shape.
"""

import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedjax_drag.checks import shown
from fedjax_drag.ops.paths import path_of

CLIENTS = "clients"
"""The name of the clients' axis where a mesh has others."""

SMALLEST = 2**16
"""Entries from which on a parameter is divided that no rule speaks of."""

ShardingRules = Sequence[tuple[str, Any]]
"""Pairs ``(pattern, spec)``: a regular expression that is searched in the path of a parameter, its parts joined by
``/``, and a ``jax.sharding.PartitionSpec``, or a list of its entries. The first pair that matches counts."""


class Divided(NamedTuple):
    """How a parameter is divided.

    Attributes:
      path: of the parameter, its parts joined by ``/``.
      shape: of the parameter.
      spec: an entry for each of its axes: None, an axis of the mesh, or several of them.
    """

    path: str
    shape: tuple[int, ...]
    spec: tuple[Any, ...]


Specs = tuple[Divided, ...]
"""Of all parameters of a model, in no special order; empty where devices divide the clients alone."""


def clients_axis(mesh: Mesh) -> str:
    """The axis of a mesh along which devices divide the clients."""
    return mesh.axis_names[0] if len(mesh.axis_names) == 1 else CLIENTS


def num_shares(mesh: Mesh | None) -> int:
    """Into how many shares the clients are divided."""
    return mesh.shape[clients_axis(mesh)] if mesh else 1


def divides_model(mesh: Any) -> bool:
    """Whether a mesh, however it is given, has axes beside that of the clients."""
    return len(mesh if isinstance(mesh, Mapping) else getattr(mesh, "axis_names", ())) > 1


def check_rules(name: str, value: Any) -> None:
    """Refuses what is no list of pairs of a pattern and a spec."""
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    if not is_list or not all(isinstance(rule, list | tuple) and len(rule) == 2 for rule in value):
        allowed = "a list of pairs of a pattern and a spec, such as ['mlp_in/kernel', [null, 'model']]"
        raise ValueError(f"{name}={shown(value)}: must be {allowed}")
    for pattern, spec in value:
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ValueError(f"{name}: pattern {shown(pattern)}: must be a regular expression ({error})") from None
        if not isinstance(spec, list | tuple | PartitionSpec):
            raise ValueError(f"{name}: spec {shown(spec)} of {pattern!r}: must be a list with an entry for each axis")


def specs_of(rules: ShardingRules, params: Any, mesh: Mesh) -> Specs:
    """How a mesh divides parameters.

    Args:
      rules: the first that matches a parameter counts. Where none does, a parameter of at least :data:`SMALLEST`
        entries is divided along its largest axis that the devices divide, the last of them, and others are copied.
      params: a pytree of arrays or shapes.
      mesh: with axes beside that of the clients.

    Raises:
      ValueError: a spec does not fit its parameter or the mesh.
    """
    paths = [(path_of(path), leaf.shape) for path, leaf in jax.tree.leaves_with_path(params)]
    axes = tuple(name for name in mesh.axis_names if name != clients_axis(mesh))

    def spec(path: str, shape: tuple[int, ...]) -> tuple[Any, ...]:
        for pattern, own in rules:
            if re.search(pattern, path):
                return _checked(f"sharding_rules: {list(own)} of {pattern!r} for {path} {list(shape)}", own, shape)
        divisible = [axis for axis, length in enumerate(shape) if length % _size(axes, mesh) == 0]
        if math.prod(shape) < SMALLEST or not divisible:
            return (None,) * len(shape)
        longest = max(divisible, key=lambda axis: (shape[axis], axis))
        return tuple(axes if axis == longest else None for axis in range(len(shape)))

    def _checked(where: str, own: Any, shape: tuple[int, ...]) -> tuple[Any, ...]:
        entries = [tuple(entry) if isinstance(entry, list) else entry for entry in own]
        if len(entries) > len(shape):
            raise ValueError(f"{where}: must have at most {len(shape)} entries")
        entries += [None] * (len(shape) - len(entries))
        named = [name for entry in entries for name in _names(entry)]
        if not set(named) <= set(axes) or len(set(named)) < len(named):
            raise ValueError(f"{where}: must name axes of {', '.join(axes)}, each once")
        for entry, length in zip(entries, shape, strict=True):
            if length % (size := _size(_names(entry), mesh)):
                raise ValueError(f"{where}: must divide each axis; {length} is no multiple of {size} devices")
        return tuple(entries)

    return tuple(Divided(path, shape, spec(path, shape)) for path, shape in paths)


def spec_of(path: Any, shape: tuple[int, ...], specs: Specs) -> list[Any] | None:
    """The entries of the spec of what is like a parameter, axes of clients or others before it included.

    Args:
      path: its place in a pytree, as JAX's keys.
      shape: its shape.
      specs: of the parameters.

    Returns:
      An entry for each axis of ``shape``; None for what is like no parameter.
    """
    parts, known = path_of(path).split("/"), _by_path(specs)
    for start in range(len(parts) + 1):
        found = known.get("/".join(parts[start:]))
        if found and len(found.shape) <= len(shape) and shape[len(shape) - len(found.shape) :] == found.shape:
            return [None] * (len(shape) - len(found.shape)) + list(found.spec)
    return None


def divided_like_params(values: Any, mesh: Mesh | None, specs: Specs) -> Any:
    """``values`` in a compiled program, in which what is like the parameters is divided as they are."""
    if mesh is None or not specs:
        return values
    inside = jax.sharding.get_abstract_mesh()  # in a share of the clients, whose axis is not seen there

    def leaf(path: Any, x: jax.Array) -> jax.Array:
        own = spec_of(path, jnp.shape(x), specs)
        if own is None:
            return x
        sharding = NamedSharding(mesh if inside.empty else inside, PartitionSpec(*own))
        return jax.lax.with_sharding_constraint(x, sharding)

    return jax.tree_util.tree_map_with_path(leaf, values)


def split_among(entries: list[Any], shape: tuple[int, ...], mesh: Mesh) -> list[Any]:
    """Entries of a spec with the clients' axis added, where the devices along it divide an axis of ``shape[1:]``.

    The first axis that is whole is taken, else the first that is divided already.
    """
    own, number = clients_axis(mesh), num_shares(mesh)
    sizes = [length // _size(_names(entry), mesh) for entry, length in zip(entries, shape, strict=True)]
    possible = [axis for axis in range(1, len(shape)) if sizes[axis] % number == 0]
    if possible:
        axis = min(possible, key=lambda axis: (entries[axis] is not None, axis))
        entries = [*entries]
        entries[axis] = (*_names(entries[axis]), own)
    return entries


@functools.lru_cache(maxsize=16)
def _by_path(specs: Specs) -> Mapping[str, Divided]:
    return {one.path: one for one in specs}


def _names(entry: Any) -> tuple[str, ...]:
    """The axes of a mesh in an entry of a spec."""
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def _size(axes: Sequence[str], mesh: Mesh) -> int:
    return math.prod(mesh.shape[name] for name in axes)
