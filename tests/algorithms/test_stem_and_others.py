"""STEM, FedNova, MimeLite and FedSAM: what they reduce to, and what they do that others do not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quadratics import stateless

from fedjax_drag.aggregators import fedavg, median
from fedjax_drag.algorithms import from_aggregator
from fedjax_drag.algorithms._fednova import fednova
from fedjax_drag.algorithms._mime import mime
from fedjax_drag.algorithms._stem import stem
from fedjax_drag.clients import sgd
from fedjax_drag.clients._fedsam import fedsam
from fedjax_drag.simulation.program.local import local_pass
from fedjax_drag.types import Batch, Downlink, Uplink

M, SIZE, STEPS, ETA = 4, 3, 3, 0.1
RNG = np.random.default_rng(0)
CURVATURE = RNG.uniform(0.3, 2, (M, 8, SIZE)).astype(np.float32)
CENTRE = RNG.normal(size=(M, 8, SIZE)).astype(np.float32)
POSITIONS = RNG.integers(0, 8, (M, STEPS, 2))
SAME = np.broadcast_to(np.arange(8), (M, STEPS, 8))  # every mini-batch is all there is
EXAMPLES = np.array([1, 2, 3, 4])
START = np.array([1.0, -2.0, 0.5], np.float32)


def loss(w, batch):
    """Examples are quadratics."""
    return 0.5 * (batch.x * (w["w"] - batch.y) ** 2).sum(-1).mean()


def gradient(m, places, w):
    """The same in float64, of one client's mini-batch."""
    return (CURVATURE[m][places].astype(np.float64) * (w - CENTRE[m][places])).mean(0)


def flat(tree):
    return np.asarray(tree["w"], np.float64)


@functools.partial(jax.jit, static_argnums=0)
def work(client, downlink, positions, curvature, centre):
    def fetch(places):
        return Batch(curvature[places], centre[places])

    return local_pass(client, stateless(loss), downlink, fetch, positions, ETA).uplink


def uplink_of(method, params, state, positions=POSITIONS):
    """What all clients send; they may differ in their numbers of steps."""
    downlink = method.broadcast(params, state, jnp.arange(M))
    sent = [work(method.client, downlink, jnp.asarray(p), CURVATURE[m], CENTRE[m]) for m, p in enumerate(positions)]
    return jax.tree.map(lambda *rows: jnp.stack(rows), *sent)


@functools.partial(jax.jit, static_argnums=0)
def aggregate(method, params, uplink, state, **extras):
    return method.aggregate(params, uplink, state, client_ids=jnp.arange(M), num_examples=EXAMPLES, **extras)


def begin(method):
    params = {"w": jnp.asarray(START)}
    return params, method.init(params)


def play(method, rounds=3, positions=POSITIONS):
    params, state = begin(method)
    for _ in range(rounds):
        params, state = aggregate(method, params, uplink_of(method, params, state, positions), state)
    return params, state


def spoil(uplink, value, row=1):
    """One client's message beside the delta, with ``value`` in place of every number."""
    return uplink._replace(aux=jax.tree.map(lambda x: x.at[row].set(value), uplink.aux))


def deltas(method, positions=POSITIONS):
    return flat(uplink_of(method, *begin(method), positions).delta)


@pytest.fixture(scope="module")
def plain():
    """FedAvg's deltas of one round, and its parameters after three."""
    method = from_aggregator(fedavg())
    return deltas(method), flat(play(method)[0])


# STEM


@pytest.mark.thorough
@pytest.mark.parametrize("carry_momentum", [False, True])
def test_stem_without_history_lengthens_sgd_by_its_last_step(plain, carry_momentum):
    method = stem(a=1.0, carry_momentum=carry_momentum)
    params, state = begin(method)
    for _ in range(2):
        uplink = uplink_of(method, params, state)
        sgd_downlink = Downlink(params)
        for m in range(M):
            own = work(SGD, sgd_downlink, jnp.asarray(POSITIONS[m]), CURVATURE[m], CENTRE[m]).delta
            np.testing.assert_array_equal(uplink.delta["w"][m], own["w"])
            last = flat(params) + flat(own) + flat(uplink.aux.step)[m]  # w_{K-1}
            np.testing.assert_allclose(flat(uplink.aux.step)[m], ETA * gradient(m, POSITIONS[m][-1], last), atol=1e-6)
        expected = flat(params) + (flat(uplink.delta) - flat(uplink.aux.step)).mean(0)
        params, state = aggregate(method, params, uplink, state)
        np.testing.assert_allclose(flat(params), expected, atol=1e-6)


