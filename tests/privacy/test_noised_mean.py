"""Noise at the server: the sensitivity of the sum, the noise, the clip that follows a quantile, and who is refused."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import AGGREGATORS, SIZE, flatten, nested_params, unflatten
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_drag import tree
from fedjax_drag.aggregators import clipping, fedavg, nnm
from fedjax_drag.algorithms import from_aggregator
from fedjax_drag.privacy import adaptive_dp, central_dp
from fedjax_drag.server_optimizers import fedadam
from fedjax_drag.testing import check_aggregator
from fedjax_drag.testing._server import round_in_chunks

COHORT = 7
CLIP = 0.5
BUILDERS = {"central": central_dp, "adaptive": adaptive_dp}


def matrix(seed=1, scale=1.0):
    return (scale * np.random.default_rng(seed).normal(size=(COHORT, SIZE))).astype(np.float32)


def extras(round=0, **changes):
    return {"key": jax.random.key(round), "valid": jnp.ones(COHORT, bool), **changes}


@functools.cache
def compiled(rule):
    return jax.jit(rule.apply, static_argnames="reject_nonfinite")


def one_round(rule, G, params=None, state=None, **changes):
    params = nested_params() if params is None else params
    return compiled(rule)(params, unflatten(G), rule.init(params) if state is None else state, **extras(**changes))


def moved(rule, G, **changes):
    """The update of the first round in float64."""
    params = nested_params()
    return flatten(tree.subtract(one_round(rule, G, params, **changes)[0], params))


def clipped_mean(G, clip=CLIP):
    """The twin of the rule without noise."""
    G = np.asarray(G, np.float64)
    return (G * np.minimum(1, clip / np.linalg.norm(G, axis=1))[:, None]).mean(0)


@pytest.mark.thorough
@pytest.mark.parametrize("builder", BUILDERS.values(), ids=BUILDERS)
def test_keeps_the_promises_of_rules(builder):
    check_aggregator(builder(fedavg(), 0.5, 0.3))


@pytest.mark.sample(1)
@pytest.mark.parametrize("builder", BUILDERS.values(), ids=BUILDERS)
def test_without_noise_it_is_the_mean_of_clipped_deltas(builder):
    np.testing.assert_allclose(moved(builder(fedavg(), CLIP, 0.0), matrix()), clipped_mean(matrix()), atol=2e-7)


@pytest.mark.slow
def test_what_a_server_optimizer_makes_of_the_mean_is_post_processing():
    """The noised mean as the only delta of a round gives FedAdam's parameters and state."""
    params, inner = nested_params(), fedavg(server_optimizer=fedadam(0.1))
    state, alone = central_dp(inner, CLIP, 1.0).init(params), inner.init(params)
    theta = params
    plain, optimised = (central_dp(rule, CLIP, 1.0) for rule in (fedavg(), inner))
    for t in range(3):
        mean = moved(plain, matrix(t), round=t)
        params, state = one_round(optimised, matrix(t), params, state, round=t)
        theta, alone = inner.apply(theta, unflatten(mean[None]), alone)
        np.testing.assert_allclose(flatten(params), flatten(theta), rtol=1e-4, atol=1e-6)


ENTRIES = st.one_of(
    st.floats(width=32, allow_nan=True, allow_infinity=True),
    st.sampled_from([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e30, 1e-38, 0.0, CLIP]),
)


@functools.cache
def summed(clip):
    rule = central_dp(fedavg(), clip, 1.0)
    state = rule.init(nested_params())

    @jax.jit
    def total(G, valid):
        return rule.streamed.accumulate(nested_params(), unflatten_traced(G), state, valid=valid)[0]

    return lambda G, valid: flatten(total(jnp.asarray(G), jnp.asarray(valid)))


def unflatten_traced(G):
    return {"dense": {"kernel": G[:, 2:8].reshape(-1, 3, 2), "bias": G[:, :2]}, "scale": G[:, 8]}


