"""Clients that are unavailable, drop out, take different numbers of steps, or come late."""

import dataclasses
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_drag as fd
from fedjax_drag.data.batching import draw_epochs, epoch_steps
from fedjax_drag.selection import Selected
from fedjax_drag.simulation import trace
from fedjax_drag.simulation.batch import prepare_batch
from fedjax_drag.simulation.model.model import ModelState
from fedjax_drag.simulation.planning.outline import ClientCost
from fedjax_drag.simulation.program import sampling
from fedjax_drag.simulation.program.federation import Federation
from fedjax_drag.simulation.program.programs import Totals
from fedjax_drag.simulation.program.sampling import as_trace
from fedjax_drag.simulation.result import history_row
from fedjax_drag.simulation.run import RoundInput, Run
from fedjax_drag.simulation.settings import Settings
from fedjax_drag.types import Downlink

TRACE = np.array([[True] * 4, [False, True, False, True], [False] * 4])
KEY = jax.random.key(3)


def federation(availability=None, dropout_rate=None, clients=4):
    arrays = {"rows": jnp.zeros((clients, 20), int), "counts": 3 + 5 * jnp.arange(clients)}
    others = dict.fromkeys(("train", "malicious", "root_row", "root_count"))
    return Federation(**others, **arrays, availability=availability, dropout_rate=dropout_rate)


def training_of(**options):
    """A run of which nothing but its local passes is read."""
    run = {"local_steps": None, "local_epochs": None, "batch_size": 4, "num_clients": 4, "cohort_size": 4} | options
    parts = ("algorithm", "model", "root_client", "step_size", "attack", "local_optimizer", "augmentation")
    return Run(**dict.fromkeys((*parts, "compression", "downlink_compression")), **run)


def answering(rounds, clients=4, training=None, availability=None, dropout_rate=None, key=KEY):
    """Attendance over rounds of full participation, every field ``[T, M]``."""
    everybody, trained = jnp.arange(clients), training or training_of(local_steps=3)
    shares = as_trace(availability, clients)
    data = federation(None if shares is None else jnp.asarray(shares), dropout_rate, clients)

    def one(index):
        shared = RoundInput(data, key, index, Downlink(()), ModelState())
        there = sampling.available(shared)
        cohort, nobody = Selected(everybody), jnp.zeros(clients, bool)
        return sampling.attend(trained, shared, cohort, there, there, nobody)

    return jax.tree.map(np.asarray, jax.jit(jax.vmap(one))(jnp.arange(rounds)))


