"""An arena is played as its protocol says: choices by validation alone, fresh seeds, nothing computed twice."""

import dataclasses

import numpy as np
import pytest

from fedjax_drag.experiment.arena.protocol import load_arena
from fedjax_drag.experiment.arena.trials import Trials, choose, mean_over_seeds
from fedjax_drag.experiment.build import build
from fedjax_drag.experiment.sweep import sweep as sweeping
from fedjax_drag.experiment.sweep.outcome_table import Cell

PROTOCOL = {
    "base": {
        "data": {"name": "digits", "validation_fraction": 0.2},
        "partition": {"name": "dirichlet", "num_clients": 6, "beta": 0.5},
        "model": {"name": "mlp", "hidden": [4]},
        "num_byzantine": 2,
        "rounds": 2,
        "cohort_size": 6,
        "local_steps": 2,
        "batch_size": 8,
        "step_size": 0.1,
        "eval_every": 2,
    },
    "tasks": {"partition.beta": [0.2, 5.0]},
    "attacks": {"scale_noise": {"strengths": {"attack.variance": [0.1, 10.0]}}},
    "entries": {"norm_clipping": {"settings": {"aggregator.max_norm": [0.1, 5.0]}}},
    "tuning_seeds": [7],
    "seeds": [0, 1],
}


@pytest.fixture(scope="module")
def arena():
    return load_arena(PROTOCOL)


def test_what_is_left_out_is_filled_in(arena):
    assert [one.label for one in arena.opponents] == ["none", "scale_noise"]
    assert [one.label for one in arena.entries] == ["fedavg", "root_only", "norm_clipping"]
    assert arena.only(["norm_clipping"]).entries == arena.entries[2:]


@pytest.mark.slow
def test_an_entry_is_tuned_then_tested_and_found_again(arena, tmp_path, monkeypatch):
    entry = arena.entries[-1]
    played = Trials(tmp_path, quiet=True)
    first = played.play(arena, entry)
    assert first.accuracy.shape == (2, 2, 2)
    assert not first.failures
    assert [choice["task"] for choice in first.choices] == [{"partition.beta": 0.2}, {"partition.beta": 5.0}]
    assert all(choice["strengths"]["scale_noise"]["attack.variance"] in (0.1, 10.0) for choice in first.choices)
    for number, phase in ((2 * 2, "tuning/none"), (2 * 2 * 2, "tuning/scale_noise"), (2 * 2, "final/scale_noise")):
        cells = list(tmp_path.glob(f"*/{phase}/cells/*"))
        assert len(cells) == number
    computed = []
    monkeypatch.setattr(sweeping, "_run", lambda *_: computed.append(1) or [])
    again = played.play(arena, entry)
    assert not computed
    assert again.choices == first.choices
    np.testing.assert_array_equal(again.accuracy, first.accuracy)


@pytest.mark.slow
def test_choices_do_not_depend_on_the_test_examples(arena, monkeypatch):
    entry = arena.entries[-1]
    played = Trials(quiet=True)
    before, _ = played.tune(arena, entry)
    load, scrambles = build.dataset, []

    def scrambled(*arguments, **options):
        data = load(*arguments, **options)
        scrambles.append(1)
        labels = np.random.default_rng(0).permutation(np.asarray(data.test.y))
        return dataclasses.replace(data, test=data.test._replace(y=labels))

    monkeypatch.setattr(build, "dataset", scrambled)
    after, _ = played.tune(arena, entry)
    assert after == before
    assert scrambles


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bases": {}}, "bases: is no key of an arena"),
        ({"base": {"data": "digits"}}, "base.data.validation_fraction: must be set"),
        ({"seeds": [7, 8]}, r"seeds=\[7, 8\]: 7 is one of tuning_seeds"),
        ({"seeds": []}, r"seeds=\[\]: must be a list"),
        ({"attacks": {}}, r"attacks=\{\}: must be a mapping"),
        ({"attacks": {"none": None}}, "attacks.none: is the federation without an attack"),
        ({"entries": {"krum": {"rule": 1}}}, "entries.krum=.*: must be a mapping with keys of aggregator"),
        ({"entries": {"drag": {"settings": {"aggregator.c": [0.1] * 9}}}}, "entries.drag.settings: are 9"),
        ({"entries": {"drag": {"settings": {"aggregator.c": 0.1}}}}, "aggregator.c=0.1: must be a list"),
        ({"entries": {"FedAvg": None}}, "label 'FedAvg', which shares the folder of 'fedavg'"),
        ({"tasks": {"seed": [1]}}, "tasks.seed: belongs to tuning_seeds"),
        ({"tasks": {"aggregator": ["krum", "median"]}}, "^tasks.aggregator: belongs to entries$"),
        ({"base": PROTOCOL["base"] | {"attack": "alie"}}, "^base.attack: belongs to attacks$"),
        ({"base": PROTOCOL["base"] | {"compare": {"A": None}}}, "^base.compare: belongs to entries$"),
        ({"base": PROTOCOL["base"] | {"axes": {"rounds": [1, 2]}}}, "^base.axes: belongs to tasks$"),
    ],
)
def test_what_is_wrong_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        load_arena(PROTOCOL | changes)


