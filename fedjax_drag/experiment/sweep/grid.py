"""The axes of a sweep: keys of a run's configuration with the values they take, and the cells that these span."""

import dataclasses
import itertools
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedjax_drag.checks import shown
from fedjax_drag.experiment.build.experiment import check_kind, read, variants, warn_of_fallbacks
from fedjax_drag.experiment.build.own_parts import Code
from fedjax_drag.experiment.build.resolve import resolve
from fedjax_drag.experiment.config.components import COMPONENTS, unknown_key
from fedjax_drag.experiment.config.config import EITHER, Config, as_keys, check, flatten, merged, slug
from fedjax_drag.experiment.config.own import OwnName, own_names, references, short
from fedjax_drag.experiment.config.yaml_text import parse
from fedjax_drag.simulation.option_groups import check_adversary, check_pass

AXES = "axes"
"""The key that only a sweep's configuration has."""

METHOD = "method"
"""The first axis of a sweep that compares: its values are the labels under ``compare``."""

_MOST_CELLS = 100_000
"""Cells of a sweep at most: all are checked before the first one runs."""

_MOST_LETTERS = 100
"""Of a folder's name; file systems allow 255 bytes."""


@dataclasses.dataclass(frozen=True)
class Point:
    """One cell of a sweep, before it has run.

    Attributes:
      values: by axis, its number or the label of its value.
      label: the cell's name in tables and logs.
      folder: name of its results folder.
      config: its resolved configuration, named by the values of all axes but the seed.
    """

    values: dict[str, Any]
    label: str
    folder: str
    config: Config


@dataclasses.dataclass(frozen=True)
class Grid:
    """A checked sweep.

    Attributes:
      base: the configuration that the axes change, not resolved.
      axes: values by axis, as written; of ``method`` the labels.
      labels: by axis, the number or the label of each value.
      points: the cells, the last axis changing fastest.
    """

    base: Config
    axes: dict[str, list[Any]]
    labels: dict[str, list[Any]]
    points: tuple[Point, ...]

    def to_mapping(self) -> dict[str, Any]:
        """The sweep's configuration as plain values, as :func:`load_grid` reads them."""
        return self.base.to_mapping() | {AXES: {axis: self.axes[axis] for axis in self.axes if axis != METHOD}}


def load_grid(
    source: str | Path | Mapping[str, Any] | Grid,
    overrides: Iterable[str | Mapping[str, Any]] = (),
    code: Code | None = None,
    cells: bool = True,
) -> Grid:
    """Reads a sweep's configuration and checks all its cells.

    Args:
      source: path of a YAML file, a mapping, or a :class:`Grid`, which is read again only to apply overrides. The
        variants under ``compare``, if there are any, are one more axis, ``method``.
      overrides: as for a run; ``axes.seed=[0,1]`` gives an axis other values, or adds one.
      code: what code may be referred to beside that in ``overrides``; None to read a sweep that is not to be run.
      cells: False where the axes and what they change are enough: there are then no points.

    Returns:
      The sweep.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the configuration, an axis or one of the cells is not valid.
    """
    if isinstance(source, Grid):
        if not overrides:
            return source
        source = source.to_mapping()
    mapping, changes = read(source), parse(overrides)
    check_kind(mapping)
    if code is not None:
        code = code._replace(trusted={*code.trusted, *references(changes)})
    axes: dict[str, list[Any]] = {}
    for part in (mapping, *changes):
        if AXES in part:
            axes |= as_keys(lists(AXES, part.pop(AXES)))
    whole = merged(mapping, changes)
    base = check(whole)
    compared = variants(base)
    _check_axes(base, axes, changes)
    warn_of_fallbacks(mapping, *changes, axes=axes, stacklevel=4)
    if compared:
        axes = {METHOD: list(compared), **axes}
    labels = {axis: _labels(axis, values) for axis, values in axes.items()}
    points = _points(whole, compared, axes, labels, code) if cells else ()
    if code is not None:
        _check_adversaries(base, points, said=any("attack" in part for part in (mapping, *changes, axes)))
    return Grid(base, axes, labels, points)


def describe(values: Mapping[str, Any]) -> str:
    """The name of one cell, or of all cells with these values: ``sign_flip, beta=0.1``."""
    last = Counter(axis.rpartition(".")[2] for axis in values)
    parts = []
    for axis, value in values.items():
        short = axis.rpartition(".")[2]
        alone = axis in (METHOD, *COMPONENTS) and value != "none"
        parts.append(str(value) if alone else f"{short if last[short] == 1 else axis}={value}")
    return ", ".join(parts)


def in_common(points: Iterable[Point]) -> str:
    """The name of several cells: the values that they share; empty where there are none."""
    first, *others = [point.values for point in points]
    return describe({axis: value for axis, value in first.items() if all(own[axis] == value for own in others)})


def of_cell(label: str, cell: Any, base: Any, make: Callable[[Any], Any]) -> Any:
    """What ``make`` makes of a cell; a ValueError names the cell, unless the base of the sweep has the same."""
    try:
        return make(cell)
    except ValueError as error:
        try:
            make(base)
        except ValueError as same:
            if str(same) == str(error):
                raise
        raise ValueError(f"axes: {label}: {error}") from error


def lists(key: str, written: Any) -> dict[str, list[Any]]:
    """Values by axis, from a mapping under ``key`` with dotted or nested keys."""
    if not isinstance(written, Mapping) or not written:
        raise ValueError(f"{key}={written!r}: must be a mapping from keys to the lists of their values")
    for axis, values in flatten(written).items():
        if isinstance(values, OwnName):
            axis, values = axis.removesuffix(".name"), values.part
        if not isinstance(values, list | tuple | range) or not values:
            raise ValueError(f"{key}.{axis}={shown(values)}: must be a list of values, at least one")
    return {axis: list(values) for axis, values in flatten(written).items()}