class TestAvailability:
    def test_numbers_lists_traces_and_files_are_rows_of_rounds(self, tmp_path):
        np.save(tmp_path / "trace.npy", TRACE)
        np.savetxt(tmp_path / "trace.csv", TRACE, delimiter=",", encoding="utf-8-sig")  # as a spreadsheet does
        assert as_trace(None, 4) is None
        assert as_trace(1.0, 4) is None
        np.testing.assert_array_equal(as_trace(0.5, 4), np.full((1, 4), 0.5))
        np.testing.assert_array_equal(as_trace([0, 0.25, 0.5, 1], 4), np.float32([[0, 0.25, 0.5, 1]]))
        for given in (TRACE, TRACE.tolist(), tmp_path / "trace.npy", str(tmp_path / "trace.csv")):
            np.testing.assert_array_equal(as_trace(given, 4), TRACE)
        assert as_trace(TRACE, 4).dtype == bool

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (
                1.5,
                r"availability=1.5: must be a number in \[0, 1\], a list of them or of lists, or a .npy or .csv file",
            ),
            (np.nan, r"availability=nan: must be a number in \[0, 1\]"),
            ([0.5, 0.5, 0.5, -0.1], r"availability=\[0.5, 0.5, 0.5, -0.1\]: must be in \[0, 1\] for every client"),
            ([0.5, 0.5], r"availability=\[0.5, 0.5\] with shape \(2,\): must be \[4\] or \[rounds, 4\]"),
            (np.ones((2, 3, 4)), r"with shape \(2, 3, 4\): must be \[4\]"),
            (np.ones((0, 4)), r"with shape \(0, 4\): must be"),
            ([[0.5], [0.5, 0.1]], "must be numbers, as many in each row; ValueError"),
            ("nowhere.npy", "availability='nowhere.npy': must be a file of numbers; FileNotFoundError"),
            ("trace.txt", "availability='trace.txt': must be a number in .* or a .npy or .csv file of them"),
        ],
    )
    def test_what_is_refused(self, given, message):
        with pytest.raises(ValueError, match=message) as caught:
            as_trace(given, 4)
        assert "\n" not in str(caught.value)

    def test_an_empty_file_is_refused(self, tmp_path):
        (tmp_path / "trace.npy").touch()
        with pytest.raises(ValueError, match="must be a file of numbers; ValueError: EOF"):
            as_trace(tmp_path / "trace.npy", 4)

    def test_a_trace_is_followed_and_repeats(self):
        found = answering(7, availability=TRACE)
        np.testing.assert_array_equal(found.valid, TRACE[np.arange(7) % 3])
        np.testing.assert_array_equal(found.drawn, found.valid)
        np.testing.assert_array_equal(found.present, found.valid)

    def test_probabilities_are_each_client_s_own_and_drawn_anew(self):
        share = np.array([0.0, 0.2, 0.7, 1.0])
        found = answering(2000, availability=share).valid
        np.testing.assert_allclose(found.mean(0), share, atol=4 * np.sqrt(0.25 / 2000))
        assert set(found.mean(0)[[0, 3]]) == {0.0, 1.0}, "certain"
        assert abs(np.corrcoef(found[:-1, 1], found[1:, 1])[0, 1]) < 0.1
        assert abs(np.corrcoef(found[:, 1], found[:, 2])[0, 1]) < 0.1
        more = answering(2000, clients=6, availability=[*share, 0.5, 0.5]).valid
        np.testing.assert_array_equal(more[:, :4], found), "whoever else there is"


class TestDropout:
    def test_a_share_of_those_drawn_does_not_answer(self):
        found = answering(2000, availability=TRACE, dropout_rate=0.3)
        np.testing.assert_array_equal(found.drawn, TRACE[np.arange(2000) % 3])
        assert not (found.valid & ~found.drawn).any()
        assert found.valid[found.drawn].mean() == pytest.approx(0.7, abs=0.02)
        np.testing.assert_array_equal(found.present, found.valid)

    def test_alone_everybody_is_drawn(self):
        found = answering(500, dropout_rate=0.3)
        assert found.drawn.all()
        assert found.valid.mean(0) == pytest.approx(0.7, abs=0.1)

    def test_without_it_there_are_no_masks(self):
        assert all(mask is None for mask in answering(2))


class TestNumberOfSteps:
    def test_uniform_anew_in_each_round_or_once(self):
        training = training_of(local_steps=4, fewest=2)
        found = answering(2000, training=training).num_steps
        for number in (2, 3, 4):
            np.testing.assert_allclose((found == number).mean(0), 1 / 3, atol=0.06)
        once = answering(50, 40, dataclasses.replace(training, drawn_once=True)).num_steps
        assert (once == once[0]).all()
        assert set(once[0]) == {2, 3, 4}

    @pytest.mark.thorough
    @pytest.mark.parametrize("epochs", [2.5, 0.3, 1.0])
    def test_of_epochs_it_is_what_is_drawn(self, epochs):
        counts = jnp.array([1, 4, 13, 20])
        drawn = jax.vmap(lambda n: draw_epochs(KEY, n, epochs, 4, 20)[1].any(1).sum())(counts)
        np.testing.assert_array_equal(epoch_steps(counts, epochs, 4), drawn)

    def test_of_a_range_of_epochs_it_is_a_multiple_of_the_client_s_epoch(self):
        found = answering(50, training=training_of(local_epochs=3, fewest=2)).num_steps
        epochs = found / np.ceil((3 + 5 * np.arange(4)) / 4)
        assert set(epochs.ravel()) == {2.0, 3.0}

    def test_late_clients_do_not_answer(self):
        late = training_of(local_steps=4, fewest=1, deadline=3, drop_late=True)
        found = answering(200, training=late)
        np.testing.assert_array_equal(found.valid, found.num_steps <= 3)
        assert found.drawn.all()
        assert found.valid.mean() == pytest.approx(0.75, abs=0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"local_steps": (3, 1)}, r"local_steps=\(3, 1\): must be a pair \[low, high\] of integers, 1 <= low <= high"),
        ({"local_steps": (1, 2, 3)}, "must be a pair"),
        ({"local_steps": None, "local_epochs": (1, 2.5)}, r"local_epochs=\(1, 2.5\): must be a pair"),
        ({"dropout_rate": 1.0}, r"dropout_rate=1.0: must be in \[0, 1\)"),
        ({"deadline": 0}, "deadline=0: must be an integer"),
        ({"late": "wait"}, "late='wait': must be one of partial, drop"),
        ({"steps_drawn": "ones"}, "steps_drawn='ones': must be one of round, once"),
        ({"deadline": 2, "late": "drop"}, "deadline=2, late='drop': must be at least 3, the fewest local steps"),
        ({"late": "drop"}, "late='drop': needs deadline"),
        ({"availability": [0.5]}, r"availability=\[0.5\] with shape \(1,\): must be \[12\] or \[rounds, 12\]"),
    ],
)
def test_settings_that_are_refused(refused, fedavg, changes, message):
    refused(message, fedavg, **changes)


