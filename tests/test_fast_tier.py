"""The fast tier leaves nothing out: every builder, reader, file format and command has a test there that names it.

What a test names are its parameters and the words of its code, down through the helpers of its file. That says that
there is such a test, not how much it checks.
"""

import functools
import importlib
import inspect
import pkgutil
import re
import types
from fnmatch import fnmatch
from pathlib import Path

import pytest
import typer

from fedjax_drag.cli.app import app
from fedjax_drag.data import formats, sets
from fedjax_drag.experiment.build import registry

TESTS = Path(__file__).parent
WORD = re.compile(r"\w+")
PLACES = {
    "data": ("data",),
    "partition": ("data",),
    "model": ("models",),
    "algorithm": ("contracts",),
    "aggregator": ("contracts",),
    "client": ("contracts", "clients", "algorithms"),
    "privacy": ("privacy",),
    "root_client": ("contracts", "clients", "algorithms"),
    "local_optimizer": ("simulation",),
    "loss": ("simulation", "metrics"),
    "metrics": ("simulation", "metrics"),
    "augmentation": ("simulation",),
    "attack": ("attacks",),
    "compression": ("compression",),
    "downlink_compression": ("compression",),
    "selection": ("selection",),
    "clock": ("clocks",),
    "graph": ("graphs",),
    "mixing": ("graphs",),
    "optimizer": ("reference", "experiment"),
    "schedule": ("experiment",),
}
"""Folders of tests in which what a table holds must be named."""


@pytest.fixture(scope="module")
def fast(request):
    """The tests of the fast tier, with what each names."""
    items = [item for item in request.session.items if not (set(marks(item)) & {"slow", "thorough"})]
    collected = {part for item in items for part in item.path.parts}
    if not collected.issuperset(sum(PLACES.values(), ())):
        pytest.skip("part of the tests is collected: run pytest without paths")
    return [(item, named(item)) for item in items]


def marks(item):
    return [mark.name for mark in item.iter_markers()]


def named(item):
    """The words of a test's parameters and of its code."""
    parameters = getattr(item, "callspec", None)
    told = f"{parameters.id} {parameters.params!r}" if parameters else ""
    return {*WORD.findall(told), *words(item.function, vars(item.module), set())}


def words(function, module, seen):
    """The words in the text of a function, and of the functions of its file that it calls; not of its decorators."""
    if function in seen:
        return set()
    seen.add(function)
    text = source(function)
    found = set(WORD.findall(text[max(0, text.find("def ")) :]))
    for name in found.copy():
        inner = getattr(module.get(name), "__wrapped__", module.get(name))
        if inspect.isfunction(inner) and inner.__module__ == module["__name__"]:
            found |= words(inner, module, seen)
    return found


@functools.cache
def source(function):
    return inspect.getsource(function)


@pytest.mark.parametrize("table", registry.TABLES)
def test_every_builder(fast, table):
    there = set().union(*(names for item, names in fast if set(PLACES[table]) & set(item.path.parts)))
    assert set(registry.TABLES[table]) - there == set()


@pytest.mark.parametrize("package", [sets, formats], ids=lambda package: package.__name__)
def test_every_reader_and_file_format(fast, package):
    modules = {module for item, _ in fast for module in origins(item.module) if "data" in item.path.parts}
    for entry in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        assert importlib.import_module(entry.name).__name__ in modules


def test_no_folder_of_tests_is_passed_over(request):
    """As pytest's own list of folders to leave out would do with ``build``."""
    folders = {folder for file in TESTS.rglob("test_*.py") for folder in file.relative_to(TESTS).parts}
    patterns = request.config.getini("norecursedirs")
    assert [folder for folder in folders if any(fnmatch(folder, pattern) for pattern in patterns)] == []


def origins(module):
    """Where what a file of tests imports was defined."""
    for value in vars(module).values():
        yield value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)


def commands(group, *path):
    """The words of each command line, subcommands included."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *path, name)
        else:
            yield (*path, name)


@pytest.mark.parametrize("line", list(commands(typer.main.get_command(app))), ids=" ".join)
def test_every_command(fast, line):
    assert any(set(line) <= names for item, names in fast if "command" in item.fixturenames)
