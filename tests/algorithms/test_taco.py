"""TACO, and FedProx and SCAFFOLD with its coefficients: identities, expulsion, and what the engine makes of it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_drag as fd
from fedjax_drag.aggregators import krum
from fedjax_drag.algorithms import scaffold
from fedjax_drag.algorithms._taco import WorkDone, taco
from fedjax_drag.algorithms._taco_coefficients import coefficients
from fedjax_drag.algorithms._tailored_fedprox import tailored_fedprox
from fedjax_drag.types import Attack, Uplink

M, S, SIZE, STEPS, ETA = 6, 4, 5, 3, 0.1
IDS = jnp.array([4, 0, 2, 5])
PARAMS = {"w": jnp.linspace(-1.0, 1.0, SIZE)}
aggregate = jax.jit(lambda method, *args, **extras: method.aggregate(*args, **extras), static_argnums=0)


def deltas(seed, rows=S):
    """Random deltas with something in common, so that their coefficients are not 0."""
    rng = np.random.default_rng(seed)
    return (0.1 * (rng.normal(size=(rows, SIZE)) + 1.0)).astype(np.float32)


def uplink(sent, steps=STEPS, eta=ETA):
    work = WorkDone(jnp.full(len(sent), float(steps)), jnp.full(len(sent), steps * eta))
    return Uplink({"w": jnp.asarray(sent)}, work)


@functools.cache
def built(**settings):
    """One method object for each setting, so that each is compiled once."""
    return taco(M, **settings)


def output_of(method, params, state):
    assert method.output is not None
    return method.output(params, state)


def eligible_in(method, state):
    """``[M]`` bool."""
    assert method.eligible is not None
    return np.asarray(method.eligible(state))


def formula(g):
    """The coefficients, from the paper's equation 7."""
    g = g.astype(np.float64)
    lengths, mean = np.linalg.norm(g, axis=1), g.mean(0)
    return (1 - lengths / lengths.sum()) * np.maximum(0, g @ mean / (lengths * np.linalg.norm(mean)))


