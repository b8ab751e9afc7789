"""Attacks that forge from what the clients of a round send: against NumPy, against their bounds, and at the edges."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import numpy_attacks
from scipy import stats

from fedjax_drag.attacks import alie, gaussian, ipm, mimic, min_max, min_sum
from fedjax_drag.attacks._alie import largest_hidden_z
from fedjax_drag.attacks._attack import mean_of
from fedjax_drag.types import Uplink

COHORT, SIZE, WIDTH = 9, 9, 12
DELTA = np.arange(WIDTH) < SIZE
"""Which of the numbers of a message are the delta; the others are its further half."""

KINDS = ("std", "unit", "sign")
BOUNDS = {
    "min_max": (min_max, {}, numpy_attacks.min_max_holds),
    "min_sum": (min_sum, {}, numpy_attacks.min_sum_holds),
    "min_sum_min": (min_sum, {"bound": "min"}, numpy_attacks.min_sum_min_holds),
}
"""Builder, settings, and whether ``(G, x, tolerance)`` keeps to the bound."""


def alie_twin(G, f):
    return numpy_attacks.alie(G, numpy_attacks.alie_z(COHORT, f))


def mimic_twin(G, f):
    del f
    return G[numpy_attacks.mimicked(G[:, DELTA])]


def push(name, kind):
    builder, settings, holds = BOUNDS[name]
    twin = lambda G, f: numpy_attacks.furthest(G, kind, DELTA, holds)
    return builder, {"perturbation": kind, **settings}, twin


FORGERS = {
    "alie": (alie, {}, alie_twin),
    "alie-z": (alie, {"z": 1.5}, lambda G, f: numpy_attacks.alie(G, 1.5)),
    "alie-above": (alie, {"side": "above"}, lambda G, f: numpy_attacks.alie(G, -numpy_attacks.alie_z(COHORT, f))),
    "ipm": (ipm, {"epsilon": 0.5}, lambda G, f: numpy_attacks.ipm(G, 0.5)),
    "mimic": (mimic, {}, mimic_twin),
} | {f"{name}-{kind}": push(name, kind) for name in BOUNDS for kind in KINDS}
"""Builder, settings and twin: a function of the messages known and of how many clients are malicious."""

ENTRIES = [(name, "full") for name in FORGERS]
ENTRIES += [(name, "partial") for name in ("alie", "ipm", "min_max-std", "min_sum-sign")]
FIRST = [("alie", "full"), ("ipm", "full"), ("mimic", "full"), ("min_max-std", "full"), ("min_sum-sign", "partial")]
FIRST += [("min_sum_min-std", "full")]


def forgers(first):
    """Runs a test for every entry, for those that are not among ``first`` with the slow tests."""
    return pytest.mark.parametrize(
        ("name", "knowledge"),
        # In one process, which compiles the attack once.
        [
            pytest.param(
                *entry,
                id="-".join(entry),
                marks=[pytest.mark.xdist_group("-".join(entry))] + (entry not in first) * [pytest.mark.slow],
            )
            for entry in ENTRIES
        ],
    )


def message(G):
    """Matrices ``[S, WIDTH]`` as messages of two halves, with leaves of three ranks."""
    return Uplink({"a": G[:, :8].reshape(-1, 4, 2), "b": G[:, 8]}, {"c": G[:, SIZE:]})


def matrix(uplink):
    """Inverse of :func:`message`."""
    return jnp.concatenate([x.reshape(x.shape[0], -1) for x in jax.tree.leaves(uplink)], axis=1)


class Forger:
    """A compiled attack on matrices ``[S, WIDTH]``; ``programs`` counts how often it was traced."""

    def __init__(self, attack):
        self.programs = 0

        def forge(G, malicious):
            self.programs += 1
            return matrix(attack.forge(jax.random.key(0), message(G), malicious, client_ids=jnp.arange(COHORT)))

        self.compiled = jax.jit(forge)

    def __call__(self, G, malicious):
        """What all send; the benign as they were, the malicious all the same."""
        sent = np.asarray(self.compiled(G, malicious))
        np.testing.assert_array_equal(sent[~malicious], G[~malicious])
        return sent.astype(np.float64)


@functools.cache
def forger(name, knowledge="full"):
    builder, settings, _ = FORGERS[name]
    return Forger(builder(**settings, **({} if builder is mimic else {"knowledge": knowledge})))


def messages(seed, offset=0.0, spread=1.0):
    """Clients of unlike lengths around a common offset, in float32."""
    rng = np.random.default_rng(seed)
    own = rng.normal(size=(COHORT, WIDTH)) * rng.uniform(0.3, 3.0, (COHORT, 1))
    return (offset * rng.normal(size=WIDTH) + spread * own).astype(np.float32)


def mask(seed, number):
    malicious = np.arange(COHORT) < number
    return np.random.default_rng([seed, number]).permutation(malicious)


def observed(G, malicious, knowledge):
    """The rows that the attacker knows, in float64."""
    return np.asarray(G[malicious if knowledge == "partial" else ~malicious], np.float64)


@forgers(ENTRIES)
@pytest.mark.sample(3)
def test_agrees_with_its_twin_and_is_one_program_for_every_number_of_malicious_clients(name, knowledge):
    attack, twin = forger(name, knowledge), FORGERS[name][2]
    for number in range(2, COHORT - 1):
        for seed, offset in ((0, 0.0), (1, 3.0)):
            G, malicious = messages(seed, offset), mask(seed, number)
            rows = observed(G, malicious, knowledge)
            expected = twin(rows, number)
            # A push stays one part in 10,000 short of its bound.
            short = 2e-4 * abs(expected - rows.mean(axis=0)) if name.startswith("min") else 0.0
            error = abs(attack(G, malicious)[malicious] - expected)
            assert (error <= short + 1e-5 * abs(G).max()).all(), (number, seed, error.max())
    assert attack.programs == 1


@pytest.mark.sample(3)
@forgers(FIRST)
def test_only_documented_messages_are_used(name, knowledge):
    """Messages that the attacker does not see may be anything, also not finite."""
    attack, malicious = forger(name, knowledge), mask(0, 4)
    G, others = messages(0), messages(1)
    unseen = malicious if knowledge == "full" else ~malicious
    expected = attack(G, malicious)[malicious]
    for elsewhere in (others, np.full_like(G, np.nan)):
        changed = np.where(unseen[:, None], elsewhere, G)
        np.testing.assert_array_equal(attack(changed, malicious)[malicious], expected)
    changed = np.where(unseen[:, None], G, others)
    assert (attack(changed, malicious)[malicious] != expected).any()


@forgers(FIRST)
def test_a_row_that_is_not_finite_is_left_out(name, knowledge):
    attack, malicious = forger(name, knowledge), mask(0, 4)
    G = messages(0)
    for place, bad in ((0, np.nan), (SIZE, np.inf)):  # in the delta, in the other half
        broken = G.copy()
        row = np.flatnonzero(malicious if knowledge == "partial" else ~malicious)[1]
        broken[row, place] = bad
        rows = np.delete(broken, row, axis=0)
        rows = observed(rows, np.delete(malicious, row), knowledge)
        sent = attack(broken, malicious)[malicious]
        expected = FORGERS[name][2](rows, 4)
        np.testing.assert_allclose(sent, np.tile(expected, (4, 1)), rtol=3e-4, atol=1e-3)


@forgers(FIRST)
def test_huge_and_tiny_messages_are_forged_like_others(name, knowledge):
    """By powers of two, which lose no digit, to norms of 1e30 and 1e-30."""
    attack, malicious = forger(name, knowledge), mask(0, 4)
    G = messages(0)
    expected = attack(G, malicious)
    for factor in (2.0**97, 2.0**-102):
        np.testing.assert_allclose(attack(G * np.float32(factor), malicious) / factor, expected, rtol=1e-5, atol=1e-6)


@forgers(FIRST)
def test_one_known_client_or_equal_ones_leave_nothing_to_push(name, knowledge):
    """One client known, all known clients equal, all of them zero: the mean, -epsilon of it for ``ipm``."""
    attack = forger(name, knowledge)
    G = messages(0)
    alone = mask(0, COHORT - 1 if knowledge == "full" else 1)
    for rows, malicious in ((G, alone), (np.tile(G[:1], (COHORT, 1)), mask(0, 4)), (0 * G, mask(0, 4))):
        mean = observed(rows, malicious, knowledge).mean(axis=0)
        expected = -0.5 * mean if name == "ipm" else mean
        sent = attack(rows, malicious)[malicious]
        np.testing.assert_allclose(sent, np.tile(expected, (len(sent), 1)), rtol=1e-5, atol=1e-6)


@forgers(FIRST)
def test_one_enormous_client_does_not_overflow(name, knowledge):
    attack, malicious = forger(name, knowledge), mask(0, 4)
    for client in range(COHORT):
        G = messages(0)
        G[client] *= 1e30
        assert np.isfinite(attack(G, malicious)).all()


@forgers(FIRST)
def test_without_observed_or_malicious_clients_all_stay_honest(name, knowledge):
    attack, G = forger(name, knowledge), messages(0)
    everybody = np.ones(COHORT, bool)
    np.testing.assert_array_equal(attack(G, ~everybody), G)
    if knowledge == "full":
        np.testing.assert_array_equal(attack(G, everybody), G)
    else:
        assert np.isfinite(attack(G, everybody)).all()


@pytest.mark.parametrize(("name", "knowledge"), [entry for entry in ENTRIES if entry[0].startswith("min")])
@pytest.mark.sample(2)
def test_a_push_reaches_its_bound_and_does_not_exceed_it(name, knowledge):
    attack, holds = forger(name, knowledge), BOUNDS[name.split("-")[0]][2]
    for number in range(2, COHORT - 1):
        for seed, (offset, spread) in enumerate(((0.0, 1.0), (1.0, 1.0), (100.0, 1.0), (1e-20, 1e-21))):
            G, malicious = messages(seed, offset, spread), mask(seed, number)
            rows, sent = observed(G, malicious, knowledge)[:, DELTA], attack(G, malicious)[malicious][0, DELTA]
            assert holds(rows, sent)
            assert not holds(rows, sent, tolerance=-1e-3)


@pytest.mark.parametrize("size", [1, 2, 3, 10, 25, 50])
def test_z_of_alie_is_the_normal_quantile_and_finite_beyond_it(size):
    number = np.arange(size + 1)
    z = np.asarray(jax.jit(jax.vmap(largest_hidden_z))(np.arange(size) < number[:, None]))
    assert np.isfinite(z).all()
    for f in number[:-1]:
        supporters = np.floor(size / 2 + 1) - f
        share = (size - f - supporters) / (size - f)
        if 0 < share < 1:
            np.testing.assert_allclose(z[f], stats.norm.ppf(share), rtol=1e-5, atol=1e-6)
        else:
            limit = stats.norm.ppf(1 - 0.5 / size)
            np.testing.assert_allclose(z[f], limit if share >= 1 else -limit, rtol=1e-5, atol=1e-6)
    if size > 2:
        assert (np.diff(z) >= 0).all(), "more malicious clients may go further"


def test_z_of_alie_for_the_case_that_can_be_counted_by_hand():
    """24 of 50: two of the 26 others make a majority, and 24/26 of a normal distribution lie below 1.426."""
    np.testing.assert_allclose(jax.jit(largest_hidden_z)(np.arange(50) < 24), 1.4260769, rtol=1e-5)


@pytest.mark.parametrize("number", [1, 5, 7, 8])
def test_ipm_reverses_the_mean_above_its_threshold_only(number):
    """(S - f) / f, which for an epsilon of 0.5 lies between 5 and 7 malicious clients."""
    G, malicious = messages(0), mask(0, number)
    mean = forger("ipm")(G, malicious).mean(axis=0)
    assert (mean @ observed(G, malicious, "full").mean(axis=0) < 0) == ((COHORT - number) / number < 0.5)


def test_mimic_chooses_the_longer_delta_of_the_pair_that_differs_most():
    """Seven clients near one another, two far apart along one axis, and a long offset across it that says nothing."""
    G = 0.01 * messages(0)
    G[:, 1] += 50.0
    G[3, 0], G[5, 0] = 9.0, -10.0
    for malicious, copied in ((mask(0, 0), 5), (np.arange(COHORT) == 5, 3)):
        malicious = malicious | (np.arange(COHORT) == 8)
        np.testing.assert_array_equal(forger("mimic")(G, malicious)[8], G[copied])


def test_mimic_may_copy_one_client_for_the_whole_run():
    """Numbered among the benign ones by their ids, in whatever order the cohort has them."""
    G = messages(0)
    ids = np.random.default_rng(1).permutation(50)[:COHORT]
    malicious = np.isin(ids, np.sort(ids)[[1, 4]])
    benign = np.sort(ids[~malicious])
    for target, valid in ((0, None), (3, None), (3, ids != benign[3]), (COHORT - 2, None)):
        sent = mimic(target=target).forge(None, message(G), malicious, client_ids=jnp.asarray(ids), valid=valid).delta
        there = target < len(benign) and (valid is None or valid.all())
        expected = np.where(malicious[:, None] & there, G[ids == benign[min(target, len(benign) - 1)]], G)
        chex.assert_trees_all_equal(sent, message(expected).delta)
    with pytest.raises(ValueError, match="target=-1"):
        mimic(target=-1)


def noise(sigma, additive, uplink, ids, key=0):
    forge = jax.jit(gaussian(sigma=sigma, additive=additive).forge)
    return forge(jax.random.key(key), uplink, np.ones(len(ids), bool), client_ids=jnp.asarray(ids))


@pytest.mark.thorough
def test_gaussian_noise_has_its_standard_deviation_and_is_independent():
    honest = Uplink({"w": jnp.ones((4, 100, 50)), "v": jnp.ones((4, 5000))}, jnp.ones((4, 5000)))
    sent = noise(2.5, False, honest, range(4))
    drawn = np.array([np.asarray(x).reshape(4, -1) for x in jax.tree.leaves(sent)]).reshape(12, -1)
    for row in drawn:
        assert stats.kstest(row / 2.5, "norm").pvalue > 1e-3
    across = np.corrcoef(drawn)[np.triu_indices(12, 1)]
    assert abs(across).max() < 5 / np.sqrt(5000)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
def test_additive_noise_is_the_same_noise_on_the_honest_message(dtype):
    honest = message(jnp.asarray(messages(0), dtype))
    ids = np.random.default_rng(0).permutation(30)[:COHORT]
    added, alone = noise(0.5, True, honest, ids), noise(0.5, False, honest, ids)
    assert matrix(added).dtype == dtype
    added, alone, honest = (np.asarray(matrix(x), np.float64) for x in (added, alone, honest))
    eps = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(added, alone + honest, rtol=eps, atol=eps * abs(alone).max())


def test_gaussian_noise_differs_with_the_key():
    honest = message(jnp.ones((COHORT, WIDTH)))
    first, second = (matrix(noise(0.5, False, honest, range(COHORT), key)) for key in range(2))
    assert (first != second).mean() > 0.9


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: gaussian(sigma=0.0), "sigma=0.0"),
        (lambda: gaussian(sigma=float("inf")), "sigma=inf"),
        (lambda: alie(z=float("nan")), "z=nan"),
        (lambda: alie(knowledge="all"), "knowledge='all'"),
        (lambda: alie(side="over"), "side='over': must be one of below, above"),
        (lambda: ipm(epsilon=-0.1), "epsilon=-0.1"),
        (lambda: ipm(knowledge="non"), "knowledge='non'"),
        (lambda: min_max(perturbation="signs"), "perturbation='signs'.*did you mean 'sign'"),
        (lambda: min_max(knowledge=None), "knowledge=None"),
        (lambda: min_sum(perturbation="sd"), "perturbation='sd'"),
        (lambda: min_sum(bound="mean"), "bound='mean'"),
    ],
)
def test_bad_arguments_are_named_with_their_value(build, name):
    with pytest.raises(ValueError, match=name) as error:
        build()
    assert "\n" not in str(error.value)


LAST = np.arange(COHORT) == COHORT - 1
"""The only malicious client."""


def opposed(number):
    """Rows of which each number has its negative in another row, far away in the order of summation; the sum is 0."""
    half = messages(7)[:1].repeat(number // 2, 0) * np.linspace(0.3, 1.7, number // 2, dtype=np.float32)[:, None]
    return np.concatenate([half, -half]).astype(np.float32)


@pytest.mark.parametrize("number", [4, 8, 14, 40])
def test_the_mean_of_values_that_cancel_is_exactly_zero(number):
    mean = jax.jit(mean_of)({"w": opposed(number)}, jnp.ones(number, bool))["w"]
    np.testing.assert_array_equal(mean, np.zeros(WIDTH))


def test_the_mean_is_over_the_observed_clients():
    G = messages(3)
    observed = np.arange(COHORT) % 3 > 0
    spoilt = np.where(observed[:, None], G, np.nan)
    mean = mean_of({"w": spoilt}, jnp.asarray(observed))["w"]
    np.testing.assert_array_max_ulp(mean, G[observed].astype(np.float64).mean(0).astype(np.float32), 1)
    np.testing.assert_array_equal(mean_of({"w": spoilt}, jnp.zeros(COHORT, bool))["w"], np.zeros(WIDTH))


@pytest.mark.thorough
def test_where_the_mean_is_zero_there_is_no_sign_to_push_against():
    """Numbers that cancel keep the mean, 0; the others are pushed, against their sign."""
    G = np.concatenate([opposed(8), messages(5)[:1]])
    G[:8, 3] += 1.0
    sent = forger("min_max-sign")(G, LAST)[-1]
    assert sent[3] < G[:8, 3].mean()
    np.testing.assert_array_equal(np.delete(sent, 3), np.zeros(WIDTH - 1))
    assert not forger("min_max-unit")(G, LAST)[-1][np.arange(WIDTH) != 3].any()
