"""What the cells of a sweep were run under: its settings apart from its axes, and the scale that they amount to."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedjax_drag.experiment.config.config import Config, flatten
from fedjax_drag.experiment.run.folders import FREE
from fedjax_drag.experiment.sweep import sweep_folder
from fedjax_drag.experiment.sweep.grid import METHOD, Grid, load_grid
from reproduction.targets.target import ONE_SEED, Scale, Target

Settings = dict[str, dict[str, Any]]
"""Dotted keys and values that are not the defaults. ``""`` has those of all cells; ``compare.LABEL`` those of a method
and ``AXIS=LABEL`` the arguments of a component, which bind only results that have this label."""

COMMON = ""

NO_RESULT = {
    *FREE,
    "name",
    "seed",
    "mesh",
    "clients_axis",
    "clients_per_chunk",
    "shard_data",
    "rounds_per_compile",
    "client_state",
    "diagnostics",
    "data.data_dir",
    "data.source",
}
"""Keys that do not change what is measured."""

OTHER = "other"
"""The scale of results that were run under settings of no scale."""


def of_grid(grid: Grid) -> Settings:
    """The settings of a sweep."""
    base, defaults = _plain(flatten(grid.base)), _plain(flatten(Config()))
    settings: Settings = {COMMON: {}}
    for key, value in base.items():
        of_axis = any(key == axis or key.startswith(f"{axis}.") for axis in grid.axes)
        if not of_axis and not key.startswith("compare.") and defaults.get(key) != value:
            settings[COMMON][key] = value
    for label, changes in (grid.base.compare or {}).items():
        settings[f"compare.{label}"] = _plain(flatten(changes or {}))
    for axis, values in grid.axes.items():
        for label, value in zip(grid.labels[axis], values, strict=True):
            if axis != METHOD and isinstance(value, Mapping):
                settings[f"{axis}={label}"] = _plain(flatten(value))
    return settings


def of_scale(target: Target, scale: Scale) -> Settings | None:
    """The settings of a target at a scale; None if it is not run at it."""
    overrides = target.overrides(scale)
    return None if overrides is None else of_grid(_grid(target.config, overrides))


def labels_of(target: Target) -> dict[str, list[Any]]:
    """By axis, the values of which a target has cells at full scale."""
    return _grid(target.config).labels


def of_folder(folder: Path, target: Target) -> tuple[Grid, Settings]:
    """The sweep in a results folder, and its settings.

    Raises:
      ValueError: it is no sweep, or not one of the target.
    """
    if not (folder / sweep_folder.CONFIG).is_file():
        raise ValueError(f"{str(folder)!r}: must be the results folder of a sweep; it has no {sweep_folder.CONFIG}")
    grid, wanted = load_grid(folder / sweep_folder.CONFIG), _grid(target.config)
    own, axes = (sorted({*one.axes} - {"seed"}) for one in (grid, wanted))
    if own != axes:
        raise ValueError(
            f"{str(folder)!r}: must be a sweep of {target.name}, over {', '.join(axes)}, not {', '.join(own)}"
        )
    for axis in axes:
        unknown = [x for x in grid.labels[axis] if isinstance(x, str) and x not in wanted.labels[axis]]
        if unknown:
            known = ", ".join(map(str, wanted.labels[axis]))
            raise ValueError(f"{str(folder)!r}: {axis}={unknown[0]}: {target.name} has only {known}")
    return grid, of_grid(grid)


def differences(own: Settings, other: Settings) -> list[str]:
    """What ``own`` has otherwise than ``other``, as ``key=value``, where both have the method or component."""
    texts, defaults = [], _plain(flatten(Config()))
    for part in own:
        if part in other:
            for key in sorted({*own[part], *other[part]}):
                if own[part].get(key) != other[part].get(key):
                    value = own[part].get(key, "default" if part else defaults.get(key))
                    texts.append(f"{part}{'.' if part else ''}{key}={value}")
    return texts


def scale_of(target: Target, settings: Settings) -> tuple[str, list[str]]:
    """The scale of results, :data:`OTHER` if they are of none, and how their settings differ from the full scale."""
    full = of_grid(_grid(target.config))
    for scale in (Scale.FULL, Scale.MEDIUM, Scale.QUICK):
        wanted = of_scale(target, scale)
        if wanted is not None and not differences(settings, wanted):
            return str(scale), differences(settings, full)
    return OTHER, differences(settings, full)


@functools.cache
def _grid(config: Path, overrides: tuple[str, ...] = ()) -> Grid:
    """The sweep of a configuration with one seed; the cells themselves are not needed."""
    return load_grid(config, (*overrides, ONE_SEED), cells=False)


def _plain(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Without the suffix of a component's name, and without keys that do not change what is measured."""
    kept = {key.removesuffix(".name"): value for key, value in flat.items() if key not in NO_RESULT}
    if "byzantine_fraction" in kept:  # versions that had no None for "not given" stored 0.0
        kept["byzantine_fraction"] = kept["byzantine_fraction"] or None
    return kept