@settings(max_examples=60, deadline=None)
@given(st.lists(ENTRIES, min_size=SIZE, max_size=SIZE), st.integers(0, COHORT - 1), st.sampled_from([1e-3, CLIP, 1e3]))
def test_one_client_changes_the_sum_by_at_most_the_clip(delta, client, clip):
    """Whatever it sends, NaN and the longest numbers included, against a federation in which it is absent."""
    G, there = matrix(), np.ones(COHORT, bool)
    G[client] = delta
    without = there.copy()
    without[client] = False
    change = np.linalg.norm(summed(clip)(G, there) - summed(clip)(G, without))
    rounding = 1e-6 * COHORT * max(clip, 1.0)  # of the sums, whose other terms are at most the clip, or the deltas
    assert change <= clip * (1 + 1e-5) + rounding
    if not np.isfinite(delta).all():
        assert change == 0


@pytest.mark.thorough
@pytest.mark.parametrize("builder", BUILDERS.values(), ids=BUILDERS)
def test_a_message_that_is_not_finite_counts_as_zero_and_is_counted(builder):
    G = matrix()
    G[2, 5], G[4] = np.nan, 1e36
    rule = builder(fedavg(), CLIP, 0.3)
    zeroed = G.copy()
    zeroed[[2, 4]] = 0
    params, state = one_round(rule, G)
    np.testing.assert_array_equal(flatten(params), flatten(one_round(rule, zeroed)[0]))
    assert int(state.metrics["num_rejected"]) == 2
    assert np.flatnonzero(np.asarray(state.metrics["weight"]) == 0).tolist() == [2, 4]
    propagated, _ = one_round(rule, G, reject_nonfinite=False)
    assert np.isfinite(flatten(propagated)).all()


