"""What decides about clients is computed with products in full precision on every device.

An accelerator rounds the factors of a product, to ten bits on a GPU and to seven on a TPU, unless the product asks for
more. Models are left to that; rules, methods, attacks, compressors and averages of statistics are not.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import AGGREGATORS, ALGORITHMS, ATTACKS, SIZE, extras, nested_params, parametrize, unflatten
from jaxprs import products
from quadratics import batches, uplink_of

from fedjax_drag import compression, tree
from fedjax_drag.simulation.program.server import combined_statistics
from fedjax_drag.types import POISON_NEEDS, Uplink

COHORT = 7
EXACT = jax.lax.Precision.HIGHEST
FORGING = [case for case in ATTACKS if case.build().forges]
COMPRESSORS = [
    compression.top_k(0.2),
    compression.random_k(0.2),
    compression.qsgd(3),
    compression.sign(),
    compression.low_rank(2),
]


def place_of(equation):
    """The line of the package that asks for a product."""
    lines = str(equation.source_info.traceback).splitlines()
    return next((line for line in lines if "/fedjax_drag/" in line), str(equation))


def assert_exact(function, *args):
    found = products(jax.make_jaxpr(function)(*args).jaxpr)
    assert not [place_of(one) for one in found if set(one.params["precision"] or ()) != {EXACT}]


def drawn(cohort=COHORT):
    return unflatten(np.random.default_rng(0).normal(size=(cohort, SIZE)))


def test_products_are_found():
    x = jnp.ones((2, 2))
    assert_exact(lambda x: jax.lax.cond(x.sum() > 0, lambda: tree.product(x, x), lambda: x), x)
    with pytest.raises(AssertionError, match="dot_general"):
        assert_exact(lambda x: jax.lax.cond(x.sum() > 0, lambda: x @ x, lambda: x), x)


@parametrize(AGGREGATORS, fast=lambda case: case.label in ("drag", "krum", "geometric_median"))
def test_of_rules(case):
    rule, params, extra = case.build(), nested_params(), extras(COHORT)
    assert_exact(lambda deltas, state: rule.apply(params, deltas, state, **extra), drawn(), rule.init(params))


@parametrize(ALGORITHMS, fast=lambda case: case.label in ("scaffold", "taco"))
def test_of_methods(case):
    method, params, extra = case.build(), nested_params(), extras(5)
    state = method.init(params)
    uplink = uplink_of(method, params, state, extra["client_ids"], batches())
    assert_exact(lambda uplink, state: method.aggregate(params, uplink, state, **extra), uplink, state)


@parametrize(FORGING)
def test_of_attacks(case):
    attack, malicious = case.build(), jnp.arange(COHORT) < 3
    memory = attack.init(jax.random.key(0), nested_params())
    knowledge = {"last_update": nested_params(), "aggregate": lambda uplink: tree.mean(uplink.delta), "memory": memory}
    told = {name: knowledge[name] for name in attack.needs.difference(POISON_NEEDS)}

    def forge(key, deltas):
        return attack.forge(key, Uplink(deltas, {}), malicious, client_ids=jnp.arange(COHORT), **told)

    assert_exact(forge, jax.random.key(0), drawn())


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=lambda compressor: compressor.name)
def test_of_compressors(compressor):
    message = nested_params()
    assert_exact(compressor.compress, message, compressor.init(message), jax.random.key(0))


@pytest.mark.parametrize("how", ["average", "weighted"])
def test_of_statistics(how):
    assert_exact(lambda local: combined_statistics(how, nested_params(), local, jnp.arange(5), None), drawn(5))
