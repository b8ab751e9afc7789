"""Runs with a selection: cohorts and losses against NumPy, resume, sweeps, devices, and what is refused."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.numpy_fair import q_fedavg
from scipy.special import log_softmax, softmax

import fedjax_drag as fd
from fedjax_drag import selection
from fedjax_drag.data.batching import draw_positions
from fedjax_drag.selection._weighted import draw_by_size
from fedjax_drag.simulation.batch import prepare_batch
from fedjax_drag.simulation.program import keys
from fedjax_drag.simulation.settings import Settings

RULE = fd.aggregators.fedavg()


def images_of(digits, m):
    """A client's training images and labels."""
    own = digits.rows[m][: digits.counts[m]]
    return np.asarray(digits.preprocess(digits.train.x[own]), np.float64).reshape(len(own), -1), digits.train.y[own]


def losses_of(digits, m, params):
    """The loss of each of a client's examples."""
    x, y = images_of(digits, m)
    return -log_softmax(x @ params[0] + params[1], axis=1)[np.arange(len(y)), y]


def start_of(simulation):
    start = simulation.initial_state().params["Dense_0"]
    return [np.asarray(start[name], np.float64) for name in ("kernel", "bias")]


def test_power_of_choice_and_q_fedavg_equal_a_numpy_twin(digits, settings):
    changes = {"num_rounds": 2, "eval_every": 1, "cohort_size": 3}
    asked = settings(selection=selection.power_of_choice(d=8), **changes)
    simulation = fd.simulation.prepare(fd.aggregators.qffl(q=2.0), **asked)
    key, params = simulation.key, start_of(simulation)
    result = simulation.run()
    for index in range(2):
        drawn, _ = draw_by_size(keys.round_key(key, "cohort", index), jnp.asarray(digits.counts), None, 8)
        loss = {int(m): losses_of(digits, m, params).mean() for m in drawn}
        cohort = sorted(sorted(loss, key=loss.get)[-3:])
        assert result.history["client_ids"][index].tolist() == cohort
        deltas = []
        for m in cohort:
            (w, b), (x, y) = params, images_of(digits, m)
            places_key = jax.random.fold_in(keys.round_key(key, "batches", index), m)
            for places in np.asarray(draw_positions(places_key, digits.counts[m], 3, 4)):
                error = softmax(x[places] @ w + b, axis=1) - np.eye(10)[y[places]]
                w, b = w - 0.1 * x[places].T @ error / 4, b - 0.1 * error.mean(0)
            deltas.append(np.concatenate([(w - params[0]).ravel(), b - params[1]]))
        update = q_fedavg(np.array(deltas), np.array([loss[m] for m in cohort]), 2.0, 0.1).update
        params = [params[0] + update[:640].reshape(64, 10), params[1] + update[640:]]
    np.testing.assert_allclose(result.params["Dense_0"]["kernel"], params[0], rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(result.params["Dense_0"]["bias"], params[1], rtol=1e-5, atol=2e-6)


def test_oort_keeps_the_utility_of_the_clients_that_answered(digits, settings):
    """With poisoned clients, whose losses are those of what they train on, and some that drop out."""
    attack = {"attack": fd.attacks.label_flip(fraction=1.0), "byzantine_fraction": 0.5}
    asked = settings(selection=selection.oort(), dropout_rate=0.4, num_rounds=1, eval_every=1, **attack)
    simulation = fd.simulation.prepare(RULE, **asked)
    params, result = start_of(simulation), simulation.run()
    ids, valid, malicious = (result.history[name][0] for name in ("client_ids", "valid", "malicious"))
    assert 0 < valid.sum() < 5
    assert malicious[valid].any()
    expected = np.zeros(12)
    for m, is_malicious in zip(ids[valid], malicious[valid], strict=True):
        x, y = images_of(digits, m)
        y = 9 - y if is_malicious else y
        loss = -log_softmax(x @ params[0] + params[1], axis=1)[np.arange(len(y)), y]
        expected[m] = len(y) * np.sqrt((loss**2).mean())
    np.testing.assert_allclose(result.state.selection.utility, expected, rtol=1e-5)
    np.testing.assert_array_equal(result.state.selection.last, expected > 0)


WITH_MEMORY = [selection.round_robin(), selection.power_of_choice(d=8, loss="last"), selection.oort()]


@pytest.mark.sample(1)
@pytest.mark.parametrize("one", WITH_MEMORY[::-1], ids=str)
def test_a_resumed_run_has_the_same_bits(settings, one):
    simulation = fd.simulation.prepare(RULE, **settings(selection=one, availability=0.6))
    whole = simulation.run()
    half = fd.simulation.prepare(RULE, **settings(selection=one, availability=0.6, num_rounds=3)).run()
    rest = simulation.run(initial=half.state)
    chex.assert_trees_all_equal(rest.state, whole.state)
    assert int(half.state.round) == 3
    assert not jax.tree.all(jax.tree.map(np.array_equal, half.state.selection, whole.state.selection))


@pytest.mark.thorough
def test_cells_of_a_sweep_share_a_program_and_equal_their_runs(settings):
    made = [
        Settings(
            fd.algorithms.from_aggregator(RULE), **settings(selection=selection.oort(exploration=share), seed=seed)
        )
        for share, seed in ((0.9, 0), (0.1, 1))
    ]
    found = prepare_batch(made).run([0, 1])
    for one, cell in zip(made, found, strict=True):
        alone = fd.simulation.trace(one).run()
        np.testing.assert_array_equal(cell.history["client_ids"], alone.history["client_ids"])
        chex.assert_trees_all_close(cell.state, alone.state, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("changes", [{}, {"shard_data": True}], ids=str)
def test_devices_share_the_candidates(settings, changes):
    """Seven of them, which two devices do not divide."""
    asked = settings(selection=selection.power_of_choice(d=7), cohort_size=4, num_rounds=3)
    one, two = fd.simulate(RULE, **asked, mesh=None), fd.simulate(RULE, **asked, mesh="cores", **changes)
    np.testing.assert_array_equal(one.history["client_ids"], two.history["client_ids"])
    chex.assert_trees_all_close(one.params, two.params, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_rows_in_host_memory_are_those_of_the_cohort(settings):
    asked = settings(selection=selection.power_of_choice(d=8, batch_size=4), num_rounds=3, availability=0.5)
    method = fd.algorithms.scaffold()
    device, host = fd.simulate(method, **asked), fd.simulate(method, client_state="host", **asked)
    np.testing.assert_array_equal(device.history["client_ids"], host.history["client_ids"])
    chex.assert_trees_all_close(device.state, host.state, rtol=1e-5, atol=1e-6)


def test_a_selection_of_ones_own_and_unbiased_weights(settings):

    class evens(selection.Selection):
        def init(self, num_clients):
            return jnp.zeros(())

        def select(self, key, memory, candidates, cohort_size):
            ids = 2 * jnp.arange(cohort_size, dtype=jnp.int32)
            return selection.Selected(ids, candidates.num_examples[ids] / (1.0 + memory))

        def observe(self, memory, observed):
            return memory + 1

    result = fd.simulate(fd.aggregators.fedavg("unbiased"), **settings(selection=evens(), eval_every=1, num_rounds=2))
    np.testing.assert_array_equal(result.history["client_ids"], np.tile([0, 2, 4, 6, 8], (2, 1)))
    assert float(result.state.selection) == 2
    counts = settings()["data"].counts[[0, 2, 4, 6, 8]]
    np.testing.assert_allclose(result.history["weight"], [counts / 5, counts / 10], rtol=1e-6)


class mistaken(selection.Selection):
    """Selects what it is given, or asks for losses without saying so."""

    ids: tuple = ()
    bare: bool = False
    asks: bool = False
    needed: str | None = None
    forgets: bool = False

    @property
    def needs(self):
        return frozenset({self.needed} - {None})

    def init(self, num_clients):
        return jnp.zeros(2)

    def select(self, key, memory, candidates, cohort_size):
        ids = jnp.asarray(self.ids, jnp.int32)
        if self.asks:
            candidates.losses(ids)
        return ids if self.bare else selection.Selected(ids)

    def observe(self, memory, observed):
        return jnp.zeros(3) if self.forgets else memory


POW = selection.power_of_choice(d=8)
TWICE = selection.weighted(replacement=True)
DP = fd.privacy.central_dp(RULE, clip=1.0, noise_multiplier=1.0)


@pytest.mark.parametrize(
    ("rule", "changes", "message"),
    [
        (RULE, {"selection": "oort"}, "selection='oort': must be a selection.*write fd.selection.oort"),
        (RULE, {"selection": selection.oort}, "selection=.*call it, fd.selection.oort"),
        (
            RULE,
            {"selection": selection.power_of_choice(d=4)},
            r"power_of_choice: d=4: must be in \[5, 12\], from cohort",
        ),
        (RULE, {"selection": selection.power_of_choice(d=13)}, r"power_of_choice: d=13: must be in \[5, 12\]"),
        (fd.aggregators.fedavg("unbiased"), {"selection": POW}, "power_of_choice: fedavg needs weights.*or weighted"),
        (fd.algorithms.scaffold(), {"selection": TWICE}, "weighted: a client can be in a cohort twice.*replacement"),
        (fd.aggregators.afl(), {"selection": TWICE}, "a client can be in a cohort twice"),
        (RULE, {"selection": POW, "secure_aggregation": True}, "selection power_of_choice compares clients"),
        (fd.aggregators.afl(), {"secure_aggregation": True}, "afl needs the loss of each client"),
        (
            fd.privacy.central_dp(RULE, clip=1.0, noise_multiplier=1.0, delta=1e-5),
            {"selection": selection.weighted()},
            "delta=1e-05: epsilon is known where clients are drawn uniformly; .* selection=weighted",
        ),
        (DP, {"selection": POW}, "power_of_choice: asks clients for their losses, which they would send without noise"),
        (RULE, {"selection": mistaken(range(5), bare=True)}, "must name.* and return a fedjax_drag.selection.Selected"),
        (RULE, {"selection": mistaken(range(5), asks=True)}, "must name in needs what it asks"),
        (
            RULE,
            {"selection": mistaken(range(5), needed="loss")},
            "needs='loss': must be one of candidate_losses, start",
        ),
        (RULE, {"selection": mistaken(range(5), forgets=True)}, r"observe returns .*\(3,\)"),
        (RULE, {"selection": mistaken(range(4))}, r"select returns client_ids .*\(4,\)"),
    ],
)
def test_refused(refused, rule, changes, message):
    refused(message, rule, **changes)


def test_secure_aggregation_allows_draws_that_ask_nobody(settings):
    asked = settings(secure_aggregation=True)
    for rule, one in ((RULE, selection.weighted()), (fd.aggregators.qffl(), None), (fd.aggregators.term(), None)):
        assert fd.simulation.prepare(rule, selection=one, **asked).spec.streams