@pytest.mark.thorough
def test_the_divisor_is_public():
    """Who answers changes neither the divisor nor the noise, which comes where nobody answers."""
    rule, quiet, nobody = (*(central_dp(fedavg(), CLIP, z) for z in (1.0, 0.0)), jnp.zeros(COHORT, bool))
    noise = moved(rule, np.zeros((COHORT, SIZE)))
    np.testing.assert_array_equal(moved(rule, matrix(), valid=nobody), noise)
    one = nobody.at[3].set(True)
    alone = moved(quiet, matrix(), valid=one)
    row = matrix()[3]
    np.testing.assert_allclose(alone, row * min(1, CLIP / np.linalg.norm(row)) / COHORT, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(moved(rule, matrix(), valid=one) - noise, alone, atol=1e-6)
    expected = moved(quiet, matrix(), valid=one, expected_clients=jnp.float32(2.0))
    np.testing.assert_allclose(expected, alone * COHORT / 2, rtol=1e-4, atol=1e-7)


WIDE = 4000


def noises(rule, number=50, **changes):
    """The updates of some rounds without a message, ``[number, WIDE]``."""
    params = {"a": jnp.zeros(WIDE // 2), "b": jnp.zeros((WIDE // 4, 2))}
    deltas = jax.tree.map(lambda p: jnp.zeros((COHORT, *p.shape)), params)
    state = rule.init(params)

    @jax.jit
    def draw(round):
        after, _ = rule.apply(params, deltas, state, key=jax.random.key(round), **changes)
        return jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(after)])

    return np.stack([np.asarray(draw(t), np.float64) for t in range(number)])


@pytest.mark.sample(1)
@pytest.mark.parametrize(("z", "noise_cohort"), [(1.0, None), (0.25, None), (1.0, 140)])
def test_the_noise_is_normal_and_independent(z, noise_cohort):
    """Its deviation is z clip / S in the mean; rounds, leaves and coordinates are uncorrelated."""
    draws = noises(central_dp(fedavg(), CLIP, z, noise_cohort_size=noise_cohort))
    deviation = z * CLIP / (noise_cohort or COHORT)
    units = draws / deviation
    assert abs(units.std() - 1) < 0.01  # 200,000 draws: 0.0016 is one standard deviation
    assert abs(units.mean()) < 0.01
    assert abs((units**4).mean() - 3) < 0.1
    between_rounds = units @ units.T / WIDE - np.diag((units**2).mean(1))
    assert np.abs(between_rounds).max() < 5 / np.sqrt(WIDE)
    halves = (units[:, : WIDE // 2] * units[:, WIDE // 2 :]).mean(1)
    assert np.abs(halves).max() < 5 / np.sqrt(WIDE // 2)


@pytest.mark.thorough
def test_a_larger_cohort_is_simulated_by_its_noise_alone():
    """The deltas are averaged over those of the run; only the noise is that of the large cohort."""
    G = matrix()
    few, many = (central_dp(fedavg(), CLIP, 2.0, noise_cohort_size=size) for size in (COHORT, 50 * COHORT))
    noise = [moved(rule, G) - clipped_mean(G) for rule in (few, many)]
    np.testing.assert_allclose(noise[0], 50 * noise[1], rtol=1e-3, atol=1e-5)
    with pytest.raises(ValueError, match=r"noise_cohort_size=6: must be at least the run's own cohort, 7"):
        moved(central_dp(fedavg(), CLIP, 2.0, noise_cohort_size=6), G)


@pytest.mark.thorough
def test_the_clip_follows_the_paper():
    """Three rounds of Andrew et al., Algorithm 1, by a NumPy twin that is given the draws."""
    gamma, eta, share, z = 0.3, 0.5, 0.4, 1.5
    unit = central_dp(fedavg(), 1.0, 1.0)
    rule = adaptive_dp(fedavg(), 2.0, z, quantile=gamma, clip_step_size=eta, count_noise=share)
    params, state, clip = nested_params(), rule.init(nested_params()), 2.0
    sigma_b = share * COHORT
    z_delta = (z**-2 - (2 * sigma_b) ** -2) ** -0.5
    for t in range(3):
        _, clip_key, _ = jax.random.split(jax.random.key(t), 3)
        G = matrix(t)
        within = np.linalg.norm(G, axis=1) <= clip
        drawn = sigma_b * float(jax.random.normal(clip_key))
        b = ((within - 0.5).sum() + drawn) / COHORT + 0.5
        before = flatten(params)
        params, state = one_round(rule, G, params, state, round=t)
        noise = z_delta * clip * moved(unit, np.zeros_like(G), round=t)
        np.testing.assert_allclose(flatten(params) - before, clipped_mean(G, clip) + noise, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(float(state.metrics["clip"]), clip, rtol=1e-5)
        clip *= np.exp(-eta * (b - gamma))
        np.testing.assert_allclose(float(state.clip), clip, rtol=1e-5)


@pytest.mark.parametrize("absent", ["not there", "not finite"])
def test_a_client_that_does_not_count_changes_the_clip_by_half_a_vote(absent):
    """As the count's noise takes it to: it is neither within the clip nor beyond it."""
    rule, G = adaptive_dp(fedavg(), 2.0, 0.0, clip_step_size=0.3), 0.1 * matrix()
    with_all = one_round(rule, G)[1].clip
    valid = jnp.arange(COHORT) > (0 if absent == "not there" else -1)
    if absent == "not finite":
        G = np.where(np.arange(COHORT)[:, None] > 0, G, np.nan)
    without = one_round(rule, G, valid=valid)[1].clip
    np.testing.assert_allclose(without / with_all, np.exp(0.3 * 0.5 / COHORT), rtol=1e-5)


@pytest.mark.thorough
def test_the_clip_finds_the_quantile():
    """Of lengths that are uniform in [0, 1], the quantile 0.7 is 0.7."""
    rng = np.random.default_rng(0)
    cohort = 200
    rule = adaptive_dp(fedavg(), 0.05, 0.5, quantile=0.7, count_noise=0.02)
    params = {"w": jnp.zeros(3)}
    apply, state, clips = jax.jit(rule.apply), rule.init(params), []
    for t in range(150):
        directions = rng.normal(size=(cohort, 3))
        deltas = directions / np.linalg.norm(directions, axis=1)[:, None] * rng.uniform(size=(cohort, 1))
        _, state = apply(params, {"w": jnp.asarray(deltas, jnp.float32)}, state, key=jax.random.key(t))
        clips.append(float(state.clip))
    assert abs(np.mean(clips[50:]) - 0.7) < 0.05


def test_the_noise_of_the_sum_and_of_the_count_are_one_mechanism():
    """In units of their deviations, a client that is added moves sum and count by at most 1 / z together."""
    z, sigma_b = 0.8, 3.0
    z_delta = adaptive_dp(fedavg(), 1.0, z, count_noise=sigma_b / COHORT).noise_on_deltas(COHORT)
    assert 1 / float(z_delta) ** 2 + (0.5 / sigma_b) ** 2 == pytest.approx(1 / z**2)
    with pytest.raises(ValueError, match=r"noise_multiplier=0.8: must be below 0.7"):
        moved(adaptive_dp(fedavg(), 1.0, 0.8), matrix())


@pytest.mark.thorough
def test_too_little_noise_on_the_count_shows_where_the_number_of_clients_is_traced():
    rule, params, deltas = adaptive_dp(fedavg(), 1.0, 0.5), {"w": jnp.zeros(2)}, {"w": jnp.ones((COHORT, 2))}

    def after(expected):
        extras = {"key": jax.random.key(0), "expected_clients": expected}
        return rule.apply(params, deltas, rule.init(params), **extras)[0]["w"]

    enough, too_few = jax.vmap(after)(jnp.array([COHORT, 4.0]))
    assert np.isfinite(enough).all()
    assert np.isnan(too_few).all()


@pytest.mark.sample(1)
@pytest.mark.parametrize("options", [{}, {"noise_cohort_size": 100}], ids=["run's cohort", "larger cohort"])
@pytest.mark.parametrize("builder", BUILDERS.values(), ids=BUILDERS)
def test_a_round_in_which_nobody_is_expected_changes_nothing(builder, options):
    rule = builder(fedavg(server_optimizer=optax.sgd(1.0, 0.9)), CLIP, 0.3, **options)
    before = one_round(rule, matrix(), expected_clients=jnp.float32(COHORT))
    nobody = {"valid": jnp.zeros(COHORT, bool), "expected_clients": jnp.float32(0)}
    after = one_round(rule, matrix(), *before, round=1, **nobody)
    chex.assert_trees_all_equal(*((params, state._replace(metrics={})) for params, state in (before, after)))
    assert not after[1].metrics["weight"].any()


@pytest.mark.thorough
@pytest.mark.parametrize("builder", BUILDERS.values(), ids=BUILDERS)
def test_chunks_give_what_the_stack_gives(builder):
    rule = builder(fedavg(server_optimizer=optax.sgd(1.0, 0.9)), CLIP, 0.3)
    params, given_ = nested_params(), extras() | {"client_ids": jnp.arange(COHORT)}
    whole = rule.apply(params, unflatten(matrix()), rule.init(params), **given_)
    chunks = round_in_chunks(rule.streamed, params, unflatten(matrix()), rule.init(params), given_)
    for a, b in zip(*((x[0], x[1]._replace(metrics={})) for x in (whole, chunks)), strict=True):
        np.testing.assert_allclose(
            *(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(x)]) for x in (a, b)), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize(
    "case", [case for case in AGGREGATORS if case.label not in ("fedavg", "crfl")], ids=lambda case: case.label
)
def test_every_other_rule_is_refused_in_one_line(case):
    rule = case.build()
    with pytest.raises(ValueError, match=rf"^aggregator={rule.name}: .*local_dp, which goes with .* alone$"):
        central_dp(rule, CLIP, 1.0)


def test_reasons():
    def reason(rule):
        with pytest.raises(ValueError, match="aggregator=") as caught:
            central_dp(rule, CLIP, 1.0)
        return str(caught.value)

    assert "numbers of examples, which are private" in reason(fedavg("examples"))
    assert "is no sum over clients" in reason(clipping(fedavg(), 1.0))
    assert "adds noise already" in reason(central_dp(fedavg(), CLIP, 1.0))
    plain = fedavg()
    other = plain._replace(apply=lambda *args, **extras: plain.apply(*args, **extras))
    assert "is no sum over clients" in reason(other)  # a copy that applies something else


def test_what_is_wrapped_around_it_guarantees_nothing():
    """Mixed before they are clipped, the deltas of a client reach the messages of others."""
    rule = central_dp(fedavg(), CLIP, 1.0)
    assert from_aggregator(rule).guarantee == rule.guarantee
    assert nnm(rule, num_byzantine=1).guarantee is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clip": 0.0}, "clip=0.0"),
        ({"noise_multiplier": -1.0}, "noise_multiplier=-1.0"),
        ({"delta": 1.0}, "delta=1.0"),
        ({"noise_cohort_size": 0}, "noise_cohort_size=0"),
        ({"noise_cohort_size": 10, "population": 5}, "noise_cohort_size=10"),
        ({"population": 0}, "population=0"),
    ],
)
def test_numbers_out_of_range(changes, message):
    with pytest.raises(ValueError, match=message):
        central_dp(fedavg(), **{"clip": CLIP, "noise_multiplier": 1.0, **changes})