def _check_axes(base: Config, axes: Mapping[str, Any], changes: Iterable[Mapping[str, Any]]) -> None:
    if not axes:
        raise ValueError("axes: missing; a sweep needs one at least, such as seed: [0, 1, 2]")
    cells = math.prod(map(len, axes.values()))
    if cells > _MOST_CELLS:
        raise ValueError(f"axes: span {cells:,} cells; must be at most {_MOST_CELLS:,}")
    known = [field.name for field in dataclasses.fields(Config) if field.name not in ("name", "compare")]
    set_elsewhere = {key: "an override" for change in changes for key in _set_by(change)}
    for label, own in (base.compare or {}).items():
        set_elsewhere |= dict.fromkeys(_set_by(own or {}), f"compare.{label}")
    for axis in axes:
        if (key := axis.partition(".")[0]) not in known:
            raise unknown_key(key, known, AXES)
        own = axis.removesuffix(".name")
        same = next((key for key in (own, *filter(None, [EITHER.get(axis)])) if key in set_elsewhere), None)
        if same is not None:
            raise ValueError(f"{same}: {set_elsewhere[same]} and axes.{axis} both set it; leave out one of them")
        set_elsewhere[own] = f"axes.{axis}"


def _set_by(changes: Mapping[str, Any]) -> list[str]:
    """Dotted keys that changes give a value; that of a component for its name."""
    return [key.removesuffix(".name") for key in flatten(as_keys(changes))]


def _check_adversaries(base: Config, points: Iterable[Point], said: bool) -> None:
    """Refuses attacks by nobody knows how many, and malicious clients in a sweep that has no attack.

    Args:
      base: what the axes change.
      points: the cells.
      said: whether the configuration or an axis has ``attack``; null beside malicious clients is the honest baseline.
    """
    attacked = said or any(point.config.attack is not None for point in points)
    together = lambda config: check_adversary(config.attack, config.byzantine_fraction, config.num_byzantine)
    for point in points:
        if point.config.attack is not None or not attacked:
            of_cell(point.label, point.config, base, together)


def _labels(axis: str, values: Sequence[Any]) -> list[Any]:
    """Numbers as they are; names; and of components that share a name also the arguments in which they differ."""
    parts = [_parts(value) for value in values]
    labels: list[Any] = []
    for value, (name, arguments) in zip(values, parts, strict=True):
        others = [other for own, other in parts if own == name]
        differing = [key for key in arguments if any(other.get(key) != arguments[key] for other in others)]
        described = [name, *(f"{key}={arguments[key]}" for key in differing)]
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        labels.append(value if plain else " ".join(part for part in described if part))
    times, times_as_text = Counter(labels), Counter(map(str, labels))  # 1 is 1.0, and 1 is "1"
    repeated = [label for label in labels if times[label] > 1 or times_as_text[str(label)] > 1]
    if repeated:
        remedy = "; give objects labels, {'name': part, 'label': 'mine'}" if any(own_names(values)) else ""
        raise ValueError(f"axes.{axis}: {repeated[0]} is there twice; must be different values{remedy}")
    return labels


def _parts(value: Any) -> tuple[str, dict[str, Any]]:
    """A name and dotted arguments; of anything but a component, its text alone."""
    if not isinstance(value, Mapping):
        return "none" if value is None else str(value).lower() if isinstance(value, bool) else short(str(value)), {}
    flat = {key.removesuffix(".name"): argument for key, argument in flatten(value).items()}
    return short(str(flat.pop("name", ""))), flat


def _points(
    base: Mapping[str, Any],
    compared: Mapping[str, Config],
    axes: Mapping[str, list[Any]],
    labels: Mapping[str, list[Any]],
    code: Code | None,
) -> tuple[Point, ...]:
    """The cells, each merged, checked and resolved."""
    starts = {label: one.to_mapping() for label, one in compared.items()} or {"": base}
    points = []

    def resolved(mapping: Mapping[str, Any]) -> Config:
        config = resolve(check(mapping), code)
        if code is not None:
            check_pass(config)
        return config

    for choice in itertools.product(*(range(len(values)) for values in axes.values())):
        values = {axis: labels[axis][i] for axis, i in zip(axes, choice, strict=True)}
        changes = {axis: axes[axis][i] for axis, i in zip(axes, choice, strict=True) if axis != METHOD}
        label = describe(values)
        name = describe({axis: value for axis, value in values.items() if axis != "seed"}) or base["name"]
        ordered = [_nested(axis, changes[axis]) for axis in sorted(changes, key=lambda axis: axis.count("."))]
        # Whole components are set before the arguments inside them.
        cell = merged(starts[values.get(METHOD, "")], [*ordered, {"name": name}])
        points.append(Point(values, label, slug(label), of_cell(label, cell, base, resolved)))
    shared = Counter(point.folder for point in points)
    return tuple(
        dataclasses.replace(point, folder=f"{point.folder[:_MOST_LETTERS]}-{zlib.crc32(point.label.encode()):08x}")
        if shared[point.folder] > 1 or len(point.folder) > _MOST_LETTERS
        else point
        for point in points
    )


def _nested(axis: str, value: Any) -> dict[str, Any]:
    for key in reversed(axis.split(".")):
        value = {key: value}
    return value
