"""The check that users run on rules of their own: it accepts those of the package and names what another lacks."""

import collections

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import AGGREGATORS, parametrize

from fedjax_drag import attacks, tree
from fedjax_drag.aggregators import (
    MetricsOnly,
    PlainAggregator,
    Weights,
    bucketing,
    clusterguard,
    cosine_to_sum,
    empty_metrics,
    fedavg,
    foolsgold,
    krum,
    rfa,
    screened,
    stateless,
    summed_rule,
    weighted_rule,
)
from fedjax_drag.testing import check_aggregator
from fedjax_drag.types import Aggregator, Sums

QUICK = ("br_drag",)


@parametrize(AGGREGATORS, slow=lambda case: case.label not in QUICK, fast=lambda case: False)
def test_every_rule_of_the_package_passes(case):
    check_aggregator(case.build(), keyed=case.keyed)


def inverse_norm():
    """The rule of CONTRIBUTING.md in its plain form."""

    @screened
    def apply(params, deltas, state, *, valid, **_):
        closeness = valid * tree.inverse(tree.norms(deltas))
        weight = closeness * tree.inverse(closeness.sum())
        update = tree.weighted_sum(weight, deltas)
        return tree.move(params, update), MetricsOnly({"weight": weight, "cosine": tree.cosines(deltas, update)})

    return Aggregator(stateless(), apply)


def inverse_norm_as_weights():
    def weigh(clients, state, **_):
        closeness = tree.inverse(clients.norm)
        return Weights(own=closeness, mass=closeness)

    return weighted_rule(weigh)


def inverse_norm_as_sums():
    def accumulate(params, deltas, state, *, valid, **_):
        closeness = valid * tree.inverse(tree.norms(deltas))
        return tree.weighted_sum(closeness, deltas), closeness

    def finish(params, total, state, closeness, **_):
        unit = tree.inverse(closeness.sum())
        return tree.move(params, tree.scale(unit, total)), MetricsOnly({"weight": unit * closeness})

    return summed_rule(stateless(), Sums(accumulate, finish), metrics_after_sum={"cosine": cosine_to_sum})


def test_rules_of_equal_functions_share_a_program():
    def weigh(clients, state, **_):
        return Weights(own=1.0)

    for build in (lambda: weighted_rule(weigh), lambda: summed_rule(stateless(scale=1), Sums(weigh, weigh))):
        assert jax.tree.structure(build()) == jax.tree.structure(build())
    assert stateless(scale=1)(None).metrics["scale"].dtype != stateless(scale=1.0)(None).metrics["scale"].dtype


@pytest.mark.parametrize("measure", ["cosine", "angle"])
def test_a_weight_by_cosines_needs_a_reference(measure):
    rule = weighted_rule(lambda clients, state, **_: Weights(own=getattr(clients, measure)))
    with pytest.raises(ValueError, match=f"^clients.{measure}: the rule has no reference"):
        rule.apply({"w": jnp.zeros(2)}, {"w": jnp.ones((3, 2))}, rule.init({"w": jnp.zeros(2)}))


def test_sums_of_the_mean_are_those_of_their_rule():
    nothing = lambda *_, **__: None
    assert summed_rule(stateless(), Sums(nothing, nothing, of_mean=True)).streamed.of_mean


@pytest.mark.parametrize(
    "build",  # pages of the documentation check the first two
    [
        *(pytest.param(form, marks=pytest.mark.slow) for form in (inverse_norm, inverse_norm_as_weights)),
        inverse_norm_as_sums,
    ],
)
@pytest.mark.thorough
def test_a_rule_written_with_the_public_helpers_passes(build):
    check_aggregator(build())


def test_the_forms_of_a_rule_are_the_same_rule():
    params = {"w": jnp.zeros(3)}
    deltas = {"w": jnp.asarray([[1.0, 2.0, 0.0], [0.5, -1.0, 3.0], [0.0, 0.0, 0.0], [jnp.nan, 0.0, 1.0]])}
    rules = [build() for build in (inverse_norm, inverse_norm_as_weights, inverse_norm_as_sums)]
    plain, *others = [rule.apply(params, deltas, rule.init(params)) for rule in rules]
    for other in others:
        chex.assert_trees_all_close(other, plain, rtol=1e-6)


