"""Attacks aimed at a rule: against NumPy, and what they do to the rules that they are aimed at."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cohorts import COHORT, COHORTS, EXTRAS, MALICIOUS, SIZE, as_matrix, cohorts, observed, sent, update_of, updates
from reference import numpy_directed_attacks as twin
from reference.twins import as_tree

from fedjax_drag import aggregators
from fedjax_drag.attacks import alie, krum_attack, min_max, optimal_alie, optimal_ipm, optimised, trim_attack
from fedjax_drag.attacks._harm import OBJECTIVES, harm_of
from fedjax_drag.attacks._optimised import _axes, _best_on_lines
from fedjax_drag.types import Uplink


@functools.cache
def krum_attacked(knowledge):
    G, malicious = cohorts()
    return G, malicious, sent(krum_attack(knowledge=knowledge))(G, malicious)


@pytest.mark.sample(1)
@pytest.mark.parametrize("knowledge", ["full", "partial"])
def test_krum_attack_agrees_with_its_twin(knowledge):
    for G, malicious, forged in zip(*krum_attacked(knowledge), strict=True):
        known = observed(G, malicious, knowledge)
        size, _ = twin.krum_lambda(known, range(MALICIOUS if knowledge == "full" else 1, MALICIOUS + 1))
        expected = np.tile(-size * np.sign(known.mean(0)), (MALICIOUS, 1))
        np.testing.assert_allclose(forged[malicious], expected, rtol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("knowledge", ["full", "partial"])
def test_krum_attack_agrees_with_its_twin_for_every_number_of_malicious_clients(knowledge):
    """Also where they are the majority, for which the bound is no bound."""
    G, _ = cohorts(seed=9)
    numbers = np.arange(COHORTS) % (COHORT - 1) + 1
    malicious = np.random.default_rng(9).permuted(np.arange(COHORT) < numbers[:, None], axis=1)
    sent_by_all = sent(krum_attack(knowledge=knowledge))(G, malicious)
    for g, attackers, forged, number in zip(G, malicious, sent_by_all, numbers, strict=True):
        known = observed(g, attackers, knowledge)
        size, _ = twin.krum_lambda(known, range(number if knowledge == "full" else 1, number + 1))
        expected = np.tile(-size * np.sign(known.mean(0)), (number, 1))
        np.testing.assert_allclose(forged[attackers], expected, rtol=1e-5)


@pytest.mark.thorough
def test_krum_attack_does_not_count_absent_malicious_clients():
    """With them Krum would choose a forged delta of another length."""
    G, malicious = cohorts(seed=9, number=4)
    present = np.arange(COHORT) > 0
    malicious |= ~present
    forged = sent(krum_attack(), valid=jnp.asarray(present))(G, malicious)
    for g, attackers, rows in zip(G, malicious, forged, strict=True):
        known, number = observed(g, attackers, "full"), (attackers & present).sum()
        expected, with_absent = (twin.krum_lambda(known, [copies])[0] for copies in (number, attackers.sum()))
        assert abs(with_absent / expected - 1) > 1e-3
        np.testing.assert_allclose(abs(rows[attackers & present]), expected, rtol=1e-5)


@pytest.mark.thorough
def test_krum_chooses_the_forged_delta():
    _, malicious, forged = krum_attacked("full")
    rule = aggregators.krum(num_byzantine=MALICIOUS)
    chosen = updates(rule, forged)
    for row, attackers, update in zip(forged, malicious, chosen, strict=True):
        np.testing.assert_array_equal(update, row[attackers][0])


@pytest.mark.thorough
def test_krum_does_not_choose_a_forged_delta_of_twice_the_length_or_more():
    for G, malicious, forged in zip(*krum_attacked("full"), strict=True):
        known, found = observed(G, malicious, "full"), np.float64(forged[malicious][0])
        assert twin.krum_chooses(known, found, MALICIOUS)
        assert not any(twin.krum_chooses(known, k * found, MALICIOUS) for k in np.geomspace(2.001, 1e3, 200))


@pytest.mark.thorough
def test_krum_attack_that_cannot_succeed_sends_almost_zero():
    """Benign deltas that are close together, far away from the origin."""
    G, malicious = cohorts()
    G = 1000 + G
    forged = sent(krum_attack())(G, malicious)
    for row, attackers, honest in zip(forged, malicious, G, strict=True):
        size, found = twin.krum_lambda(observed(honest, attackers, "full"), range(MALICIOUS, MALICIOUS + 1))
        assert not found
        np.testing.assert_allclose(row[attackers], -size, rtol=1e-5)


@functools.cache
def trim_attacked(knowledge, b=2.0):
    """With coordinates of one sign, and one that is always 0."""
    G, malicious = cohorts()
    G[:, :, :2] = abs(G[:, :, :2])
    G[:, :, 2:4] = -abs(G[:, :, 2:4])
    G[:, :, 4] = 0
    return G, malicious, sent(trim_attack(knowledge=knowledge, b=b))(G, malicious)


@pytest.mark.thorough
@pytest.mark.parametrize(("knowledge", "b"), [("full", 2.0), ("full", 1.25), ("partial", 2.0)])
def test_trim_attack_draws_uniformly_from_the_intervals_of_its_twin(knowledge, b):
    shares = []
    for G, malicious, forged in zip(*trim_attacked(knowledge, b), strict=True):
        known = observed(G, malicious, knowledge)
        low, high = twin.trim_intervals(known, b) if knowledge == "full" else twin.trim_guesses(known)
        room = 1e-5 * (abs(low) + abs(high))
        assert (forged[malicious] >= low - room).all()
        assert (forged[malicious] <= high + room).all()
        shares.append(((forged[malicious] - low) / np.where(high > low, high - low, np.nan))[:, np.arange(SIZE) != 4])
    shares = np.array(shares)
    # Of 792 draws from [0, 1]: standard errors 0.0103 of the mean and 0.0032 of the variance, 1/12.
    assert len(np.unique(shares)) > 0.99 * shares.size
    assert abs(shares.mean() - 0.5) < 0.04
    assert abs(shares.var() - 1 / 12) < 0.0125
    assert abs(np.corrcoef(shares.reshape(COHORTS, MALICIOUS, -1)[:, :2].swapaxes(0, 1).reshape(2, -1))[0, 1]) < 0.25


@pytest.mark.thorough
@pytest.mark.parametrize(
    "rule", [aggregators.trimmed_mean(trim_fraction=0.2), aggregators.median()], ids=["trimmed_mean", "median"]
)
@pytest.mark.parametrize("knowledge", ["full", "partial"])
def test_trim_attack_moves_its_rules_further_than_honest_clients_and_in_the_opposite_direction(rule, knowledge):
    G, malicious, forged = trim_attacked(knowledge)
    mean = np.array([observed(g, attackers, "full").mean(0) for g, attackers in zip(G, malicious, strict=True)])
    attacked, honest = updates(rule, forged) - mean, updates(rule, G) - mean
    further = np.linalg.norm(attacked, axis=1) > np.linalg.norm(honest, axis=1)
    against = ((attacked - honest) * np.sign(mean)).sum(1) < 0
    # A guess from three clients may miss.
    assert further.all() if knowledge == "full" else further.mean() > 0.75
    assert against.all() if knowledge == "full" else against.mean() > 0.75


RULES = {
    "krum": aggregators.krum(num_byzantine=MALICIOUS),
    "trimmed_mean": aggregators.trimmed_mean(trim_fraction=0.3),
    "median": aggregators.median(),
    "geometric_median": aggregators.geometric_median(),
    "multi_krum": aggregators.multi_krum(num_byzantine=MALICIOUS),
    "nnm": aggregators.nnm(aggregators.trimmed_mean(trim_fraction=0.3), num_byzantine=MALICIOUS),
    "fltrust": aggregators.fltrust(),
    "br_drag": aggregators.br_drag(c=0.5),
}
STEPS, FEW = 10, 8


@functools.cache
def optimised_against(name, objective="against"):
    """Cohorts, what is sent under budgets 0.5 and 2 ``[2, N, S, D]``, and ``(offsets [N, K, D]) -> harm [N, K]``."""
    G, malicious = cohorts(seed=3, number=FEW)
    mean = np.array([observed(g, attackers, "full").mean(0) for g, attackers in zip(G, malicious, strict=True)])
    roots = (mean + 0.3 * np.random.default_rng(5).normal(size=mean.shape)).astype(np.float32)
    update = update_of(RULES[name])

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, None, None, None))
    @functools.partial(jax.vmap, in_axes=(None, 0, 0, 0))
    def forge(budget, deltas, attackers, root):
        attack = optimised(objective=objective, budget=budget, steps=STEPS)
        aggregate = lambda uplink: update(uplink.delta, root)
        return attack.forge(
            jax.random.key(0), Uplink(deltas), attackers, client_ids=EXTRAS["client_ids"], aggregate=aggregate
        )

    forged = as_matrix(forge(jnp.array([0.5, 2.0]), as_tree(G), jnp.asarray(malicious), as_tree(roots)).delta)

    def harm(offsets):
        K = offsets.shape[1]
        rows = np.where(malicious[:, None, :, None], (mean[:, None] + offsets)[:, :, None], G[:, None])
        u = updates(RULES[name], rows.reshape(-1, COHORT, SIZE).astype(np.float32), np.repeat(roots, K, axis=0))
        u = u.reshape(FEW, K, SIZE)
        if objective == "distance":
            return np.linalg.norm(u - mean[:, None], axis=-1)
        return -np.einsum("nkd,nd->nk", u, mean) / np.linalg.norm(mean, axis=-1)[:, None]

    return G, malicious, mean, np.asarray(forged, np.float64), harm


@functools.cache
def known_attacks():
    """What other attackers of the same cohorts send, ``[N, D]`` each."""
    G, malicious = cohorts(seed=3, number=FEW)
    attacks = [alie(), alie(z=1.0), *(min_max(perturbation=p) for p in ("std", "unit", "sign"))]
    return [sent(attack)(G, malicious)[np.arange(FEW), malicious.argmax(1)] for attack in attacks]


every_rule = pytest.mark.parametrize(
    ("name", "objective"),
    [
        # In one process, which compiles the rule once; some take long to compile.
        pytest.param(*entry, marks=[pytest.mark.xdist_group("-".join(entry)), pytest.mark.slow])
        for entry in itertools.product(RULES, ("against", "distance"))
    ],
)


@every_rule
def test_optimised_stays_within_its_budget(name, objective):
    G, malicious, mean, forged, _ = optimised_against(name, objective)
    for budget, of_budget in zip((0.5, 2.0), forged, strict=True):
        for g, attackers, centre, rows in zip(G, malicious, mean, of_budget, strict=True):
            np.testing.assert_array_equal(rows[~attackers], g[~attackers])
            np.testing.assert_array_equal(rows[attackers], np.tile(rows[attackers][:1], (MALICIOUS, 1)))
            assert np.linalg.norm(rows[attackers][0] - centre) <= budget * twin.reach(
                observed(g, attackers, "full")
            ) * (1 + 1e-5)


LENGTHS = np.arange(1, 17) / 16


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "objective"),
    [
        pytest.param(*entry, marks=[pytest.mark.xdist_group("-".join(entry))] + slow * [pytest.mark.slow])
        for slow, names in (
            (False, ("krum", "nnm")),
            (True, ("trimmed_mean", "median", "geometric_median", "multi_krum")),
        )
        for entry in itertools.product(names, ("distance",))
    ],
)
def test_optimised_is_at_least_as_harmful_as_every_multiple_of_known_directions(name, objective):
    """A search over the multiples of each direction, as in ByzFL's optimal attacks, within the same budget."""
    G, malicious, mean, forged, harm = optimised_against(name, objective)
    benign = [observed(g, attackers, "full") for g, attackers in zip(G, malicious, strict=True)]
    for budget, of_budget in zip((0.5, 2.0), forged, strict=True):
        own = np.array([rows[attackers][0] for rows, attackers in zip(of_budget, malicious, strict=True)]) - mean
        radius = [budget * twin.reach(g) for g in benign]
        searched = np.array([twin.multiples(g, r, LENGTHS) for g, r in zip(benign, radius, strict=True)])
        harms = harm(np.concatenate([own[:, None], searched], axis=1))
        assert np.isfinite(harms).all()
        assert (harms[:, 0] >= harms[:, 1:].max(1) - 1e-5 * np.array(radius)).all()


