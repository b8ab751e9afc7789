"""Which cells share a program."""

import dataclasses

import numpy as np
import pytest

from fedjax_drag import aggregators, algorithms, attacks
from fedjax_drag.data import partition
from fedjax_drag.experiment.build.resolve import resolve
from fedjax_drag.experiment.build.traced_numbers import numbers, with_numbers
from fedjax_drag.experiment.config.components import Component
from fedjax_drag.experiment.config.loading import load
from fedjax_drag.experiment.run.planning import Federations
from fedjax_drag.experiment.sweep import grouping
from fedjax_drag.experiment.sweep.grid import load_grid

BASE = {"data": "digits", "partition": {"name": "dirichlet", "num_clients": 8, "beta": 0.5}, "cohort_size": 4}


def resolved(**keys):
    return resolve(load(BASE | keys))


def grouped(given, **keys):
    points = load_grid(BASE | keys | {"axes": given}).points
    federations = Federations()
    feds = [federations.split(point.config) for point in points]
    return points, grouping.group([point.config for point in points], feds, [0] * len(points))


def test_numbers_are_found_wherever_they_stand():
    nested = {"name": "nnm", "aggregator": {"name": "trimmed_mean", "trim_fraction": 0.2}}
    found = numbers(resolved(aggregator=nested, attack={"name": "gaussian", "sigma": 2}, client="fedprox"))
    assert found == {
        "aggregator.aggregator.trim_fraction": 0.2,
        "attack.sigma": 2,
        "client.mu": 0.2,
        "loss.label_smoothing": 0.0,
        "step_size": 0.01,
    }
    adam = {"name": "fedavg", "server_optimizer": {"name": "adam", "learning_rate": 0.1}}
    assert numbers(resolved(aggregator=adam))["aggregator.server_optimizer.learning_rate"] == 0.1


def test_numbers_are_replaced_and_nothing_else():
    nested = {"name": "nnm", "aggregator": {"name": "trimmed_mean", "trim_fraction": 0.2}}
    config = resolved(aggregator=nested)
    changed = with_numbers(config, {"aggregator.aggregator.trim_fraction": 0.3, "step_size": 1.0})
    assert changed.aggregator.arguments["aggregator"] == Component("trimmed_mean", {"trim_fraction": 0.3})
    assert changed.step_size == config.step_size, "which is no part of a component"
    assert config.aggregator.arguments["aggregator"].arguments["trim_fraction"] == 0.2


