import pytest

from fedjax_drag.experiment.build.experiment import load
from fedjax_drag.experiment.build.resolve import resolve
from fedjax_drag.experiment.figures import labels

BASE = {"name": "study", "byzantine_fraction": 0.3, "attack": "sign_flip"}


def configs(*changes):
    return [resolve(load(BASE | change)) for change in changes]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            [{"aggregator": "krum"}, {"aggregator": "drag"}, {"aggregator": {"name": "drag", "c": 0.5}}],
            ["krum", "drag, c=0.25", "drag, c=0.5"],
        ),
        (
            [{"partition": {"name": "dirichlet", "beta": 0.5}}, {"aggregator": "median", "attack": "alie"}],
            ["fedavg, sign_flip, beta=0.5", "median, alie, beta=0.1"],
        ),
        (
            [{}, {"attack": None, "byzantine_fraction": 0.0}, {"byzantine_fraction": 0.4}],
            ["sign_flip, 30% malicious", "no attack", "sign_flip, 40% malicious"],
        ),
        (
            [{"byzantine_fraction": 0.125}, {"byzantine_fraction": 0.12}, {"byzantine_fraction": 0.025}],
            ["12.5% malicious", "12% malicious", "2.5% malicious"],
        ),
        ([{}, {"algorithm": "scaffold"}], ["fedavg", "scaffold"]),
        ([{"seed": 0}, {"seed": 1}], ["study", "study"]),
        ([{"name": "drag, c=0.1, U=5"}, {"name": "drag, c=0.5, U=5"}], ["c=0.1", "c=0.5"]),
        ([{"name": "mlp, hidden=[8, 4]"}, {"name": "mlp, hidden=[8, 8]"}], ["hidden=[8, 4]", "hidden=[8, 8]"]),
        ([{"name": "a"}, {"name": "a, b"}], ["a", "a, b"]),
        (
            [{}, {"seed": 3, "aggregator": "krum"}, {"name": "other"}],
            ["study, fedavg", "study, krum", "other"],
        ),
    ],
)
def test_labels_say_what_differs_and_nothing_else(changes, told):
    assert labels.distinct(configs(*changes)) == told


def test_header_names_data_model_attack_and_share_and_lists_what_differs():
    found = dict(labels.header(configs({}, {"attack": "alie"}, {"attack": None, "byzantine_fraction": 0.0})))
    assert found["data"] == "handwritten digits (8x8)"
    assert found["partition"] == "Dirichlet(0.1) split, 40 clients"
    assert (found["model"], found["method"]) == ("mlp 500", "fedavg")
    assert found["attack"] == "sign flip; alie; none"
    assert found["malicious clients"] == "30%"
    assert dict(labels.header(configs({"byzantine_fraction": 0.025})))["malicious clients"] == "2.5%"
    honest = dict(labels.header(configs({"attack": None, "byzantine_fraction": 0.0})))
    assert honest["attack"] == "none"
    assert "malicious clients" not in honest
    limited = {"name": "during", "attack": {"name": "label_flip"}, "stop": 5}
    split = {"name": "gamma_similarity", "num_clients": 8, "gamma": 0.5}
    other = dict(labels.header(configs({"attack": limited, "partition": split})))
    assert other["attack"] == "label flip, during"
    assert other["partition"] == "0.5-similarity split, 8 clients"
    many = labels.header(configs(*({"partition": {"name": "dirichlet", "beta": b / 10}} for b in range(1, 8))))
    assert dict(many)["partition"].endswith("; and 3 more")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"local_steps": 1}, "1 local step"),
        ({"local_steps": 5}, "5 local steps"),
        ({"local_epochs": 1}, "1 local epoch"),
        ({"local_epochs": 0.5}, "0.5 local epochs"),
    ],
)
def test_one_local_step_is_singular(change, told):
    assert f", {told}, " in labels.shared(configs(change))