@every_rule
def test_optimised_is_at_least_as_harmful_as_known_attacks(name, objective):
    """Those shortened to the same budget."""
    G, malicious, mean, forged, harm = optimised_against(name, objective)
    benign = [observed(g, attackers, "full") for g, attackers in zip(G, malicious, strict=True)]
    for budget, of_budget in zip((0.5, 2.0), forged, strict=True):
        radius = budget * np.array([twin.reach(g) for g in benign])
        offsets = [[] for _ in benign]
        for attack in known_attacks():
            away = attack - mean
            short = np.minimum(1, radius / np.linalg.norm(away, axis=1))
            offsets = [[*offset, by] for offset, by in zip(offsets, short[:, None] * away, strict=True)]
        own = np.array([rows[attackers][0] for rows, attackers in zip(of_budget, malicious, strict=True)]) - mean
        harms = harm(np.concatenate([own[:, None], np.array(offsets)], axis=1))
        assert np.isfinite(harms).all()
        length = np.linalg.norm(mean, axis=1) + radius
        no_less = harms[:, :1] >= harms[:, 1:] - 1e-5 * length[:, None]
        assert no_less.all()


@pytest.mark.sample(1)
@pytest.mark.parametrize("steps", [0, 6])
def test_optimised_agrees_with_its_twin_on_a_rule_with_a_known_gradient(steps):
    """The mean of the deltas' hyperbolic tangents: its ascent turns and overshoots."""
    G, malicious = cohorts(seed=7, number=6)
    attack = optimised(steps=steps, budget=1.5)
    soft = lambda uplink: jax.tree.map(lambda x: jnp.tanh(x).mean(0), uplink.delta)
    forged = sent(attack, aggregate=soft)(G, malicious)
    for g, attackers, rows in zip(G, malicious, forged, strict=True):
        known = observed(g, attackers, "full")
        mean, radius = known.mean(0), 1.5 * twin.reach(known)
        toward = twin.unit(mean)

        def harm(offset, known=known, mean=mean, toward=toward):
            return -(np.tanh(known).sum(0) + MALICIOUS * np.tanh(mean + offset)) @ toward / COHORT

        def gradient(offset, mean=mean, toward=toward):
            return -MALICIOUS / COHORT / np.cosh(mean + offset) ** 2 * toward

        start = twin.line_searched(harm, known, radius)
        offset = twin.ascend(harm, gradient, start, radius)(steps)
        np.testing.assert_allclose(rows[attackers], np.tile(mean + offset, (MALICIOUS, 1)), rtol=0, atol=1e-4 * radius)


