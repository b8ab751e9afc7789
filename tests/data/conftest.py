"""What tests of data from files share."""

import pytest


@pytest.fixture
def real():
    """Calls a loader of published files, and skips the test where they are not on this machine."""

    def load(loader, *arguments):
        try:
            return loader(*arguments)
        except FileNotFoundError as error:
            pytest.skip(str(error))

    return load
