"""Mistakes in Python: an error of one line that names the argument and says what to do instead."""

from pathlib import Path

import pytest
from mistakes import MISTAKES, made, page

PAGE = Path(__file__).parents[1] / "docs" / "mistakes.md"


@pytest.mark.parametrize("mistake", MISTAKES, ids=[mistake.title.replace(" ", "_") for mistake in MISTAKES])
def test_a_mistake_is_told_in_one_line(mistake):
    error = made(mistake)
    message = str(error)
    assert isinstance(error, mistake.kind), message
    assert len(message.splitlines()) == 1
    assert mistake.argument in message
    assert mistake.remedy in message
    assert len(message) < 400


def test_the_page_is_made_from_the_code():
    """Written anew by ``python tests/mistakes.py > docs/mistakes.md``."""
    assert PAGE.read_text(encoding="utf-8") == page()
