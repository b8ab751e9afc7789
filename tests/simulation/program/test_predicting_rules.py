"""What the engine gives to rules that look at the models' predictions, and runs of those of the package."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_drag as fd
from fedjax_drag.ops.screening import MetricsOnly
from fedjax_drag.simulation import prepare
from fedjax_drag.simulation.program.federation import choose_root
from fedjax_drag.types import Aggregator, Sums

ROOT = 12


def recorder():
    """A rule that moves nothing and reports what the last client's model makes of the root data."""

    def found(params, x, predict):
        prediction = predict(params, x)
        return {"outputs": prediction.outputs, "representation": prediction.representation, "x": x}

    def init(params):
        del params
        return MetricsOnly({"outputs": jnp.zeros((ROOT, 10)), "representation": jnp.zeros((ROOT, 64))} | inputs())

    def inputs():
        return {"x": jnp.zeros((ROOT, 8, 8, 1)), "real": jnp.zeros(ROOT, bool), "example": jnp.zeros((8, 8, 1))}

    def apply(params, deltas, state, *, predict, example, root_data, **_):
        del state
        last = jax.tree.map(lambda p, g: p + g[-1], params, deltas)
        told = {"real": root_data.real, "example": example}
        return params, MetricsOnly(found(last, root_data.x, predict) | told)

    return Aggregator(init, apply, frozenset({"predict", "example", "root_data"}))


def test_a_rule_is_given_the_model_an_input_and_the_root_data(settings, digits):
    result = fd.simulate(recorder(), **settings(num_rounds=1, eval_every=1, cohort_size=1, root_size=ROOT))
    trained = fd.simulate(fd.aggregators.fedavg(), **settings(num_rounds=1, eval_every=1, cohort_size=1))
    got = {name: np.asarray(result.history[name][0]) for name in ("outputs", "representation", "x", "real", "example")}
    assert got["real"].all()
    assert not got["example"].any()
    places = choose_root(digits, np.zeros(digits.num_clients, bool), ROOT)
    np.testing.assert_allclose(got["x"], digits.preprocess(digits.train.x[places]), rtol=1e-5)
    rows = got["x"].reshape(ROOT, -1)
    np.testing.assert_allclose(got["representation"], rows, rtol=1e-6)
    layer = trained.params["Dense_0"]
    np.testing.assert_allclose(got["outputs"], rows @ layer["kernel"] + layer["bias"], rtol=1e-4, atol=1e-5)


FIRST_PASS = (lambda state: jnp.bool_(True), lambda total, state, kept, **_: state)


@pytest.mark.parametrize(("mesh", "first"), [("cores", ()), (None, FIRST_PASS)], ids=["two devices", "two passes"])
def test_a_sum_over_clients_may_depend_on_predictions(settings, fedavg, mesh, first):
    """A client's weight is what its model predicts for zeros."""

    def accumulate(params, uplink, state, *, predict, example, **_):
        del state
        one = lambda delta: jnp.abs(predict(fd.tree.add(params, delta), example[None]).outputs).max()
        weight = jax.vmap(one)(uplink.delta)
        return fd.tree.weighted_sum(weight, uplink.delta), weight

    def finish(params, total, state, kept, **_):
        del state
        return fd.tree.move(params, total), MetricsOnly({"weight": kept})

    init = lambda params: MetricsOnly({"weight": jnp.zeros(0)})
    needs = frozenset({"predict", "example"})
    method = fedavg._replace(init=init, sums=Sums(accumulate, finish, *first), needs=needs)
    assert prepare(method, **settings(cohort_size=4, mesh=mesh)).spec.streams


RULES = {
    "deepsight": fd.aggregators.deepsight("Dense_0", num_samples=20, num_seeds=1, min_cluster_size=2, min_samples=1),
    "flare": fd.aggregators.flare(num_examples=ROOT),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", RULES)
def test_they_train_under_attack(settings, name):
    attacked = {"attack": fd.attacks.gaussian(10.0), "byzantine_fraction": 0.25, "root_size": ROOT}
    result = fd.simulate(RULES[name], **settings(num_rounds=3, cohort_size=8, **attacked))
    assert np.isfinite(result.history["test_accuracy"]).all()
    assert np.isfinite(result.history["weight"]).all()


@pytest.mark.thorough
def test_layers_that_stay_with_clients_are_refused():
    with pytest.raises(ValueError, match="needs predict, the predictions of whole models"):
        fd.algorithms.fedper("Dense_0", aggregator=RULES["flare"])
