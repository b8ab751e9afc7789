"""Malicious clients that send an honest delta and beside it a corrupted message ``aux``.

Every method whose clients send one says what becomes of it; here each is held to its word.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import ALGORITHMS, NUM_CLIENTS, extras, flatten, nested_params, parametrize
from quadratics import batches, uplink_of

from fedjax_drag import aggregators, algorithms, tree
from fedjax_drag.per_client import found_in

COHORT = 5
BAD = np.array([False, True, False, True, False])
FACTORS = [-10.0, 1e6]
median_of = functools.partial(np.median, axis=0)


@functools.cache
def message_of(case):
    """The shapes of what the clients send beside their deltas."""
    method, params = case.build(), nested_params()
    ids = jnp.arange(COHORT)
    return jax.eval_shape(lambda: uplink_of(method, params, method.init(params), ids, batches()).aux)


SPEAKING = [case for case in ALGORITHMS if jax.tree.leaves(message_of(case))]


class Round:
    """The second round of a method, so that it has something to remember: what everybody would send, and the server."""

    def __init__(self, method):
        self.method, self.extra = method, extras(COHORT, 1)
        self.ids = np.asarray(self.extra["client_ids"])
        self.send = jax.jit(functools.partial(uplink_of, method, ids=self.extra["client_ids"], data=batches()))
        compiled = jax.jit(method.aggregate)
        self.aggregate = lambda *args, valid=None: compiled(
            *args, **self.extra, valid=jnp.ones(COHORT, bool) if valid is None else valid
        )
        params = nested_params()
        self.state = tree.cast_like(method.init(params), jax.eval_shape(self.first, params)[1])
        self.params, self.state = self.aggregate(params, self.send(params, self.state), self.state)
        self.uplink = self.send(self.params, self.state)
        self.after = self.aggregate(self.params, self.uplink, self.state)

    def first(self, params):
        state = self.method.init(params)
        return self.method.aggregate(
            params, self.send(params, state), state, **self.extra, valid=jnp.ones(COHORT, bool)
        )

    def with_aux(self, change):
        """The round in which the malicious clients' ``aux`` is another: uplink, parameters and state."""

        def leaf(false, true):
            return jnp.where(tree.expand(BAD, true), false, true)

        uplink = self.uplink._replace(aux=jax.tree.map(leaf, change(self.uplink.aux), self.uplink.aux))
        return uplink, *self.aggregate(self.params, uplink, self.state)


def times(factor):
    """What multiplies all of a message."""
    return functools.partial(jax.tree.map, lambda x: (factor * x).astype(x.dtype))


@functools.cache
def as_built(case):
    return Round(case.build())


@functools.cache
def guarded(case):
    """Under a rule that a minority cannot move far."""
    return Round(case.build(aggregator=aggregators.median()))


def bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def memory(state):
    """All that the state holds but for its metrics."""
    paths = jax.tree.leaves_with_path(state)
    return [leaf for path, leaf in paths if "metrics" not in jax.tree_util.keystr(path)]


def spoilt(uplink, number, value):
    """One entry of one leaf of the malicious clients' ``aux``."""
    leaves, structure = jax.tree.flatten(uplink.aux)
    flat = leaves[number].reshape(COHORT, -1)
    leaves[number] = flat.at[BAD, -1].set(value).reshape(leaves[number].shape)
    return uplink._replace(aux=jax.tree.unflatten(structure, leaves))


@pytest.mark.sample(1)
@parametrize(SPEAKING)
@pytest.mark.parametrize("value", [np.nan, -np.inf, 2e37, -3e38])
def test_a_number_that_is_not_finite_or_too_large_loses_the_client(case, value):
    """One entry is enough. What remains is the round without it, bit for bit, and it is counted."""
    played = as_built(case)
    expected, absent = played.aggregate(played.params, played.uplink, played.state, valid=jnp.asarray(~BAD))
    assert absent.metrics["num_rejected"] == 0
    everybody, state = played.after
    assert bits((expected, memory(absent))) != bits((everybody, memory(state)))
    for number in range(len(jax.tree.leaves(played.uplink.aux))):
        params, state = played.aggregate(played.params, spoilt(played.uplink, number, value), played.state)
        assert bits(params) == bits(expected)
        assert bits(memory(state)) == bits(memory(absent))
        assert state.metrics["num_rejected"] == 2
        assert not state.metrics["weight"][BAD].any()
        for before, after in zip(found_in(played.state), found_in(state), strict=True):
            own = played.ids[BAD]
            assert bits(after.take(own)) == bits(before.take(own))


# What is finite. Each of these holds one method to its docstring.


