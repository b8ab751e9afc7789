"""The checks that users run on client rules and methods of their own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import ALGORITHMS, CLIENTS, NUM_CLIENTS, parametrize

from fedjax_drag import tree
from fedjax_drag.aggregators import fedavg, krum
from fedjax_drag.algorithms import from_aggregator
from fedjax_drag.clients import sgd
from fedjax_drag.testing import check_algorithm, check_client_rule
from fedjax_drag.types import ClientRule, Uplink


@parametrize(CLIENTS, slow=lambda case: case.label == "robust_sgd", fast=lambda case: case.label == "fedprox")
def test_every_client_rule_of_the_package_passes(case):
    check_client_rule(case.build())


@parametrize(
    ALGORITHMS, slow=lambda case: case.label not in ("from_aggregator", "scaffold", "taco"), fast=lambda _: False
)
@pytest.mark.slow
def test_every_method_of_the_package_passes(case):
    check_algorithm(case.build(), num_clients=NUM_CLIENTS)


def turned(change):
    """SGD whose direction is changed."""

    def direction(grad_fn, w, carry, downlink, batch):
        return change(grad_fn(w, batch), carry)

    return ClientRule(direction=direction)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (turned(lambda gradient, carry: gradient), r"direction: returns a dict; must return \(direction, carry\)"),
        (
            turned(lambda gradient, carry: (gradient["bias"], carry)),
            "direction: .* must have the structure of the parameters, a dict",
        ),
        (
            turned(lambda gradient, carry: (gradient, tree.norm(gradient))),
            "carry after a step: .* must have the structure of the carry before, a tuple",
        ),
        (turned(lambda gradient, carry: (tree.scale(jnp.log(-1.0), gradient), carry)), "sends is finite"),
        (
            turned(lambda gradient, carry: (tree.scale(np.random.default_rng().uniform(), gradient), carry)),
            "traced again",
        ),
    ],
    ids=["no pair", "direction", "carry", "not finite", "impure"],
)
def test_what_a_client_rule_breaks_is_named(rule, message):
    with pytest.raises(AssertionError, match=message):
        check_client_rule(rule)


@pytest.mark.thorough
def test_a_rule_that_counts_padding_is_found_out():
    def direction(grad_fn, w, carry, downlink, batch):
        return grad_fn(w, batch._replace(real=None)), carry

    with pytest.raises(AssertionError, match="padding do not count"):
        check_client_rule(ClientRule(direction=direction))


@pytest.mark.parametrize("change", [jnp.mean, lambda losses: jnp.log(-losses)], ids=["shape", "not finite"])
def test_a_loss_that_is_no_finite_number_for_each_example_is_found_out(change):
    class changed(sgd):
        def loss(self, examined, carry, downlink, batch):
            return change(super().loss(examined, carry, downlink, batch))

    with pytest.raises(AssertionError, match=r"^1 of 7 promises[\s\S]*finite number for each example: loss"):
        check_client_rule(changed())


def method(**changes):
    return from_aggregator(fedavg())._replace(**changes)


def plain_mean(params, uplink, state, **_):
    """The mean, whoever is absent, with metrics that nobody reads."""
    moved = jax.tree.map(lambda p, d: p + d.mean(0), params, uplink.delta)
    ones = jnp.ones(tree.cohort_size(uplink.delta))
    return moved, state._replace(metrics={"weight": ones, "cosine": ones, "num_rejected": jnp.zeros((), int)})


@pytest.mark.thorough
def test_what_a_method_breaks_is_named():
    with pytest.raises(AssertionError) as error:
        check_algorithm(method(aggregate=plain_mean))
    head, *lines = str(error.value).splitlines()
    assert head == "2 of 10 promises are not kept:"
    assert "valid=False" in lines[0]
    assert "num_rejected=0: must be 1" in lines[1]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (method(needs=frozenset({"weather"})), r"needs=\['weather'\]: must be among"),
        (method(broadcast=lambda params, state, ids: Uplink(params)), "has no attribute"),
        (method(client=turned(lambda gradient, carry: gradient)), r"must return \(direction, carry\)"),
        (
            method(aggregate=lambda params, uplink, state, *, root_delta, **extras: (params, state)),
            "missing 1 required keyword-only argument: 'root_delta'",
        ),
        (
            method(aggregate=lambda params, uplink, state, **extras: (params["bias"], state)),
            "aggregate returns parameters PyTreeDef",
        ),
    ],
    ids=["needs", "broadcast", "client", "extras", "parameters"],
)
def test_nothing_else_is_tried_with_a_method_that_has_other_shapes(broken, message):
    with pytest.raises(AssertionError, match=rf"^1 of 10 promises[\s\S]*{message}"):
        check_algorithm(broken)


@pytest.mark.thorough
def test_a_method_that_needs_the_number_of_malicious_clients_is_told():
    check_algorithm(from_aggregator(krum()), cohort=8)


def test_a_cohort_larger_than_the_federation_is_refused():
    with pytest.raises(ValueError, match="cohort=9"):
        check_algorithm(method(), cohort=9)
