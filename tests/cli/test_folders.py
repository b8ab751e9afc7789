import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedjax_drag.cli.folders import earlier_names, folder_name, without_keys


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], "my-run"),
        (["name=My run"], "my-run"),
        (["aggregator=krum", "attack=sign_flip"], "my-run-aggregator_krum-attack_sign_flip"),
        (["attack=sign_flip", "aggregator=krum"], "my-run-attack_sign_flip-aggregator_krum"),
        (["model.hidden=[128, 64]", "aggregator.c=-0.5"], "my-run-model.hidden_128-64-aggregator.c_-0.5"),
        (["aggregator={name: 'nnm', aggregator: {name: krum}}"], "my-run-aggregator_name-nnm-aggregator-name-krum"),
        (["data.data_dir=/a/../b/"], "my-run-data.data_dir_-a-..-b"),
    ],
)
def test_folder_is_named_after_the_overrides(overrides, expected):
    assert folder_name("My run", overrides) == expected


def test_earlier_names_lack_the_last_overrides_of_free_keys():
    overrides = ["rounds=4", "aggregator.rounds=3", "rounds=8", "seed=1"]
    names = earlier_names("x", overrides, free=("rounds",))
    first = "x-rounds_4-aggregator.rounds_3"
    assert names == [f"{first}-rounds_8-seed_1", f"{first}-seed_1", "x-aggregator.rounds_3-seed_1"]
    assert {without_keys(name, ("rounds",)) for name in names} == {names[-1]}


def test_long_folder_names_are_cut_and_stay_distinct():
    names = {folder_name("x", [f"data.data_dir={'long/' * 30}{end}", "seed=1"]) for end in "ab"}
    assert len(names) == 2
    assert all(len(name) <= 100 for name in names)
    assert all(re.fullmatch(r"x-data\.data_dir_(long-)+(lo?n?g?-)?[0-9a-f]{8}", name) for name in names)


@given(st.text(min_size=1), st.lists(st.text()))
def test_folder_name_is_one_safe_name(name, overrides):
    found = folder_name(name, overrides)
    assert not set("/\\:*?\"<>|[]{} '=,") & set(found)
    assert len(found.encode()) <= 200
    assert found == folder_name(name, overrides)