def test_a_method_that_needs_the_number_of_malicious_clients_is_grouped_by_it(monkeypatch):
    """Of a rule that its builder is not told, such as one of one's own."""
    axes, keys = {"byzantine_fraction": [0.25, 0.5], "seed": [0, 1]}, {"attack": "sign_flip"}
    assert [len(group.places) for group in grouped(axes, **keys)[1]] == [4]
    needing = lambda *_: algorithms.from_aggregator(aggregators.krum())
    monkeypatch.setattr(grouping.build, "method", needing)
    assert [len(group.places) for group in grouped(axes, **keys)[1]] == [2, 2]


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    ("given", "keys", "sizes"),
    [
        ({"aggregator.c": [0.1, 0.5], "seed": [0, 1]}, {"aggregator": "drag"}, [4]),
        ({"step_size": [0.1, 0.2], "partition.beta": [0.1, 1.0]}, {}, [4]),
        ({"partition.beta": [0.1, 1.0], "partition.over": ["clients", "labels"]}, {}, [4]),
        (
            {"attack.start": [0, 2], "attack.attack.step": [1.0, 10.0]},
            {"attack": {"name": "during", "attack": "optimal_alie", "stop": 4}, "num_byzantine": 2},
            [4],
        ),
        (
            {"partition.gamma": [0.0, 0.5, 1.0]},
            {"partition": {"name": "gamma_similarity", "num_clients": 8, "gamma": 0.0}},
            [3],
        ),
        ({"data.normalize": ["standard", "unit"], "seed": [0, 1]}, {}, [2, 2]),
        ({"aggregator": ["fedavg", "median"], "seed": [0, 1, 2]}, {}, [3, 3]),
        ({"local_steps": [1, 2], "seed": [0, 1]}, {}, [2, 2]),
        ({"local_steps": [[1, 2], [1, 3]], "seed": [0, 1]}, {}, [2, 2]),
        ({"dropout_rate": [0.0, 0.1, 0.5], "availability": [0.5, 0.7]}, {}, [2, 4]),
        ({"availability": [None, 0.5, [0.5] * 8, [[0.5] * 8, [0.1] * 8]]}, {}, [1, 2, 1]),
        ({"root_size": [20, 40], "root_bias": [0.0, 0.5]}, {"aggregator": "root_only"}, [4]),
        ({"root_source": ["benign", "all"]}, {"aggregator": "root_only"}, [2]),
        ({"partition.num_clients": [8, 9]}, {}, [1, 1]),
        ({"byzantine_fraction": [0.0, 0.25, 0.5]}, {"attack": "sign_flip"}, [1, 2]),
        ({"byzantine_fraction": [0.0, 0.1, 0.2]}, {"attack": "sign_flip", "aggregator": "krum"}, [1, 2]),
        ({"byzantine_fraction": [0.1, 0.5]}, {"aggregator": "krum", "cohort_size": 8}, [1, 1]),
        ({"byzantine_fraction": [0.1, 0.5]}, {"aggregator": {"name": "nnm", "aggregator": "median"}}, [1, 1]),
        ({"attack": ["sign_flip", {"name": "sign_flip", "scale": 3.0}]}, {"byzantine_fraction": 0.5}, [2]),
        ({"attack": ["alie", {"name": "alie", "z": 1.0}]}, {"byzantine_fraction": 0.5}, [1, 1]),
    ],
)
def test_what_is_a_family(given, keys, sizes):
    points, found = grouped(given, **keys)
    assert [len(family.places) for family in found] == sizes
    assert sorted(place for family in found for place in family.places) == list(range(len(points)))


def test_an_own_attack_that_is_built_from_the_data_has_their_split():
    def own(fed, scale=1.0):
        return attacks.sign_flip(scale * float(fed.counts[0]))

    axes, keys = {"attack.scale": [1.0, 2.0], "seed": [0, 1]}, {"byzantine_fraction": 0.25}
    assert [group.places for group in grouped(axes, attack={"name": own}, **keys)[1]] == [[0, 2], [1, 3]]
    inside = {"name": "during", "attack": {"name": own}}
    assert [group.places for group in grouped({"seed": [0, 1]}, attack=inside, **keys)[1]] == [[0], [1]]
    assert [group.places for group in grouped({"seed": [0, 1]}, attack="edge_case", **keys)[1]] == [[0, 1]]


def test_own_partitions_that_change_examples_are_programs_of_their_own():
    def noisy(fed, seed, noise=0.0):
        fed = partition.iid(fed, num_clients=8, seed=seed)
        wrong = np.random.default_rng(seed).random(len(fed.train.y)) < noise
        train = fed.train._replace(y=np.where(wrong, 0, fed.train.y).astype(np.int32))
        return dataclasses.replace(fed, train=train) if noise else fed

    axes = {"partition.noise": [0.0, 0.5], "seed": [0, 1]}
    assert [group.places for group in grouped(axes, partition={"name": noisy})[1]] == [[0, 1], [2], [3]]


def test_only_what_differs_is_traced():
    _, (family,) = grouped({"aggregator.c": [0.1, 0.5], "seed": [0, 1]}, aggregator="drag")
    assert family.numbers == [{"aggregator.c": c} for c in (0.1, 0.1, 0.5, 0.5)]
    _, (family,) = grouped({"seed": [0, 1]}, aggregator="drag")
    assert family.numbers == [{}, {}]


def test_another_start_is_another_family():
    points = load_grid(BASE | {"axes": {"seed": [0, 1, 2]}}).points
    federations = Federations()
    feds = [federations.split(point.config) for point in points]
    found = grouping.group([point.config for point in points], feds, [10, 0, 10])
    assert [family.places for family in found] == [[0, 2], [1]]
    assert not np.array_equal(feds[0].rows, feds[2].rows)