def of_scaffold(played, factor):
    """The parameters do not see it; ``c`` moves by the sum of what is sent over M, and the rows of others stay."""
    uplink, params, state = played.with_aux(times(factor))
    honest_params, honest = played.after
    assert bits(params) == bits(honest_params)
    shift = flatten(uplink.aux, 1)[BAD].sum(0) - flatten(played.uplink.aux, 1)[BAD].sum(0)
    assert np.abs(shift).max() > 1
    moved = flatten(state.control) - flatten(honest.control)
    np.testing.assert_allclose(moved, shift / NUM_CLIENTS, rtol=1e-4, atol=1e-5)
    others = np.setdiff1d(np.arange(NUM_CLIENTS), played.ids[BAD])
    assert bits(state.client_controls.take(others)) == bits(honest.client_controls.take(others))
    own = played.ids[BAD]
    expected = flatten(played.state.client_controls.take(own), 1) + flatten(uplink.aux, 1)[BAD]
    np.testing.assert_allclose(flatten(state.client_controls.take(own), 1), expected, rtol=1e-5, atol=1e-5)
    return params, state


def of_feddc(played, factor):
    """As in SCAFFOLD, and the drifts, which sum up deltas, do not see it."""
    params, state = of_scaffold(played, factor)
    honest = played.after[1]
    assert bits((state.drift, state.client_drifts)) == bits((honest.drift, honest.client_drifts))
    return params, state


def of_mime(played, factor):
    """The parameters do not see it; ``m`` moves by ``1 - b`` of the plain mean."""
    uplink, params, state = played.with_aux(times(factor))
    honest_params, honest = played.after
    assert bits(params) == bits(honest_params)
    shift = flatten(uplink.aux, 1)[BAD].sum(0) - flatten(played.uplink.aux, 1)[BAD].sum(0)
    assert np.abs(shift).max() > 1
    moved = flatten(state.momentum) - flatten(honest.momentum)
    np.testing.assert_allclose(moved, 0.1 * shift / COHORT, rtol=1e-4, atol=1e-5)
    return params, state


def of_fednova(played, factor):
    """The rule sees it in the normalised deltas and stays among the honest ones; ``tau`` is the plain mean."""
    uplink, params, state = played.with_aux(times(factor))
    work = np.maximum(np.asarray(uplink.aux, np.float64), 0)
    tau = work.mean()
    np.testing.assert_allclose(state.metrics["work"], work, rtol=1e-6)
    np.testing.assert_allclose(state.metrics["effective_work"], tau, rtol=1e-6)
    unit = flatten(uplink.delta, 1) * np.where(work > 0, 1 / np.where(work > 0, work, 1), 0)[:, None]
    step = (flatten(params) - flatten(played.params)) / tau
    np.testing.assert_allclose(step, median_of(unit), rtol=1e-4, atol=1e-6)
    assert (step >= unit[~BAD].min(0) - 1e-6).all()
    assert (step <= unit[~BAD].max(0) + 1e-6).all()
    honest = work[~BAD].sum() / COHORT
    # Claims of less than nothing are none at all; those of much work lengthen the step without bound.
    assert tau == pytest.approx(honest) if factor < 0 else tau > 1e5 * honest
    return params, state


def of_taco(played, factor):
    """Neither parameters nor coefficients see it, and the server goes by a number of steps that somebody took."""
    various = jnp.arange(1.0, COHORT + 1)
    honest_uplink = played.uplink._replace(aux=type(played.uplink.aux)(various, 0.1 * various))
    corrupted = honest_uplink._replace(aux=jax.tree.map(lambda x: jnp.where(BAD, factor * x, x), honest_uplink.aux))
    honest_params, honest = played.aggregate(played.params, honest_uplink, played.state)
    params, state = played.aggregate(played.params, corrupted, played.state)
    assert bits(params) == bits(honest_params)
    assert bits((state.alpha, state.strikes, state.mean_alpha)) == bits(
        (honest.alpha, honest.strikes, honest.mean_alpha)
    )
    assert bits(state.aggregator) == bits(honest.aggregator)
    taken = np.asarray(various)[~BAD]
    assert taken.min() <= state.work.steps <= taken.max()
    assert 0.1 * taken.min() <= state.work.total_step_size <= np.float32(0.1) * taken.max()
    # The gradient is the update per unit of step size, and so stays within the same range.
    ratio = honest.work.total_step_size / state.work.total_step_size
    np.testing.assert_allclose(flatten(state.gradient), ratio * flatten(honest.gradient), rtol=1e-5, atol=1e-7)
    return params, state