SGD = sgd()


def recursion(m, theta, a, v=None, previous=None):
    """One client's pass as the paper writes it: its delta and last direction."""
    w = theta
    for places in POSITIONS[m]:
        new = gradient(m, places, w)
        v = new if v is None else new + (1 - a) * (v - gradient(m, places, previous))
        previous, w = w, w - ETA * v
    return w - theta, v


@pytest.mark.sample(1)
@pytest.mark.parametrize(("a", "carry_momentum"), [(0.2, False), (0.2, True), (0.0, True)])
def test_stem_follows_its_recursion(a, carry_momentum):
    method = stem(a, carry_momentum)
    params, state = begin(method)
    theta, v, memory = START.astype(np.float64), None, (None, None)
    for _ in range(3):
        params, state = aggregate(method, params, uplink_of(method, params, state), state)
        g, v = (np.mean(part, 0) for part in zip(*(recursion(m, theta, a, *memory) for m in range(M)), strict=True))
        memory = (v, theta) if carry_momentum else (None, None)
        theta = theta + g - ETA * v
        np.testing.assert_allclose(flat(params), theta, atol=2e-6)
    if carry_momentum:
        np.testing.assert_allclose(flat(state.memory.momentum), v, atol=1e-5)


@pytest.mark.thorough
def test_stem_without_noise_is_sgd_with_any_momentum():
    """If all mini-batches are one, the correction of the last direction is exact."""
    sent = uplink_of(stem(0.2), *begin(stem(0.2)), SAME)
    np.testing.assert_allclose(flat(sent.delta), deltas(from_aggregator(fedavg()), SAME), atol=1e-6)


@pytest.mark.thorough
def test_stem_with_momentum_of_one_step_tracks_the_global_gradient():
    method = stem(a=0.0, carry_momentum=True)
    params, state = begin(method)
    for _ in range(3):
        before = flat(params)
        params, state = aggregate(method, params, uplink_of(method, params, state, SAME[:, :1]), state)
        expected = np.mean([gradient(m, np.arange(8), before) for m in range(M)], 0)
        np.testing.assert_allclose(flat(state.memory.momentum), expected, atol=1e-5)


@pytest.mark.thorough
def test_the_aggregator_of_stem_sees_both_halves_of_the_message():
    for rule, moved in ((median(), False), (fedavg(), True)):
        method = stem(0.2, aggregator=rule)
        params, state = begin(method)
        honest = uplink_of(method, params, state)
        clean, _ = aggregate(method, params, honest, state)
        bent, _ = aggregate(method, params, spoil(honest, 1e4), state)
        assert (np.linalg.norm(flat(bent) - flat(clean)) > 1e3) == moved


# FedNova

RAGGED = [POSITIONS[0][:1], POSITIONS[1], POSITIONS[2][:2], POSITIONS[3][:1]]


@pytest.mark.sample(1)
@pytest.mark.parametrize("settings", [{}, {"rho": 0.9}, {"rho": 0.5, "mu": 2.0, "weighting": "examples"}], ids=str)
def test_fednova_of_equal_work_is_fedavg(plain, settings):
    method = fednova(**settings)
    params, state = begin(method)
    uplink = uplink_of(method, params, state)
    if not settings:
        np.testing.assert_array_equal(flat(uplink.delta), plain[0])
    moved, state = aggregate(method, params, uplink, state)
    average, _ = aggregate(from_aggregator(fedavg(settings.get("weighting", "uniform"))), params, uplink, begin_rule())
    np.testing.assert_allclose(flat(moved), flat(average), atol=1e-6)
    np.testing.assert_allclose(state.metrics["work"], np.full(M, state.metrics["effective_work"]), rtol=1e-6)


def begin_rule():
    return begin(from_aggregator(fedavg()))[1]


