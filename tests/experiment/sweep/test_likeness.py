"""Which cells share a program."""

import dataclasses
import itertools

import numpy as np
import pytest

from fedjax_drag import aggregators, attacks
from fedjax_drag.data import partition
from fedjax_drag.experiment.build import build
from fedjax_drag.experiment.run.planning import Federations
from fedjax_drag.experiment.sweep.grid import load_grid
from fedjax_drag.simulation.cells import likeness
from fedjax_drag.types import Scalar

BASE = {"data": "digits", "partition": {"name": "dirichlet", "num_clients": 8, "beta": 0.5}, "cohort_size": 4}


def grouped(given, **keys):
    """Places of the cells of each program."""
    points = load_grid(BASE | keys | {"axes": given}).points
    federations = Federations()
    alike = {}
    for place, point in enumerate(points):
        settings = build.settings(point.config, federations.split(point.config))
        alike.setdefault(likeness(settings), []).append(place)
    return list(alike.values())


def test_a_method_that_needs_the_number_of_malicious_clients_is_grouped_by_it():
    """Of a rule that its builder is not told, such as one of one's own."""

    def needing():
        return aggregators.krum()

    axes, keys = {"byzantine_fraction": [0.25, 0.5], "seed": [0, 1]}, {"attack": "sign_flip"}
    assert [len(group) for group in grouped(axes, **keys)] == [4]
    assert [len(group) for group in grouped(axes, **keys, aggregator={"name": needing})] == [2, 2]


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    ("given", "keys", "sizes"),
    [
        ({"aggregator.c": [0.1, 0.5], "seed": [0, 1]}, {"aggregator": "drag"}, [4]),
        (
            {"step_size.init_value": [0.1, 0.2], "local_optimizer.weight_decay": [0.0, 1e-4]},
            {
                "step_size": {"name": "cosine_decay_schedule", "init_value": 0.1, "decay_steps": 500},
                "local_optimizer": {"name": "sgd", "momentum": 0.9},
            },
            [4],
        ),
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
    found = grouped(given, **keys)
    assert [len(family) for family in found] == sizes
    assert sorted(itertools.chain(*found)) == list(range(sum(sizes)))


def test_numbers_of_an_own_class_share_a_program_and_functions_are_compared_by_identity():
    class shrunk(aggregators.WeightedAggregator):
        factor: Scalar = 1.0

        def weigh(self, clients, state, **_):
            return aggregators.Weights(own=self.factor * clients.valid, mass=clients.valid)

    def function(factor=1.0):
        return aggregators.weighted_rule(lambda clients, state, **_: shrunk(factor).weigh(clients, state))

    axes = {"aggregator.factor": [0.5, 1.0], "seed": [0, 1]}
    assert grouped(axes, aggregator={"name": shrunk}) == [[0, 1, 2, 3]]
    assert grouped(axes, aggregator={"name": function}) == [[0], [1], [2], [3]]
    given = {"aggregator": [{"name": function(0.5), "label": "half"}, "fedavg"], "seed": [0, 1]}
    assert grouped(given) == [[0, 1], [2, 3]]


def test_an_own_attack_may_be_built_from_the_split_of_the_data():
    def own(fed, scale=1.0):
        return attacks.sign_flip(scale * float(fed.counts[0]))

    axes, keys = {"attack.scale": [1.0, 2.0], "seed": [0, 1]}, {"byzantine_fraction": 0.25}
    assert grouped(axes, attack={"name": own}, **keys) == [[0, 1, 2, 3]], "it is a number of the attack"
    inside = {"name": "during", "attack": {"name": own}}
    assert grouped({"seed": [0, 1]}, attack=inside, **keys) == [[0, 1]]
    assert grouped({"seed": [0, 1]}, attack="edge_case", **keys) == [[0, 1]]


def test_own_partitions_that_change_examples_are_programs_of_their_own():
    def noisy(fed, seed, noise=0.0):
        fed = partition.iid(fed, num_clients=8, seed=seed)
        wrong = np.random.default_rng(seed).random(len(fed.train.y)) < noise
        train = fed.train._replace(y=np.where(wrong, 0, fed.train.y).astype(np.int32))
        return dataclasses.replace(fed, train=train) if noise else fed

    axes = {"partition.noise": [0.0, 0.5], "seed": [0, 1]}
    assert grouped(axes, partition={"name": noisy}) == [[0, 1], [2], [3]]
