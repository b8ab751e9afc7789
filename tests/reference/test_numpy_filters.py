"""Rules that filter or clip against twins written from their papers in float64, SciPy and scikit-learn."""

import functools

import jax
import numpy as np
import pytest
from reference import numpy_filters, numpy_robust, twins
from reference.twins import Pair, assert_weights

from fedjax_drag import aggregators
from fedjax_drag.aggregators import _dnc

PLAIN = [twins.random, twins.six_orders, twins.offset]
"""Inputs on which no two clients are equal and no two subsets equally good."""


def check_meamed(played, num_byzantine):
    """Between the lowest and the highest mean that a choice among values equally far from the median gives."""
    low, high = numpy_robust.bulyan_bounds(played.G, max(len(played.G) - num_byzantine, 1))
    slack = 1e-5 * np.linalg.norm((low + high) / 2)
    assert (played.update >= low - slack).all()
    assert (played.update <= high + slack).all()
    assert_weights(played.metrics, played.seen, numpy_robust.outcome(played.G, np.clip(played.update, low, high)))
    assert abs(played.metrics["weight"].sum() - 1) < 1e-5


def chosen(played):
    """Places of the selected clients among those that count; the update is their mean."""
    members = np.flatnonzero(played.metrics["selected"][played.seen])
    assert not played.metrics["selected"][~played.seen].any()
    expected = numpy_robust.average_of(played.G, members)
    twins.assert_agrees(played, expected)
    return tuple(members)


def check_subset(played, measure, num_byzantine):
    """No subset of n - f clients measures less than the one that was chosen."""
    members = chosen(played)
    assert len(members) == len(played.G) - num_byzantine
    best = numpy_filters.smallest(measure, played.G, num_byzantine)
    rounding = 1e-6 * np.linalg.norm(played.G, axis=1).max()
    assert measure(played.G, members) <= best * (1 + 1e-5) + rounding


def check_nearest(played, num_byzantine):
    """No client that was left out is nearer to the root delta than one that was averaged."""
    members = chosen(played)
    assert len(members) == max(len(played.G) - num_byzantine, 1)
    distance = np.linalg.norm(played.G - played.extra["root_delta"], axis=1)
    assert distance[list(members)].max() <= np.delete(distance, members).min(initial=np.inf) * (1 + 1e-6)


def check_dnc(played, num_byzantine, samples):
    """Good every time are those none of which lies farther out than one that was not."""
    members = chosen(played)
    good = np.ones(len(played.G), bool)
    for sample in samples(played):
        scores = numpy_filters.dnc_scores(sample)
        order = np.argsort(scores, kind="stable")
        kept = order[: len(scores) - num_byzantine]
        others = order[len(scores) - num_byzantine :]
        assert scores[others].min() > scores[kept].max() * (1 + 1e-5), "a tie between clients: choose another seed"
        good &= np.isin(np.arange(len(good)), kept)
    assert members == tuple(np.flatnonzero(good))


def drawn(played, iterations, number):
    """The columns that the rule draws in each iteration, of the clients that count."""
    deltas = twins.as_tree(np.zeros((len(played.seen), twins.SIZE)))
    places = {name: np.arange(leaf[0].size) for name, leaf in deltas.items()}
    places["b"] = places["b"] + len(places["a"])
    rows = {name: place[None].astype(np.float32) for name, place in places.items()}
    for key in jax.random.split(played.extra["key"], iterations):
        yield played.G[:, np.asarray(_dnc.draw_coordinates(key, rows, number))[0].astype(int)]


def wrapped(name, settings, clip, smallest=1):
    """A clipping rule around the mean, and the twin of both; weights are those of the clients' own deltas."""

    def twin(G, state, t, e):
        del state, t, e
        shorter = clip(G)
        length = np.linalg.norm(G, axis=1)
        scale = np.divide(np.linalg.norm(shorter, axis=1), length, out=np.ones(len(G)), where=length > 0)
        return numpy_robust.outcome(G, shorter.mean(axis=0), scale / len(G))

    return Pair(name, {"aggregator": aggregators.fedavg(), **settings}, twin, smallest=smallest)


