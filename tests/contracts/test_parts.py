"""Parts are values: equal ones, and ones that differ in their numbers alone, share a compiled program."""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import (
    AGGREGATORS,
    ALGORITHMS,
    NUM_CLIENTS,
    SECTIONS,
    SIZE,
    extras,
    flatten,
    nested_params,
    parametrize,
    unflatten,
)
from quadratics import batches, uplink_of

from fedjax_drag import aggregators, attacks
from fedjax_drag.types import Aggregator, Attack, Part, Scalar, WrappedAttack
from fedjax_drag.types._part import told

COHORT = 7


@pytest.mark.parametrize("section", SECTIONS)
def test_parts_built_anew_are_equal_and_numbers_are_no_part_of_the_structure(section):
    for case in SECTIONS[section][1]:
        part, again = case.build(), case.build()
        structure = jax.tree.structure(part)
        chex.assert_trees_all_equal(part, again)
        assert part == again, case.label
        assert hash(part) == hash(again), case.label
        assert repr(part) == repr(again)
        given = {name: values[-1] for name, values in case.sweeps.items() if getattr(part, name) is not None}
        for other in (again, *[case.build(**{name: value}) for name, value in given.items()]):
            assert jax.tree.structure(other) == structure, case.label
            assert hash(jax.tree.structure(other)) == hash(structure), case.label
        for name, value in given.items():
            assert (case.build(**{name: value}) == part) == (value == getattr(part, name)), case.label


def test_equal_numbers_of_other_types_are_equal():
    one, other = aggregators.drag(c=0.5), aggregators.drag(c=np.float32(0.5))
    assert one == other != aggregators.drag(c=0.25)
    assert hash(one) == hash(other)
    assert one != aggregators.br_drag(c=0.5)


def test_a_part_of_functions_is_shown_by_the_name_of_its_maker():
    def forge(*_, **__):
        raise NotImplementedError

    part = Attack(forge=forge)
    assert part.name == "test_a_part_of_functions_is_shown_by_the_name_of_its_maker"
    assert repr(part) == f"Attack({part.name})"


def test_types_of_fields_may_be_texts():
    """As ``from __future__ import annotations`` makes them all."""

    class quoted(Part):
        number: "Scalar | None" = None
        inner: "quoted | None" = None
        flag: "bool" = False

    part = quoted(0.5, quoted(jnp.float32(1.5)), True)
    assert jax.tree.leaves(part) == [0.5, 1.5]
    assert jax.tree.structure(part) == jax.tree.structure(quoted(2.0, quoted(3.0), True))
    with pytest.raises(ValueError, match=r"^flag='yes': must"):
        quoted(flag="yes")
    with pytest.raises(NameError, match=r"^unknown_type: Sclar in the type of a field must"):

        class unknown_type(Part):
            number: "Sclar" = 1.0  # pyright: ignore[reportUndefinedVariable]  # noqa: F821


def test_a_part_around_another_has_what_that_has_unless_it_has_its_own():
    class own_forge(WrappedAttack):
        attack: Attack
        forge: Any

    inside = attacks.poisonedfl()
    around = own_forge(inside, str)
    assert around.forge is str
    assert around.init == inside.init
    assert around.needs == inside.needs
    assert around.forges
    assert not around.poisons


def after_two_rounds(part):
    """The parameters to which a rule or a method moves."""
    params = nested_params()
    state = part.init(params)
    for t in range(2):
        extra = extras(COHORT, t)
        if isinstance(part, Aggregator):
            deltas = np.random.default_rng(t).normal(size=(COHORT, SIZE)).astype(np.float32)
            params, state = part.apply(params, unflatten(deltas), state, **extra)
        else:
            uplink = uplink_of(part, params, state, extra["client_ids"], batches())
            params, state = part.aggregate(params, uplink, state, **extra)
    return params


@parametrize(
    [case for case in [*AGGREGATORS, *ALGORITHMS] if case.sweeps],
    slow=lambda case: case.label in ("deepsight", "rfl_bat"),
    fast=lambda case: case.label in ("drag", "scaffold"),
)
def test_numbers_may_be_inputs_of_a_program(case):
    traces = []

    @jax.jit
    def ended(part):
        traces.append(part)
        return after_two_rounds(part)

    part = case.build()
    found, expected = ended(part), jax.jit(lambda: after_two_rounds(part))()
    np.testing.assert_allclose(flatten(found), flatten(expected), rtol=1e-5, atol=1e-6)
    for name, values in case.sweeps.items():
        ended(case.build(**{name: values[-1]}))
    assert len(traces) == 1


@pytest.mark.parametrize(
    "case",
    [case for case in [*AGGREGATORS, *ALGORITHMS] if "num_clients" in case.settings],
    ids=lambda case: case.label,
)
def test_the_number_of_clients_may_be_told_afterwards(case):
    untold = case.builder(**{name: value for name, value in case.settings.items() if name != "num_clients"})
    assert told(untold, num_clients=NUM_CLIENTS) == case.build()
    assert told(case.build(), num_clients=2 * NUM_CLIENTS) == case.build(), "what was given stays"
    with pytest.raises(ValueError, match=f"^num_clients=None: must be given to {untold.name} where no simulation"):
        untold.init({"w": jnp.zeros(2)})
