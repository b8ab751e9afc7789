"""The pages of the documentation are all in its navigation, and speak of every rule and method."""

import re
from pathlib import Path

import pytest

from fedjax_drag import aggregators, algorithms

DOCS = Path(__file__).parents[1] / "docs"


def test_every_page_is_in_the_navigation():
    navigation = (DOCS / "mkdocs" / "mkdocs.yml").read_text().partition("\nnav:")[2]
    listed = re.findall(r": (\S+\.md)$", navigation, re.MULTILINE)
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


@pytest.mark.parametrize("module", [aggregators, algorithms], ids=lambda module: module.__name__.split(".")[-1])
def test_every_formula_is_there(module):
    page = (DOCS / "formulas.md").read_text()
    missing = [name for name in module.__all__ if name != "from_aggregator" and not re.search(rf"\b{name}\b", page)]
    assert not missing