def unguarded():
    """Clips deltas to length 1 by norms that are not scaled, and screens only what is not finite."""

    def apply(params, deltas, state, *, valid, **_):
        counted = valid & tree.finite_rows(deltas)
        squares = sum(jnp.square(d).reshape(d.shape[0], -1).sum(1) for d in jax.tree.leaves(deltas))
        weight = counted * jax.lax.rsqrt(jnp.maximum(jnp.where(counted, squares, 1.0), 1.0))
        weight = jnp.where(jnp.isfinite(squares), weight, counted) * tree.inverse(counted.sum())
        update = tree.weighted_sum(weight, deltas)
        metrics = {"weight": weight, "cosine": tree.cosines(deltas, update), "num_rejected": (valid & ~counted).sum()}
        return tree.move(params, update), MetricsOnly(metrics)

    return Aggregator(lambda params: MetricsOnly(empty_metrics()), apply)


@pytest.mark.thorough
def test_a_rule_that_a_long_delta_gets_past_is_found_out():
    with pytest.raises(AssertionError, match=r"largest numbers.*num_rejected=0: must be 1"):
        check_aggregator(unguarded())


@pytest.mark.thorough
def test_parameters_of_ones_own_are_used():
    with pytest.raises(AssertionError, match="no kernel"):
        check_aggregator(_with(inverse_norm(), lambda params: _refuse(params)), params={"bias": jnp.zeros(2)})


def _refuse(params):
    if "kernel" not in params:
        raise ValueError("no kernel")


def _with(rule, look):
    def apply(params, *rest, **extras):
        look(params)
        return rule.apply(params, *rest, **extras)

    return rule._replace(apply=apply)


def naive():
    """As one writes it first: neither masks, nor rejection, nor metrics of length S before they are known."""

    def apply(params, deltas, state, **_):
        weight = jnp.full(tree.cohort_size(deltas), 1 / tree.cohort_size(deltas))
        metrics = {"weight": weight, "cosine": weight, "num_rejected": jnp.zeros((), int)}
        return tree.move(params, jax.tree.map(lambda d: d.mean(0), deltas)), MetricsOnly(metrics)

    return Aggregator(lambda params: MetricsOnly(empty_metrics()), apply)


def test_an_extra_that_does_not_exist_is_found_out():
    with pytest.raises(AssertionError, match=r"needs=\['weather'\]: must be among"):
        check_aggregator(inverse_norm()._replace(needs=frozenset({"weather"})))


def test_all_that_a_naive_mean_lacks_is_named():
    with pytest.raises(AssertionError) as error:
        check_aggregator(naive())
    head, *lines = str(error.value).splitlines()
    assert head == "4 of 12 promises are not kept:"
    assert "valid=False" in lines[0]
    assert "weight" in lines[0]
    assert "num_rejected=0: must be 1" in lines[1]
    assert "the largest numbers" in lines[2]
    assert "without a usable delta" in lines[3]


def place_matters(rule):
    def apply(params, deltas, state, **extras):
        return rule.apply(params, jax.tree.map(lambda d: d.at[0].multiply(2.0), deltas), state, **extras)

    return rule._replace(apply=apply)


@pytest.mark.thorough
def test_a_metric_that_init_does_not_name_is_found_out():
    """By the check and by ``tree.initial_state`` alike: the state after a round has more than that before."""

    @screened
    def apply(params, deltas, state, *, valid, **_):
        return params, MetricsOnly({"weight": 1.0 * valid, "cosine": 1.0 * valid, "kept": valid.sum()})

    rule = Aggregator(stateless(), apply)
    says = r"state after a round: has \.metrics\['kept'\] in addition; must have the structure of the state before"
    with pytest.raises(AssertionError, match=says):
        check_aggregator(rule)
    params = {"w": jnp.zeros(2)}
    with pytest.raises(ValueError, match="^" + says):
        tree.initial_state(rule.apply, rule.init(params), params, {"w": jnp.zeros((3, 2))})


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda p, s: (jax.tree.map(lambda x: x[:1], p), s), r"params that the rule returns\['w'\] with shape \(1,\)"),
        (lambda p, s: (p, s._replace(mean={"w": 0.0})), r"state that the rule returns.mean\['w'\] with shape \(\)"),
    ],
)
def test_what_a_rule_returns_is_not_broadcast(returned, message):
    class rule(PlainAggregator):
        def init(self, params):
            return collections.namedtuple("State", ["mean", "metrics"])(params, empty_metrics())

        def combine(self, params, deltas, state, *, valid, **_):
            return returned(params, state)

    params = {"w": jnp.zeros(2)}
    with pytest.raises(ValueError, match=message):
        rule().apply(params, {"w": jnp.zeros((3, 2))}, rule().init(params))


