"""The dissimilarity of predictions: the distances against scipy, and the extra that the engine computes."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from scipy.stats import wasserstein_distance

import fedjax_drag as fd
from fedjax_drag.aggregators._clusterguard import clusterguard
from fedjax_drag.ops.screening import MetricsOnly
from fedjax_drag.simulation.model.model import ModelState
from fedjax_drag.simulation.program.clients_axis import ClientBatching
from fedjax_drag.simulation.program.dissimilarity import class_histogram, dissimilarity, flattened, requested
from fedjax_drag.simulation.program.federation import Federation
from fedjax_drag.simulation.run import ClientInput, RoundInput
from fedjax_drag.types import Aggregator, Attack, Batch, Downlink

LENGTH, CLASSES, FEATURES = 600, 7, 5
COUNTS = np.array([600, 1, 251, 250, 40, 3], np.int32)


def by_scipy(kind, a, b):
    if kind == "flattened":
        return wasserstein_distance(a.reshape(-1), b.reshape(-1))
    classes = np.arange(a.shape[1])
    return wasserstein_distance(classes, classes, a.mean(0), b.mean(0))


@pytest.mark.parametrize(("kind", "distance"), [("flattened", flattened), ("class_histogram", class_histogram)])
def test_distances_agree_with_scipy_on_ragged_clients(kind, distance):
    rng = np.random.default_rng(0)
    compiled = jax.jit(distance)
    for count in COUNTS:
        a, b = rng.dirichlet(np.full(CLASSES, 0.3), (2, LENGTH)).astype(np.float32)
        expected = by_scipy(kind, a[:count].astype(np.float64), b[:count].astype(np.float64))
        a[count:], b[count:] = np.nan, 5.0
        np.testing.assert_allclose(compiled(a, b, count), expected, rtol=0, atol=1e-6)
        assert compiled(a, a, count) == 0


@pytest.mark.thorough
def test_distances_of_simple_distributions():
    certain = jnp.eye(4)
    assert flattened(certain[:1], jnp.full((1, 4), 0.25), 1) == pytest.approx(0.375)
    assert class_histogram(certain[:1], certain[3:], 1) == 3
    assert flattened(certain[:1], certain[3:], 1) == 0  # blind to which class it is


def test_distances_a_rule_can_request():
    assert requested({"round", "root_delta"}) is None
    assert requested({"dissimilarity", "key"}) == "flattened"
    assert requested({"class_histogram_dissimilarity"}) == "class_histogram"
    assert requested(clusterguard().needs) == "class_histogram"
    assert requested(clusterguard(emd="flattened").needs) == "flattened"
    with pytest.raises(ValueError, match="must be only one"):
        requested({"dissimilarity", "class_histogram_dissimilarity"})


def logits(params, x):
    return x @ params["kernel"] + params["bias"]


def inputs(seed=0):
    """Clients of different sizes with a linear model: examples, start, deltas, padded rows."""
    rng = np.random.default_rng(seed)
    train = Batch(rng.normal(size=(900, FEATURES)).astype(np.float32), rng.integers(0, CLASSES, 900))
    start = {
        "kernel": rng.normal(size=(FEATURES, CLASSES)).astype(np.float32),
        "bias": rng.normal(size=CLASSES).astype(np.float32),
    }
    deltas = jax.tree.map(lambda p: rng.normal(size=(len(COUNTS), *p.shape)).astype(np.float32), start)
    rows = rng.integers(0, 900, (len(COUNTS), LENGTH)).astype(np.int32)
    return train, start, deltas, rows


def softmax(x):
    terms = np.exp(x - x.max(-1, keepdims=True))
    return terms / terms.sum(-1, keepdims=True)


@functools.cache
def compiled(kind, axis="map", chunk=None, on_two=False):
    mesh = Mesh(np.array(jax.devices()), ("clients",)) if on_two else None
    model = SimpleNamespace(apply=lambda p, _, x: logits(p, x), preprocess=lambda x: 2 * x)
    run = SimpleNamespace(model=model, batching=ClientBatching(axis, chunk), mesh=mesh)

    @jax.jit
    def found(train, start, deltas, rows, counts):
        nobody = jnp.zeros(len(counts), bool)
        federation = Federation(train, rows, counts, nobody, rows[0], counts[0])
        shared = RoundInput(federation, jax.random.key(0), jnp.int32(0), Downlink(start), ModelState())
        return dissimilarity(run, kind, shared, ClientInput(jnp.arange(len(counts)), rows, counts, nobody), deltas)

    return found


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["flattened", "class_histogram"])
def test_every_client_is_compared_on_all_its_own_examples(kind):
    train, start, deltas, rows = inputs()
    expected = []
    for m, count in enumerate(COUNTS):
        x = 2 * train.x[rows[m, :count]].astype(np.float64)
        local = jax.tree.map(lambda p, d, m=m: p.astype(np.float64) + d[m], start, deltas)
        expected.append(by_scipy(kind, softmax(logits(start, x)), softmax(logits(local, x))))
    for way in [("map",), ("map", 4), ("vmap",), ("map", None, True)]:
        found = compiled(kind, *way)(train, start, deltas, rows, COUNTS)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_a_model_without_finite_predictions_has_the_largest_distance():
    train, start, deltas, rows = inputs()
    for leaf in deltas.values():
        leaf[0] = np.nan
        leaf[1] = 0
        leaf[2] = 3e38  # finite, but not what it predicts
        leaf[3] = 1e30
    for kind, largest in (("flattened", 1), ("class_histogram", CLASSES - 1)):
        found = np.asarray(compiled(kind)(train, start, deltas, rows, COUNTS))
        assert found[0] == found[2] == largest
        assert found[1] == 0
        assert (found[3:] > 0).all()
        assert (found[3:] < largest).all()


def test_there_is_no_gradient():
    train, start, deltas, rows = inputs()

    def total(deltas):
        return compiled("class_histogram")(train, start, deltas, rows, COUNTS).sum()

    slope = jax.grad(total)(deltas)
    assert not any(leaf.any() for leaf in jax.tree.leaves(slope))


ATTACKED = {"attack": fd.attacks.sign_flip(scale=20.0), "byzantine_fraction": 0.25, "cohort_size": 6}


@pytest.mark.slow
def test_clusterguard_agrees_on_every_clients_axis(settings):
    algorithm = fd.algorithms.from_aggregator(clusterguard())
    short = settings(model=fd.models.mlp(10, (16,)), num_rounds=2, eval_every=1, **ATTACKED)
    history = fd.simulate(algorithm, clients_axis="map", **short).history
    other = fd.simulate(algorithm, clients_axis="vmap", mesh="cores", **short).history
    for name in ("dissimilarity", "weight", "cluster", "test_loss"):
        np.testing.assert_allclose(other[name], history[name], rtol=2e-4, atol=1e-6)
    assert history["dissimilarity"].shape == (2, 6)
    assert (history["dissimilarity"] > 0).all()
    np.testing.assert_allclose(history["weight"].sum(1), 1, rtol=1e-6)
    assert set(np.unique(history["cluster"])) <= {0, 1}


@pytest.mark.slow
def test_an_attack_follows_the_gradient_through_clusterguard(settings):
    through = {"attack": fd.attacks.optimised(steps=1, objective="against"), "byzantine_fraction": 0.25}
    result = fd.simulate(clusterguard(), **settings(num_rounds=2, eval_every=1, cohort_size=6, **through))
    honest = fd.simulate(clusterguard(), **settings(num_rounds=2, eval_every=1, cohort_size=6))
    assert np.isfinite(result.history["test_loss"]).all()
    assert result.history["test_loss"][-1] > honest.history["test_loss"][-1]


def recorder(kind):
    """FedAvg that reports the extra ``dissimilarity``."""
    plain = fd.aggregators.fedavg()

    def init(params):
        state = plain.init(params)
        return state._replace(metrics={**state.metrics, "dissimilarity": jnp.zeros(0)})

    def apply(params, deltas, state, *, dissimilarity, **extras):
        params, state = plain.apply(params, deltas, state, **extras)
        return params, state._replace(metrics={**state.metrics, "dissimilarity": dissimilarity})

    return fd.algorithms.from_aggregator(Aggregator(init, apply, frozenset({kind})))


@pytest.mark.thorough
def test_the_uploaded_model_is_compared(settings):
    def forge(key, uplink, malicious, **knowledge):
        zero = lambda g: jnp.where(fd.tree.expand(malicious, g), 0, g)
        return uplink._replace(delta=jax.tree.map(zero, uplink.delta))

    lazy = settings(num_rounds=1, eval_every=1, **ATTACKED | {"attack": Attack(forge=forge), "cohort_size": 12})
    history = fd.simulate(recorder("class_histogram_dissimilarity"), **lazy).history
    np.testing.assert_array_equal(history["dissimilarity"] == 0, history["malicious"])
    assert history["malicious"].sum() == 3


@pytest.mark.thorough
def test_an_attacker_foresees_the_dissimilarity_of_what_it_would_send(settings):
    """The rule moves every coordinate by the sum of the dissimilarities; models that stay where they are have 0."""
    foreseen = []

    def apply(params, deltas, state, *, dissimilarity, **_):
        total = dissimilarity.sum()
        move = jax.tree.map(lambda p: jnp.full_like(p, total), params)
        return fd.tree.add(params, move), MetricsOnly({"dissimilarity": dissimilarity})

    def init(params):
        return MetricsOnly({"dissimilarity": jnp.zeros(0)})

    def forge(key, uplink, malicious, *, aggregate, **knowledge):
        zero = uplink._replace(
            delta=jax.tree.map(lambda g: jnp.where(fd.tree.expand(malicious, g), 0, g), uplink.delta)
        )
        moved = [jax.tree.leaves(aggregate(tried))[0].max() for tried in (uplink, zero)]
        jax.debug.callback(lambda *moved: foreseen.append(moved), *moved)
        return zero

    rule = Aggregator(init, apply, frozenset({"class_histogram_dissimilarity"}))
    attack = Attack(forge=forge, needs=frozenset({"aggregate"}))
    run = settings(num_rounds=1, eval_every=1, **ATTACKED | {"attack": attack, "cohort_size": 12})
    history = fd.simulate(rule, **run).history
    jax.effects_barrier()
    (distances,), (malicious,) = history["dissimilarity"], history["malicious"]
    assert (distances == 0).tolist() == malicious.astype(bool).tolist()
    honest, forged = foreseen[-1]
    assert forged == pytest.approx(distances.sum(), rel=1e-5)
    assert honest > forged + 1e-4, "the malicious clients' own models have moved"
