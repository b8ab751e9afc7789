"""The map of the package: imports point downwards and in no circle, and no folder is full."""

import ast
import functools
from pathlib import Path

import pytest

import fedjax_drag

ROOT = Path(fedjax_drag.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

LAYERS = {
    "fedjax_drag": 0,  # types, tree, checks, losses and others beside them
    "fedjax_drag.accelerators": 0,
    "fedjax_drag.kernels": 0,
    "fedjax_drag.ops": 1,
    "fedjax_drag.aggregators": 2,
    "fedjax_drag.clients": 2,
    "fedjax_drag.clocks": 2,
    "fedjax_drag.compression": 2,
    "fedjax_drag.attacks": 2,
    "fedjax_drag.data": 2,
    "fedjax_drag.graphs": 2,
    "fedjax_drag.models": 2,
    "fedjax_drag.privacy": 2,
    "fedjax_drag.selection": 2,
    "fedjax_drag.algorithms": 3,
    "fedjax_drag.simulation.devices": 4,
    "fedjax_drag.simulation.model": 4,
    "fedjax_drag.simulation.program": 5,
    "fedjax_drag.simulation.criterion": 5,
    "fedjax_drag.testing": 5,
    "fedjax_drag.simulation.frames": 4,
    "fedjax_drag.simulation.result": 7,
    "fedjax_drag.simulation.options": 6,
    "fedjax_drag.simulation.option_groups": 6,
    "fedjax_drag.simulation.settings": 6,
    "fedjax_drag.simulation.run": 5,
    "fedjax_drag.simulation.progress": 7,
    "fedjax_drag.simulation.planning": 7,
    "fedjax_drag.simulation.runner": 8,
    "fedjax_drag.simulation.engine": 8,
    "fedjax_drag.simulation.driver": 8,
    "fedjax_drag.simulation.cells": 8,
    "fedjax_drag.simulation.batch": 9,
    "fedjax_drag.simulation": 9,
    "fedjax_drag.callbacks": 10,
    "fedjax_drag.interop": 10,
    "fedjax_drag.experiment.config": 10,
    "fedjax_drag.experiment.build": 11,
    "fedjax_drag.experiment.intervals": 12,
    "fedjax_drag.experiment.plain": 10,
    "fedjax_drag.experiment.run": 12,
    "fedjax_drag.experiment.sweep": 13,
    "fedjax_drag.experiment.figures": 13,
    "fedjax_drag.experiment.plan": 14,
    "fedjax_drag.experiment.report": 14,
    "fedjax_drag.experiment.arena": 14,
    "fedjax_drag.experiment": 14,
    "fedjax_drag.cli": 15,
}
"""A part may import what has no greater number than itself. For a module, the longest name that fits counts."""

OUTSIDE = {"fedjax_drag/__init__.py", "fedjax_drag/__main__.py"}
"""The package's front door, which leads to all of them."""

INSIDE_DATA = dict.fromkeys(
    (
        "dataset",
        "normalization",
        "targets",
        "examples",
        "client_test",
        "skew",
        "batching",
        "augmentation",
        "formats",
        "malicious",
    ),
    0,
) | dict.fromkeys(("validation", "partition", "sets"), 1)
"""The same within ``data``; what is not named is above."""

MOST_FILES = 15
SHELVES = {"aggregators", "algorithms", "attacks"}
"""Folders with a file for each method, of which there may be more."""


def layer(module):
    parts = module.split(".")
    fitting = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next(LAYERS[name] for name in fitting if name in LAYERS)


def dotted(path):
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {dotted(path): path for path in FILES}


@functools.cache
def imports(module):
    """The package's own modules that a module imports, within functions and for type checkers too."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{name.name}" for name in node.names}
            found |= {name for name in inner if name in MODULES}
            if not inner <= set(MODULES):
                found.add(node.module)
    return found & set(MODULES)


def test_imports_point_downwards():
    inside = [name for name in MODULES if MODULES[name].relative_to(ROOT.parent).as_posix() not in OUTSIDE]
    pairs = [(module, other) for module in inside for other in imports(module) if other != "fedjax_drag"]
    assert [pair for pair in pairs if layer(pair[1]) > layer(pair[0])] == []


def test_imports_within_data_point_downwards():
    rank = lambda name: INSIDE_DATA.get((name + "..").split(".")[2], 2)
    data = [name for name in MODULES if name.startswith("fedjax_drag.data.")]
    pairs = [(module, other) for module in data for other in imports(module) if other in data]
    assert [pair for pair in pairs if rank(pair[1]) > rank(pair[0])] == []


def test_no_circles():
    done, path = set(), []

    def visit(module):
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module in done:
            return
        path.append(module)
        for other in sorted(imports(module)):
            visit(other)
        done.add(path.pop())

    for module in sorted(set(MODULES) - {"fedjax_drag"}):
        visit(module)


FOLDERS = sorted({path.parent for path in FILES})


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.relative_to(ROOT).as_posix())
def test_a_folder_says_what_it_holds_and_is_not_full(folder):
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
    assert docstring, "the first lines of __init__.py say what is inside"
    if folder.name not in SHELVES:
        assert len(list(folder.glob("*.py"))) <= MOST_FILES
