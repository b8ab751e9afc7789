"""Robust and other simple rules against twins written from their formulas in float64."""

import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import numpy_robust, numpy_rules, twins
from reference.twins import SIZE, Pair, assert_close, assert_weights

from fedjax_drag import aggregators, tree
from fedjax_drag.ops.screening import empty_metrics, screened
from fedjax_drag.types import Aggregator


def check_multi_krum(played, num_byzantine, num_selected):
    """The mean of clients none of which has a higher score than one that was left out."""
    chosen = np.flatnonzero(played.metrics["weight"][played.seen])
    assert len(chosen) == min(num_selected, len(played.G))
    scores = numpy_robust.multi_krum_scores(played.G, num_byzantine)
    others = np.delete(scores, chosen)
    assert scores[chosen].max() <= others.min(initial=np.inf) * (1 + 1e-5), (scores, chosen)
    twins.assert_agrees(played, numpy_robust.average_of(played.G, chosen))


def check_bulyan(played, num_byzantine):
    """Clients that repeated Krum can choose, and a mean of values around their median."""
    n = len(played.G)
    chosen = np.flatnonzero(played.metrics["selected"][played.seen])
    assert len(chosen) == n - 2 * num_byzantine
    assert numpy_robust.bulyan_choice_is_greedy(played.G, chosen, num_byzantine)
    low, high = numpy_robust.bulyan_bounds(played.G[chosen], n - 4 * num_byzantine)
    slack = 1e-5 * np.linalg.norm((low + high) / 2)
    assert (played.update >= low - slack).all()
    assert (played.update <= high + slack).all()
    update = np.clip(played.update, low, high)
    twins.assert_agrees(played, numpy_robust.outcome(played.G, update))


def mixed(base, num_byzantine):
    """The twin of ``nnm`` around another twin, where it is clear who is whose neighbour."""

    def twin(G, state, t, e):
        count = max(len(G) - num_byzantine, 1)
        mask, clearness = numpy_robust.nearest(G, count)
        assert clearness > 1e-6, "a tie between neighbours: choose another seed"
        found = base(mask @ G / count, state, t, e)
        equals = len(np.unique(G, axis=0)) < len(G)  # of equal deltas it does not matter whose weight counts
        weight = None if equals else mask.T @ found.weight / count
        return numpy_robust.outcome(G, found.update, weight, found.state)

    return twin


def wrapped(name, settings, base, num_byzantine):
    rule = getattr(aggregators, name)(**settings)
    arguments = {"aggregator": rule, "num_byzantine": num_byzantine}
    return Pair("nnm", arguments, mixed(base, num_byzantine), smallest=num_byzantine + 1)


def check_median(played, examples=False):
    """The least sum of distances, and the point itself where it is the only one."""
    p = played.extra["num_examples"] if examples else np.ones(len(played.G))
    assert_median(played.update, played.G, p / p.sum())
    if examples:
        return
    assert_mixture(played)


def assert_mixture(played):
    """The update is what the weights make of the deltas, as far as rounded weights can tell."""
    weight = played.metrics["weight"][played.seen].astype(np.float64)
    terms = weight @ np.linalg.norm(played.G, axis=1)
    error = np.linalg.norm(weight @ played.G - played.update)
    assert error <= 1e-5 * np.linalg.norm(played.update) + 5e-7 * terms, (error, terms)


def assert_median(update, points, p):
    """To 1e-6 in value, and to 1e-5 of the median or of the median distance in place, if float32 can tell."""
    best = numpy_robust.geometric_median(points, p).point
    value = functools.partial(numpy_robust.distance_sum, G=points, p=p, smoothing=1e-6)
    size = np.linalg.norm(best)
    assert value(update) <= value(best) * (1 + 1e-6) + 2e-7 * size, (value(update), value(best))
    error = np.linalg.norm(update - best)
    size = max(size, np.median(np.linalg.norm(points - best, axis=1)))
    assert error <= 1e-5 * size + numpy_robust.median_rounding(best, points, p), (error, size)


def check_autogm(played, lam=None):
    """The update to 1e-5; weights, which depend on the directions of close deltas, to 2e-5 of all."""
    expected = numpy_robust.autogm(played.G, lam or float(len(played.G)))
    assert_close(played.update, expected.update)
    np.testing.assert_allclose(played.metrics["alpha"][played.seen], expected.state, atol=2e-5)
    np.testing.assert_allclose(played.metrics["weight"][played.seen], expected.weight, atol=2e-5)


