"""Runs with a clock: durations, buffers against a loop of events, resume, sweeps, devices, and what is refused."""

import functools
import heapq
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

import fedjax_drag as fd
from fedjax_drag import clocks, selection
from fedjax_drag.clocks import Work
from fedjax_drag.data.batching import draw_positions
from fedjax_drag.selection import Candidates
from fedjax_drag.simulation.batch import prepare_batch
from fedjax_drag.simulation.model.model import ModelState
from fedjax_drag.simulation.program import keys, sampling
from fedjax_drag.simulation.result import Result
from fedjax_drag.simulation.run import RoundInput
from fedjax_drag.simulation.settings import Settings
from fedjax_drag.types import Downlink

RULE = fd.aggregators.fedavg()
LOG_NORMAL = clocks.log_normal(sigma=1.0, jitter=0.3, latency=0.1, bandwidth=1e4)


class Update(NamedTuple):
    ids: list
    staleness: list
    seconds: float


def events(simulation, number, concurrency, cohort_size, inner=None):
    """Arrivals by a heap of them, in absolute time, and draws of those that start by the keys of the run."""
    run, key, counts = simulation.spec, simulation.key, simulation.federation.counts
    inner, ids = selection.uniform() if inner is None else inner, jnp.arange(len(counts))

    @jax.jit
    def durations(version):
        """Of all clients."""
        given = jnp.full(len(ids), version), jnp.full(len(ids), run.local_steps), simulation.federation.malicious
        assert run.message_bytes is not None
        return run.clock.seconds(keys.stream(key, "clock"), Work(ids, *given, *run.message_bytes))

    @functools.partial(jax.jit, static_argnums=3)
    def drawn(own, version, idle, wanted):
        found = inner.select(own, (), Candidates(counts, idle, version), wanted).client_ids
        return found, jax.random.uniform(jax.random.fold_in(own, 2), (wanted,))

    def starting(own, version, wanted):
        """Clients that are not at work, in the order in which they start."""
        idle = np.ones(len(counts), bool)
        idle[[client for _, _, client, _ in heap]] = False
        found, lot = map(np.asarray, drawn(own, jnp.int32(version), jnp.asarray(idle), wanted))
        order = np.argsort(np.where(idle[found], lot, 2), kind="stable")
        return [int(client) for client in found[order] if idle[client]]

    heap, now, updates = [], 0.0, []
    free = list(range(concurrency))
    for version in range(number):
        seconds = np.asarray(durations(jnp.int32(version)), np.float64)
        own, before, buffer = keys.round_key(key, "cohort", version), now, []
        for place, client in zip(sorted(free), starting(own, version, concurrency), strict=False):
            heapq.heappush(heap, (now + seconds[client], place, client, version))
        spare = starting(jax.random.fold_in(own, 1), version, cohort_size - 1) if cohort_size > 1 else []
        while heap and len(buffer) < cohort_size:
            now, place, client, started = heapq.heappop(heap)
            buffer.append((client, version - started))
            if len(buffer) < cohort_size and spare:
                entrant = spare.pop(0)
                heapq.heappush(heap, (now + seconds[entrant], place, entrant, version))
        free = set(range(concurrency)) - {place for _, place, _, _ in heap}
        buffer.sort()
        updates.append(Update([client for client, _ in buffer], [stale for _, stale in buffer], now - before))
    return updates


def start_of(simulation):
    start = simulation.initial_state().params["Dense_0"]
    return [np.asarray(start[name], np.float64) for name in ("kernel", "bias")]


def trained(digits, simulation, params, client, version):
    """The softmax model of a client after its local steps, which are drawn in the round in which they are used."""
    (w, b), counts = params, simulation.federation.counts
    own = digits.rows[client][: digits.counts[client]]
    x = np.asarray(digits.preprocess(digits.train.x[own]), np.float64).reshape(len(own), -1)
    y = digits.train.y[own]
    places_key = jax.random.fold_in(keys.round_key(simulation.key, "batches", version), client)
    for places in np.asarray(draw_positions(places_key, counts[client], 3, 4)):
        error = softmax(x[places] @ w + b, axis=1) - np.eye(10)[y[places]]
        w, b = w - 0.1 * x[places].T @ error / 4, b - 0.1 * error.mean(0)
    return [w, b]