def of_stem(played, factor):
    """The rule sees both halves in the lengthened deltas; momentum that is carried is a plain mean."""
    carried = played.state.memory != ()

    def lengthened(uplink):
        return flatten(uplink.delta, 1) - flatten(uplink.aux.step, 1)

    # Both parts by the same factor would leave their ratio, the momentum.
    for part in ("step", "step_size") if carried else ("step",):
        uplink, params, state = played.with_aux(
            lambda aux, part=part: aux._replace(**{part: times(factor)(getattr(aux, part))})
        )
        lengthened_deltas = lengthened(uplink)
        step = flatten(params) - flatten(played.params)
        np.testing.assert_allclose(step, median_of(lengthened_deltas), rtol=1e-4, atol=1e-5)
        assert (step >= lengthened_deltas[~BAD].min(0) - 1e-5).all()
        assert (step <= lengthened_deltas[~BAD].max(0) + 1e-5).all()
        if not carried:
            assert memory(state) == []
            continue
        v = flatten(uplink.aux.step, 1) / np.asarray(uplink.aux.step_size, np.float64)[:, None]
        np.testing.assert_allclose(flatten(state.memory.momentum), v.mean(0), rtol=1e-4, atol=1e-5)
    return params, state


def of_clusters(played, factor):
    """It says in which cluster a delta counts, and no more; at first all clients choose the first of equal models."""
    uplink, _, state = played.with_aux(times(factor))
    claimed = np.asarray(uplink.aux).argmax(0)
    assert (claimed == np.where(BAD & (factor < 0), 1, 0)).all()
    np.testing.assert_array_equal(state.metrics["cluster"], claimed)
    average = played.method.name == "hypcluster" or played.method.averaging == "models"
    for k in range(2):
        mine = flatten(uplink.delta, 1)[claimed == k]
        step = median_of(mine) * (1 if average else len(mine) / COHORT) if len(mine) else 0
        before, after = (flatten(jax.tree.map(lambda x, k=k: x[k], s.models)) for s in (played.state, state))
        np.testing.assert_allclose(after - before, step, rtol=1e-4, atol=1e-5)
    return played.aggregate(played.params, uplink, played.state)


PROMISES = {
    "scaffold": of_scaffold,
    "feddc": of_feddc,
    "mime": of_mime,
    "fednova": of_fednova,
    "taco": of_taco,
    "stem": of_stem,
    "ifca": of_clusters,
    "hypcluster": of_clusters,
}


def test_every_method_with_a_message_documents_its_protection():
    assert {case.builder.__name__ for case in SPEAKING} == PROMISES.keys()


@parametrize(SPEAKING, slow=lambda case: case.label in ("feddc", "taco"))
@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.thorough
def test_a_finite_message_has_the_documented_effect(case, factor):
    params, state = PROMISES[case.builder.__name__](guarded(case), factor)
    assert np.isfinite(flatten(params)).all()
    assert state.metrics["num_rejected"] == 0


REACHING = [case for case in SPEAKING if case.builder in (algorithms.scaffold, algorithms.feddc, algorithms.mime)]


@pytest.mark.thorough
@parametrize(REACHING)
def test_a_corrupted_shared_state_moves_the_next_round_without_bound(case):
    """All clients alike, so that no rule can tell: the damage grows as the message does."""
    played = guarded(case)

    def next_round(factor):
        _, params, state = played.with_aux(times(factor))
        deltas = flatten(played.send(params, state).delta, 1)
        return deltas[~BAD], flatten(played.aggregate(params, played.send(params, state), state)[0])

    (sent, honest), (near, some), (far, much) = next_round(1.0), next_round(1e3), next_round(1e6)
    for less, more in ((near - sent, far - sent), (some - honest, much - honest)):
        assert np.linalg.norm(less) > 1
        np.testing.assert_allclose(np.linalg.norm(more) / np.linalg.norm(less), 1e3, rtol=0.01)
    directions = (far - sent) / np.linalg.norm(far - sent, axis=1, keepdims=True)
    assert (directions @ directions.T).min() > 0.99


@pytest.mark.thorough
def test_under_the_mean_the_message_of_stem_moves_the_parameters():
    """As a delta would: there is no protection but the rule's."""
    played = as_built(next(case for case in SPEAKING if case.label == "stem"))
    _, params, _ = played.with_aux(times(1e6))
    shift = (1 - 1e6) * flatten(played.uplink.aux.step, 1)[BAD].sum(0) / COHORT
    np.testing.assert_allclose(flatten(params) - flatten(played.after[0]), shift, rtol=1e-4)
