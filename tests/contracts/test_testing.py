"""The check that users run on rules of their own: it accepts those of the package and names what another lacks."""

import chex
import jax
import jax.numpy as jnp
import pytest
from cases import AGGREGATORS, parametrize

from fedjax_drag import tree
from fedjax_drag.aggregators import (
    MetricsOnly,
    Weights,
    cosine_to_sum,
    empty_metrics,
    fedavg,
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

    return summed_rule(stateless(), Sums(accumulate, finish), hindsight={"cosine": cosine_to_sum})


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

    return summed_rule(stateless(), Sums(accumulate, finish), hindsight={"cosine": cosine_to_sum})


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