def clipped_clustering(G, before, t, e):
    """The larger of SciPy's two groups, clipped to the median of all lengths since the first round."""
    del t, e
    lengths = [*(before or []), *np.linalg.norm(G, axis=1)]
    selected = numpy_filters.larger(numpy_filters.directions_apart(G), numpy_filters.halves(G))
    return numpy_filters.clipped_average(G, selected, float(np.median(lengths)))._replace(state=lengths)


def subsets(name, measure):
    check = functools.partial(check_subset, measure=measure, num_byzantine=2)
    return Pair(name, {"num_byzantine": 2}, check=check, smallest=5)


def filtered(iterations, number, samples):
    settings = {"num_byzantine": 2, "iterations": iterations, "num_coordinates": number}
    return Pair("dnc", settings, check=functools.partial(check_dnc, num_byzantine=2, samples=samples), smallest=5)


PAIRS = {
    "meamed": Pair("meamed", {"num_byzantine": 2}, check=functools.partial(check_meamed, num_byzantine=2), smallest=5),
    "mda": subsets("mda", numpy_filters.diameter),
    "monna": Pair("monna", {"num_byzantine": 2}, check=functools.partial(check_nearest, num_byzantine=2), smallest=5),
    "clipping": wrapped("clipping", {"max_norm": 2.0}, lambda G: numpy_filters.clipped(G, 2.0)),
    "arc": wrapped("arc", {"num_byzantine": 2}, lambda G: numpy_filters.arc(G, 2), smallest=3),
    "dnc": filtered(1, twins.SIZE, lambda played: [played.G]),
    "dnc-drawn": filtered(2, 5, lambda played: drawn(played, 2, 5)),
    "signguard": Pair("signguard", {"sign_fraction": 1.0}, lambda G, s, t, e: numpy_filters.signguard(G, 0.1, 3.0)),
    "clipped_clustering": Pair("clipped_clustering", {}, clipped_clustering),
    "flame": Pair("flame", {"noise_factor": 0.0}, lambda G, s, t, e: numpy_filters.flame(G)),
    "caf": Pair("caf", {"num_byzantine": 2}, lambda G, s, t, e: numpy_filters.caf(G, 2), smallest=5),
    "smea": subsets("smea", numpy_filters.deviation),
}

INPUTS = dict.fromkeys(("meamed", "mda", "monna", "clipping", "arc", "smea"), twins.INPUTS) | {
    "dnc": [twins.random, twins.offset],
    "dnc-drawn": [twins.random, twins.offset],
    "signguard": PLAIN,
    "clipped_clustering": PLAIN,
    "flame": PLAIN,
    "caf": PLAIN,
}
"""Of the rules that a twin repeats, or that draw, only inputs on which the choice is clear."""

LARGE = ("meamed", "monna", "clipping", "arc", "dnc", "signguard", "clipped_clustering", "caf")
"""Rules whose twins are quick for 41 clients."""


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "S"),
    [twins.seldom(name, S, unless=S == 10) for name in PAIRS for S in (10, *([41] if name in LARGE else []))],
)
def test_agrees_with_its_twin(name, S):
    """Three rounds of each kind of input, with everybody there and with some missing."""
    twins.duel(PAIRS[name], S, 0, INPUTS[name])
    # Of two opposed deltas shortened to one length little but rounding is left.
    twins.duel(PAIRS[name], S, {10: 3, 41: 12}[S], [kind for kind in INPUTS[name] if kind is not twins.opposed])


@pytest.mark.thorough
@pytest.mark.parametrize("scale", [1e30, twins.seldom(1e-30, unless=False)])
@pytest.mark.parametrize("name", PAIRS)
def test_extreme_norms(name, scale):
    twins.verify_extreme(PAIRS[name], scale)


def test_a_majority_is_what_hdbscan_finds():
    for seed in range(20):
        n = 2 + seed
        G = np.random.default_rng(seed).normal(size=(n, 4)) + seed % 3
        apart = numpy_filters.directions_apart(G)
        np.testing.assert_array_equal(numpy_filters.majority(apart), numpy_filters.hdbscan(apart), str(seed))
