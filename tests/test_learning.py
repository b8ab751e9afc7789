"""Everything trains: each rule and method on the digits, and the robust ones under each attack."""

import pytest

import fedjax_drag as fd

AGGREGATORS = {
    "fedavg": fd.aggregators.fedavg(),
    "drag": fd.aggregators.drag(),
    "br_drag": fd.aggregators.br_drag(),
    "fltrust": fd.aggregators.fltrust(),
    "geometric_median": fd.aggregators.geometric_median(),
    "median": fd.aggregators.median(),
    "krum": fd.aggregators.krum(num_byzantine=2),
}


@pytest.fixture(scope="module")
def train():
    digits = fd.data.load("digits")

    def run(algorithm, beta=1.0, **changes):
        settings = {
            "model": fd.models.mlp(num_classes=10, hidden=(32,)),
            "data": fd.data.partition.dirichlet(digits, num_clients=20, beta=beta, seed=0),
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


OFTEN = ("drag",)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in OFTEN else pytest.mark.slow) for n in AGGREGATORS])
def test_rule_learns(train, name):
    result = train(fd.algorithms.from_aggregator(AGGREGATORS[name]))
    assert result.history["test_accuracy"][-1] > 0.85
    assert result.history["train_loss"][-1] < result.history["train_loss"][0]


@pytest.mark.slow
def test_fedprox_learns(train):
    client = fd.clients.fedprox(mu=0.2)
    result = train(fd.algorithms.from_aggregator(fd.aggregators.fedavg(), client=client))
    assert result.history["test_accuracy"][-1] > 0.85


@pytest.mark.slow
def test_scaffold_learns(train):
    assert train(fd.algorithms.scaffold(20)).history["test_accuracy"][-1] > 0.85


@pytest.mark.slow
@pytest.mark.parametrize(
    "attack", ["sign_flip", *(pytest.param(a, marks=pytest.mark.slow) for a in ("scale_noise", "label_flip"))]
)
def test_br_drag_withstands_what_breaks_the_mean(train, attack):
    attacked = {"attack": getattr(fd.attacks, attack)(), "byzantine_fraction": 0.3}
    robust = train(fd.algorithms.from_aggregator(fd.aggregators.br_drag()), **attacked)
    assert robust.history["test_accuracy"][-1] > 0.8
    if attack == "sign_flip":
        plain = train(fd.algorithms.from_aggregator(fd.aggregators.fedavg()), **attacked | {"byzantine_fraction": 0.6})
        assert plain.history["test_accuracy"][-1] < 0.5


@pytest.mark.slow
def test_any_rule_inside_a_two_sided_method(train):
    result = train(fd.algorithms.scaffold(20, aggregator=fd.aggregators.median()))
    assert result.history["test_accuracy"][-1] > 0.85
