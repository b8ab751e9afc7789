"""The draws of selections against plain loops and their statistics, without a run around them."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxprs import equations
from reference.numpy_fair import Arms, oort_plan
from scipy import stats

from fedjax_drag import selection
from fedjax_drag.selection import Candidates, Observed, StartLoss
from fedjax_drag.selection._uniform import draw_uniformly

EXAMPLES = np.array([1, 2, 3, 5, 8, 13], np.int32)
DRAWS = 40_000


def candidates(available=None, round_index=0, losses=None, examples=EXAMPLES):
    here = None if available is None else jnp.asarray(available)
    return Candidates(jnp.asarray(examples), here, jnp.int32(round_index), losses)


def draw(one, cohort_size, number=DRAWS, given=None, memory=()):
    """Cohorts of many rounds, ``[number, S]``, and their weights."""
    given = candidates() if given is None else given
    keys = jax.random.split(jax.random.key(5), number)
    found = jax.jit(jax.vmap(lambda key: one.select(key, memory, given, cohort_size)))(keys)
    return np.asarray(found.client_ids), None if found.weight is None else np.asarray(found.weight)


def successive(rate, cohort_size):
    """The probability of every cohort of clients that are drawn one after another in proportion to ``rate``."""
    chances = {}
    for order in itertools.permutations(np.flatnonzero(rate), cohort_size):
        left, chance = rate.sum(), 1.0
        for m in order:
            chance, left = chance * rate[m] / left, left - rate[m]
        chances[tuple(sorted(order))] = chances.get(tuple(sorted(order)), 0.0) + chance
    return chances


@pytest.mark.parametrize("available", [None, [True, True, False, True, True, True]])
def test_cohorts_by_size_have_the_probabilities_of_successive_draws(available):
    found, _ = draw(selection.weighted(), 3, given=candidates(available))
    chances = successive(np.where(True if available is None else available, EXAMPLES, 0), 3)
    cohorts, counts = np.unique(found, axis=0, return_counts=True)
    assert set(map(tuple, cohorts.tolist())) <= set(chances)
    seen = dict(zip(map(tuple, cohorts.tolist()), counts, strict=True))
    counts = [seen.get(cohort, 0) for cohort in chances]
    assert stats.chisquare(counts, DRAWS * np.array(list(chances.values()))).pvalue > 1e-3


def test_draws_with_replacement_are_proportional_to_the_numbers_of_examples():
    found, weight = draw(selection.weighted(replacement=True), 4)
    assert (np.diff(found, axis=1) >= 0).all()
    assert (np.diff(found, axis=1) == 0).any()
    counts = np.bincount(found.ravel(), minlength=6)
    assert stats.chisquare(counts, counts.sum() * EXAMPLES / EXAMPLES.sum()).pvalue > 1e-3
    assert (weight == 1).all()


UNBIASED = [selection.uniform(), selection.weighted(), selection.weighted(replacement=True)]


@pytest.mark.parametrize("one", UNBIASED, ids=str)
@pytest.mark.parametrize("available", [None, [True, False, True, True, False, True]], ids=["all", "some"])
@pytest.mark.parametrize("cohort_size", [2, 4, 6])
def test_weights_make_the_mean_over_a_cohort_unbiased(one, available, cohort_size):
    """Also where fewer clients can be drawn than a cohort has places."""
    found, weight = draw(one, cohort_size, given=candidates(available))
    here = np.ones(6, bool) if available is None else np.array(available)
    values = np.array([1.0, -2.0, 4.0, 0.5, 3.0, -1.0])
    counted = here[found]
    means = np.where(counted, weight * values[found], 0).sum(1) / counted.sum(1)
    expected = (EXAMPLES * values)[here].sum() / EXAMPLES[here].sum()
    assert abs(means.mean() - expected) <= 4 * means.std() / np.sqrt(DRAWS) + 1e-6


def test_the_plain_mean_of_cohorts_by_size_is_biased():
    """So that the weights above do something."""
    found, _ = draw(selection.weighted(), 4)
    means = EXAMPLES[found].mean(1)
    expected = (EXAMPLES**2).sum() / EXAMPLES.sum()
    assert abs(means.mean() - expected) > 20 * means.std() / np.sqrt(DRAWS)


def test_uniform_is_the_draw_of_before():
    key = jax.random.key(1)
    found = selection.uniform().select(key, (), candidates(), 3)
    np.testing.assert_array_equal(found.client_ids, draw_uniformly(key, 6, 3))


EVERY = [
    selection.uniform(),
    selection.weighted(),
    selection.round_robin(),
    selection.power_of_choice(d=4),
    selection.power_of_choice(d=4, loss="last"),
    selection.oort(),
]


@functools.cache
def compiled(one, cohort_size):
    return jax.jit(lambda *given: one.select(*given, cohort_size)), jax.jit(one.observe)


def played(one, rounds, cohort_size, available_of=lambda t: None, seed=0):
    """Rounds of a selection that observes what is made up; yields memory, candidates, key, cohort and observation."""
    rng, memory = np.random.default_rng(seed), one.init(6)
    select, observe = compiled(one, cohort_size)
    for t in range(rounds):
        available, losses = available_of(t), jnp.asarray(rng.uniform(size=6), jnp.float32)
        given = candidates(available, t, jax.tree_util.Partial(of_clients, losses))
        key = jax.random.fold_in(jax.random.key(seed), t)
        ids = select(key, memory, given).client_ids
        here = np.ones(cohort_size, bool) if available is None else np.asarray(available)[ids]
        mean, square, train = (jnp.asarray(rng.uniform(0.1, 2, cohort_size), jnp.float32) for _ in range(3))
        valid = jnp.asarray(here & (rng.uniform(size=cohort_size) < 0.8))
        seen = Observed(ids, jnp.asarray(here), valid, EXAMPLES[ids], jnp.int32(t), StartLoss(mean, square), train)
        yield memory, given, key, np.asarray(ids), seen
        memory = observe(memory, seen)


def of_clients(losses, client_ids, batch_size=None):
    return losses[client_ids]


@pytest.mark.parametrize("one", EVERY, ids=str)
def test_cohorts_are_of_different_clients_that_can_be_drawn_as_long_as_there_are_any(one):
    rng, numbers = np.random.default_rng(0), [0, 1, 3, 6] * 4
    masks = [rng.permutation(6) < number for number in numbers]
    runs = played(one, 16, 4, lambda t: jnp.asarray(masks[t]))
    for number, (_, given, _, ids, _) in zip(numbers, runs, strict=True):
        assert ids.dtype == np.int32
        assert (np.diff(ids) > 0).all()
        assert np.asarray(given.available)[ids].sum() == min(4, number)


@pytest.mark.parametrize("one", EVERY, ids=str)
def test_a_selection_is_pure(one):
    memory, given, key, ids, _ = list(played(one, 3, 4, lambda t: jnp.arange(6) != t))[-1]
    np.testing.assert_array_equal(compiled(one, 4)[0](key, memory, given).client_ids, ids)
    made = [jax.jit(lambda *x: one.select(*x, 4)).lower(key, memory, given).as_text() for _ in range(2)]
    assert made[0] == made[1]


def test_round_robin_goes_through_all_clients_in_turn():
    cohorts = [ids.tolist() for *_, ids, _ in played(selection.round_robin(), 6, 4)]
    assert cohorts == [[0, 1, 2, 3], [0, 1, 4, 5], [2, 3, 4, 5]] * 2
    assert np.bincount(np.concatenate(cohorts)).tolist() == [4] * 6


def test_round_robin_passes_over_those_that_are_absent():
    masks = np.array([[1, 0, 1, 1, 0, 1], [1, 1, 1, 1, 1, 1], [0, 0, 1, 0, 0, 0]], bool)
    found, turn = [], 0
    for t, mask in enumerate(masks):
        order = [(turn + k) % 6 for k in range(6)]
        here = [m for m in order if mask[m]][:3]
        turn = (here[-1] + 1) % 6
        found.append((here, t))
    runs = played(selection.round_robin(), 3, 3, lambda t: jnp.asarray(masks[t]))
    for (here, t), (*_, ids, _) in zip(found, runs, strict=True):
        assert sorted(m for m in ids if masks[t][m]) == sorted(here)


@pytest.mark.parametrize("available", [None, [True, True, False, True, True, True], [False] * 5 + [True]])
def test_power_of_choice_takes_the_worst_of_candidates_drawn_by_size(available):
    losses = np.array([0.3, 0.9, 0.5, 0.1, np.nan, 0.7], np.float32)
    here = np.ones(6, bool) if available is None else np.array(available)
    given = candidates(available, losses=lambda ids, size=None: jnp.asarray(losses)[ids])
    by_size = jax.jit(lambda key: selection.weighted().select(key, (), given, 4).client_ids)
    worst = jax.jit(lambda key: selection.power_of_choice(d=4).select(key, (), given, 2).client_ids)
    for seed in range(20):
        key = jax.random.key(seed)
        drawn = np.asarray(by_size(key)).tolist()
        rank = lambda m: (here[m], np.nan_to_num(losses[m], nan=-1.0) if here[m] else -m)
        assert np.asarray(worst(key)).tolist() == sorted(sorted(drawn, key=rank, reverse=True)[:2])


def test_power_of_choice_of_as_many_candidates_as_places_is_the_draw_by_size():
    given = candidates(losses=lambda ids, size=None: pytest.fail("asks nobody"))
    for seed in range(5):
        key = jax.random.key(seed)
        expected = selection.weighted().select(key, (), given, 3).client_ids
        found = selection.power_of_choice(d=3).select(key, (), given, 3).client_ids
        np.testing.assert_array_equal(found, expected)


def test_power_of_choice_by_last_losses_prefers_clients_that_had_none():
    one = selection.power_of_choice(d=6, loss="last")
    last = np.full(6, np.inf)
    for memory, _, _, ids, seen in played(one, 12, 2):
        np.testing.assert_allclose(memory, last)
        order = np.lexsort((np.arange(6), -last))
        assert ids.tolist() == sorted(order[:2].tolist())
        last[ids[seen.valid]] = np.asarray(seen.train_loss)[seen.valid]
    assert np.isfinite(last).all()


def test_oort_follows_its_algorithm():
    """Every cohort is one that the plan of the plain loop allows; the memory is that of the loop."""
    arms = Arms(np.zeros(6), np.zeros(6, int))
    mask = lambda t: jnp.asarray([True, True, t % 3 != 1, True, t % 2 == 0, True])
    for t, (memory, given, _, ids, seen) in enumerate(played(selection.oort(), 20, 3, mask)):
        np.testing.assert_allclose(memory.utility, arms.utility, rtol=1e-6)
        np.testing.assert_array_equal(memory.last, arms.last)
        scores, num_known, new, num_new = oort_plan(arms, np.asarray(given.available), t + 1, 3)
        assert len(set(ids) & set(scores)) == num_known, (t, ids, scores)
        assert len(set(ids) & set(new)) == num_new
        for m, valid, loss in zip(ids, seen.valid, np.asarray(seen.start_loss.root_mean_square), strict=True):
            if valid:
                arms.utility[m], arms.last[m] = EXAMPLES[m] * loss, t + 1


def test_oort_draws_known_clients_in_proportion_to_their_scores():
    utility, last = np.array([4.0, 4.1, 4.2, 1.0, 0.5, 4.3]), np.array([8, 9, 9, 5, 9, 7])
    memory = selection.oort().init(6)._replace(utility=jnp.asarray(utility, jnp.float32), last=jnp.asarray(last))
    one = selection.oort(cutoff=0.01)
    found, _ = draw(one, 2, given=candidates(round_index=9), memory=memory)
    scores, num_known, _, num_new = oort_plan(Arms(utility, last), np.ones(6, bool), 10, 2, c=0.01)
    assert (num_known, num_new, len(scores)) == (2, 0, 6)
    chances = successive(np.array([scores[m] for m in range(6)]), 2)
    cohorts, counts = np.unique(found, axis=0, return_counts=True)
    seen = dict(zip(map(tuple, cohorts.tolist()), counts, strict=True))
    counts = [seen.get(cohort, 0) for cohort in chances]
    assert stats.chisquare(counts, DRAWS * np.array(list(chances.values()))).pvalue > 1e-3


@pytest.mark.parametrize("loss", [np.inf, np.nan])
def test_oort_draws_who_is_available_whatever_the_losses(loss):
    memory = selection.oort().init(6)._replace(utility=jnp.full(6, loss), last=jnp.ones(6, jnp.int32))
    here = np.array([False, False, True, True, False, True])
    found, _ = draw(selection.oort(), 2, 100, candidates(here, round_index=3), memory)
    assert here[found].all()
    assert (found[:, 0] < found[:, 1]).all()


def test_numbers_of_a_selection_can_be_traced():
    memory = selection.oort().init(6)
    one = jax.jit(lambda share: selection.oort(exploration=share).select(jax.random.key(0), memory, candidates(), 2))
    assert one(jnp.float32(0.5)).client_ids.shape == (2,)


@pytest.mark.parametrize(
    "one",
    [selection.weighted(), selection.weighted(True), selection.round_robin(), selection.power_of_choice(d=40)],
    ids=str,
)
def test_a_million_clients_are_not_sorted(one):
    examples = jax.ShapeDtypeStruct((1_000_000,), jnp.int32)
    losses = lambda ids, size=None: jnp.zeros(ids.shape)

    def select(examples):
        given = candidates(jnp.ones(examples.shape, bool), losses=losses, examples=examples)
        return one.select(jax.random.key(0), one.init(1_000_000), given, 10)

    sorts = [one for one in equations(jax.make_jaxpr(select)(examples).jaxpr) if one.primitive.name == "sort"]
    assert all(one.invars[0].aval.size < 1000 for one in sorts)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: selection.power_of_choice(d=0), "d=0: must be an integer >= 1"),
        (lambda: selection.power_of_choice(d=4, loss="first"), "loss='first': must be one of local, last"),
        (lambda: selection.power_of_choice(d=4, batch_size=0), "batch_size=0"),
        (lambda: selection.power_of_choice(d=4, loss="last", batch_size=2), "batch_size=2: goes with loss='local'"),
        (lambda: selection.oort(decay=0.0), r"decay=0.0: must be in \(0, 1\]"),
        (lambda: selection.oort(exploration=1.5), "exploration=1.5"),
        (lambda: selection.oort(least_exploration=-1), "least_exploration=-1"),
        (lambda: selection.oort(cutoff=0), "cutoff=0"),
        (lambda: selection.oort(clip=0), "clip=0"),
        (lambda: selection.Selection.select(selection.uniform(), None, None, None, 2), "uniform: must define select"),
    ],
)
def test_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
