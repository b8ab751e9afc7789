"""AdaBest, FedDyn, FedACG, FedDC and FedADMM: what their equations promise."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_drag import tree
from fedjax_drag.aggregators import fedavg, median, qffl
from fedjax_drag.algorithms import from_aggregator, scaffold
from fedjax_drag.algorithms._adabest import adabest
from fedjax_drag.algorithms._fedacg import fedacg
from fedjax_drag.algorithms._fedadmm import fedadmm
from fedjax_drag.algorithms._feddc import feddc
from fedjax_drag.algorithms._feddyn import feddyn
from fedjax_drag.clients import fedprox
from fedjax_drag.server_optimizers import fedavgm
from fedjax_drag.types import Batch, Uplink

M, SIZE, STEPS, STEP_SIZE = 6, 3, 5, 0.1
EVERYBODY = jnp.arange(M)
COHORTS = (jnp.array([4, 0, 2, 5]), jnp.array([1, 4, 3, 0]), jnp.array([5, 2, 1, 4]))
METHODS = {
    "adabest": functools.partial(adabest, num_clients=M, mu=0.2, beta=0.5),
    "feddyn": functools.partial(feddyn, num_clients=M, a=0.5),
    "fedacg": functools.partial(fedacg, lam=0.6, beta=0.2),
    "feddc": functools.partial(feddc, num_clients=M, a=0.5),
    "fedadmm": functools.partial(fedadmm, num_clients=M, rho=0.5),
}
ALL = jnp.ones(4, bool)
method_of = functools.cache(lambda name: METHODS[name]())
PLAIN = from_aggregator(fedavg())
every_method = pytest.mark.parametrize("name", METHODS)


def quadratics():
    """``(w - b_m)' A_m (w - b_m) / 2`` for each client, A_m with eigenvalues in [0.5, 1.5], b_m far apart."""
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.normal(size=(M, SIZE, SIZE)))[0]
    curvature = np.einsum("mij,mj,mkj->mik", axes, rng.uniform(0.5, 1.5, (M, SIZE)), axes)
    return Batch(jnp.asarray(curvature, jnp.float32), jnp.asarray(rng.normal(size=(M, SIZE)), jnp.float32))


DATA = quadratics()
START = {"w": jnp.array([1.0, -2.0, 0.5])}


def gradient(w, batch):
    return {"w": batch.x @ (w["w"] - batch.y)}


@functools.partial(jax.jit, static_argnums=0)
def send(method, params, state, cohort):
    """What a cohort sends."""

    def one(downlink, batch):
        w, carry = downlink.start, method.client.begin(downlink)
        for _ in range(STEPS):
            direction, carry = method.client.direction(gradient, w, carry, downlink, batch)
            w = jax.tree.map(lambda p, d: p - STEP_SIZE * d, w, direction)
        aux = method.client.report(downlink, w, carry, STEPS * STEP_SIZE)
        return Uplink(jax.tree.map(jnp.subtract, w, downlink.start), aux)

    downlink = method.broadcast(params, state, cohort)
    axes = downlink._replace(start=None, shared=None, own=0)
    return jax.vmap(one, in_axes=(axes, 0))(downlink, jax.tree.map(lambda x: x[cohort], DATA))


def round_of(method, params, state, cohort, t):
    return method.aggregate(params, send(method, params, state, cohort), state, client_ids=cohort, round=t)


def fresh(method, cohort):
    """The initial state in its final shapes, so that a round is compiled once."""
    state = method.init(START)
    after = jax.eval_shape(functools.partial(round_of, method), START, state, cohort, jnp.int32(0))[1]
    return tree.cast_like(state, after)


@functools.cache
def play(method):
    """Parameters and state after each of some rounds."""
    step = jax.jit(functools.partial(round_of, method))
    params, state, history = START, fresh(method, COHORTS[0]), []
    for t, cohort in enumerate(COHORTS):
        params, state = step(params, state, cohort, jnp.int32(t))
        history.append((params, state))
    return history


