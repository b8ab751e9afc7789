"""What a compiled program does on its device: bytes, products, kernels, collectives, and the memory that it takes.

The figures come from the program's text and are the same in every compilation. Bytes are those between a device and its
main memory: what each kernel reads and writes, of slices and gathers the part that they take. A loop counts as often as
it is run where the program says how often, and once where that depends on its input, as the loop over rounds does,
unless the caller knows its length.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from fedjax_drag.accelerators.hlo import Computation, Instruction, Module, is_scalar, num_bytes, parse
from fedjax_drag.accelerators.products import operations
from fedjax_drag.accelerators.targets import Chip
from fedjax_drag.accelerators.trips import Environment, trips

COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter", "ragged-all-to-all")
"""Operations in which devices exchange arrays."""

LIMITS = ("memory", "products", "launches")
"""What the time of a kernel may depend on: its bytes, its floating point operations, or that it is started at all."""

_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id",
    "add-dependency", "optimization-barrier", "domain",
}  # fmt: skip
_SLICING = ("dynamic-slice", "slice", "gather")
_ALIASES = ("bitcast", "reshape", "copy")


class Memory(NamedTuple):
    """Bytes that a program takes on each device.

    Attributes:
      arguments: what it is given.
      output: what it returns.
      aliased: the part of the output that is written over arguments.
      temporary: what it uses while it runs.
    """

    arguments: int
    output: int
    aliased: int
    temporary: int

    @property
    def peak(self) -> int:
        """All of it at once."""
        return self.arguments + self.output - self.aliased + self.temporary


class Collective(NamedTuple):
    """How often devices exchange arrays in one way, and the bytes that each of them sends or receives for it."""

    times: int
    bytes: int


class Kernel(NamedTuple):
    """One kernel.

    Attributes:
      kind: its operation, or what a custom call names.
      bytes: moved between the device and its memory.
      operations: of the matrix products and convolutions in it.
      precision: of these (:func:`~fedjax_drag.accelerators.products.operations`).
      exchanges: what devices exchange in it: of each collective its kind, and the bytes that a device sends or
        receives.
    """

    kind: str
    bytes: int
    operations: int = 0
    precision: str = "default"
    exchanges: tuple[tuple[str, int], ...] = ()

    def limits(self, chip: Chip) -> dict[str, float]:
        """Seconds by what may limit it, of :data:`LIMITS`."""
        products = self.operations / chip.reached_products(self.precision) if self.operations else 0.0
        return dict(zip(LIMITS, (self.bytes / chip.reached_bandwidth, products, chip.seconds_per_kernel), strict=True))


class Work(NamedTuple):
    """What a program does.

    Attributes:
      each: its kernels, and how often each is run.
      open_loops: loops whose length the text does not tell; each is counted once.
    """

    each: Counter[Kernel]
    open_loops: int

    @property
    def collectives(self) -> dict[str, Collective]:
        """Exchanges between devices, by what they are."""
        number, sent = Counter[str](), Counter[str]()
        for kernel, times in self.each.items():
            for kind, size in kernel.exchanges:
                number[kind] += times
                sent[kind] += times * size
        return {kind: Collective(number[kind], sent[kind]) for kind in sorted(number)}

    @property
    def bytes(self) -> int:
        """Moved between the device and its memory."""
        return sum(times * kernel.bytes for kernel, times in self.each.items())

    @property
    def operations(self) -> int:
        """Floating point operations of matrix products and convolutions."""
        return sum(times * kernel.operations for kernel, times in self.each.items())

    @property
    def kernels(self) -> Counter[str]:
        """How many kernels there are, by what they are."""
        kinds = Counter[str]()
        for kernel, times in self.each.items():
            kinds[kernel.kind] += times
        return kinds

    @property
    def num_kernels(self) -> int:
        """How many kernels there are."""
        return self.each.total()

    def beside(self, other: "Work") -> "Work":
        """What is done beside the work of another program, a part of this one."""
        return Work(self.each - other.each, self.open_loops - other.open_loops)

    def limits(self, chip: Chip) -> dict[str, float]:
        """Seconds of its kernels by what limits each, of :data:`LIMITS`."""
        seconds: dict[str, float] = dict.fromkeys(LIMITS, 0.0)
        for kernel, times in self.each.items():
            of_kernel = kernel.limits(chip)
            limit = max(of_kernel, key=lambda name: of_kernel[name])
            seconds[limit] += times * of_kernel[limit]
        return seconds

    def seconds(self, chip: Chip) -> float:
        """About how long it takes: of each kernel the longest of its limits."""
        return sum(self.limits(chip).values())


def total(parts: Iterable[tuple[int, Work]]) -> Work:
    """What several programs do, each run so many times; their open loops count once."""
    each, open_loops = Counter[Kernel](), 0
    for times, work in parts:
        if times:
            open_loops += work.open_loops
            for kernel, number in work.each.items():
                each[kernel] += times * number
    return Work(each, open_loops)


def work_of(text: str, lengths: Mapping[str, int] | None = None, least: bool = False) -> Work:
    """What a compiled program does.

    Args:
      text: of the program, ``compiled.as_text()``.
      lengths: trips of loops whose length depends on the input, by the ``jax.named_scope`` that they are in.
      least: of alternatives between which the input decides, count the one that moves least; default most.

    Raises:
      ValueError: the text is not a compiled program's.
    """
    module = parse(text)
    return _Reader(module, lengths or {}, least).work(module.entry, {})


def memory_of(compiled: Any) -> Memory:
    """The memory of a compiled program."""
    sizes = compiled.memory_analysis()
    return Memory(
        sizes.argument_size_in_bytes,
        sizes.output_size_in_bytes,
        sizes.alias_size_in_bytes,
        sizes.temp_size_in_bytes,
    )


class _Reader(NamedTuple):
    """What :func:`work_of` is given."""

    module: Module
    lengths: Mapping[str, int]
    least: bool

    def work(self, name: str, environment: Environment) -> Work:
        """What a computation does; ``environment`` has the constants among its parameters."""
        computation = self.module.computations[name]
        ran = (self._parts(one, computation, environment) for one in computation.instructions.values())
        return total(itertools.chain.from_iterable(ran))

    def _parts(self, one: Instruction, within: Computation, environment: Environment) -> Iterator[tuple[int, Work]]:
        """What an instruction does, and how often."""
        if one.opcode == "while":
            number, inner = trips(self.module, one, within, environment)
            number = self._told(one) if number is None else number
            body = one.attribute("body")
            assert body is not None
            turn = self.work(body, inner)
            yield (1, turn._replace(open_loops=turn.open_loops + 1)) if number is None else (number, turn)
        elif one.opcode == "conditional":
            alternatives = [self.work(name, {}) for name in one.called]
            yield 1, (min if self.least else max)(alternatives, key=lambda work: work.bytes)
        elif one.opcode in ("call", "async-start"):
            yield from ((1, self.work(name, {})) for name in one.called)
        elif not self._is_free(one):
            products, exchanges = operations(one, within, self.module), tuple(self._exchanges(one, within))
            yield 1, Work(Counter([Kernel(_kind(one), self._moved(one, within), *products, exchanges)]), 0)

    def _told(self, loop: Instruction) -> int | None:
        """Trips of a loop that the caller knows."""
        scopes = re.search(r'op_name="([^"]*)/while"', loop.rest)
        innermost = scopes[1].rpartition("/")[2] if scopes else ""
        return next((length for name, length in self.lengths.items() if name in innermost), None)

    def _is_free(self, one: Instruction) -> bool:
        """Whether no kernel does it: on a TPU the scalar unit computes single numbers, beside the kernels."""
        if one.opcode in _FREE or one.opcode.endswith("-done") or 'custom_call_target="AllocateBuffer"' in one.rest:
            return True
        is_simple = one.opcode.removesuffix("-start") not in (*COLLECTIVES, "fusion", "custom-call", "reduce")
        return self.module.of_tpu and is_simple and is_scalar(one.shape)

    def _exchanges(self, one: Instruction, within: Computation) -> Iterator[tuple[str, int]]:
        """The collective of an instruction, or those inside a fusion: what it is, and its bytes."""
        kind = one.opcode.removesuffix("-start")
        if kind in COLLECTIVES:
            taken = sum(num_bytes(_unspaced(within.instructions[name].shape)) for name in one.operands)
            given = num_bytes(_unspaced(one.shape))
            if one.opcode in ("all-gather-start", "collective-permute-start", "all-to-all-start"):
                given -= taken  # the result of a start names its operands too
            yield kind, max(taken, given)
        if one.opcode == "fusion":
            for fused in map(self.module.computations.__getitem__, one.called):
                for inner in fused.instructions.values():
                    yield from self._exchanges(inner, fused)

    def _moved(self, one: Instruction, within: Computation) -> int:
        """Bytes that a kernel reads and writes."""
        if one.opcode == "fusion":
            fused = self.module.computations[one.called[0]]
            reads = sum(self._read(fused, number) for number in range(len(one.operands)))
            return reads + self._written(fused, fused.root)
        operands = [num_bytes(within.instructions[name].shape) for name in one.operands]
        if one.opcode in _SLICING:
            return 2 * num_bytes(one.shape) + sum(operands[1:])
        if one.opcode == "dynamic-update-slice":
            return 2 * operands[1]
        if one.opcode == "copy-start":  # its result names its operand too
            return num_bytes(one.shape)
        if one.opcode.removesuffix("-start") in COLLECTIVES:
            return sum(operands) + max(sum(operands), num_bytes(one.shape) - sum(operands))
        return num_bytes(one.shape) + sum(operands)

    def _read(self, fused: Computation, number: int) -> int:
        """Bytes that a fused kernel reads of its operand."""
        parameter = fused.parameters[number]
        return min(num_bytes(parameter.shape), self._taken(fused, parameter))

    def _taken(self, fused: Computation, array: Instruction) -> int:
        """Bytes of an array that its users inside a kernel take."""
        if not num_bytes(array.shape):
            return 0
        total = 0
        for user in fused.users(array.name):
            if user.opcode in _SLICING and user.operands[0] == array.name:
                total += num_bytes(_unspaced(user.shape))
            elif user.opcode == "dynamic-update-slice" and user.operands[0] == array.name:
                continue  # written in place
            elif user.opcode in _ALIASES:
                total += self._taken(fused, user)
            elif user.opcode == "fusion":
                inner = self.module.computations[user.called[0]]
                places = [place for place, name in enumerate(user.operands) if name == array.name]
                total += sum(self._taken(inner, inner.parameters[place]) for place in places)
            elif user.opcode != "tuple" or user is not fused.root:
                return num_bytes(array.shape)
        return total

    def _written(self, fused: Computation, result: Instruction) -> int:
        """Bytes that a fused kernel writes for its result."""
        if result.opcode == "tuple":
            return sum(self._written(fused, fused.instructions[name]) for name in result.operands)
        if result.opcode == "parameter":  # returned as it is
            return 0
        source = result
        while source.opcode in _ALIASES:
            source = fused.instructions[source.operands[0]]
        if source.opcode == "dynamic-update-slice" and _is_parameter(fused, source.operands[0]):
            update = num_bytes(_unspaced(fused.instructions[source.operands[1]].shape))
            return min(num_bytes(result.shape), update)
        return num_bytes(result.shape)


def _is_parameter(fused: Computation, name: str) -> bool:
    """Whether an array inside a kernel is one of its operands, so that it can be written in place."""
    while fused.instructions[name].opcode in _ALIASES:
        name = fused.instructions[name].operands[0]
    return fused.instructions[name].opcode == "parameter"


def _unspaced(shape: str) -> str:
    """A shape without the memory space, for what is counted wherever it lies."""
    return re.sub(r"S\(\d+\)", "", shape)


def _kind(one: Instruction) -> str:
    """What a kernel is: its operation, or what a custom call names."""
    if one.opcode == "custom-call":
        target = re.search(r'custom_call_target="([^"]*)"', one.rest)
        return target[1] if target else one.opcode
    return one.opcode.removesuffix("-start")