def assert_params(result, params, **tolerance):
    np.testing.assert_allclose(result.params["Dense_0"]["kernel"], params[0], **tolerance)
    np.testing.assert_allclose(result.params["Dense_0"]["bias"], params[1], **tolerance)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("concurrency", "cohort_size", "clock", "inner"),
    [
        (7, 3, LOG_NORMAL, None),
        (4, 4, LOG_NORMAL, None),
        (2, 5, LOG_NORMAL, None),
        (9, 1, clocks.attackers(LOG_NORMAL, 0.2), selection.weighted()),
        (12, 4, LOG_NORMAL, None),
    ],
)
def test_a_loop_of_events(digits, settings, concurrency, cohort_size, clock, inner):
    """The same arrivals, staleness, seconds and parameters; also where all clients are at work."""
    chosen = selection.asynchronous(concurrency, inner, max_staleness=40)
    changes = {"cohort_size": cohort_size, "num_rounds": 20, "eval_every": 1, "selection": chosen, "clock": clock}
    changes |= {"attack": fd.attacks.label_flip(fraction=1.0), "num_byzantine": 0}
    simulation = fd.simulation.prepare(fd.aggregators.fedbuff(server_step_size=0.8), **settings(**changes))
    result, versions = simulation.run(), [start_of(simulation)]
    history = result.history
    expected = events(simulation, 20, concurrency, cohort_size, inner)
    for version, update in enumerate(expected):
        there = history["valid"][version]
        assert history["client_ids"][version][there].tolist() == update.ids
        assert history["staleness"][version][there].tolist() == update.staleness
        total = [0.0, 0.0]
        for client, stale in zip(update.ids, update.staleness, strict=True):
            start = versions[version - stale]
            end = trained(digits, simulation, start, client, version)
            weight = (1 + stale) ** -0.5 / len(update.ids)
            total = [t + weight * (e - s) for t, e, s in zip(total, end, start, strict=True)]
        versions.append([p + 0.8 * t for p, t in zip(versions[-1], total, strict=True)])
    np.testing.assert_allclose(history["seconds"], [update.seconds for update in expected], rtol=2e-5, atol=1e-5)
    assert max(max(update.staleness) for update in expected) > (0 if concurrency <= cohort_size else 1)
    assert_params(result, versions[-1], rtol=1e-4, atol=1e-5)


def test_fedasync_mixes_models(digits, settings):
    """Against its algorithm: models of clients, of parameters that are older the slower they are."""
    chosen, rule = (
        selection.asynchronous(4),
        fd.aggregators.fedasync(alpha=0.6, staleness="hinge", slope=2.0, grace=1.0),
    )
    changes = {"cohort_size": 1, "num_rounds": 12, "eval_every": 1, "selection": chosen, "clock": LOG_NORMAL}
    simulation = fd.simulation.prepare(rule, **settings(**changes))
    result, versions = simulation.run(), [start_of(simulation)]
    for version in range(12):
        client, stale = (int(result.history[name][version, 0]) for name in ("client_ids", "staleness"))
        alpha = 0.6 if stale <= 1 else 0.6 / (2 * (stale - 1) + 1)
        model = trained(digits, simulation, versions[version - stale], client, version)
        versions.append([(1 - alpha) * p + alpha * w for p, w in zip(versions[-1], model, strict=True)])
    assert result.history["staleness"].max() > 1
    assert_params(result, versions[-1], rtol=1e-4, atol=1e-5)