def test_a_rule_that_prefers_the_first_client_is_found_out_unless_it_says_so():
    with pytest.raises(AssertionError, match="order of the clients"):
        check_aggregator(place_matters(fedavg()))
    check_aggregator(place_matters(fedavg()), keyed=True)


def mean_of_chunks():
    """Divides by the number of clients of a chunk."""

    def accumulate(params, deltas, state, *, valid, **_):
        return tree.weighted_sum(valid * tree.inverse(valid.sum()), deltas), valid

    def finish(params, total, state, counted, **_):
        return tree.move(params, total), MetricsOnly({"weight": counted * tree.inverse(counted.sum())})

    return summed_rule(stateless(), Sums(accumulate, finish), metrics_after_sum={"cosine": cosine_to_sum})


@pytest.mark.thorough
def test_a_rule_that_is_another_one_in_chunks_is_found_out():
    with pytest.raises(AssertionError, match=r"^1 of 12 promises.*\n- Its sums of chunks"):
        check_aggregator(mean_of_chunks())


def test_nothing_else_is_tried_with_a_rule_that_cannot_be_called():
    rule = fedavg()._replace(apply=lambda params, deltas, state: (params, state))
    with pytest.raises(AssertionError, match=r"^1 of 12 promises.*\n.*unexpected keyword"):
        check_aggregator(rule)


def test_too_small_a_cohort_is_refused():
    with pytest.raises(ValueError, match="cohort=2"):
        check_aggregator(fedavg(), cohort=2)


@pytest.mark.parametrize(
    ("rule", "extra", "message"),
    [
        (fedavg("examples"), {"num_examples": [-1, 2, 3]}, r"num_examples=\[-1, 2, 3\]: must be finite and >= 0"),
        (rfa(weighting="examples"), {"num_examples": [1.0, np.nan, 3.0]}, "num_examples=.*nan.*: must be finite"),
        (rfa(weighting="examples"), {"num_examples": [0, 0, 0]}, "above 0 for a client"),
        (fedavg("examples"), {"num_examples": np.ones(2)}, r"num_examples=array float64\[2\]: must have shape \(3,\)"),
        (fedavg("examples"), {"num_examples": "many"}, "num_examples='many': must be 3 numbers"),
        (krum(0), {"valid": [True]}, r"valid=\[True\]: must have shape \(3,\)"),
        (foolsgold(4), {"client_ids": [0, 1, 4]}, r"client_ids=\[0, 1, 4\]: must be different integers in \[0, 3\]"),
        (foolsgold(4), {"client_ids": [0, 1, 1]}, "must be different integers"),
        (foolsgold(4), {"client_ids": [0.0, 1.0, 2.0]}, "must be different integers"),
    ],
)
def test_extras_of_clients_are_checked(rule, extra, message):
    params = {"w": jnp.zeros(2)}
    with pytest.raises(ValueError, match=message):
        rule.apply(params, {"w": jnp.ones((3, 2))}, rule.init(params), **extra)


@pytest.mark.parametrize(
    "rule", [fedavg("examples"), rfa(weighting="examples"), clusterguard(use_num_examples=True, standardise=True)]
)
def test_missing_numbers_of_examples_are_named(rule):
    params = {"w": jnp.zeros(2)}
    with pytest.raises(TypeError, match="num_examples: must be given to apply by keyword, how many examples"):
        rule.apply(params, {"w": jnp.ones((3, 2))}, rule.init(params), dissimilarity=[1, 2, 3], key=jax.random.key(0))


def test_lists_are_taken_for_extras_of_clients():
    params, deltas = {"w": jnp.zeros(2)}, {"w": jnp.arange(6.0).reshape(3, 2)}
    moved = [
        r.apply(params, deltas, r.init(params), num_examples=[1, 0, 3])[0]["w"]
        for r in (fedavg("examples"), rfa(weighting="examples"))
    ]
    np.testing.assert_allclose(moved[0], [3.0, 4.0], rtol=1e-6)
    assert np.isfinite(moved[1]).all()


def test_what_cannot_be_meant_is_refused():
    with pytest.raises(ValueError, match=r"start=1\.5: must be the number of a round"):
        attacks.during(attacks.sign_flip(), 1.5, 2)
    rule, params = bucketing(fedavg(), bucket_size=4), {"w": jnp.zeros(2)}
    with pytest.raises(ValueError, match="bucket_size=4: must be at most 3, the size of the cohort"):
        rule.apply(params, {"w": jnp.ones((3, 2))}, rule.init(params), key=jax.random.key(0))
