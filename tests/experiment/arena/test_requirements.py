"""What a defence demands: words for what it must know, and passes of the magnitude that its arithmetic has."""

import pytest

from fedjax_drag.experiment.arena import requirements
from fedjax_drag.experiment.build.experiment import load_experiment
from fedjax_drag.types._aggregator import EXTRAS

BASE = {
    "data": "digits",
    "partition": {"name": "iid", "num_clients": 12},
    "model": {"name": "mlp", "hidden": [4]},
    "rounds": 1,
    "cohort_size": 10,
    "step_size": 0.1,
    "num_byzantine": 2,
    "attack": "sign_flip",
}


def config(**method):
    return load_experiment(BASE | method).config


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ({"aggregator": "fedavg"}, []),
        ({"aggregator": "krum"}, ["number of attackers"]),
        ({"aggregator": {"name": "nnm", "aggregator": "median"}}, ["number of attackers"]),
        ({"aggregator": "br_drag"}, ["root data"]),
        ({"aggregator": "flare"}, ["root data"]),
        ({"aggregator": "clusterguard"}, ["clients' predictions"]),
        (
            {"aggregator": {"name": "clusterguard", "use_num_examples": True, "standardise": True}},
            ["clients' numbers of examples", "clients' predictions"],
        ),
        ({"aggregator": {"name": "monna", "trusted": 0}}, ["number of attackers", "who attacks"]),
        ({"aggregator": {"name": "fedavg", "weighting": "examples"}}, ["clients' numbers of examples"]),
    ],
    ids=str,
)
def test_knowledge_in_words(method, words):
    assert requirements.needs(config(**method), 12) == words


def test_what_a_rule_may_need_is_knowledge_or_what_a_server_has():
    server_has = {"client_ids", "round", "key", "step_size", "selection_weight", "staleness", "starts", "predict"}
    server_has |= {"example", "valid", "expected_clients", "exchange"}
    assert EXTRAS.keys() - requirements.KNOWLEDGE.keys() == server_has


@pytest.mark.optimised
@pytest.mark.thorough
def test_passes_are_those_of_the_arithmetic():
    mean, middle, pair = (
        requirements.passes(config(**method), 12)
        for method in ({"aggregator": "fedavg"}, {"aggregator": "median"}, {"algorithm": "scaffold"})
    )
    assert 2.0 <= mean <= 5.0  # the docstring says 3, and parameters are a tenth of the deltas here
    assert mean < middle <= 10.0
    assert pair > mean + 2.0  # another stack of messages, and rows of the state


def test_what_cannot_be_counted_has_none():
    def odd():
        raise RuntimeError("no rule")

    assert requirements.passes(config(aggregator={"name": odd}), 12) is None
