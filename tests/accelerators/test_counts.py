"""Counts of compiled programs, on texts as the compilers for GPUs and TPUs write them."""

import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from fedjax_drag.accelerators import counts, targets
from fedjax_drag.accelerators.counts import Collective
from fedjax_drag.accelerators.hlo import num_bytes, parse

GPU = Path(__file__).with_name("gpu.hlo").read_text()
TPU = Path(__file__).with_name("tpu.hlo").read_text()
PRODUCTS = Path(__file__).with_name("products.hlo").read_text()


def test_work_of_a_program_for_a_gpu():
    work = counts.work_of(GPU)
    row = 8 * 4
    gathered = 4 * row + 4 + 4 * row  # of the data only the slice, the index, the result
    updated = row + 4 + row  # one row of the message, the index, one row of the table
    counter = 4 + 4 + 4  # the addition of a constant
    product = 2 * 1000 * row + 5 * row + 64
    exchanged = (5 + 5) * row + (5 + 20) * row
    assert work.bytes == 5 * (gathered + updated + counter) + product + 4 + 4 + exchanged + 2 * row
    expected = {"fusion": 10, "add": 5, "copy": 1, "__cublas$gemm": 1, "all-reduce": 1, "all-gather": 1, "slice": 1}
    assert work.kernels == Counter(expected)
    assert work.num_kernels == 20
    assert work.collectives == {"all-gather": Collective(1, 20 * row), "all-reduce": Collective(1, 5 * row)}
    assert work.open_loops == 0


def test_work_of_a_program_for_a_tpu():
    work = counts.work_of(TPU)
    padded = 16 * 256 * 4  # [10, 200] in tiles of 8 x 128
    assert work.open_loops == 1  # over rounds, whose number is an input
    assert work.bytes == padded + 7 * 2 * padded  # into the chip once; 9 - 2 trips that read and write
    assert work.kernels == Counter({"fusion": 7, "copy": 1})
    assert work.collectives == {}


def test_a_loop_whose_counter_is_unknown_counts_once():
    text = TPU.replace("%constant.5 = s32[]{:T(128)} constant(9)", "%constant.5 = s32[]{:T(128)} negate(%stop)")
    assert counts.work_of(text).open_loops == 2
    assert counts.work_of(text).kernels["fusion"] == 1


def test_a_caller_may_know_the_length_of_a_loop():
    named = TPU.replace("body=%outer_body", 'body=%outer_body, metadata={op_name="jit(f)/vmap(rounds)/while" id=3}')
    assert counts.work_of(named, {"rounds": 3}).kernels["fusion"] == 3 * 7
    assert counts.work_of(named, {"rounds": 3}).open_loops == 0
    assert counts.work_of(named, {"steps": 3}).open_loops == 1


ALTERNATIVES = """HloModule alternatives

%cheap (x: f32[10]) -> f32[10] {
  %x = f32[10]{0} parameter(0)
  ROOT %out = f32[10]{0} negate(%x)
}

%dear (y: f32[10]) -> f32[10] {
  %y = f32[10]{0} parameter(0)
  %inner = f32[10]{0} negate(%y)
  ROOT %result = f32[10]{0} abs(%inner)
}

ENTRY %main (which: s32[], z: f32[10]) -> f32[10] {
  %which = s32[] parameter(0)
  %z = f32[10]{0} parameter(1)
  ROOT %chosen = f32[10]{0} conditional(%which, %z, %z), branch_computations={%cheap, %dear}
}
"""


def test_of_alternatives_the_one_that_moves_most_counts_or_least():
    assert counts.work_of(ALTERNATIVES).bytes == 2 * 80
    assert counts.work_of(ALTERNATIVES, least=True).bytes == 80
    assert counts.work_of(ALTERNATIVES, least=True).kernels == Counter({"negate": 1})


def test_a_kernel_takes_the_longest_of_its_limits():
    work, chip = counts.work_of(GPU), targets.GPUS["h100"]
    launched = 20 * targets.GPU_SECONDS_PER_KERNEL
    assert work.limits(chip) == {"memory": 0, "products": 0, "launches": pytest.approx(launched)}
    slow = dataclasses.replace(chip, bandwidth=1e3)
    assert work.seconds(slow) == pytest.approx(work.bytes / 1e3 / targets.REACHED["memory"])
    slow = dataclasses.replace(chip, products={"highest": 1e3})
    (product,) = (kernel for kernel in counts.work_of(PRODUCTS).each if kernel.precision == "highest")
    assert max(product.limits(slow).values()) == product.limits(slow)["products"]
    assert product.limits(slow)["products"] == pytest.approx(product.operations / 650)


def test_operations_of_products_and_convolutions():
    work = counts.work_of(PRODUCTS)
    found = {(kernel.kind, kernel.operations, kernel.precision) for kernel in work.each}
    one = 2 * (2 * 7 * 7 * 12) * (3 * 3 * 2)  # outputs, and products for each
    product = 2 * 4 * 8 * 32 * 16
    products = {("fusion", product, "highest"), ("__cublas$gemm", product, "default")}
    gradients = {(f"__cudnn$convBackward{of}", one, "bfloat16") for of in ("Input", "Filter")}
    assert found == {("convolution", one, "bfloat16"), ("convolution", one, "grouped"), *gradients, *products}
    assert work.operations == 4 * one + 2 * product
    chip = targets.GPUS["h100"]
    assert chip.reached_products("default") == pytest.approx(0.65 * 4.95e14)
    assert chip.reached_products("grouped") == pytest.approx(0.18 * 0.65 * 6.7e13)
    assert targets.TPUS["v5e"].reached_products("highest") == pytest.approx(0.65 * 1.97e14 / 6)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("f32[]", 4),
        ("pred[3]{0}", 3),
        ("bf16[3,5]{1,0}", 30),
        ("s4[3]{0}", 2),
        ("f8e4m3fn[10]{0}", 10),
        ("(f32[2]{0}, (s32[], u8[3]{0}))", 15),
        ("f32[10,200]{1,0:T(8,128)}", 16 * 256 * 4),
        ("f32[10,200]{0,1:T(8,128)}", 200 * 128 * 4),
        ("bf16[10,200]{1,0:T(8,128)(2,1)}", 16 * 256 * 2),
        ("f32[7,10,200]{2,1,0:T(8,128)}", 7 * 16 * 256 * 4),
        ("f32[100]{0:T(128)}", 128 * 4),
        ("f32[100]{0:T(128)S(1)}", 0),
        ("f32[]{:T(128)}", 4),
        ("token[]", 0),
    ],
)
def test_bytes_of_a_shape(shape, expected):
    assert num_bytes(shape) == expected


def test_other_text_is_refused():
    with pytest.raises(ValueError, match="text: is not that of a compiled program"):
        parse("module @jit_f {}")


def test_memory_at_its_peak():
    assert counts.Memory(arguments=10, output=5, aliased=4, temporary=100).peak == 111