@pytest.mark.sample(1)
@pytest.mark.parametrize(("rho", "mu"), [(0.0, 0.0), (0.9, 0.0), (0.0, 3.0), (0.6, 2.0)])
def test_fednova_measures_work_by_what_a_constant_gradient_would_do(rho, mu):
    """Clients whose gradient is the same everywhere agree, however much each of them did."""

    def slope(w, batch):
        return (w["w"] * jnp.arange(1.0, 4.0)).sum() + 0 * batch.x.sum()

    method = fednova(rho, mu)
    params, state = begin(method)
    data = Batch(jnp.ones(1), jnp.ones(1))
    run = jax.jit(
        lambda positions: (
            local_pass(method.client, stateless(slope), Downlink(params), lambda _: data, positions, ETA).uplink
        )
    )
    steps = (1, 1, 4, 4)
    sent = [run(jnp.zeros((number, 1), int)) for number in steps]
    uplink = jax.tree.map(lambda *rows: jnp.stack(rows), *sent)
    np.testing.assert_allclose(flat(uplink.delta), -ETA * np.outer(uplink.aux, np.arange(1, 4)), rtol=1e-5)
    if not mu:
        work = [sum((1 - rho ** (k + 1)) / (1 - rho) for k in range(number)) for number in steps]
    elif not rho:
        work = [(1 - (1 - ETA * mu) ** number) / (ETA * mu) for number in steps]
    else:
        work = uplink.aux
    np.testing.assert_allclose(uplink.aux, work, rtol=1e-5)
    moved, _ = aggregate(method, params, uplink, state)
    np.testing.assert_allclose(flat(moved), START - ETA * np.mean(work) * np.arange(1, 4), rtol=1e-5)


@pytest.mark.thorough
def test_fednova_does_not_favour_the_client_with_more_steps():
    method = fednova()
    params, state = begin(method)
    uplink = uplink_of(method, params, state, RAGGED)
    moved, after = aggregate(method, params, uplink, state)
    steps = np.array([1, STEPS, 2, 1])
    np.testing.assert_allclose(after.metrics["work"], steps)
    np.testing.assert_allclose(after.metrics["effective_work"], steps.mean())
    per_step = flat(uplink.delta) / steps[:, None]
    np.testing.assert_allclose(flat(moved) - START, steps.mean() * per_step.mean(0), atol=1e-6)


@pytest.mark.thorough
def test_a_client_that_claims_negative_work_is_idle_in_fednova():
    method = fednova()
    params, state = begin(method)
    uplink = spoil(uplink_of(method, params, state), -1e6)
    moved, after = aggregate(method, params, uplink, state)
    np.testing.assert_array_equal(after.metrics["work"], [STEPS, 0, STEPS, STEPS])
    others = flat(uplink.delta)[[0, 2, 3]]
    np.testing.assert_allclose(flat(moved) - START, 0.75 * others.sum(0) / 4, atol=1e-6)


# MimeLite


@pytest.mark.sample(1)
@pytest.mark.parametrize("gradient", ["average", "first"])
def test_mime_without_momentum_is_fedavg(plain, gradient):
    params, state = play(mime(b=0.0, gradient=gradient))
    np.testing.assert_array_equal(flat(params), plain[1])
    assert state.metrics["momentum_norm"] > 0


@pytest.mark.sample(1)
@pytest.mark.parametrize("which", ["average", "first"])
def test_mime_averages_gradients_at_the_start_of_the_round(which):
    method, b = mime(b=0.6, gradient=which), 0.6
    params, state = begin(method)
    momentum = np.zeros(SIZE)
    for _ in range(2):
        before = flat(params)
        positions_used = POSITIONS if which == "average" else POSITIONS[:, :1]
        uplink = uplink_of(method, params, state)
        for m in range(M):
            w = before
            for places in POSITIONS[m]:
                w = w - ETA * ((1 - b) * gradient(m, places, w) + b * momentum)
            np.testing.assert_allclose(flat(uplink.delta)[m], w - before, atol=1e-6)
        params, state = aggregate(method, params, uplink, state)
        average = np.mean([gradient(m, places, before) for m in range(M) for places in positions_used[m]], 0)
        momentum = (1 - b) * average + b * momentum
        np.testing.assert_allclose(flat(state.momentum), momentum, atol=1e-6)


@pytest.mark.thorough
def test_mime_of_one_step_is_centralised_momentum():
    theta, momentum = START.astype(np.float64), np.zeros(SIZE)
    for _ in range(4):
        average = np.mean([gradient(m, np.arange(8), theta) for m in range(M)], 0)
        momentum = 0.1 * average + 0.9 * momentum
        theta = theta - ETA * momentum
    params, _ = play(mime(0.9), rounds=4, positions=SAME[:, :1])
    np.testing.assert_allclose(flat(params), theta, atol=1e-5)


# FedSAM


