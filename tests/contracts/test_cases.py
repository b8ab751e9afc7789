import pytest
from cases import SECTIONS


@pytest.mark.parametrize("section", SECTIONS)
def test_every_public_builder_has_a_case(section):
    module, cases = SECTIONS[section]
    covered = {case.builder for case in cases}
    builders = {name: getattr(module, name) for name in module.__all__}
    missing = [name for name, builder in builders.items() if builder not in covered]
    assert not missing, f"tests/cases.py lacks {missing} of {section}"


@pytest.mark.parametrize("section", SECTIONS)
def test_labels_are_unique_and_builders_public(section):
    module, cases = SECTIONS[section]
    assert len({case.label for case in cases}) == len(cases)
    assert all(getattr(module, case.builder.__name__) is case.builder for case in cases)