def check_rfa(played, examples=False, from_zero=False):
    """Three Weiszfeld steps, and the coefficients of the last as far as float32 tells where the second led."""
    p = played.extra["num_examples"] if examples else np.ones(len(played.G))
    weiszfeld = functools.partial(numpy_robust.weiszfeld, played.G, p, 1e-6, from_zero=from_zero)
    before = weiszfeld(steps=2)
    distance = np.maximum(np.linalg.norm(played.G - before, axis=1), 1e-6)
    expected = numpy_robust.outcome(played.G, weiszfeld(steps=3), p / distance)
    assert_close(played.update, expected.update)
    weight = expected.weight / expected.weight.sum()
    rounding = 4 * np.finfo(np.float32).eps * np.linalg.norm(before) / distance.min()
    assert_weights(played.metrics, played.seen, expected._replace(weight=weight), rtol=1e-4 + rounding)


MEDIAN = {"tolerance": 1e-7, "max_iterations": 1000}


def multi_krum(f, selected, smallest):
    check = functools.partial(check_multi_krum, num_byzantine=f, num_selected=selected)
    return Pair("multi_krum", {"num_byzantine": f, "num_selected": selected}, check=check, smallest=smallest)


def bulyan(f):
    return Pair(
        "bulyan", {"num_byzantine": f}, check=functools.partial(check_bulyan, num_byzantine=f), smallest=4 * f + 3
    )


def alone(name, twin, **settings):
    """A rule whose twin needs the deltas and the rule's own settings alone."""
    return Pair(name, settings, lambda G, s, t, e: twin(G, **settings))


def clipped(**settings):
    return Pair("centered_clipping", settings, lambda G, s, t, e: numpy_robust.centered_clipping(G, s, **settings))


PAIRS = {
    "fedexp": alone("fedexp", numpy_robust.fedexp, eps=1e-3),
    "fedexp-tiny": alone("fedexp", numpy_robust.fedexp, eps=1e-30),
    "root_only": Pair("root_only", {}, lambda G, s, t, e: numpy_robust.root_only(G, e["root_delta"])),
    "trimmed_mean": alone("trimmed_mean", numpy_robust.trimmed_mean, trim_fraction=0.1),
    "trimmed_mean-0": alone("trimmed_mean", numpy_robust.trimmed_mean, trim_fraction=0.0),
    "trimmed_mean-0.4": alone("trimmed_mean", numpy_robust.trimmed_mean, trim_fraction=0.4),
    "norm_clipping": alone("norm_clipping", numpy_robust.norm_clipping, max_norm=2.0),
    "signsgd_majority": alone("signsgd_majority", numpy_robust.signsgd_majority, step_size=0.3),
    "centered_clipping": clipped(radius=2.0, iterations=3),
    "centered_clipping-1": clipped(radius=0.2, iterations=1),
    "multi_krum": multi_krum(0, 2, 3),
    "multi_krum-2": multi_krum(2, 5, 5),
    "bulyan": bulyan(1),
    "bulyan-0": bulyan(0),
    "bulyan-6": bulyan(6),
    "rfa": Pair("rfa", {}, check=check_rfa),
    "rfa-examples": Pair("rfa", {"weighting": "examples"}, check=functools.partial(check_rfa, examples=True)),
    "rfa-zero": Pair("rfa", {"start": "zero"}, check=functools.partial(check_rfa, from_zero=True)),
    "raga": Pair("raga", MEDIAN, check=check_median),
    "raga-examples": Pair(
        "raga", {**MEDIAN, "weighting": "examples"}, check=functools.partial(check_median, examples=True)
    ),
    # Two clients of equal weight are a balance that rounding tips, hence at least three.
    "autogm": Pair("autogm", {"lam": 3.0, **MEDIAN}, check=functools.partial(check_autogm, lam=3.0), smallest=3),
    "autogm-default": Pair("autogm", MEDIAN, check=check_autogm, smallest=3),
}

NNM = {
    "fedavg": wrapped("fedavg", {}, lambda G, s, t, e: numpy_rules.fedavg(G), 2),
    "median": wrapped("median", {}, lambda G, s, t, e: numpy_rules.median(G), 1),
    "drag": wrapped("drag", {"c": 0.5, "alpha": 0.5}, lambda G, s, t, e: numpy_rules.drag(G, s, 0.5, 0.5), 2),
    "br_drag": wrapped("br_drag", {"c": 0.5}, lambda G, s, t, e: numpy_rules.br_drag(G, e["root_delta"], 0.5), 0),
}