@pytest.mark.thorough
def test_the_line_searches_of_optimised_agree_with_their_twin_on_rough_harms():
    """Waves of a few percent of the budget, so that every length tried counts; half are higher far out, half near 0."""
    G = observed(*(x[0] for x in cohorts(seed=7, number=1)), "full")
    mean, std = np.float32(G.mean(0)), np.float32(G.std(0))
    waves = np.random.default_rng(2).normal(size=(200, SIZE)).astype(np.float32)
    radius = np.float32(20 / np.linalg.norm(waves, axis=1).mean())
    pulls = np.float32([-4, 1] * 100)
    rough = lambda xp, x, wave, pull: xp.sin((x * wave).sum() * 20) + pull * (x * x).sum() / radius**2

    @jax.jit
    @jax.vmap
    def best(wave, pull):
        harm = lambda offset: rough(jnp, as_matrix(offset), wave, pull)
        return as_matrix(_best_on_lines(harm, _axes(as_tree(mean), as_tree(std)), radius))

    pairs = zip(np.float64(waves), np.float64(pulls), strict=True)
    expected = [twin.line_searched(lambda x, pair=pair: rough(np, x, *pair), G, radius) for pair in pairs]
    np.testing.assert_allclose(best(waves, pulls), expected, rtol=0, atol=1e-4 * radius)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_harm_of_an_update_that_is_not_finite_is_the_least(objective, bad):
    mean = as_tree(np.ones(SIZE, np.float32))
    harm = jax.jit(lambda update: harm_of(objective, update, mean))
    update = np.linspace(-3, 0, SIZE, dtype=np.float32)
    assert harm(as_tree(update)) > 0
    for place in range(SIZE):
        assert harm(as_tree(np.where(np.arange(SIZE) == place, bad, update))) == -np.inf


