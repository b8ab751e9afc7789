"""How often a loop of a compiled program is run.

The compiler for GPUs writes it down. For a TPU it follows from the loop's condition, ``i < n``, where ``i`` starts at a
constant and grows by one, and ``n`` is a constant there, or was given to the loop as one.
"""

import re

from fedjax_drag.accelerators.hlo import Computation, Instruction, Module

Environment = dict[int, int]
"""Of a computation whose parameter is a tuple, the entries that are known integers."""

_COPIES = ("copy", "bitcast", "convert", "reshape", "copy-done", "copy-start")


def trips(
    module: Module, loop: Instruction, within: Computation, environment: Environment
) -> tuple[int | None, Environment]:
    """The number of trips of a loop, None where it depends on the input; and the environment of its body.

    Args:
      module: the program.
      loop: a ``while``.
      within: the computation of which it is part.
      environment: of that computation.
    """
    start = _source(within, loop.operands[0])
    names = start.operands if start.opcode == "tuple" else ()
    values = {place: _integer(within, name, environment) for place, name in enumerate(names)}
    known = {place: value for place, value in values.items() if value is not None}
    body, condition = (module.computations[loop.attribute(key) or ""] for key in ("body", "condition"))
    constant = {place: value for place, value in known.items() if _place(_result(body, place)) == place}
    told = re.search(r'known_trip_count"?:\{"?n"?:"?(\d+)', loop.rest)
    if told:
        return int(told[1]), constant
    counter, bound = _compared(module, condition, constant)
    if counter is None or bound is None or counter not in known or not _adds_one(body, counter, constant):
        return None, constant
    return max(0, bound - known[counter]), constant


def _compared(module: Module, condition: Computation, environment: Environment) -> tuple[int | None, int | None]:
    """Of a condition ``i < n``, the place of ``i`` in the loop's tuple and the value of ``n``; None where unknown."""
    test, scope = condition.root, condition
    if test.opcode == "fusion":
        scope = module.computations[test.called[0]]
        test = scope.root
    if test.opcode != "compare" or "direction=LT" not in test.rest:
        return None, None

    def outside(name: str) -> tuple[Computation, str]:
        one = _source(scope, name)
        if one.opcode == "parameter" and scope is not condition:
            return condition, condition.root.operands[int(one.rest.partition(")")[0])]
        return scope, name

    counter, bound = (outside(name) for name in test.operands)
    return _place(_source(*counter)), _integer(*bound, environment)


def _adds_one(body: Computation, place: int, environment: Environment) -> bool:
    """Whether a trip adds one to an entry of the loop's tuple."""
    one = _result(body, place)
    if one.opcode != "add":
        return False
    places = [_place(_source(body, name)) for name in one.operands]
    return place in places and _integer(body, one.operands[1 - places.index(place)], environment) == 1


def _result(body: Computation, place: int) -> Instruction:
    """What a body returns as an entry of the loop's tuple; the tuple itself where it is not taken apart."""
    known = body.root.opcode == "tuple" and place < len(body.root.operands)
    return _source(body, body.root.operands[place]) if known else body.root


def _integer(within: Computation, name: str, environment: Environment) -> int | None:
    """The value of an integer that a computation knows."""
    one = _source(within, name)
    place = _place(one)
    if place is not None:
        return environment.get(place) if within.instructions[one.operands[0]].opcode == "parameter" else None
    value = one.rest.partition(")")[0]
    return int(value) if one.opcode == "constant" and re.fullmatch(r"-?\d+", value) else None


def _source(within: Computation, name: str) -> Instruction:
    """An instruction, or what it is a copy of."""
    one = within.instructions[name]
    while one.opcode in _COPIES:
        one = within.instructions[one.operands[0]]
    return one


def _place(one: Instruction) -> int | None:
    """Which entry of a tuple it is."""
    found = re.search(r"index=(\d+)", one.rest) if one.opcode == "get-tuple-element" else None
    return int(found[1]) if found else None