def test_fedsam_of_no_radius_is_sgd(plain):
    np.testing.assert_allclose(deltas(from_aggregator(fedavg(), client=fedsam(rho=0.0))), plain[0], atol=1e-7)


def test_fedsam_takes_the_gradient_uphill():
    sent, rho = deltas(from_aggregator(fedavg(), client=fedsam(rho=0.3))), 0.3
    for m in range(M):
        w = START.astype(np.float64)
        for places in POSITIONS[m]:
            g = gradient(m, places, w)
            w = w - ETA * gradient(m, places, w + rho * g / np.linalg.norm(g))
        np.testing.assert_allclose(sent[m], w - START, atol=1e-6)


@pytest.mark.thorough
def test_fedsam_rests_where_the_gradient_is_zero():
    rule, w = fedsam(rho=0.3), {"w": jnp.zeros(SIZE)}
    sent = work(rule, Downlink(w), jnp.asarray(POSITIONS[0]), CURVATURE[0], np.zeros_like(CENTRE[0]))
    np.testing.assert_array_equal(sent.delta["w"], 0)


# All

METHODS = {"stem": stem(), "stem-carry": stem(carry_momentum=True), "fednova": fednova(0.9, 0.1), "mime": mime()}
everyone = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


@pytest.mark.sample(1)
@everyone
def test_a_broken_half_loses_the_client(method):
    """Whichever half it is, the others move parameters and memory as without it."""
    params, state = begin(method)
    _, state = aggregate(method, params, uplink_of(method, params, state), state)
    uplink = uplink_of(method, params, state)
    present = jnp.arange(M) != 1
    expected, memory = aggregate(method, params, uplink, state, valid=present)
    assert memory.metrics["num_rejected"] == 0
    broken = uplink._replace(delta={"w": uplink.delta["w"].at[1, 0].set(np.nan)})
    for message in (spoil(uplink, np.inf), broken):
        moved, after = aggregate(method, params, message, state, valid=jnp.ones(M, bool))
        assert after.metrics["num_rejected"] == 1
        np.testing.assert_array_equal(flat(moved), flat(expected))
        for name in ("memory", "momentum"):
            got, like = (jax.tree.leaves(getattr(s, name, ())) for s in (after, memory))
            assert all(np.array_equal(x, y) for x, y in zip(got, like, strict=True))


@pytest.mark.sample(1)
@everyone
def test_a_round_without_counted_clients_changes_nothing(method):
    params, state = play(method, rounds=1)
    sent = uplink_of(method, params, state)
    for uplink, present in ((spoil(sent, np.nan, np.arange(M)), True), (sent, False)):
        moved, after = aggregate(method, params, uplink, state, valid=jnp.full(M, present))
        np.testing.assert_array_equal(flat(moved), flat(params))
        assert after.metrics["num_rejected"] == M * present
        for name in ("memory", "momentum"):
            got, like = (jax.tree.leaves(getattr(s, name, ())) for s in (after, state))
            assert all(np.array_equal(x, y) for x, y in zip(got, like, strict=True))


@pytest.mark.sample(1)
@everyone
def test_bfloat16_parameters_stay_so_in_the_local_scan(method):
    params = {"w": jnp.asarray(START, jnp.bfloat16)}

    def one(params):
        downlink = method.broadcast(params, method.init(params), jnp.arange(M))
        return work(method.client, downlink, jnp.asarray(POSITIONS[0]), CURVATURE[0], CENTRE[0])

    sent = jax.eval_shape(one, params)
    assert sent.delta["w"].dtype == jnp.bfloat16
    assert all(x.dtype == jnp.bfloat16 or x.shape == () for x in jax.tree.leaves(sent.aux))
    assert isinstance(sent, Uplink)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: stem(a=1.5), "a=1.5"),
        (lambda: stem(carry_momentum="yes"), "carry_momentum='yes'"),
        (lambda: fednova(rho=1.0), "rho=1.0"),
        (lambda: fednova(mu=-1.0), "mu=-1.0"),
        (lambda: fednova(weighting="size"), "weighting='size'"),
        (lambda: mime(b=1.0), "b=1.0"),
        (lambda: mime(gradient="all"), "gradient='all'"),
        (lambda: fedsam(rho=-0.1), "rho=-0.1"),
    ],
)
def test_bad_arguments_are_named_with_their_value(build, message):
    with pytest.raises(ValueError, match=message):
        build()
