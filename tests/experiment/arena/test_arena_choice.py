"""The choice of attacker and defender against brute force, and on cases whose answer is plain."""

import itertools

import numpy as np
import pytest

from fedjax_drag.experiment.arena.choice import Place, choose

TASKS, SETTINGS, STRENGTHS = [("a",), ("b",)], [(1,), (2,), (3,)], {"none": [()], "alie": [(0.5,), (1.0,)]}


def accuracies(seed):
    rng = np.random.default_rng(seed)
    places = [
        Place(task, setting, opponent, strength)
        for task, setting in itertools.product(TASKS, SETTINGS)
        for opponent, strengths in STRENGTHS.items()
        for strength in strengths
    ]
    return {place: float(rng.integers(0, 6)) for place in places}  # with ties


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_best_worst_case(seed):
    accuracy = accuracies(seed)
    for task, chosen in choose(accuracy).items():
        cases = [
            [accuracy[Place(task, s, o, t)] for o, strengths in STRENGTHS.items() for t in strengths] for s in SETTINGS
        ]
        worst = [min(case) for case in cases]
        assert chosen.worst_case == max(worst)
        assert chosen.setting == SETTINGS[worst.index(max(worst))]
        for opponent, strengths in STRENGTHS.items():
            against = [accuracy[Place(task, chosen.setting, opponent, t)] for t in strengths]
            assert chosen.strengths[opponent] == strengths[against.index(min(against))]


def test_a_setting_that_is_good_without_attack_is_not_chosen_for_that():
    accuracy = {
        Place((), ("open",), "none", ()): 0.99,
        Place((), ("open",), "alie", (1.0,)): 0.1,
        Place((), ("safe",), "none", ()): 0.8,
        Place((), ("safe",), "alie", (1.0,)): 0.7,
    }
    assert choose(accuracy)[()].setting == ("safe",)
