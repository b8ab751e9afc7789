"""What tests of data from files share."""

import pytest


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    """A cache of its own for each test."""
    monkeypatch.setenv("FEDJAX_DRAG_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def real():
    """Calls a loader of published files, and skips the test where they are not on this machine."""

    def load(loader, *arguments, **keywords):
        try:
            return loader(*arguments, **keywords)
        except FileNotFoundError as error:
            pytest.skip(str(error))

    return load
