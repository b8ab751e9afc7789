"""One address of the repository, in every place that names it."""

import re

import pytest

import set_repository


def test_all_places_agree_with_the_metadata():
    name = set_repository.name_of(set_repository.address())
    for path in set_repository.places():
        text = path.read_text(encoding="utf-8")
        found = re.findall(r"github\.com/([\w.-]+/fedjax_drag)\b", text) + re.findall(
            r"/github/([\w.-]+/\w+)/blob", text
        )
        assert set(found) == {name}, path


def test_a_release_is_refused_while_it_is_the_placeholder():
    with pytest.raises(ValueError, match=r"a placeholder; python scripts/set_repository\.py ADDRESS replaces it"):
        set_repository.check("https://github.com/OWNER/fedjax_drag")
    with pytest.raises(ValueError, match=r"does not name https://github\.com/somebody"):
        set_repository.check("https://github.com/somebody/fedjax_drag")


@pytest.mark.parametrize(
    "wrong",
    [
        "git@github.com:somebody/fedjax_drag",
        "https://github.com/somebody/fedjax_drag.git",
        "https://github.com/somebody/other",
        "https://github.com/some.body/fedjax_drag",
        "https://github.com/-/fedjax_drag",
        "https://github.com/fedjax_drag",
        "https://github.com/somebody/fedjax_drag/",
        "http://github.com/somebody/fedjax_drag",
    ],
)
def test_what_is_no_address_is_refused(wrong):
    with pytest.raises(ValueError, match=r"must be https://github\.com/OWNER/fedjax_drag"):
        set_repository.name_of(wrong)