def test_one_at_a_time_is_sequential_sgd_on_clients(digits, settings):
    changes = {"cohort_size": 1, "num_rounds": 8, "eval_every": 1, "clock": LOG_NORMAL}
    simulation = fd.simulation.prepare(
        fd.aggregators.fedbuff(), **settings(selection=selection.asynchronous(1), **changes)
    )
    result, params = simulation.run(), start_of(simulation)
    for version, client in enumerate(result.history["client_ids"][:, 0]):
        params = trained(digits, simulation, params, int(client), version)
    assert_params(result, params, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(result.history["staleness"], 0)
    assert len(set(result.history["client_ids"][:, 0].tolist())) > 3


@pytest.mark.sample(1)
@pytest.mark.parametrize("cohort_size", [5, 12])
def test_equally_fast_clients_are_fedavg(settings, cohort_size):
    """Round for round, with the buffer as large as the cohort; also where that is all clients."""
    changes = settings(cohort_size=cohort_size, eval_every=1)
    one = fd.simulate(RULE, **changes)
    chosen = selection.asynchronous(cohort_size, max_staleness=0)
    two = fd.simulate(fd.aggregators.fedbuff(), selection=chosen, clock=clocks.constant(), **changes)
    np.testing.assert_array_equal(one.history["client_ids"], two.history["client_ids"])
    np.testing.assert_allclose(one.history["test_loss"], two.history["test_loss"], rtol=1e-5)
    chex.assert_trees_all_close(one.params, two.params, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(two.history["seconds"], 3.0)
    assert two.history["num_too_stale"].sum() == 0


def test_a_clock_changes_nothing_but_adds_seconds(settings):
    clock = clocks.log_normal(sigma=1.0, bandwidth=2000.0)
    one, two = (fd.simulate(RULE, **settings(eval_every=2, **asked)) for asked in ({}, {"clock": clock}))
    chex.assert_trees_all_equal(one.params, two.params)
    assert set(two.history) - set(one.history) == {"seconds"}
    every = fd.simulation.prepare(RULE, **settings(eval_every=1, clock=clock))
    history, size = every.run().history, 4 * 650
    np.testing.assert_array_equal(every.spec.message_bytes, [size, size])
    for index, ids in enumerate(history["client_ids"]):
        ids = jnp.asarray(ids)
        work = Work(ids, jnp.full(5, index), jnp.full(5, 3), jnp.zeros(5, bool), size, size)
        slowest = clock.seconds(keys.stream(every.key, "clock"), work).max()
        np.testing.assert_allclose(history["seconds"][index], slowest, rtol=1e-6)
    np.testing.assert_allclose(two.history["seconds"], history["seconds"].reshape(3, 2).sum(1), rtol=1e-6)
    spent = two.history["seconds"].cumsum()
    target = float(two.history["test_accuracy"][1])
    assert two.cost_to(target) == pytest.approx(spent[two.history["test_accuracy"].argmax() and 1])
    assert two.cost_to(target, "bytes_up") == two.history["bytes_up"][:2].sum()
    assert two.cost_to(1.0) is None
    with pytest.raises(ValueError, match=r"cost='byte_up': must be one of .*; did you mean 'bytes_up'"):
        two.cost_to(target, "byte_up")
    with pytest.raises(ValueError, match="cost='seconds': is not in the history; set a clock"):
        one.cost_to(0.1)


def test_what_does_not_add_up_is_no_cost():
    """Rounds, seconds of clients and epsilon are since the beginning already."""
    names = "round", "client_seconds", "epsilon", "test_accuracy"
    history = {"seconds": np.array([3.0, 4.0]), **dict.fromkeys(names, np.array([0.5, 0.9]))}
    result = Result(None, history, None, 0.0, 0.0, None, None)
    assert result.cost_to(0.9) == 7.0
    for name in names:
        with pytest.raises(ValueError, match=f"cost='{name}': must be one of seconds"):
            result.cost_to(0.9, name)


@pytest.mark.thorough
def test_who_is_late_sends_nothing(settings):
    changes = {"local_steps": (1, 6), "dropout_rate": 0.2, "eval_every": 1}
    simulation = fd.simulation.prepare(RULE, **settings(clock=clocks.constant(), deadline_seconds=3.0, **changes))
    history = simulation.run().history
    for index, ids in enumerate(history["client_ids"]):
        shared = RoundInput(simulation.federation, simulation.key, jnp.int32(index), Downlink(()), ModelState())
        steps = np.asarray(sampling.seconds_of(simulation.spec, shared, jnp.asarray(ids), ids < 0))
        assert set(steps) <= set(range(1, 7))
        assert not history["valid"][index][steps > 3].any()
        assert history["seconds"][index] == min(steps.max(), 3.0)
    assert 0 < history["participants"].sum() < 30


@pytest.mark.thorough
def test_stale_messages_do_not_count(settings):
    """A run whose rule would become NaN by one of them, and their number."""
    chosen = lambda most: selection.asynchronous(10, max_staleness=most)
    changes = settings(cohort_size=2, num_rounds=24, eval_every=24, clock=LOG_NORMAL)
    loose, tight = (fd.simulate(fd.aggregators.fedbuff(), selection=chosen(most), **changes) for most in (40, 3))
    assert loose.history["num_too_stale"].sum() == 0
    found = tight.history["num_too_stale"].sum()
    assert found > 0
    assert tight.history["participants"].sum() == 48 - found
    assert jax.tree.leaves(tight.state.broadcasts)[0].shape[0] == 4


@pytest.mark.thorough
def test_where_nobody_can_start_the_buffer_is_what_there_is(settings):
    """Clients fill up the cohort that did not arrive; no client is there twice."""
    night = np.arange(6)[:, None] % 3 * np.ones(12) == 1
    chosen = selection.asynchronous(4, fd.selection.oort())
    changes = settings(selection=chosen, availability=night, eval_every=1, clock=LOG_NORMAL)
    history = fd.simulate(fd.aggregators.fedbuff(), **changes).history
    assert history["participants"].tolist() == [0, 5, 3, 0, 5, 3]
    assert all(len(set(ids.tolist())) == 5 for ids in history["client_ids"])
    assert (np.diff(history["client_ids"]) > 0).all()
    assert history["seconds"][[0, 3]].tolist() == [0, 0]


ASKED = {"selection": selection.asynchronous(8, fd.selection.oort(), max_staleness=6), "clock": LOG_NORMAL}
ASKED |= {"attack": fd.attacks.sign_flip(), "byzantine_fraction": 0.25, "local_steps": (1, 4), "dropout_rate": 0.1}


@pytest.mark.thorough
@pytest.mark.optimised
def test_a_resumed_asynchronous_run_has_the_same_bits(settings):
    method = fd.algorithms.scaffold(aggregator=fd.aggregators.fedbuff(fd.aggregators.trimmed_mean()))
    simulation = fd.simulation.prepare(method, **settings(**ASKED))
    whole = simulation.run()
    half = fd.simulation.prepare(method, **settings(**ASKED, num_rounds=3)).run()
    rest = simulation.run(initial=half.state)
    chex.assert_trees_all_equal(rest.state, whole.state)
    assert np.isfinite(half.state.selection.finish).any()
    on_host = fd.simulate(method, client_state="host", **settings(**ASKED))
    np.testing.assert_array_equal(on_host.history["seconds"], whole.history["seconds"])
    chex.assert_trees_all_close(on_host.params, whole.params, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.optimised
def test_cells_of_an_asynchronous_sweep_are_their_runs(settings):
    made = [
        Settings(
            fd.algorithms.from_aggregator(fd.aggregators.fedbuff(exponent=exponent)),
            **settings(**ASKED | {"clock": clocks.attackers(clocks.log_normal(sigma=sigma), 0.5)}, seed=seed),
        )
        for exponent, sigma, seed in ((0.5, 1.0, 0), (1.0, 0.3, 1))
    ]
    found = prepare_batch(made).run([0, 1])
    for one, cell in zip(made, found, strict=True):
        alone = fd.simulation.trace(one).run()
        for name in ("client_ids", "staleness", "seconds"):
            np.testing.assert_array_equal(cell.history[name], alone.history[name])
        chex.assert_trees_all_equal(cell.state, alone.state)


@pytest.mark.thorough
def test_devices_share_clients_that_started_earlier(settings):
    asked = settings(**ASKED, cohort_size=4)
    rule = fd.aggregators.fedbuff(fd.aggregators.br_drag())
    one, two = fd.simulate(rule, **asked, mesh=None), fd.simulate(rule, **asked, mesh="cores", shard_data=True)
    for name in ("client_ids", "staleness", "seconds"):
        np.testing.assert_array_equal(one.history[name], two.history[name])
    chex.assert_trees_all_close(one.params, two.params, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_clients_that_run_at_once_start_from_what_each_has_received(settings):
    asked = settings(selection=selection.asynchronous(8), clock=LOG_NORMAL)
    one, two = (fd.simulate(fd.aggregators.fedbuff(), clients_axis=axis, **asked) for axis in ("map", "vmap"))
    chex.assert_trees_all_close(one.params, two.params, rtol=1e-4, atol=1e-5)


IN_FLIGHT = selection.asynchronous(5)


class Forgetful(selection.uniform):
    """Has another memory after each draw."""

    def select(self, key, memory, candidates, cohort_size):
        return super().select(key, memory, candidates, cohort_size)._replace(memory=memory)


def test_clients_that_end_out_of_turn_do_not_start_in_turn():
    with pytest.raises(ValueError, match="selection=round_robin: must not go by turns"):
        selection.asynchronous(4, selection.round_robin())


@pytest.mark.parametrize(
    ("rule", "changes", "message"),
    [
        (RULE, {"selection": IN_FLIGHT}, "selection=asynchronous: needs a clock, such as clock=fd.clocks.log_normal"),
        (RULE, {"deadline_seconds": 2.0}, "deadline_seconds=2.0: needs a clock"),
        (RULE, {"clock": LOG_NORMAL, "deadline_seconds": 0.0}, "deadline_seconds=0.0"),
        (
            RULE,
            {"selection": IN_FLIGHT, "clock": LOG_NORMAL, "deadline_seconds": 2.0},
            "deadline_seconds=2.0, selection=asynchronous: must be None",
        ),
        (
            RULE,
            {
                "selection": IN_FLIGHT,
                "clock": LOG_NORMAL,
                "attack": fd.attacks.sign_flip(),
                "num_byzantine": 1,
                "byzantine_of": "cohort",
            },
            "byzantine_of='cohort', selection=asynchronous: must be 'federation'",
        ),
        (
            RULE,
            {"selection": selection.asynchronous(13), "clock": LOG_NORMAL},
            r"selection=asynchronous: concurrency=13: must be an integer in \[1, 12\]",
        ),
        (
            fd.aggregators.fedavg("unbiased"),
            {"selection": IN_FLIGHT, "clock": LOG_NORMAL},
            "asynchronous: fedavg needs weights that make a sum unbiased",
        ),
        (
            RULE,
            {"selection": selection.asynchronous(4, Forgetful()), "clock": LOG_NORMAL},
            "selection=asynchronous:.*selection=Forgetful: must change its memory in observe alone",
        ),
        (RULE, {"clock": "constant"}, "clock='constant': must be a clock.*write fd.clocks.constant"),
    ],
)
def test_refused_with_a_clock(refused, rule, changes, message):
    refused(message, rule, **changes)