@pytest.mark.thorough
def test_a_run_counts_who_answered_and_goes_on_in_the_middle_bit_for_bit(settings):
    """Every kind of absence at once, in a method with rows of its own for each client."""
    night = np.arange(36).reshape(3, 12) % 3 > 0
    night[2] = False
    absent = {"availability": night, "dropout_rate": 0.3, "local_steps": (1, 4), "deadline": 3, "late": "drop"}
    run = settings(num_rounds=6, eval_every=1, cohort_size=9, **absent)
    method = fd.algorithms.scaffold(12)
    whole = fd.simulate(method, **run)
    history, cost = whole.history, whole.cost
    np.testing.assert_array_equal(history["drawn"], [8, 8, 0, 8, 8, 0])
    np.testing.assert_array_equal(history["participants"], history["valid"].sum(1))
    assert (history["participants"] < history["drawn"])[[0, 1, 3, 4]].any()
    np.testing.assert_array_equal(history["silent_rounds"], history["participants"] == 0)
    np.testing.assert_array_equal(np.isnan(history["train_loss"]), history["participants"] == 0)
    np.testing.assert_array_equal(history["bytes_down"], history["drawn"] * cost.bytes_down)
    np.testing.assert_array_equal(history["bytes_up"], history["participants"] * cost.bytes_up)
    assert (history["slowest_steps"] <= 3).all()
    assert (history["local_steps"] <= 3 * history["drawn"]).all()
    assert (history["local_steps"] >= history["drawn"]).all()
    for place, ids in enumerate(history["client_ids"]):
        assert not history["valid"][place][~night[place % 3][ids]].any()
    assert history["test_loss"][2] == history["test_loss"][1], "nobody answers in the third round"

    half = fd.simulate(method, **run | {"num_rounds": 3})
    rest = fd.simulate(method, initial=half.state, **run)
    chex.assert_trees_all_equal(rest.state, whole.state)
    chex.assert_trees_all_equal(rest.history, {name: values[3:] for name, values in history.items()})


def test_a_cohort_of_attackers_alone_is_silent(settings, fedavg):
    attacked = {"attack": fd.attacks.sign_flip(), "num_byzantine": 9, "cohort_size": 2, "num_rounds": 8}
    each = fd.simulate(fedavg, **settings(**attacked, eval_every=1)).history
    alone = each["malicious"].all(1)
    assert alone.any()
    assert not alone.all()
    np.testing.assert_array_equal(each["silent_rounds"], alone)
    np.testing.assert_array_equal(np.isnan(each["train_loss"]), alone)
    (loss,) = fd.simulate(fedavg, **settings(**attacked, eval_every=8)).history["train_loss"]
    np.testing.assert_allclose(loss, np.nanmean(each["train_loss"]), rtol=1e-6)