@pytest.mark.thorough
def test_optimised_goes_to_the_end_of_its_budget_and_no_further():
    """Through a mean, which gives way to any length, its line searches alone."""
    G, malicious = cohorts(seed=7, number=6)
    attack = optimised(objective="distance", steps=0, budget=1.5)
    forged = sent(attack, aggregate=lambda uplink: jax.tree.map(lambda x: x.mean(0), uplink.delta))(G, malicious)
    for g, attackers, rows in zip(G, malicious, forged, strict=True):
        known = observed(g, attackers, "full")
        apart = np.linalg.norm(rows[attackers] - known.mean(0), axis=1)
        np.testing.assert_allclose(apart, 1.5 * twin.reach(known), rtol=1e-5)


@pytest.mark.thorough
def test_optimised_counts_non_finite_harm_as_none():
    """A rule that breaks down where the malicious delta points against the others', and has no gradient there."""
    G, malicious = cohorts(number=4)

    def fragile(uplink):
        total = jax.tree.map(lambda x: x.sum(0), uplink.delta)
        turned = sum(jnp.vdot(x, x) for x in jax.tree.leaves(total)) < 1e6
        return jax.tree.map(lambda x: jnp.where(turned, jnp.sqrt(-jnp.abs(x)), x), total)

    forged = sent(optimised(steps=3), aggregate=fragile)(G, malicious)
    for g, attackers, rows in zip(G, malicious, forged, strict=True):
        np.testing.assert_allclose(
            rows[attackers], np.tile(observed(g, attackers, "full").mean(0), (MALICIOUS, 1)), atol=1e-6
        )


