"""Rows of state for every client: taking, putting and counting them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import NUM_CLIENTS, nested_params
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_drag import per_client
from fedjax_drag.algorithms import feddc
from fedjax_drag.per_client import PerClient

M = NUM_CLIENTS
DTYPES = {"kernel": jnp.float32, "scale": jnp.bfloat16}


def stacked(lead, seed):
    """Random rows in two precisions, one of them of scalars."""
    rng = np.random.default_rng(seed)
    leaves = {"kernel": rng.normal(size=(lead, 3, 2)), "scale": rng.normal(size=lead)}
    return {name: jnp.asarray(leaf, DTYPES[name]) for name, leaf in leaves.items()}


def bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def rows_of(tree, places):
    return jax.tree.map(lambda x: np.asarray(x)[places], tree)


put = jax.jit(PerClient.put)
put_state = jax.jit(per_client.put)


@st.composite
def rounds(draw):
    """A cohort, which of it count, and a seed."""
    ids = draw(st.permutations(range(M)))[: draw(st.sampled_from([1, 5, M]))]
    counted = draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)))
    return np.array(ids, np.int32), np.array(counted), draw(st.integers(0, 99))


@pytest.mark.thorough
@given(rounds())
@settings(max_examples=25, deadline=None)
def test_put_changes_the_counted_rows_and_no_other_bit(case):
    """Whatever is sent in place of the others, and whatever number lies there."""
    ids, counted, seed = case
    before = PerClient(jax.tree.map(lambda x: x.at[ids[0]].set(-0.0), stacked(M, seed)))
    new = stacked(len(ids), seed + 1)
    broken = jax.tree.map(lambda x: x.at[~counted].set(np.nan), new)
    after = put(before, ids, broken, counted)
    expected = jax.tree.map(np.array, before.rows)
    for name in expected:
        expected[name][ids[counted]] = np.asarray(new[name])[counted]
    assert bits(after) == bits(expected)
    assert not after.gathered


@pytest.mark.thorough
@given(rounds())
@settings(max_examples=25, deadline=None)
def test_a_round_on_gathered_rows_is_the_round_on_all_of_them(case):
    ids, counted, seed = case
    whole, new = PerClient(stacked(M, seed)), stacked(len(ids), seed + 1)
    part = whole.gather(ids)
    assert part.gathered
    assert bits(part.take(ids)) == bits(whole.take(ids)) == bits(rows_of(whole.rows, ids))
    there = put(part, ids, new, counted)
    assert there.gathered
    after = put(whole, ids, new, counted)
    assert bits(there) == bits(after.gather(ids))
    assert bits(whole.scatter(ids, there.rows)) == bits(after)
    assert bits(whole.scatter(ids, part.rows)) == bits(whole)


@pytest.mark.thorough
@given(rounds(), st.integers(0, 99))
@settings(max_examples=10, deadline=None)
def test_rows_of_a_state_change_for_those_who_count_and_are_finite(case, broken):
    """A row counts as a whole, also where only one of several kinds of rows is not finite; integers always are."""
    ids, counted, seed = case
    place = broken % len(ids)
    state = {"a": PerClient(stacked(M, seed)), "b": (), "c": PerClient(jnp.arange(M))}
    new = jax.tree.map(lambda x: x.at[place].set(jnp.nan), stacked(len(ids), seed + 1))
    cohort = {"a": PerClient(new, True), "b": (), "c": PerClient(jnp.zeros(len(ids), jnp.int32), True)}
    after = put_state(state, cohort, ids, counted)
    kept = counted & (np.arange(len(ids)) != place)
    expected = {"a": put(state["a"], ids, new, kept), "c": put(state["c"], ids, cohort["c"].rows, kept)}
    assert bits(after) == bits(expected)
    assert bits(put_state(state, cohort, ids)) == bits(put_state(state, cohort, ids, np.ones(len(ids), bool)))
    assert bits(per_client.repeat(rows_of(new, 0), M).gather(ids)) == bits(rows_of(new, np.zeros(len(ids), int)))


def test_gathered_rows_are_in_the_order_of_the_cohort():
    """So that ids, which speak of the whole federation, are not looked up again."""
    part = PerClient(stacked(M, 0)).gather(jnp.array([6, 1]))
    assert bits(part.take(jnp.array([0, 3]))) == bits(part.rows)
    new = stacked(2, 1)
    assert bits(put(part, jnp.array([0, 3]), new, jnp.array([False, True]))) == bits(
        jax.tree.map(lambda old, fresh: np.stack([old[0], fresh[1]]), part.rows, new)
    )


def test_rows_keep_their_precision():
    """Also where the new ones were computed in another."""
    before = PerClient(stacked(M, 0))
    for rows in (before, before.gather(jnp.arange(2))):
        new = jax.tree.map(lambda x: x.astype(jnp.float32) + 1e-3, stacked(2, 1))
        after = put(rows, jnp.arange(2), new, jnp.ones(2, bool))
        assert {name: leaf.dtype for name, leaf in after.rows.items()} == DTYPES
        assert bits(after.take(jnp.arange(2))) == bits({n: x.astype(DTYPES[n]) for n, x in new.items()})


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
def test_every_client_starts_from_zero(dtype):
    params = nested_params(dtype)
    for built, expected in (
        (per_client.zeros(params, M), dtype),
        (per_client.zeros(params, M, lambda p: jnp.promote_types(p.dtype, jnp.float32)), jnp.float32),
    ):
        assert not built.gathered
        for row, p in zip(jax.tree.leaves(built.rows), jax.tree.leaves(params), strict=True):
            assert (row.shape, row.dtype) == ((M, *p.shape), expected)
            assert not row.any()


def test_per_client_state_is_listed_converted_and_counted_in_any_state():
    state = feddc(M).init(nested_params())
    assert [node is kept for node, kept in zip(per_client.found_in(state), state[3:5], strict=True)] == [True, True]
    assert per_client.found_in({"control": jnp.ones(3)}) == []
    assert per_client.found_in(PerClient({})) == [PerClient({})]

    ids = jnp.array([5, 2, 7])
    gathered = per_client.convert(lambda node: node.gather(ids), state)
    assert all(node.gathered for node in per_client.found_in(gathered))
    assert bits(gathered._replace(client_drifts=(), client_controls=())) == bits(
        state._replace(client_drifts=(), client_controls=())
    )
    filled = jax.tree.map(lambda x: x + 1, gathered)
    back = per_client.convert(lambda node, part: node.scatter(ids, part.rows), state, filled)
    for node in per_client.found_in(back):
        for leaf in jax.tree.leaves(node):
            np.testing.assert_array_equal(leaf.reshape(M, -1).any(axis=1), np.isin(np.arange(M), ids))


def test_bytes_of_arrays_and_of_shapes():
    """Two bytes a number in half precision, and nothing for what is not kept for each client."""
    expected = M * (6 * 4 + 2)
    state = {"rows": PerClient(stacked(M, 0)), "server": jnp.zeros(100)}
    assert per_client.num_bytes(state) == expected
    assert per_client.num_bytes(jax.eval_shape(lambda: state)) == expected
    assert per_client.num_bytes(state | {"more": PerClient(jnp.zeros(M))}) == expected + 4 * M
    assert per_client.num_bytes({"server": jnp.zeros(100)}) == 0
    shapes = jax.eval_shape(functools.partial(feddc(M).init), nested_params())
    assert per_client.num_bytes(shapes) == 2 * M * 9 * 4