@pytest.mark.parametrize(
    ("kind", "label", "values"), [("entries", "median", "settings"), ("attacks", "ipm", "strengths")]
)
def test_what_two_of_them_set_is_named(kind, label, values):
    arena = load_arena(PROTOCOL | {kind: {label: {values: {"partition.beta": [1.0]}}}})
    message = f"^partition.beta: {kind}.{label}.{values} and tasks both set it; leave out one of them$"
    with pytest.raises(ValueError, match=message):
        Trials().check(arena, arena.entries[-1])


def test_an_unknown_entry_is_named(arena):
    with pytest.raises(ValueError, match="entry='krum': must be one of fedavg, root_only, norm_clipping"):
        arena.only(["krum"])
    with pytest.raises(ValueError, match=r"^entry='fedavg': must be a list$"):
        arena.only("fedavg")


def test_equal_accuracies_under_other_seeds_are_a_tie():
    arena = load_arena(PROTOCOL | {"tasks": {}, "tuning_seeds": [100, 101, 102]})
    finals = {0.1: (0.1, 0.2, 0.3), 0.2: (0.3, 0.1, 0.2)}
    cells = [
        Cell({"aggregator.c": c, "seed": seed}, "done", "", {"validation_accuracy": np.float32([final])})
        for c, values in finals.items()
        for seed, final in zip(arena.tuning_seeds, values, strict=True)
    ]
    means = mean_over_seeds(np.array(cells, object).reshape(2, 1, 1, 3))
    assert means.shape == (2, 1, 1)
    assert len(np.unique(means)) == 1
    assert choose([means])[0].setting == 0


def test_a_model_that_is_not_finite_has_failed_and_does_not_count_as_chance():
    history = {"validation_accuracy": np.float32([0.5, 0.1])}
    cells = [
        Cell({"seed": 7}, "done", "", history),
        Cell({"seed": 8}, "diverged", "parameters are not finite after round 1", history),
        Cell({"seed": 9}, "failed", "no memory", {}),
    ]
    found = [mean_over_seeds(np.array([[cell]], object)).item() for cell in cells]
    np.testing.assert_allclose(found, [0.1, 0.0, 0.0], rtol=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_the_choice_is_the_best_worst_case(seed):
    """By brute force; settings, strengths of each opponent, tasks, and accuracies with ties."""
    rng = np.random.default_rng(seed)
    accuracy = [rng.integers(0, 6, (3, strengths, 2)) / 5 for strengths in (1, 2)]
    for task, chosen in enumerate(choose(accuracy)):
        worst = [min(x for against in accuracy for x in against[setting, :, task]) for setting in range(3)]
        assert chosen.worst_case == max(worst)
        assert chosen.setting == worst.index(max(worst))
        for against, strength in zip(accuracy, chosen.strengths, strict=True):
            own = against[chosen.setting, :, task].tolist()
            assert strength == own.index(min(own))


def test_a_setting_that_is_good_without_attack_is_not_chosen_for_that():
    honest, attacked = np.array([0.99, 0.8]).reshape(2, 1, 1), np.array([0.1, 0.7]).reshape(2, 1, 1)
    assert choose([honest, attacked])[0].setting == 1
