"""Secure aggregation: who is refused, that what passes is a sum over clients, and a history without single clients."""

from pathlib import Path

import cases
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import secure_aggregation
from nets import Net

import fedjax_drag as fd
from fedjax_drag.experiment.build import registry
from fedjax_drag.simulation import prepare
from fedjax_drag.types import Aggregator

CASES = {name: case for table in secure_aggregation.cases().values() for name, case in table.items()}
PASSING = [name for name, case in CASES.items() if not secure_aggregation.refusal(case.build())]
PAGE = Path(__file__).parents[3] / "docs/secure_aggregation.md"

COMPARING = {
    "sort",
    "argsort",
    "top_k",
    "argmax",
    "argmin",
    "cumsum",
    "cumprod",
    "gather",
    "dot_general",
    "scan",
    "while",
}
"""Primitives by which what is kept of a client could be compared with what is kept of another."""


def test_all_of_the_registry_is_decided():
    known = {
        name for name in (*registry.TABLES["aggregator"], *registry.TABLES["algorithm"]) if name != "from_aggregator"
    }
    assert set(CASES) == known
    assert set(PASSING) == set(secure_aggregation.CONTRIBUTIONS)


def test_the_page_says_so():
    assert PAGE.read_text(encoding="utf-8") == secure_aggregation.page()


@pytest.mark.parametrize("name", [name for name in CASES if name not in PASSING])
def test_refusals_are_one_line(name):
    text = secure_aggregation.refusal(CASES[name].build())
    assert text.startswith("secure_aggregation=True: ")
    assert text.endswith("; must be a method of sums over clients, such as fedavg, norm_clipping or br_drag")
    assert "\n" not in text


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", [name for name in PASSING if name in registry.TABLES["aggregator"]])
def test_what_passes_depends_on_clients_by_sums_only(name):
    """Clients in another order, relative to the total and to each other, are the same round; nothing compares them."""
    rule, size = CASES[name].build(), 5
    params = cases.nested_params()
    deltas = cases.unflatten(np.random.default_rng(0).normal(size=(size, cases.SIZE)))
    given = {**cases.extras(size), "valid": jnp.arange(size) != 2}
    del given["dissimilarity"]
    state = rule.init(params)
    assert rule.streamed is not None
    total, kept = rule.streamed.accumulate(params, deltas, state, **given)

    def finish(order):
        own = jax.tree.map(lambda x: x[order], kept)
        return rule.streamed.finish(params, total, state, own, **cases.select(given, order))[0]

    def core(kept):
        return rule.streamed.finish(params, total, state, kept, **given)[0]

    for one, other in zip(
        *(jax.tree.leaves(finish(jnp.asarray(o))) for o in ([0, 1, 2, 3, 4], [3, 2, 0, 4, 1])), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    used = {equation.primitive.name for equation in equations(jax.make_jaxpr(core)(kept).jaxpr)}
    assert not used & COMPARING


def equations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for part in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(part, "jaxpr", part)
                if hasattr(inner, "eqns"):
                    yield from equations(inner)


@pytest.mark.thorough
def test_several_contributions_are_what_they_are_said_to_be():
    """The total of a chunk is the sum of those of its clients, each computed without the others."""
    params, size = cases.nested_params(), 5
    deltas = cases.unflatten(np.random.default_rng(0).normal(size=(size, cases.SIZE)))
    given = cases.extras(size)
    for name in PASSING:
        rule = CASES[name].build()
        if not isinstance(rule, Aggregator):
            continue
        state = rule.init(params)
        whole, _ = rule.streamed.accumulate(params, deltas, state, **given)
        alone = []
        for client in range(size):
            row = slice(client, client + 1)
            own = jax.tree.map(lambda x, row=row: x[row], deltas)
            alone.append(rule.streamed.accumulate(params, own, state, **cases.select(given, row))[0])
        summed = jax.tree.map(lambda *parts: sum(parts), *alone)
        for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(summed), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


class TestRuns:
    @pytest.mark.parametrize("rule", [fd.aggregators.krum(1), fd.aggregators.nnm(fd.aggregators.fedavg(), 1)])
    def test_refused_before_anything_is_computed(self, refused, rule):
        refused(f"secure_aggregation=True: {rule.name} has no form of sums", rule, secure_aggregation=True)

    def test_a_rule_inside_a_method_counts(self, refused):
        refused(
            "secure_aggregation=True: scaffold has no form of sums",
            fd.algorithms.scaffold(12, aggregator=fd.aggregators.median()),
            secure_aggregation=True,
        )

    @pytest.mark.parametrize(("rule", "is_refused"), [(fd.aggregators.qffl(), False), (fd.aggregators.afl(), True)])
    def test_a_rule_that_weighs_by_losses_goes_with_rows_of_a_method(self, rule, is_refused):
        text = secure_aggregation.refusal(fd.algorithms.scaffold(12, aggregator=rule))
        assert ("needs the loss of each client" in text) is is_refused
        assert bool(text) is is_refused

    def test_what_only_a_simulation_knows(self, refused):
        refused("br_drag needs to know who is malicious", fd.aggregators.br_drag(oracle=True), secure_aggregation=True)

    def test_medians_of_statistics_are_refused(self, settings, fedavg):
        given = settings(model=Net(), secure_aggregation=True, local_optimizer=optax.trace(0.9))
        with pytest.raises(ValueError, match="model_state='median' compares clients"):
            prepare(fedavg, **given, model_state="median")
        prepare(fedavg, **given)

    @pytest.mark.slow
    def test_the_history_has_nothing_of_single_clients(self, settings):
        attacked = {"attack": fd.attacks.sign_flip(), "byzantine_fraction": 0.25, "dropout_rate": 0.2}
        given = settings(**attacked, evaluate_clients=True, compression=fd.compression.sign())
        plain, secure = (fd.simulate(fd.aggregators.drag(), **given, secure_aggregation=s) for s in (False, True))
        assert {name for name, x in plain.history.items() if x.ndim > 1} >= {
            "client_ids",
            "malicious",
            "valid",
            "weight",
        }
        assert {name for name, x in secure.history.items() if x.ndim > 1} <= {"class_accuracy"}
        for name, x in secure.history.items():
            np.testing.assert_array_equal(x, plain.history[name], err_msg=name)
