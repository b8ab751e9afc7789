"""Reads the text of a compiled program: computations, instructions, and how many bytes an array takes in memory."""

import dataclasses
import functools
import math
import re
from typing import NamedTuple

_BITS = {"pred": 8, "s4": 4, "u4": 4, "s2": 2, "u2": 2, "c64": 64, "c128": 128, "token": 0, "opaque": 0}

_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_ARRAY = re.compile(r"\b([a-z]+\d*[a-z\d]*)\[([\d,<=]*)\](?:\{([^{}]*)\})?")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)|branch_computations=\{([^}]*)\}"
)


class Instruction(NamedTuple):
    """A line of a program.

    Attributes:
      name: by which others refer to it.
      shape: of its result, as text, with dtype, layout and memory space.
      opcode: what it does.
      operands: names of its arguments.
      rest: the text after the opening parenthesis.
    """

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    rest: str

    def attribute(self, name: str) -> str | None:
        """The name that follows ``name=``; None without one."""
        found = re.search(rf"\b{name}=%?([\w.\-]+)", self.rest)
        return found[1] if found else None

    @property
    def called(self) -> list[str]:
        """Names of the computations that it runs."""
        names = []
        for one, several in _CALLED.findall(self.rest):
            names += [one] if one else re.findall(r"[\w.\-]+", several)
        return names


@dataclasses.dataclass(frozen=True)
class Computation:
    """A function of a program: its instructions by name, in the order in which they run, and the one it returns."""

    instructions: dict[str, Instruction]
    root: Instruction

    @functools.cached_property
    def parameters(self) -> dict[int, Instruction]:
        """Its parameters by number."""
        numbered = (i for i in self.instructions.values() if i.opcode == "parameter")
        return {int(i.rest.partition(")")[0]): i for i in numbered}

    def users(self, name: str) -> list[Instruction]:
        """The instructions that have ``name`` among their operands."""
        return [i for i in self.instructions.values() if name in i.operands]


@dataclasses.dataclass(frozen=True)
class Module:
    """A compiled program: its computations by name, and the name of the one that is run."""

    computations: dict[str, Computation]
    entry: str

    @functools.cached_property
    def of_tpu(self) -> bool:
        """Whether it is compiled for a TPU, where every array lies in tiles."""
        return any(":T(" in i.shape for i in self.computations[self.entry].instructions.values())


def parse(text: str) -> Module:
    """The module of ``compiled.as_text()``.

    Raises:
      ValueError: the text is not a compiled program's.
    """
    computations: dict[str, Computation] = {}
    entry, name, lines, root = "", "", {}, None
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            name, lines, root = head[2], {}, None
            entry = name if head[1] else entry
        elif line.startswith("}") and root is not None:
            computations[name] = Computation(lines, root)
        elif found := _INSTRUCTION.match(line):
            operands = tuple(re.findall(r"%([\w.\-]+)", found[5].partition(")")[0]))
            lines[found[2]] = Instruction(found[2], found[3], found[4], operands, found[5])
            root = lines[found[2]] if found[1] or root is None else root
    if entry not in computations:
        raise ValueError("text: is not that of a compiled program; must be what compiled.as_text() returns")
    return Module(computations, entry)


@functools.lru_cache(maxsize=4096)
def num_bytes(shape: str) -> int:
    """Bytes of an array, or of all arrays of a tuple, in a device's main memory.

    On a TPU arrays lie in tiles, which pad them, and some lie in memories on the chip, which count as nothing: their
    layout has a memory space, such as ``S(1)``, which on a GPU is a part of its main memory.
    """
    return sum(_array_bytes(*array) for array in _ARRAY.findall(shape))


def is_scalar(shape: str) -> bool:
    """Whether a result is one number."""
    arrays = _ARRAY.findall(shape)
    return len(arrays) == 1 and not arrays[0][1]


def _array_bytes(dtype: str, dims: str, layout: str) -> int:
    order, _, placed = layout.partition(":")
    space = re.search(r"S\((\d+)\)", placed)
    if space and ("T(" in placed or space[1] != "1"):
        return 0
    sizes = [int(size.lstrip("<=")) for size in dims.split(",") if size]
    tile = re.match(r"T\(([\d,]+)\)", placed)
    if tile and sizes:
        edges = [int(edge) for edge in tile[1].split(",")]
        major_to_minor = [sizes[int(axis)] for axis in reversed(order.split(","))]
        padded = [1] * (len(edges) - len(sizes)) + major_to_minor
        for place, edge in enumerate(reversed(edges), start=1):
            padded[-place] = -(-padded[-place] // edge) * edge
        sizes = padded
    return -(-math.prod(sizes) * _bits(dtype) // 8)


def _bits(dtype: str) -> int:
    digits = re.match(r"[a-z]+(\d+)", dtype)
    return _BITS[dtype] if dtype in _BITS else int(digits[1]) if digits else 0
