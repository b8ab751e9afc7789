"""The public interface is the one agreed on in ``interface.txt``."""

from pathlib import Path

from interface import interface


def test_the_public_interface_changes_only_on_purpose():
    agreed = Path(__file__).with_name("interface.txt").read_text(encoding="utf-8").splitlines()
    current = list(interface())
    removed, added = sorted(set(agreed) - set(current)), sorted(set(current) - set(agreed))
    assert (removed, added) == ([], []), "if intended: python tests/interface.py > tests/interface.txt"
