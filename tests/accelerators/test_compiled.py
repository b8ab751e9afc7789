"""Every rule, model and two-sided method compiles for accelerators and does no more there than it did."""

import compiled_programs
import pytest
from compiled_programs import PROGRAMS, SHARED, TARGETS, exchanges, measure, stored

from fedjax_drag.accelerators.targets import MissingCompilerError

STORED = stored()
MARGINS = {"passes": (1.05, 0.05), "kernels": (1.1, 3), "temporary": (1.05, 0.1)}
"""By how much a figure may grow, as a factor and in its unit: compilers of other versions differ by a little."""
AGAIN = "; if it must be so, write the figures anew by python tests/compiled_programs.py and this name"
SUMS = ["fedavg", "fedexp", "norm_clipping", "drag", "br_drag"]


def test_figures_are_stored_of_all_programs_that_exist():
    assert set(STORED["programs"]) == set(PROGRAMS), "python tests/compiled_programs.py --missing"
    assert set(STORED["exchanges"]) <= set(SHARED)


@pytest.mark.parametrize(("kind", "wanted"), [("programs", TARGETS), ("exchanges", compiled_programs.MESHES)])
def test_figures_are_stored_for_every_target(kind, wanted):
    assert {name for name, figures in STORED[kind].items() if set(figures) != set(wanted)} == set()


def test_the_page_has_the_stored_figures():
    page = compiled_programs.PAGE.read_text()
    assert all(table in page for table in compiled_programs.tables(STORED).values())


@pytest.mark.parametrize("name", SUMS)
def test_rules_of_sums_gather_no_deltas(name):
    """Of the stored figures: a device sends and receives no more than some vectors of 1.66 million parameters."""
    for made in STORED["exchanges"][name].values():
        assert set(made) == {"all-reduce"}
        assert made["all-reduce"][1] < 3 * 4 * 1_663_370


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize("label", PROGRAMS)
@pytest.mark.parametrize("target", TARGETS)
def test_a_program_does_no_more_than_it_did(label, target):
    try:
        figures = measure(label, target)
    except MissingCompilerError as error:
        pytest.skip(str(error))
    before = STORED["programs"].get(label, {}).get(target)
    assert before, f"{label} on {target} compiles, but its figures {figures} are not stored{AGAIN}"
    for kind, figure in figures.items():
        factor, more = MARGINS[kind]
        allowed = factor * before[kind] + more
        assert figure <= allowed, f"{label} on {target}: {figure} {kind} instead of {before[kind]}{AGAIN}"


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("target", compiled_programs.MESHES)
def test_devices_exchange_no_more_than_they_did(name, target):
    try:
        made = exchanges(name, target)
    except MissingCompilerError as error:
        pytest.skip(str(error))
    before = STORED["exchanges"].get(name, {}).get(target)
    assert before, f"{name} on {target} exchanges {made}, which is not stored{AGAIN}"
    for kind, (_, size) in made.items():
        assert size <= 1.05 * before.get(kind, (0, 0))[1] + 10_000, f"{name} on {target}: {size} bytes by {kind}{AGAIN}"