@pytest.mark.parametrize(("silent", "expected"), [(2, 3.0), (4, np.nan)])
def test_a_loss_is_averaged_over_the_rounds_with_an_answer(silent, expected):
    sums = {"train_loss": np.float32(6.0), "silent_rounds": silent, "local_steps": 9, "participants": 3, "drawn": 5}
    row = history_row(4, 4, sums, Totals(sums, 0), {}, ClientCost(1, 0.0, bytes_down=10, bytes_up=20))
    np.testing.assert_equal(row["train_loss"], expected)
    assert (row["bytes_down"], row["bytes_up"]) == (50, 60)


@pytest.mark.slow
@pytest.mark.optimised
def test_what_a_late_client_has_is_what_it_would_send_by_the_deadline(settings, fedavg):
    """A cut pass takes the first mini-batches of the whole one; equal ends of a range are a number."""
    stopped, short, same = (
        fd.simulate(fedavg, **settings(**changes))
        for changes in ({"local_steps": 5, "deadline": 3}, {"local_steps": 3}, {"local_steps": (3, 3)})
    )
    chex.assert_trees_all_equal(stopped.params, short.params)
    chex.assert_trees_all_equal(same.state, short.state)
    assert stopped.history.keys() == short.history.keys()
    np.testing.assert_array_equal(stopped.history["local_steps"], short.history["local_steps"])


ABSENT = {"availability": 0.7, "dropout_rate": 0.3, "local_steps": (1, 4), "deadline": 3}


def assert_close(one, other, names):
    chex.assert_trees_all_close(one.state, other.state, rtol=1e-5, atol=1e-6)
    for name in names:
        np.testing.assert_allclose(one.history[name], other.history[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scaffold", "drag"])
def test_every_way_to_compute_a_round_gives_the_same(settings, name):
    method = {"scaffold": fd.algorithms.scaffold(12), "drag": fd.aggregators.drag(c=0.3, alpha=0.3)}[name]
    run = settings(cohort_size=6, **ABSENT)
    first = fd.simulate(method, clients_axis="map", **run)
    ways = [
        {"clients_axis": "vmap"},
        {"clients_axis": "map", "clients_per_chunk": 4},
        {"clients_axis": "map", "aggregation": "stack"},
        {"clients_axis": "map", "mesh": "cores"},
        {"clients_axis": "map", "client_state": "host"},
    ]
    for way in ways:
        other = fd.simulate(method, **way, **run)
        assert_close(first, other, first.history.keys())


@pytest.mark.slow
@pytest.mark.optimised
def test_cells_of_a_sweep_may_differ_in_who_is_absent(settings, fedavg):
    values = [(0.5, 0.1), (0.9, 0.6)]
    made = [
        Settings(algorithm=fedavg, **settings(availability=share, dropout_rate=rate, local_steps=(1, 3)))
        for share, rate in values
    ]
    batch = prepare_batch(made)
    for one, found in zip(made, batch.run([0, 1]), strict=True):
        alone = trace(one).run()
        chex.assert_trees_all_equal(alone.state, jax.tree.map(np.asarray, found.state))
        chex.assert_trees_all_equal(alone.history, found.history)
    assert batch.lowered is not None
    with pytest.raises(ValueError, match="cells differ in more than numbers, seeds and the split of the data"):
        prepare_batch([made[0], dataclasses.replace(made[1], dropout_rate=0.0)])


class _Plain(NamedTuple):
    metrics: dict


@pytest.mark.parametrize("changes", [{}, {"dropout_rate": 0.5}], ids=["nobody absent", "some absent"])
def test_a_rule_receives_what_its_needs_name(settings, changes):
    """Also where no client can be absent."""

    def apply(params, deltas, state, *, valid, expected_clients, **_):
        weight = valid / expected_clients
        return fd.tree.move(params, fd.tree.weighted_sum(weight, deltas)), _Plain({"weight": weight})

    needs = frozenset({"valid", "expected_clients"})
    rule = fd.types.Aggregator(lambda params: _Plain({"weight": jnp.zeros(5)}), apply, needs=needs)
    weight = fd.simulate(rule, **settings(num_rounds=1, eval_every=1, **changes)).history["weight"]
    expected = 5.0 if not changes else 2.5
    np.testing.assert_allclose(np.unique(weight[weight > 0]), 1 / expected)
    assert (weight > 0).all() == (not changes)