def delicate():
    """Cohorts ``[N, S, D]`` at the edges, who is malicious, and whether malicious rows may differ from honest ones."""
    rng = np.random.default_rng(2)
    G, attackers = rng.normal(size=(COHORT, SIZE)), np.arange(COHORT) % 3 == 0
    broken = G.copy()
    broken[1, 0], broken[2, 3] = np.nan, np.inf
    everybody, one = np.ones(COHORT, bool), np.arange(COHORT) == 4
    inputs = [
        (G, one),
        (G, ~one),
        (G, everybody),
        (G, ~everybody),
        (np.tile(G[:1], (COHORT, 1)), attackers),
        (0 * G, attackers),
        (1e30 * G, attackers),
        (1e-30 * G, attackers),
        (G * np.where(np.arange(COHORT) == 1, 1e30, 1.0)[:, None], attackers),
        (broken, attackers),
        (broken, everybody),
    ]
    return np.array([g for g, _ in inputs], np.float32), np.array([m for _, m in inputs])


def root_free(name):
    return lambda uplink: update_of(RULES[name])(uplink.delta, jax.tree.map(lambda x: x[0], uplink.delta))


DELICATE = {
    "krum_attack": (krum_attack(), {}),
    "krum_attack-partial": (krum_attack(knowledge="partial"), {}),
    "trim_attack": (trim_attack(), {}),
    "trim_attack-partial": (trim_attack(knowledge="partial"), {}),
    "optimal_alie-krum": (optimal_alie(), {"aggregate": root_free("krum")}),
    "optimal_ipm-krum": (optimal_ipm(), {"aggregate": root_free("krum")}),
    "optimised-krum": (optimised(steps=2), {"aggregate": root_free("krum")}),
    "optimised-median": (
        optimised(objective="distance", steps=2),
        {"aggregate": root_free("geometric_median")},
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n == "optimised-median" else []) for n in DELICATE]
)
def test_forged_messages_are_finite_at_the_edges(name):
    attack, knowledge = DELICATE[name]
    G, malicious = delicate()
    forged = sent(attack, **knowledge)(G, malicious)
    assert forged[~malicious].tobytes() == G[~malicious].tobytes()
    partial = name.endswith("partial")
    for g, attackers, rows in zip(G, malicious, forged, strict=True):
        if attackers.all() and not partial:
            assert rows.tobytes() == g.tobytes()
        else:
            assert np.isfinite(rows[attackers]).all()


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: krum_attack(knowledge="all"), "knowledge='all'"),
        (lambda: trim_attack(knowledge="none"), "knowledge='none'"),
        (lambda: trim_attack(b=1.0), "b=1.0"),
        (lambda: optimised(objective="harm"), "objective='harm'"),
        (lambda: optimised(steps=-1), "steps=-1"),
        (lambda: optimised(budget=0.0), "budget=0.0"),
    ],
)
def test_bad_arguments_are_named_with_their_value(build, name):
    with pytest.raises(ValueError, match=name) as error:
        build()
    assert "\n" not in str(error.value)


@pytest.mark.thorough
def test_where_honest_values_cancel_the_mean_has_no_sign():
    """The attack on Krum sends 0 there, that on the trimmed mean counts it as negative."""
    half = cohorts(3)[0][:, :4] * np.linspace(0.3, 1.7, 4, dtype=np.float32)[:, None]
    G = np.concatenate([half, -half, cohorts(4)[0][:, :2]], axis=1)
    G[:, :8, 0] += 1.0
    malicious = np.tile(np.arange(COHORT) >= 8, (COHORTS, 1))
    against_krum, against_trimming = (sent(attack)(G, malicious)[:, 8:] for attack in (krum_attack(), trim_attack()))
    assert (against_krum[:, :, 0] < 0).all()
    assert not against_krum[:, :, 1:].any()
    assert (against_trimming[:, :, 1:] >= G[:, :8, 1:].max(1, keepdims=True)).all()
