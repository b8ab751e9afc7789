"""The tables told from the code, where they are written down."""

from pathlib import Path

import pytest

from fedjax_drag import aggregators
from fedjax_drag.experiment import build, catalog

RULES = Path(__file__).parents[2] / "docs" / "rules.md"


def test_every_rule_has_a_name_in_configurations():
    assert set(build.AGGREGATORS) == set(aggregators.__all__)


def test_the_table_of_rules_in_the_documentation_is_current():
    """Written anew by ``fedjax-drag list aggregators --markdown``."""
    assert RULES.read_text().endswith("\n\n" + catalog.table("aggregators") + "\n")


def test_every_rule_states_its_facts_in_a_line():
    for line in catalog.table("aggregators").splitlines()[2:]:
        _, name, _, paper, breakdown, cost, _ = (cell.strip() for cell in line.replace("\\|", "/").split("|"))
        assert paper, name
        assert breakdown, name
        assert cost, name
        assert len(breakdown) < 130, name
        assert len(cost) < 130, name


@pytest.mark.parametrize("kind", catalog.KINDS)
def test_every_kind_can_be_listed_both_ways(kind):
    described, table = catalog.describe(kind), catalog.table(kind)
    for name in build.TABLES[catalog.KINDS[kind]]:
        assert f"{name}(" in described
        assert f"`{name}`" in table
