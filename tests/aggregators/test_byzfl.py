"""ByzFL's own implementations as oracles, where it is installed."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_drag import aggregators as a

byzfl = pytest.importorskip("byzfl")

pytestmark = pytest.mark.slow

COHORT, SIZE, F = 11, 20, 3
SEEDS = range(5)


def draw(seed):
    """Float64, so that ByzFL's copies and ours differ by our rounding alone."""
    rng = np.random.default_rng(seed)
    G = rng.normal(size=(COHORT, SIZE)) * rng.uniform(0.2, 5.0, (COHORT, 1))
    G[:F] += 4 * rng.normal(size=SIZE)
    return G[rng.permutation(COHORT)].astype(np.float32).astype(np.float64)


def update(rule, G, **told):
    zero = {"w": jnp.zeros(SIZE)}
    moved, state = jax.jit(rule.apply)(zero, {"w": jnp.asarray(G, jnp.float32)}, rule.init(zero), **told)
    return np.asarray(moved["w"], np.float64), state.metrics


def agree(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("rule", "theirs"),
    [
        (a.meamed(F), lambda: byzfl.Meamed(F)),
        (a.monna(F, trusted=5), lambda: byzfl.MoNNA(F, 5)),
        (a.median(), lambda: byzfl.Median()),
        (a.trimmed_mean(F / COHORT), lambda: byzfl.TrMean(F)),
    ],
    ids=["meamed", "monna", "median", "trimmed_mean"],
)
def test_rules_without_ties(rule, theirs, seed):
    agree(update(rule, draw(seed))[0], theirs()(draw(seed)))


@pytest.mark.parametrize("seed", SEEDS)
def test_mda_is_as_tight_as_byzfls(seed):
    """Where several subsets have the same diameter, ByzFL's is the first of them."""
    G = draw(seed)
    ours, metrics = update(a.mda(F), G)
    chosen = np.asarray(metrics["selected"]) > 0
    theirs = byzfl.MDA(F)(G.copy())
    apart = np.linalg.norm(G[:, None] - G, axis=-1)
    diameter = apart[np.ix_(chosen, chosen)].max()
    if np.linalg.norm(ours - theirs) > 1e-4:
        kept = subset_of(theirs, G)
        assert apart[np.ix_(kept, kept)].max() <= diameter * (1 + 1e-6)


def subset_of(mean, G):
    """The subset of n - f rows that has this mean."""
    subsets = list(itertools.combinations(range(len(G)), len(G) - F))
    return list(min(subsets, key=lambda kept: np.linalg.norm(G[list(kept)].mean(0) - mean)))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["clipping", "arc", "nnm"])
def test_pre_aggregators(name, seed):
    build, theirs = {
        "clipping": (lambda rule: a.clipping(rule, 2.0), byzfl.Clipping(2.0)),
        "arc": (lambda rule: a.arc(rule, F), byzfl.ARC(F)),
        "nnm": (lambda rule: a.nnm(rule, F), byzfl.NNM(F)),
    }[name]
    before = theirs(draw(seed).copy())
    agree(update(build(a.fedavg()), draw(seed))[0], byzfl.Average()(before))
    agree(update(build(a.median()), draw(seed))[0], byzfl.Median()(before))


@pytest.mark.parametrize("seed", SEEDS)
def test_smea_with_exact_eigenvalues(seed, monkeypatch):
    """ByzFL's estimate of an eigenvalue is a single step of the power method; NumPy gives it every eigenvector."""
    G = draw(seed)
    vectors = []
    for kept in itertools.combinations(range(COHORT), COHORT - F):
        offsets = G[list(kept)] - G[list(kept)].mean(0)
        vectors.append(np.linalg.svd(offsets)[2][0])
    following = iter(vectors)
    monkeypatch.setattr(np.random, "randn", lambda size: next(following))
    agree(update(a.smea(F), G)[0], byzfl.SMEA(F)(G.copy()))


@pytest.mark.parametrize("seed", SEEDS)
def test_caf_with_exact_eigenvectors(seed, monkeypatch):
    """The same for the filter, whose weights follow from the vectors it is given; one turn with f = 1.

    A second turn differs where the farthest client has no weight left, which ByzFL still measures by.
    """
    G = draw(seed)
    vector = np.linalg.svd(G - G.mean(0))[2][0]
    turns = [vector]

    def start(size):
        if len(turns) == 1:
            turns.append(None)
            return vector
        offsets = G - weight @ G / weight.sum()
        return np.linalg.svd(np.sqrt(weight)[:, None] * offsets)[2][0]

    tau = ((G - G.mean(0)) @ vector) ** 2
    weight = 1 - tau / tau.max()
    monkeypatch.setattr(np.random, "randn", start)
    agree(update(a.caf(1), G)[0], byzfl.CAF(1)(G.copy()))
