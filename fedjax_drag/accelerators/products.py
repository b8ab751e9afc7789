"""Floating point operations of the matrix products and convolutions in a compiled program."""

import math
import re

from fedjax_drag.accelerators.hlo import Computation, Instruction, Module

GROUPED = "grouped"
"""The precision that stands for convolutions with groups, whose rate does not depend on their precision."""

_SIZES = re.compile(r"\[([\d,<=]*)\]")
_CONTRACTED = re.compile(r'lhs_contracting_dim(?:s=\{|ensions":\[)([\d,"]*)')  # of XLA's product, and of cuBLAS's


def operations(one: Instruction, within: Computation, module: Module) -> tuple[int, str]:
    """What a kernel multiplies and adds: two operations for each product of two numbers.

    Args:
      one: the instruction; of a fusion, the products inside count.
      within: the computation of which it is part.
      module: the program.

    Returns:
      The number of operations, and the precision of most of them: ``"bfloat16"`` (or another dtype of 16 bits); of
      float32 what the program asks for, ``"default"``, ``"high"`` or ``"highest"``; or :data:`GROUPED`.
    """
    if one.opcode == "fusion":
        inside = module.computations[one.called[0]]
        parts = [operations(inner, inside, module) for inner in inside.instructions.values()]
        return sum(number for number, _ in parts), max(parts, default=(0, "default"))[1]
    if one.opcode == "dot" or "__cublas$" in one.rest:
        left = _sizes(within.instructions[one.operands[0]].shape)
        contracted = _CONTRACTED.search(one.rest)
        axes = re.findall(r"\d+", contracted[1]) if contracted else ()
        length = math.prod(left[int(axis)] for axis in axes)
        return 2 * math.prod(_sizes(one.shape)) * length, _precision(one, within)
    if one.opcode == "convolution" or "__cudnn$conv" in one.rest:
        return _of_convolution(one, within)
    return 0, "default"


def _of_convolution(one: Instruction, within: Computation) -> tuple[int, str]:
    """Of an output as many products as a kernel has numbers for it, without those that meet zeros between inputs.

    A TPU computes a batch of products as such a convolution: the batch is an axis of the image, with zeros between.
    """
    labels = re.search(r"dim_labels=\w+_(\w+)->", one.rest)
    left, right = (_sizes(within.instructions[name].shape) for name in one.operands[:2])
    outputs, kernel = _sizes(one.shape), right
    if "convBackwardInput" in one.rest:  # cuDNN's gradients have the labels of the convolution
        outputs = left
    elif "convBackwardFilter" in one.rest:
        outputs, kernel = right, outputs
    if labels is None or len(kernel) != len(labels[1]):
        return 0, "default"
    number = 2 * math.prod(outputs) * math.prod(kernel) // max(1, kernel[labels[1].index("o")])
    dilation = re.search(r"lhs_dilate=([\dx]+)", one.rest)
    number //= math.prod(map(int, dilation[1].split("x"))) if dilation else 1
    groups = re.search(r"(?:feature|batch)_group_count=(\d+)", one.rest)
    return number, GROUPED if groups and int(groups[1]) > 1 else _precision(one, within)


def _precision(one: Instruction, within: Computation) -> str:
    """The precision of a product, by its operands and by what the program asks for."""
    dtype = within.instructions[one.operands[0]].shape.partition("[")[0].lstrip("(")
    if dtype not in ("f32", "f64"):
        return "bfloat16"
    asked = re.search(r'operand_precision(?:=\{|":\["?)(\w+)', one.rest)
    return asked[1].lower() if asked else "default"


def _sizes(shape: str) -> list[int]:
    """Of the first array of a shape."""
    found = _SIZES.search(shape)
    return [int(size) for size in re.findall(r"\d+", found[1])] if found else []
