"""Rules about fairness against twins written from the papers in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import numpy_fair, numpy_rules, twins
from reference.twins import FEDERATION, SIZE, Pair, as_tree, as_vector, opposed, random, seldom, tied

from fedjax_drag import aggregators

ETA = 0.1  # of twins.extras


def by_examples(G, s, t, e):
    return numpy_fair.tilted(G, e["start_loss"], 3.0, e["num_examples"])


def agnostic(G, s, t, e):
    mixture = np.full(FEDERATION, 1 / FEDERATION) if s is None else s
    ids = e["client_ids"].astype(int)
    return numpy_fair.agnostic(G, mixture, ids, e["start_loss"], 0.5)


PAIRS = {
    "qffl": Pair("qffl", {"q": 1.0}, lambda G, s, t, e: numpy_fair.q_fedavg(G, e["start_loss"], 1.0, ETA)),
    "qffl-root": Pair("qffl", {"q": 0.5}, lambda G, s, t, e: numpy_fair.q_fedavg(G, e["start_loss"], 0.5, ETA)),
    "qffl-lipschitz": Pair(
        "qffl", {"q": 2.0, "lipschitz": 4.0}, lambda G, s, t, e: numpy_fair.q_fedavg(G, e["start_loss"], 2.0, 0.25)
    ),
    "qffl-zero": Pair("qffl", {"q": 0.0}, lambda G, s, t, e: numpy_rules.fedavg(G)),
    "term": Pair("term", {"t": 2.0}, lambda G, s, t, e: numpy_fair.tilted(G, e["start_loss"], 2.0, np.ones(len(G)))),
    "term-negative": Pair(
        "term", {"t": -2.0}, lambda G, s, t, e: numpy_fair.tilted(G, e["start_loss"], -2.0, np.ones(len(G)))
    ),
    "term-examples": Pair("term", {"t": 3.0, "weighting": "examples"}, by_examples),
    "term-zero": Pair("term", {"t": 0.0}, lambda G, s, t, e: numpy_rules.fedavg(G)),
    "term-zero-examples": Pair(
        "term",
        {"t": 0.0, "weighting": "examples"},
        lambda G, s, t, e: numpy_rules.fedavg(G, e["num_examples"]),
    ),
    "afl": Pair("afl", {"gamma": 0.5, "num_clients": FEDERATION}, agnostic),
    "fedavg-unbiased": Pair(
        "fedavg", {"weighting": "unbiased"}, lambda G, s, t, e: numpy_fair.weighed(G, e["selection_weight"] / len(G))
    ),
}


@pytest.mark.parametrize(("name", "S"), [seldom(name, S, unless=S == 10) for name in PAIRS for S in (1, 10, 41)])
def test_twin(name, S):
    inputs = [random, tied, opposed]
    twins.duel(PAIRS[name], S, inputs=inputs)
    if S > 3:
        twins.duel(PAIRS[name], S, missing=3, inputs=inputs)


def told(loss, **others):
    return {"start_loss": jnp.asarray(loss, jnp.float32), "step_size": jnp.float32(ETA), **others}


@pytest.mark.parametrize("t", [-3.0, 0.0, 1e-4, 4.0])
def test_the_tilted_loss_lies_between_mean_and_worst(t):
    loss, valid = np.array([0.5, 1.0, 3.0, 9.0]), np.array([True, True, True, False])
    rule, G = aggregators.term(t=t), random(np.random.default_rng(0), 4)
    zero = as_tree(np.zeros(SIZE))
    _, state = rule.apply(zero, as_tree(G), rule.init(zero), valid=valid, **told(loss))
    expected = numpy_fair.tilted_loss(loss[valid], t, np.ones(3))
    assert float(state.tilted_loss) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_array_equal(state.metrics["tilted_loss"], state.tilted_loss)


def test_weights_stay_finite_for_great_tilts_and_losses():
    G, loss = random(np.random.default_rng(0), 3), [0.0, 2.0, 1e4]
    zero = as_tree(np.zeros(SIZE))
    for rule in (aggregators.term(t=1e3), aggregators.qffl(q=50.0), aggregators.qffl(q=0.5)):
        moved, state = rule.apply(zero, as_tree(G), rule.init(zero), **told(loss))
        assert np.isfinite(as_vector(moved)).all()
        assert int(np.argmax(state.metrics["weight"])) == 2 or rule.name == "term"
    state = aggregators.term(t=1e3).init(zero)._replace(tilted_loss=jnp.float32(1e4))  # as after a round
    moved, _ = aggregators.term(t=1e3).apply(zero, as_tree(G), state, **told(loss))
    np.testing.assert_allclose(as_vector(moved), G[2], rtol=1e-6)  # the worst client alone


@pytest.mark.parametrize("lost", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("rule", [aggregators.afl(num_clients=3), aggregators.term(), aggregators.qffl(q=0.0)])
def test_a_client_whose_loss_is_not_finite_does_not_count(rule, lost):
    G, zero = random(np.random.default_rng(0), 3), as_tree(np.zeros(SIZE))
    moved, state = rule.apply(zero, as_tree(G), rule.init(zero), **told([lost, 2.0, 1.0], client_ids=np.arange(3)))
    absent, _ = rule.apply(
        zero, as_tree(G), rule.init(zero), **told([1.0, 2.0, 1.0], client_ids=np.arange(3), valid=np.arange(3) > 0)
    )
    np.testing.assert_array_equal(as_vector(moved), as_vector(absent))
    assert state.metrics["num_rejected"] == 1
    moved, _ = rule.apply(moved, as_tree(G), state, **told([1.0, 2.0, 1.0], client_ids=np.arange(3)))
    assert np.isfinite(as_vector(moved)).all()


def test_a_loss_below_zero_counts_as_zero():
    G, zero = random(np.random.default_rng(0), 2), as_tree(np.zeros(SIZE))
    rule = aggregators.qffl(q=1.0)
    below, at = (rule.apply(zero, as_tree(G), rule.init(zero), **told([loss, 1.0]))[0] for loss in (-0.1, 0.0))
    np.testing.assert_array_equal(as_vector(below), as_vector(at))


def test_the_mixture_stays_on_the_simplex_and_moves_to_the_worst_client():
    rule, zero = aggregators.afl(gamma=0.2, num_clients=4), as_tree(np.zeros(SIZE))
    state, G = rule.init(zero), random(np.random.default_rng(0), 4)
    mean, everybody = aggregators.fedavg(), told(np.ones(4), client_ids=np.arange(4))
    expected, _ = mean.apply(zero, as_tree(G), mean.init(zero))
    np.testing.assert_array_equal(as_vector(rule.apply(zero, as_tree(G), state, **everybody)[0]), as_vector(expected))
    apply = jax.jit(rule.apply)
    for _ in range(20):
        _, state = apply(zero, as_tree(G), state, **told([1.0, 1.0, 2.0, 1.5], client_ids=np.arange(4)))
        assert float(state.mixture.sum()) == pytest.approx(1, abs=1e-6)
        assert (np.asarray(state.mixture) >= 0).all()
    np.testing.assert_allclose(state.mixture, [0, 0, 1, 0], atol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: aggregators.qffl(q=-1), r"q=-1: must be in \[0, inf\)"),
        (lambda: aggregators.qffl(lipschitz=0.0), "lipschitz=0.0"),
        (lambda: aggregators.term(t=np.inf), "t=inf"),
        (lambda: aggregators.term(weighting="size"), "weighting='size': must be one of uniform, examples"),
        (lambda: aggregators.afl(gamma=-0.1), "gamma=-0.1"),
        (lambda: aggregators.afl().init({"w": jnp.zeros(2)}), "num_clients=None: must be given to afl"),
        (lambda: aggregators.bucketing(aggregators.qffl()), "must not need start_loss, as a bucket is not a client"),
    ],
)
def test_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
