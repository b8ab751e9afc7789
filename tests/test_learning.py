"""Everything trains: each rule and method on the digits, and the robust ones under each attack."""

import pytest

import fedjax_drag as fd

METHODS = {
    "fedavg": fd.aggregators.fedavg(),
    "drag": fd.aggregators.drag(),
    "br_drag": fd.aggregators.br_drag(),
    "fltrust": fd.aggregators.fltrust(),
    "geometric_median": fd.aggregators.geometric_median(),
    "median": fd.aggregators.median(),
    "krum": fd.aggregators.krum(num_byzantine=2),
    "qffl": fd.aggregators.qffl(q=0.2),
    "term": fd.aggregators.term(t=1.0),
    "afl": fd.aggregators.afl(gamma=0.01),
    "fedprox": fd.algorithms.from_aggregator(fd.aggregators.fedavg(), client=fd.clients.fedprox(mu=0.2)),
    "scaffold": fd.algorithms.scaffold(20),
    "scaffold-median": fd.algorithms.scaffold(20, aggregator=fd.aggregators.median()),
}


@pytest.fixture(scope="module")
def train():
    digits = fd.data.load("digits")

    def run(algorithm, **changes):
        settings = {
            "model": fd.models.mlp(num_classes=10, hidden=(32,)),
            "data": fd.data.partition.dirichlet(digits, num_clients=20, beta=1.0, seed=0),
            "num_rounds": 60,
            "cohort_size": 10,
            "local_steps": 5,
            "batch_size": 10,
            "step_size": 0.05,
            "eval_every": 20,
            "time_clients": False,
        }
        return fd.simulate(algorithm, **settings | changes)

    return run


@pytest.mark.thorough
@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n == "drag" else pytest.mark.slow) for n in METHODS])
def test_a_method_learns(train, name):
    result = train(METHODS[name])
    assert result.history["test_accuracy"][-1] > 0.85
    assert result.history["train_loss"][-1] < result.history["train_loss"][0]


@pytest.mark.slow
def test_the_worst_clients_gain_where_those_with_much_loss_are_asked_more_often(train):
    data = fd.data.partition.dirichlet(fd.data.load("digits"), num_clients=40, beta=0.1, seed=0)
    changes = {"data": data, "step_size": 0.1, "evaluate_clients": True}
    uniform = train(fd.aggregators.fedavg(), **changes).history
    asked = train(fd.aggregators.fedavg(), selection=fd.selection.oort(), **changes).history
    assert asked["client_accuracy_worst_tenth"][-1] > uniform["client_accuracy_worst_tenth"][-1] + 0.05
    assert asked["client_accuracy_std"][-1] < uniform["client_accuracy_std"][-1]


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["sign_flip", "scale_noise", "label_flip"])
def test_br_drag_withstands_what_breaks_the_mean(train, attack):
    attacked = {"attack": getattr(fd.attacks, attack)(), "byzantine_fraction": 0.3}
    robust = train(fd.aggregators.br_drag(), **attacked)
    assert robust.history["test_accuracy"][-1] > 0.8
    if attack == "sign_flip":
        plain = train(fd.aggregators.fedavg(), **attacked | {"byzantine_fraction": 0.6})
        assert plain.history["test_accuracy"][-1] < 0.5
