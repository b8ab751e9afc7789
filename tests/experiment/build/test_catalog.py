"""The tables told from the code, where they are written down."""

import re
from pathlib import Path

import pytest

from fedjax_drag import aggregators, attacks
from fedjax_drag.experiment.build import catalog, registry

DOCS = Path(__file__).parents[3] / "docs"


def test_every_rule_and_attack_has_a_name_in_configurations():
    assert set(registry.TABLES["aggregator"]) == set(aggregators.__all__)
    assert set(registry.TABLES["attack"]) == set(attacks.__all__)


@pytest.mark.parametrize(("kind", "page"), [("aggregators", "rules.md"), ("attacks", "attacks.md")])
def test_tables_in_the_documentation_are_current(kind, page):
    """Written anew by ``fedjax-drag list aggregators --markdown`` and the same for attacks."""
    assert (DOCS / page).read_text().endswith("\n\n" + catalog.table(kind) + "\n")


def test_every_attack_says_what_it_knows():
    for line in catalog.table("attacks").splitlines()[2:]:
        _, name, _, paper, knows, _ = (cell.strip() for cell in line.replace("\\|", "/").split("|"))
        assert paper, name
        assert knows, name


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
    assert not re.search(r":\w+:`|``", described)
    for name in registry.TABLES[catalog.KINDS[kind]]:
        assert f"{name}(" in described
        assert f"`{name}`" in table