VARIANTS = {
    "rfa-examples",
    "rfa-zero",
    "raga-examples",
    "fedexp-tiny",
    "trimmed_mean-0",
    "trimmed_mean-0.4",
    "centered_clipping-1",
    "bulyan-0",
    "autogm-default",
}
ONLY_LARGE = {"bulyan-6"}
SLOW = {"autogm-default", "bulyan-0", "raga-examples"}
"""Variants that compile for long."""


def sizes(name):
    """1 or the smallest, 3, 10 and 41; less of the variants."""
    smallest = PAIRS[name].smallest
    if name in ONLY_LARGE:
        return [41]
    return [S for S in sorted({smallest, 3, 10, 41}) if smallest <= S and (name not in VARIANTS or S == 10)]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("name", "S"), [twins.seldom(name, S, unless=S == 10 and name not in SLOW) for name in PAIRS for S in sizes(name)]
)
def test_agrees_with_its_twin(name, S):
    """Three rounds of every kind of input, with everybody there and with some missing."""
    pair, inputs = PAIRS[name], twins.INPUTS
    if (name, S) == ("raga", 3):  # of norms over six orders, float32 weights give the median to 1.1e-5 of its length
        inputs = [kind for kind in inputs if kind is not twins.six_orders]
    twins.duel(pair, S, inputs=inputs)
    missing = min({3: 1, 10: 3, 41: 12}.get(S, 0), S - pair.smallest)
    if missing:
        # Of two opposed deltas shortened to one length little but rounding is left.
        twins.duel(pair, S, missing, inputs if S > 3 else inputs[:-1])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "S"),
    [
        twins.seldom(*case, unless=case == ("drag", 10))
        for case in (("fedavg", 3), ("fedavg", 10), ("fedavg", 41), ("median", 10), ("drag", 10), ("br_drag", 10))
    ],
)
def test_nearest_neighbour_mixing_agrees_with_its_twin(name, S):
    """Around rules with and without memory."""
    inputs = [twins.repeated if kind is twins.tied else kind for kind in twins.INPUTS]
    twins.duel(NNM[name], S, 0, inputs)
    if S > 3:
        twins.duel(NNM[name], S, {10: 3, 41: 12}[S], inputs)


GEOMED = Pair("geomed", {"num_groups": 4, **MEDIAN})


def groups_of(pair, played, S):
    """The groups that a key makes of the cohort's places, read off the weights that random deltas get."""
    if len(played.G) <= pair.settings["num_groups"]:
        return np.arange(len(played.G))
    deltas = np.random.default_rng(1).normal(size=(S, SIZE))
    told = {"key": played.extra["key"], "valid": played.seen}
    _, state = pair.apply(twins.as_tree(np.zeros(SIZE)), twins.as_tree(deltas), pair.start(S), **told)
    weight = np.asarray(state.metrics["weight"])[played.seen]
    return np.unique(np.round(weight, 5), return_inverse=True)[1]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("S", "missing"),
    [twins.seldom(*case, unless=case == (4, 2)) for case in ((4, 2), (10, 0), (10, 3), (41, 12))],
)
def test_geomed_agrees_with_its_twin(S, missing):
    """Four groups as even as can be; with fewer clients, a group for each."""
    seen_so_far = set()
    for number, kind in enumerate(twins.INPUTS):
        rng = np.random.default_rng([S, number])
        damaged = [twins.damage(rng, kind(rng, S), missing) for _ in range(2)]
        cohorts, valid = [list(part) for part in zip(*damaged, strict=True)]
        for played in twins.play(GEOMED, cohorts, rng, valid):
            groups = groups_of(GEOMED, played, S)
            sizes = np.bincount(groups)
            assert len(sizes) == min(4, len(played.G))
            assert sizes.max() - sizes.min() <= 1
            means = numpy_robust.group_means(played.G, groups)
            assert_median(played.update, means, np.full(len(means), 1 / len(means)))
            if kind is not twins.opposed:  # between opposed clients the sum of distances is flat
                assert_mixture(played)
            seen_so_far.add(tuple(groups))
    assert S == 4 or len(seen_so_far) > 1, "groups are drawn anew"


class Record(NamedTuple):
    """State of :func:`recorder`: what the rule was given."""

    means: Any
    valid: Any
    metrics: dict[str, Any]


