"""What tests of data from files share."""

import pytest


@pytest.fixture(scope="session")
def cache_of_tests(tmp_path_factory):
    """Decoded arrays of all these tests; the user's own are left alone."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_cache(cache_of_tests, monkeypatch):
    monkeypatch.setenv("FEDJAX_DRAG_CACHE", str(cache_of_tests))


@pytest.fixture
def real():
    """Calls a loader of published files, and skips the test where they are not on this machine."""

    def load(loader, *arguments):
        try:
            return loader(*arguments)
        except FileNotFoundError as error:
            pytest.skip(str(error))

    return load