def test_a_round_follows_the_equations():
    """Coefficients, gradient, parameters and output; who stays away keeps what it had."""
    method, sent = built(), deltas(0)
    params, state = aggregate(method, PARAMS, uplink(sent), method.init(PARAMS), client_ids=IDS)
    alpha = formula(sent)
    assert (alpha > 0).sum() >= 3
    update = alpha @ sent / alpha.sum()
    np.testing.assert_allclose(params["w"], PARAMS["w"] + update, rtol=1e-5)
    np.testing.assert_allclose(state.gradient["w"], -update / (STEPS * ETA), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state.alpha[IDS], alpha, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state.alpha[jnp.array([1, 3])], 0.1)
    np.testing.assert_allclose(state.metrics["weight"], alpha / alpha.sum(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state.metrics["alpha"], alpha, rtol=1e-5, atol=1e-6)
    ahead = PARAMS["w"] + (2 - alpha.mean()) * update
    np.testing.assert_allclose(output_of(method, params, state)["w"], ahead, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(output_of(method, PARAMS, method.init(PARAMS))["w"], PARAMS["w"])

    downlink = method.broadcast(params, state, jnp.array([1, 4]))
    np.testing.assert_allclose(downlink.shared["w"], -update / (STEPS * ETA) / STEPS, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(downlink.own, 1 - np.array([0.1, alpha[0]]), rtol=1e-5)


@pytest.mark.thorough
def test_the_work_of_a_round_is_the_lower_median_of_what_the_clients_report():
    """In absolute value, so that a claim below 0 is none of negative work."""
    method, steps = built(), jnp.array([3.0, 100.0, -2.0, 1.0])
    sent = uplink(deltas(0))._replace(aux=WorkDone(steps, ETA * steps))
    _, state = aggregate(method, PARAMS, sent, method.init(PARAMS), client_ids=IDS)
    assert (state.work.steps, state.work.total_step_size) == (2.0, pytest.approx(2 * ETA))


@pytest.mark.thorough
def test_the_server_step_size_scales_the_step_and_not_the_gradient():
    method, half = built(), built(server_step_size=0.5)
    sent = uplink(deltas(1))
    params, state = aggregate(method, PARAMS, sent, method.init(PARAMS), client_ids=IDS)
    halved, other = aggregate(half, PARAMS, sent, half.init(PARAMS), client_ids=IDS)
    np.testing.assert_allclose(halved["w"] - PARAMS["w"], 0.5 * (params["w"] - PARAMS["w"]), rtol=1e-4, atol=1e-7)
    np.testing.assert_array_equal(other.gradient["w"], state.gradient["w"])
    ahead = (1 - state.mean_alpha) * (halved["w"] - PARAMS["w"])
    np.testing.assert_allclose(output_of(half, halved, other)["w"], halved["w"] + ahead, rtol=1e-5, atol=1e-6)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("gamma", "share"), [(1.0, 1.0), (None, 1 / STEPS)])
def test_the_last_gradient_stays_in_the_next_whole_or_by_one_step_of_its_pass(gamma, share):
    """``D_{t+1} = D~ + share (1 - alpha_t) D_t`` with ``D~`` of the clients' own gradients: Lemma 1 has share 1."""
    method, everybody = built(gamma=gamma), jnp.arange(S)
    params, state = aggregate(method, PARAMS, uplink(deltas(3)), method.init(PARAMS), client_ids=everybody)
    downlink, own = method.broadcast(params, state, everybody), deltas(4)
    sent = []
    for m in range(S):  # every gradient of a client is the same
        w, carry, to_m = params, method.client.begin(downlink), downlink._replace(own=downlink.own[m])
        for _ in range(STEPS):
            step, carry = method.client.direction(lambda w, batch: {"w": batch}, w, carry, to_m, own[m])
            w = {"w": w["w"] - ETA * step["w"]}
        sent.append(w["w"] - params["w"])
    _, after = aggregate(method, params, uplink(np.stack(sent)), state, client_ids=everybody)
    weight = after.alpha[everybody] / after.alpha[everybody].sum()
    kept = share * (weight * (1 - state.alpha[everybody])).sum() * state.gradient["w"]
    assert np.abs(kept).max() > 0.01
    np.testing.assert_allclose(after.gradient["w"], weight @ own + kept, rtol=1e-4, atol=1e-5)


@pytest.mark.sample(1)
@pytest.mark.parametrize("settings", [{"gamma": 0.0}, {"tailored_correction": False}], ids=str)
def test_neither_part_is_fedavg(settings):
    """No correction and no weights leave the gradient and the mean."""
    method = built(tailored_aggregation=False, **settings)
    sent, state = deltas(2), method.init(PARAMS)
    params, state = aggregate(method, PARAMS, uplink(sent), state, client_ids=IDS)
    np.testing.assert_allclose(params["w"], PARAMS["w"] + sent.mean(0), rtol=1e-5, atol=1e-6)
    downlink = method.broadcast(params, state, IDS)
    one = downlink._replace(own=jax.tree.map(lambda x: x[0], downlink.own))
    got, steps = method.client.direction(lambda w, _: w, params, method.client.begin(one), one, None)
    np.testing.assert_array_equal(got["w"], params["w"])
    assert steps == 1


@pytest.mark.thorough
def test_equal_coefficients_are_the_mean():
    """Deltas of one length at one angle to their mean."""
    sent = np.zeros((S, SIZE), np.float32)
    sent[:, 0] = 0.3
    sent[:, 1] = [0.4, -0.4, 0.0, 0.0]
    sent[:, 2] = [0.0, 0.0, 0.4, -0.4]
    method = built()
    params, state = aggregate(method, PARAMS, uplink(sent), method.init(PARAMS), client_ids=IDS)
    np.testing.assert_allclose(state.metrics["alpha"], 0.75 * 0.6, rtol=1e-5)
    np.testing.assert_allclose(params["w"], PARAMS["w"] + sent.mean(0), rtol=1e-6)


@jax.jit
def coefficients_of(rows):
    return coefficients({"w": rows}, jnp.array([True, True, True, False]))


def test_coefficients_are_in_range_for_any_message():
    """Also for vanishing, huge, opposed and broken deltas; 0 for those that do not count."""
    plain = deltas(3)
    assert (np.asarray(coefficients_of(plain))[:3] > 0).any()
    opposed = np.stack([plain[0], -plain[0], 0 * plain[0], plain[1]])
    broken = np.where(np.arange(S)[:, None] == 1, np.float32(np.inf), plain)
    for rows in (plain, plain * 1e30, plain * 1e-30, 0 * plain, opposed, broken):
        alpha = np.asarray(coefficients_of(rows))
        assert ((alpha >= 0) & (alpha < 1)).all()
        assert alpha[3] == 0
    np.testing.assert_allclose(coefficients_of(plain * 1e30), coefficients_of(plain), rtol=1e-5)


@pytest.mark.thorough
def test_a_lone_client_has_no_coefficient():
    """Nothing to agree with: the round moves nothing."""
    method = built()
    alone = jnp.array([True, False, False, False])
    params, state = aggregate(method, PARAMS, uplink(deltas(4)), method.init(PARAMS), client_ids=IDS, valid=alone)
    np.testing.assert_array_equal(params["w"], PARAMS["w"])
    np.testing.assert_array_equal(state.gradient["w"], 0)
    assert state.alpha[IDS[0]] == 0


@pytest.mark.thorough
def test_only_the_freeloader_is_expelled():
    """Whoever sends back the last update agrees with it: a strike a round, then out, its count frozen."""
    method = built(max_strikes=3)
    turns = 2 * np.pi * np.arange(S) / 3
    honest = np.stack([0.5 + 0 * turns, np.cos(turns), np.sin(turns), 0 * turns, 0 * turns], axis=1)
    params, state = PARAMS, method.init(PARAMS)
    rounds, freeloader, own = [], 2, 0.2 * honest[:3]  # its place in the cohort, and what the others send
    last = np.zeros(SIZE, np.float32)
    for _ in range(6):
        sent = np.insert(own, freeloader, last, axis=0).astype(np.float32)
        before = params
        params, state = aggregate(method, params, uplink(sent), state, client_ids=IDS)
        last = np.asarray(params["w"] - before["w"])
        rounds.append(jax.device_get(state.metrics))
    assert [int(m["num_expelled"]) for m in rounds] == [0, 0, 0, 1, 1, 1]
    assert [int(m["strikes"][freeloader]) for m in rounds] == [0, 1, 2, 3, 3, 3]
    assert all(m["alpha"][freeloader] >= 0.6 for m in rounds[1:4])
    assert all(m["weight"][freeloader] > 0 for m in rounds[1:4])
    assert all(m["weight"][freeloader] == 0 == m["num_rejected"] for m in rounds[4:])
    assert np.flatnonzero(~eligible_in(method, state)).tolist() == [int(IDS[freeloader])]
    # The others' round is the one they would have had without it.
    np.testing.assert_allclose(np.delete(rounds[-1]["alpha"], freeloader), formula(own), rtol=1e-4, atol=1e-6)


@pytest.mark.thorough
def test_without_a_limit_no_client_is_expelled():
    method = built(kappa=0.0)
    assert method.eligible is None
    state = method.init(PARAMS)
    for seed in range(2):
        sent = deltas(seed)
        sent[1] = -0.5 * np.delete(sent, 1, axis=0).sum(0)  # its coefficient is 0, as large as kappa
        _, state = aggregate(method, PARAMS, uplink(sent), state, client_ids=IDS)
    np.testing.assert_array_equal(state.strikes[IDS], 2)
    assert int(state.metrics["num_expelled"]) == 0


@pytest.mark.thorough
def test_clients_that_do_not_count_leave_no_trace():
    """A rejected client keeps its row, and a round without messages changes nothing at all."""
    method = built(kappa=0.0)
    _, state = aggregate(method, PARAMS, uplink(deltas(5)), method.init(PARAMS), client_ids=IDS)
    sent = deltas(6)
    sent[1, 0] = np.nan
    _, after = aggregate(method, PARAMS, uplink(sent), state, client_ids=IDS)
    assert int(after.metrics["num_rejected"]) == 1
    assert (after.alpha[IDS[1]], after.strikes[IDS[1]]) == (state.alpha[IDS[1]], state.strikes[IDS[1]])
    np.testing.assert_allclose(after.alpha[IDS[jnp.array([0, 2, 3])]], formula(np.delete(sent, 1, 0)), rtol=1e-4)

    params, nothing = aggregate(method, PARAMS, uplink(np.full_like(sent, np.inf)), after, client_ids=IDS)
    np.testing.assert_array_equal(params["w"], PARAMS["w"])
    strip = lambda s: s._replace(aggregator=())
    jax.tree.map(np.testing.assert_array_equal, strip(nothing), strip(after))
    assert int(nothing.metrics["num_rejected"]) == S


@pytest.mark.thorough
def test_a_minority_cannot_misreport_the_work():
    """Step counts far off in either direction, negative or not."""
    method, honest = built(), uplink(deltas(7))
    params, state = aggregate(method, PARAMS, honest, method.init(PARAMS), client_ids=IDS)
    for lie in (0.0, -1.0, 1e9):
        false = honest._replace(aux=jax.tree.map(lambda x, lie=lie: x.at[1].multiply(lie), honest.aux))
        moved, other = aggregate(method, PARAMS, false, method.init(PARAMS), client_ids=IDS)
        np.testing.assert_array_equal(moved["w"], params["w"])
        np.testing.assert_array_equal(other.gradient["w"], state.gradient["w"])
        assert other.work == state.work == (STEPS, pytest.approx(STEPS * ETA))


@pytest.mark.thorough
def test_the_rule_that_takes_the_place_of_the_mean():
    """Krum returns one of the deltas that it is given: weighted with tailored aggregation, else as sent."""
    sent = deltas(8)
    for settings, factor in (({}, formula(sent) / formula(sent).mean()), ({"tailored_aggregation": False}, np.ones(S))):
        method = taco(M, aggregator=krum(num_byzantine=1), **settings)
        params, state = aggregate(method, PARAMS, uplink(sent), method.init(PARAMS), client_ids=IDS)
        chosen = int(np.argmax(state.metrics["weight"]))
        np.testing.assert_allclose(state.metrics["weight"][chosen], factor[chosen], rtol=1e-5)
        np.testing.assert_allclose(params["w"] - PARAMS["w"], factor[chosen] * sent[chosen], rtol=1e-4, atol=1e-6)


def direction_of(method, downlink, w):
    """The first step's direction of the cohort's first client, whose gradient is 0."""
    one = downlink._replace(own=jax.tree.map(lambda x: x[0], downlink.own))
    return method.client.direction(lambda w, _: jax.tree.map(jnp.zeros_like, w), w, (), one, None)[0]["w"]


@pytest.mark.thorough
def test_tailored_coefficients_in_fedprox_and_scaffold():
    """``mu`` and ``a`` times 1 - alpha: 0.9 at first, then by the last participation; the server's step is plain."""
    sent, w = deltas(9), {"w": PARAMS["w"] + 1.0}
    for method, aux in ((tailored_fedprox(M, mu=0.5), ()), (scaffold(M, a=0.5, tailored=True), {"w": -deltas(10)})):
        state = method.init(PARAMS)
        params, state = aggregate(method, PARAMS, Uplink({"w": jnp.asarray(sent)}, aux), state, client_ids=IDS)
        np.testing.assert_allclose(params["w"], PARAMS["w"] + sent.mean(0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(state.alpha[IDS], formula(sent), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(state.metrics["alpha"], formula(sent), rtol=1e-5, atol=1e-6)
        for client, alpha in ((1, 0.1), (int(IDS[0]), formula(sent)[0])):
            downlink = method.broadcast(PARAMS, state, jnp.array([client]))
            pull = state.control["w"] - state.client_controls.rows["w"][client] if aux else w["w"] - PARAMS["w"]
            np.testing.assert_allclose(
                direction_of(method, downlink, w), 0.5 * (1 - alpha) * pull, rtol=1e-5, atol=1e-6
            )


@pytest.mark.thorough
def test_scaffold_is_the_same_without_coefficients():
    """``tailored`` adds nothing to the state where it is off, and off is ``alpha = 0``."""
    plain, tailored = scaffold(M, a=0.5), scaffold(M, a=0.5, tailored=True)
    assert "alpha" not in plain.init(PARAMS).metrics
    message = Uplink({"w": jnp.asarray(deltas(11))}, {"w": jnp.asarray(deltas(12))})
    params, state = aggregate(plain, PARAMS, message, plain.init(PARAMS), client_ids=IDS)
    moved, other = aggregate(tailored, PARAMS, message, tailored.init(PARAMS), client_ids=IDS)
    np.testing.assert_array_equal(moved["w"], params["w"])
    np.testing.assert_array_equal(other.control["w"], state.control["w"])
    other = other._replace(alpha=jnp.zeros(M))
    directions = [direction_of(m, m.broadcast(params, s, IDS), params) for m, s in ((plain, state), (tailored, other))]
    np.testing.assert_array_equal(*directions)


def agreeing(key, sent, malicious, **_):
    """Malicious clients send half the honest mean: as high a coefficient as there is."""
    del key
    weight = ~malicious / jnp.maximum((~malicious).sum(), 1)

    def leaf(x):
        mean = jnp.tensordot(weight.astype(x.dtype), x, 1)
        return jnp.where(fd.tree.expand(malicious, x), 0.5 * mean, x)

    return sent._replace(delta=jax.tree.map(leaf, sent.delta))


@pytest.fixture(scope="module")
def settings():
    data = fd.data.partition.dirichlet(fd.data.load("digits"), num_clients=12, beta=0.3, seed=0)
    return {
        "model": fd.models.mlp(num_classes=10, hidden=(8,)),
        "data": data,
        "num_rounds": 8,
        "cohort_size": 10,
        "local_steps": 3,
        "batch_size": 4,
        "step_size": 0.1,
        "eval_every": 1,
        "time_clients": False,
        "attack": Attack(forge=agreeing),
        "byzantine_fraction": 0.25,
    }


@pytest.mark.slow
def test_the_engine_never_draws_an_expelled_client_again(settings):
    """Three of twelve are expelled while the cohort is ten: the last ones left in it are marked as absent."""
    method = taco(12, kappa=0.85, max_strikes=2)
    result = fd.simulate(method, **settings)
    history = result.history
    expelled = np.flatnonzero(~eligible_in(method, result.state.algorithm))
    malicious = np.unique(history["client_ids"][history["malicious"]])
    assert expelled.tolist() == malicious.tolist()
    assert history["num_expelled"][-1] == 3
    out, filled = set(), 0
    for t in range(8):
        ids, valid = history["client_ids"][t], history["valid"][t]
        assert not out & set(ids[valid])
        assert (~valid).sum() == max(0, 10 - (12 - len(out)))
        assert (history["weight"][t][~valid] == 0).all()
        out |= set(ids[history["strikes"][t] >= 2].tolist())
        assert len(out) == history["num_expelled"][t]
        filled += (~valid).sum()
    assert filled > 0
    assert np.isfinite(history["train_loss"]).all()

    half = fd.simulate(method, **settings | {"num_rounds": 5})
    resumed = fd.simulate(method, initial=half.state, **settings)
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, resumed.state, result.state)))


@pytest.mark.slow
def test_the_output_is_evaluated_beside_the_parameters(settings):
    method = taco(12)
    result = fd.simulate(
        method, **settings | {"num_rounds": 3, "eval_every": 3, "attack": None, "byzantine_fraction": 0}
    )
    assert {"valid", "output_loss", "test_loss"} & set(result.history) == {"output_loss", "test_loss"}
    data, weights = settings["data"], output_of(method, result.params, result.state.algorithm)
    for params, name in ((result.params, "test"), (weights, "output")):
        logits = settings["model"].apply({"params": params}, data.preprocess(data.test.x))
        accuracy = (np.asarray(logits).argmax(-1) == data.test.y).mean()
        assert result.history[f"{name}_accuracy"][-1] == pytest.approx(accuracy, abs=1e-6)
    assert result.history["output_loss"][-1] != result.history["test_loss"][-1]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: taco(0), "num_clients=0"),
        (lambda: taco(4, gamma=-0.1), r"gamma=-0.1: must be in \[0, inf\)"),
        (lambda: taco(4, kappa=1.5), r"kappa=1.5: must be in \[0, 1\]"),
        (lambda: taco(4, max_strikes=0), "max_strikes=0"),
        (lambda: taco(4, server_step_size=0.0), "server_step_size=0.0"),
        (lambda: tailored_fedprox(0), "num_clients=0"),
        (lambda: tailored_fedprox(4, mu=float("nan")), "mu=nan"),
    ],
)
def test_bad_arguments_are_named_with_their_value(build, message):
    with pytest.raises(ValueError, match=message):
        build()
