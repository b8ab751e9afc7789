"""What tests of data from files share."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "formats"))  # whose files the tests of data sets write too


@pytest.fixture
def real():
    """Calls a loader of published files, and skips the test where they are not on this machine."""

    def load(loader, *arguments):
        try:
            return loader(*arguments)
        except FileNotFoundError as error:
            pytest.skip(str(error))

    return load