@functools.cache
def built(name):
    """A method, parameters and state after some rounds, and its jitted ``aggregate``."""
    method = method_of(name)
    params, state = play(method)[-1]
    return method, params, state, jax.jit(functools.partial(method.aggregate, round=jnp.int32(len(COHORTS))))


def rows(state):
    """Everything with a row for each client."""
    return {k: v for k, v in state._asdict().items() if k.startswith("client_") or k == "last_rounds"}


def own(state):
    """All that is the method's own, not the aggregation rule's."""
    return jax.tree.leaves(state._replace(aggregator=(), metrics={}))


def assert_same_bits(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("method", "plainer"),
    [
        (adabest(num_clients=M, mu=0.0, beta=0.0), PLAIN),
        (fedacg(lam=0.0, beta=0.0), PLAIN),
        (fedacg(lam=0.0, beta=0.5), from_aggregator(fedavg(), fedprox(mu=0.5))),
        (fedacg(lam=0.0, beta=0.5, start="global"), from_aggregator(fedavg(), fedprox(mu=0.5))),
        (fedacg(lam=0.6, beta=0.0, start="global"), from_aggregator(fedavg(server_optimizer=fedavgm(1.0, 0.6)))),
        (fedacg(lam=0.6, beta=0.0, start="global", moves_server=False), PLAIN),
        pytest.param(feddc(num_clients=M, a=0.5, correction=0.0), method_of("feddyn"), marks=pytest.mark.slow),
    ],
    ids=[
        "adabest",
        "fedacg",
        "fedacg-fedprox",
        "fedacg-global-fedprox",
        "fedacg-global-fedavgm",
        "fedacg-mean",
        "feddc-feddyn",
    ],
)
def test_without_its_own_terms_it_is_the_plainer_method(method, plainer):
    for (params, _), (expected, _) in zip(play(method), play(plainer), strict=True):
        np.testing.assert_allclose(params["w"], expected["w"], rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_feddyn_starts_with_fedprox_and_repeats_its_step():
    """All corrections are zero: the clients run FedProx, and -h/a is the sum of the deltas over M, once more."""
    method, _, _, aggregate = built("feddyn")
    state, cohort = fresh(method, COHORTS[0]), COHORTS[0]
    uplink = send(method, START, state, cohort)
    prox = send(from_aggregator(fedavg(), fedprox(mu=0.5)), START, (), cohort)
    np.testing.assert_allclose(uplink.delta["w"], prox.delta["w"], rtol=1e-6)
    first, state = aggregate(START, uplink, state, client_ids=cohort, valid=ALL)
    g = np.asarray(prox.delta["w"])
    np.testing.assert_allclose(first["w"], START["w"] + g.mean(0) + g.sum(0) / M, rtol=1e-5)
    np.testing.assert_allclose(state.correction["w"], -0.5 * g.sum(0) / M, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(state.metrics["correction_norm"], np.linalg.norm(state.correction["w"]), rtol=1e-6)


@pytest.mark.thorough
def test_the_server_knows_the_mean_over_all_clients():
    _, _, dyn, _ = built("feddyn")
    _, _, dc, _ = built("feddc")
    for server, clients in (
        (dyn.correction, dyn.client_corrections),
        (dc.drift, dc.client_drifts),
        (dc.control, dc.client_controls),
    ):
        np.testing.assert_allclose(server["w"], np.mean(clients.rows["w"], axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dc.metrics["drift_norm"], np.linalg.norm(dc.drift["w"]), rtol=1e-6)


@pytest.mark.thorough
def test_fedadmm_of_all_clients_is_feddyn():
    """And the parameters are the mean of the clients' augmented models."""
    methods = method_of("fedadmm"), method_of("feddyn")
    (params, state), (other, dyn) = (START, fresh(methods[0], EVERYBODY)), (START, fresh(methods[1], EVERYBODY))
    steps = [jax.jit(functools.partial(round_of, method)) for method in methods]
    for t in range(4):
        params, state = steps[0](params, state, EVERYBODY, jnp.int32(t))
        other, dyn = steps[1](other, dyn, EVERYBODY, jnp.int32(t))
        np.testing.assert_allclose(params["w"], other["w"], rtol=1e-5, atol=1e-5)
        augmented = state.client_models.rows["w"] + state.client_duals.rows["w"]
        np.testing.assert_allclose(params["w"], augmented.mean(0), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(-0.5 * state.client_duals.rows["w"], dyn.client_corrections.rows["w"], atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_fedadmm_starts_with_fedprox_and_twice_its_step(rho):
    """Nothing is dual yet; at rho = 0 it is FedAvg's."""
    method, cohort = fedadmm(num_clients=M, rho=rho, server_step_size=0.5), COHORTS[0]
    first, _ = round_of(method, START, fresh(method, cohort), cohort, 0)
    prox = from_aggregator(fedavg(), fedprox(mu=rho))
    expected, _ = round_of(prox, START, prox.init(START), cohort, 0)
    np.testing.assert_allclose(first["w"], expected["w"], rtol=1e-5)


@pytest.mark.thorough
def test_fedadmm_with_a_share_of_the_step_follows_the_mean_of_all_augmented_models():
    method = fedadmm(num_clients=M, rho=0.5, server_step_size=4 / M)
    for params, state in play(method):
        augmented = state.client_models.rows["w"] + state.client_duals.rows["w"]
        np.testing.assert_allclose(params["w"], augmented.mean(0), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_feddc_keeps_the_control_variates_of_scaffold():
    """Beside its drifts: the same message moves both methods' control variates alike."""
    method, _, state, aggregate = built("feddc")
    other = scaffold(num_clients=M)
    twin = other.init(START)._replace(control=state.control, client_controls=state.client_controls)
    uplink = send(method, START, state, COHORTS[0])
    _, after = aggregate(START, uplink, state, client_ids=COHORTS[0], valid=ALL)
    _, expected = jax.jit(other.aggregate)(START, uplink, twin, client_ids=COHORTS[0])
    assert np.abs(after.control["w"] - state.control["w"]).max() > 0.01
    np.testing.assert_allclose(after.control["w"], expected.control["w"], rtol=1e-6)
    np.testing.assert_allclose(after.client_controls.rows["w"], expected.client_controls.rows["w"], rtol=1e-6)
    sent = -state.control["w"] - uplink.delta["w"] / (STEPS * STEP_SIZE)
    np.testing.assert_allclose(uplink.aux["w"], sent, rtol=1e-5, atol=1e-6)


def test_feddc_corrects_by_drift_and_control_variates():
    method, _, state, _ = built("feddc")
    w, client = {"w": jnp.ones(SIZE)}, 5
    downlink = method.broadcast(START, state, jnp.array([client]))
    downlink = downlink._replace(own=jax.tree.map(lambda x: x[0], downlink.own))
    direction, _ = method.client.direction(gradient, w, (), downlink, jax.tree.map(lambda x: x[client], DATA))
    pull = 0.5 * (w["w"] + state.client_drifts.rows["w"][client] - START["w"])
    correction = state.control["w"] - state.client_controls.rows["w"][client]
    expected = DATA.x[client] @ (w["w"] - DATA.y[client]) + pull + correction
    np.testing.assert_allclose(direction["w"], expected, rtol=1e-5)
    assert np.abs(correction).max() > 0.01


def test_adabest_by_hand():
    r"""Three clients of one parameter, mu = 1/2, beta = 1/4, given deltas.

    t = 0, cohort (0, 1), g = (4, 2):  h_0 = -2, h_1 = -1;  theta_bar = 0 + 3 = 3, theta_bar_prev = 0,
      h = (0 - 3)/4 = -3/4,  theta = 15/4
    t = 1, cohort (1, 2), g = (2, -4): h_1 = -1/1 - 1 = -2 (first participation:) h_2 = 2;
      theta_bar = 15/4 - 1 = 11/4,  h = (3 - 11/4)/4 = 1/16,  theta = 43/16
    t = 3, cohort (0, 2), g = (2, 0):  h_0 = -2/3 - 1 = -5/3,  h_2 = 2/2 = 1;
      theta_bar = 43/16 + 1 = 59/16,  h = (11/4 - 59/16)/4 = -15/64,  theta = 251/64
    t = 3 again, cohort (0, 1), g = (0, 0): the same round counts as one: h_0 = -5/3,  h_1 = -2/2 = -1;
      theta_bar = 251/64,  h = (59/16 - 251/64)/4 = -15/256,  theta = 1019/256
    """
    method = adabest(num_clients=3, mu=0.5, beta=0.25)
    params = {"w": jnp.zeros(1)}
    state, aggregate = method.init(params), jax.jit(method.aggregate)
    for t, cohort, g, theta, h, corrections, last in (
        (0, (0, 1), (4, 2), 15 / 4, -3 / 4, (-2, -1, 0), (0, 0, -1)),
        (1, (1, 2), (2, -4), 43 / 16, 1 / 16, (-2, -2, 2), (0, 1, 1)),
        (3, (0, 2), (2, 0), 251 / 64, -15 / 64, (-5 / 3, -2, 1), (3, 1, 3)),
        (3, (0, 1), (0, 0), 1019 / 256, -15 / 256, (-5 / 3, -1, 1), (3, 3, 3)),
    ):
        uplink = Uplink({"w": jnp.array(g, jnp.float32)[:, None]})
        params, state = aggregate(params, uplink, state, client_ids=jnp.array(cohort), round=jnp.int32(t))
        np.testing.assert_allclose(state.client_corrections.rows["w"][:, 0], corrections, rtol=1e-6)
        np.testing.assert_array_equal(state.last_rounds, last)
        np.testing.assert_allclose(params["w"], [theta], rtol=1e-6)
        np.testing.assert_allclose(state.correction["w"], [h], rtol=1e-6)
        np.testing.assert_allclose(state.metrics["correction_norm"], abs(h), rtol=1e-6)
    downlink = method.broadcast(params, state, jnp.array([1]))
    np.testing.assert_allclose(downlink.own["w"], [[-1]], rtol=1e-6)


def test_fedacg_starts_ahead_and_steps_by_its_momentum():
    method, before, old, aggregate = built("fedacg")
    start = method.broadcast(before, old, COHORTS[0]).start
    np.testing.assert_allclose(start["w"], before["w"] + 0.6 * old.momentum["w"], rtol=1e-6)
    uplink = send(method, before, old, COHORTS[0])
    after, state = aggregate(before, uplink, old, client_ids=COHORTS[0], valid=ALL)
    expected = 0.6 * old.momentum["w"] + uplink.delta["w"].mean(0)
    np.testing.assert_allclose(state.momentum["w"], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after["w"], before["w"] + expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state.metrics["momentum_norm"], np.linalg.norm(expected), rtol=1e-5)
    assert np.linalg.norm(old.momentum["w"]) > 0.01


@pytest.mark.thorough
def test_fedacg_from_the_global_model_is_pulled_to_where_it_would_start():
    """Its deltas are from theta; the update is the look-ahead and their mean."""
    _, before, old, _ = built("fedacg")
    method = fedacg(lam=0.6, beta=0.2, start="global")
    downlink, phi = method.broadcast(before, old, COHORTS[0]), before["w"] + 0.6 * old.momentum["w"]
    np.testing.assert_array_equal(downlink.start["w"], before["w"])
    np.testing.assert_allclose(downlink.shared["w"], phi, rtol=1e-6)
    flat, here = lambda w, batch: {"w": jnp.zeros(SIZE)}, {"w": phi + 2.0}
    pull, _ = method.client.direction(flat, here, (), downlink, None)
    np.testing.assert_allclose(pull["w"], 0.2 * 2.0, rtol=1e-5)
    uplink = Uplink({"w": jnp.asarray(np.random.default_rng(0).normal(size=(4, SIZE)), jnp.float32)})
    after, state = method.aggregate(before, uplink, old)
    np.testing.assert_allclose(after["w"], phi + uplink.delta["w"].mean(0), rtol=1e-5)
    np.testing.assert_allclose(state.momentum["w"], after["w"] - before["w"], rtol=1e-5, atol=1e-6)


@pytest.mark.sample(1)
@every_method
@pytest.mark.parametrize("lost", ["delta", "message", "masked"])
def test_a_lost_client_leaves_no_trace(name, lost):
    """Whichever half of its message is broken, it is as if absent; rows of the lost and the absent keep their bits."""
    method, params, state, aggregate = built(name)
    cohort, without = COHORTS[0], ALL.at[1].set(False)
    uplink = send(method, params, state, cohort)
    expected = aggregate(params, uplink, state, client_ids=cohort, valid=without)
    broken = {
        "delta": uplink._replace(delta={"w": uplink.delta["w"].at[1, 0].set(jnp.nan)}),
        "message": uplink._replace(aux=jax.tree.map(lambda x: x.at[1, 2].set(jnp.inf), uplink.aux)),
        "masked": uplink,
    }[lost]
    valid = ALL if lost == "delta" or (lost == "message" and uplink.aux) else without
    after, now = aggregate(params, broken, state, client_ids=cohort, valid=valid)
    assert int(now.metrics["num_rejected"]) == int(valid.all())
    np.testing.assert_allclose(after["w"], expected[0]["w"], rtol=1e-6)
    for x, y in zip(own(now), own(expected[1]), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)
    untouched = np.array([0, 1, 3])  # 0 was lost, 1 and 3 are not in the cohort (4, 0, 2, 5)
    moved = np.array([4, 2, 5])
    for x, y in zip(jax.tree.leaves(rows(now)), jax.tree.leaves(rows(state)), strict=True):
        assert_same_bits(x[untouched], y[untouched])
        assert (np.asarray(x[moved]) != np.asarray(y[moved])).all()


@pytest.mark.sample(1)
@every_method
def test_a_round_without_messages_changes_nothing(name):
    method, params, state, aggregate = built(name)
    uplink = send(method, params, state, COHORTS[0])
    broken = uplink._replace(delta={"w": jnp.full((4, SIZE), jnp.nan)})
    for message, valid in ((broken, ALL), (uplink, ~ALL)):
        after, unchanged = aggregate(params, message, state, client_ids=COHORTS[0], valid=valid)
        assert_same_bits((after, own(unchanged)), (params, own(state)))
        assert int(unchanged.metrics["num_rejected"]) == 4 * int(valid[0])


@pytest.mark.sample(1)
@every_method
def test_the_aggregator_takes_the_place_of_the_mean(name):
    """And protects what goes through it, when one client sends far too much in both halves of its message."""
    method = METHODS[name](aggregator=median())
    state, cohort = method.init(START), COHORTS[0]
    aggregate = jax.jit(functools.partial(method.aggregate, client_ids=cohort, round=jnp.int32(0)))
    uplink = send(method, START, state, cohort)
    honest, _ = aggregate(START, uplink, state)
    g = np.asarray(uplink.delta["w"])
    step = np.median(g, axis=0)
    step = {"adabest": 1.5 * step, "fedacg": step, "fedadmm": 2 * step}.get(name, step + g.sum(0) / M)
    np.testing.assert_allclose(honest["w"], START["w"] + step, rtol=1e-5, atol=1e-6)

    after, reached = aggregate(START, jax.tree.map(lambda x: x.at[3].set(6e3), uplink), state)
    shift = np.abs(after["w"] - honest["w"])
    if name in ("adabest", "fedacg", "fedadmm"):
        assert shift.max() < 2
    else:  # the mean over all clients is a plain one
        np.testing.assert_allclose(shift, 6e3 / M, rtol=2e-3)
    if name == "feddc":
        np.testing.assert_allclose(reached.control["w"], 6e3 / M, rtol=2e-3)
    honest_rows = np.array([0, 1, 2, 3, 4])
    assert all(np.abs(x[honest_rows]).max() < 20 for x in jax.tree.leaves(rows(reached)))


def end(method, rounds=1500):
    """Where a run of all clients ends."""

    def step(carry, t):
        return round_of(method, *carry, EVERYBODY, t), None

    start = START, fresh(method, EVERYBODY)
    (params, _), _ = jax.jit(lambda carry: jax.lax.scan(step, carry, jnp.arange(rounds)))(start)
    return np.asarray(params["w"])


def optimum(pull=0.0):
    """Of the mean loss plus ``pull / 2 ||w - START||^2``."""
    A, b = np.asarray(DATA.x, np.float64), np.asarray(DATA.y, np.float64)
    right = np.einsum("mij,mj->mi", A, b).mean(0) + pull * np.asarray(START["w"])
    return np.linalg.solve(A.mean(0) + pull * np.eye(SIZE), right)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["feddyn", "feddc", "fedadmm"])
def test_heterogeneous_clients_do_not_move_the_optimum(name):
    np.testing.assert_allclose(end(method_of(name)), optimum(), atol=1e-5)


@pytest.mark.thorough
def test_fedavg_stalls_where_corrected_methods_do_not():
    assert np.abs(end(PLAIN) - optimum()).max() > 1e-3


@pytest.mark.thorough
def test_adabest_depends_on_its_starting_point():
    reached = end(method_of("adabest"))
    assert np.abs(reached - optimum()).max() > 1e-2
    np.testing.assert_allclose(reached, optimum(pull=0.2 * (1 - 0.5)), atol=1e-5)


def test_a_client_without_a_finite_loss_counts_neither_for_the_rule_nor_for_the_method():
    method, ids = scaffold(M, aggregator=qffl(lipschitz=1.0)), COHORTS[0]
    state, message = method.init(START), jax.tree.map(lambda w: jnp.ones((4, *w.shape)), START)
    given = {"client_ids": ids, "start_loss": jnp.array([1.0, jnp.nan, 1.0, 1.0])}
    _, after = method.aggregate(START, Uplink(message, message), state, **given)
    total, kept = method.streamed.accumulate(START, Uplink(message, message), state, **given)
    _, streamed = method.streamed.finish(START, total, state, kept, **given)
    for found in (after, streamed):
        assert int(found.metrics["num_rejected"]) == 1
        assert found.client_controls.rows["w"][:, 0].tolist() == [0, 0, 1, 0, 1, 1]


def test_needs_and_bad_arguments():
    assert method_of("adabest").needs == {"client_ids", "round"}
    assert method_of("feddyn").needs == method_of("feddc").needs == method_of("fedadmm").needs == {"client_ids"}
    assert not method_of("fedacg").needs
    for build, message in (
        (lambda: adabest(num_clients=0), "num_clients=0"),
        (lambda: adabest(num_clients=2, mu=-1.0), "mu=-1.0"),
        (lambda: adabest(num_clients=2, beta=1.5), "beta=1.5"),
        (lambda: feddyn(num_clients=2.5), "num_clients=2.5"),
        (lambda: feddyn(num_clients=2, a=0.0), "a=0.0"),
        (lambda: fedacg(lam=1.0), "lam=1.0"),
        (lambda: fedacg(beta=-0.1), "beta=-0.1"),
        (lambda: fedacg(start="theta"), "start='theta': must be one of lookahead, global"),
        (lambda: feddc(num_clients=2, a=float("nan")), "a=nan"),
        (lambda: feddc(num_clients=2, correction=-1.0), "correction=-1.0"),
        (lambda: fedadmm(num_clients=2, rho=-1.0), "rho=-1.0"),
        (lambda: fedadmm(num_clients=2, server_step_size=0.0), "server_step_size=0.0"),
    ):
        with pytest.raises(ValueError, match=message):
            build()