def recorder(size):
    """A rule that averages, and remembers the deltas it was given."""

    def init(params):
        del params
        return Record(jnp.zeros((size, SIZE)), jnp.zeros(size, bool), empty_metrics())

    @screened
    def apply(params, deltas, state, *, valid, **_):
        del state
        weight = tree.uniform_weights(valid)
        update = tree.weighted_sum(weight, deltas)
        means = jnp.concatenate([leaf.reshape(size, -1) for leaf in jax.tree.leaves(deltas)], axis=1)
        metrics = {"weight": weight, "cosine": tree.cosines(deltas, update)}
        return tree.move(params, update), Record(means, valid, metrics)

    return Aggregator(init, apply)


def recorded(state):
    """The means of the buckets that had a member."""
    (record,) = [
        leaf for leaf in jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, Record)) if isinstance(leaf, Record)
    ]
    return np.asarray(record.means, np.float64)[np.asarray(record.valid)]


def members(G, means, most):
    """The bucket ``[n]`` of each client, from the means: sets of at most two are tried one by one."""
    assert most <= 2
    bucket = np.full(len(G), -1)
    for k, mean in enumerate(means):
        sets = [(m,) for m in range(len(G))] + list(itertools.combinations(range(len(G)), 2))
        errors = [np.linalg.norm(G[list(one)].mean(axis=0) - mean) for one in sets]
        found = list(sets[int(np.argmin(errors))])
        assert min(errors) <= 1e-6 * np.linalg.norm(G[found], axis=1).max()
        assert (bucket[found] == -1).all()
        bucket[found] = k
    return bucket


BUCKETED = {
    "fedavg": ({}, lambda G, s, t, e: numpy_rules.fedavg(G)),
    "fedavg-examples": ({"weighting": "examples"}, lambda G, s, t, e: numpy_rules.fedavg(G, e["num_examples"])),
    "median": ({}, lambda G, s, t, e: numpy_rules.median(G)),
    "drag": ({"c": 0.5, "alpha": 0.5}, lambda G, s, t, e: numpy_rules.drag(G, s, 0.5, 0.5)),
}


def bucketed(G, bucket, base, state, t, e):
    """The base twin on the means; a client has an equal share in the weight of its bucket."""
    size = np.bincount(bucket)
    examples = np.bincount(bucket, e["num_examples"])
    found = base(numpy_robust.group_means(G, bucket), state, t, {**e, "num_examples": examples})
    return numpy_robust.outcome(G, found.update, (found.weight / size)[bucket], found.state)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "S"),
    [
        twins.seldom(*case, unless=case in (("median", 10), ("drag", 10)))
        for case in (("fedavg", 3), ("fedavg", 41), ("fedavg-examples", 10), ("median", 10), ("drag", 10))
    ],
)
def test_bucketing_agrees_with_its_twin(name, S):
    """Every client that counts is in one of ``ceil(n / 2)`` buckets, the same for every rule within."""
    settings, base = BUCKETED[name]
    inner = getattr(aggregators, name.partition("-")[0])(**settings)
    spy = Pair("bucketing", {"aggregator": recorder(-(-S // 2)), "bucket_size": 2})
    pair = Pair("bucketing", {"aggregator": inner, "bucket_size": 2})
    for number, (kind, missing) in enumerate(
        [(twins.random, 0), (twins.offset, 0), (twins.six_orders, 0), (twins.random, S // 3)]
    ):
        cohorts, valid = [kind(np.random.default_rng([number, t]), S) for t in range(3)], None
        if missing:
            damaged = [twins.damage(np.random.default_rng(t), G, missing) for t, G in enumerate(cohorts)]
            cohorts, valid = [list(part) for part in zip(*damaged, strict=True)]
        both = [twins.play(one, cohorts, np.random.default_rng(number), valid) for one in (pair, spy)]
        state, seen_so_far = None, []
        for t, (played, spied) in enumerate(zip(*both, strict=True)):
            bucket = members(played.G, recorded(spied.state), 2)
            n = len(played.G)
            assert (bucket >= 0).all()
            assert bucket.max() + 1 == -(-n // 2)
            outcome = bucketed(played.G, bucket, base, state, t, played.extra)
            state = outcome.state
            twins.assert_agrees(played, outcome)
            seen_so_far.append(tuple(bucket))
        assert S == 3 or len(set(seen_so_far)) > 1, "every round has its own buckets"


@pytest.mark.thorough
@pytest.mark.parametrize("scale", [1e30, twins.seldom(1e-30, unless=False)])
@pytest.mark.parametrize(
    "name", [twins.seldom(name, unless="bulyan" not in name and name not in SLOW) for name in PAIRS]
)
def test_extreme_norms(name, scale):
    twins.verify_extreme(PAIRS[name], scale, 41 if name in ONLY_LARGE else 10)
