"""What the engine keeps for every client: the same bits wherever it lies, however the run is cut."""

import dataclasses

import chex
import jax
import numpy as np
import optax
import pytest

import fedjax_drag as fd
from fedjax_drag.compression import low_rank, random_k
from fedjax_drag.experiment.run.checkpoints import Checkpoints
from fedjax_drag.experiment.run.stored.leaves import flattened
from fedjax_drag.simulation import prepare, trace
from fedjax_drag.simulation.batch import prepare_batch
from fedjax_drag.simulation.run import NOTHING_KEPT, ClientRows
from fedjax_drag.simulation.settings import Settings

NUM_CLIENTS, PARAMETERS = 12, 650


def method(beta=0.9, rule=None):
    return fd.algorithms.from_aggregator(rule or fd.aggregators.median(), client=fd.clients.momentum_sgd(beta))


def on_host(result):
    """Of parameters, rows and what clients have received."""
    return jax.tree.map(np.asarray, (result.params, result.state.clients, result.state.received))


@pytest.fixture(scope="module")
def kept(settings):
    """Settings of a run that keeps the client rule's carry and the state of its optimizer, one object for all runs."""
    adam = optax.scale_by_adam()

    def make(**changes):
        base = {"num_rounds": 4, "eval_every": 2, "cohort_size": 4, "local_steps": 2, "clients_axis": "map"}
        optimizer = {"local_optimizer": adam, "local_optimizer_state": "keep"}
        return settings(**base | optimizer | changes)

    return make


MESSAGES = {"compression": low_rank(2), "downlink_compression": random_k(0.2, error_feedback=True)}
PLAIN = {"local_optimizer_state": "reset", "local_optimizer": None}
KEPT = [
    pytest.param((method(), {}), id="carry and optimizer"),
    pytest.param((fd.aggregators.median(), PLAIN | MESSAGES), id="messages", marks=pytest.mark.slow),
]
"""What is kept, by the method and the settings: with random draws, and a memory of several arrays on both ways."""


@pytest.fixture(scope="module", params=KEPT)
def whole(request, kept):
    """A run of one of them in one piece, and how to run it otherwise."""
    rule, base = request.param
    run = lambda initial=None, **changes: fd.simulate(rule, initial=initial, **kept(**base | changes))
    return run(), run, lambda: prepare(rule, **kept(**base))


@pytest.mark.thorough
def test_the_rows_of_those_who_took_part_change_and_no_others(kept):
    simulation = prepare(method(rule=fd.aggregators.fedavg()), **kept(num_rounds=2))
    result = simulation.run()
    rows = result.state.clients
    turns = np.asarray(rows.optimizer.rows.count)
    assert turns.sum() == 2 * 4 * 2, "a step of the optimizer for each local step of each client in each round"
    for node in (rows.carry.rows, rows.optimizer.rows.mu):
        for leaf in jax.tree.leaves(node):
            np.testing.assert_array_equal(leaf.reshape(NUM_CLIENTS, -1).any(1), turns > 0)
    assert set(result.history["client_ids"].ravel()) <= set(np.flatnonzero(turns))
    assert 0 < (turns > 0).sum() < NUM_CLIENTS
    assert simulation.client_state_bytes == 4 * NUM_CLIENTS * (3 * PARAMETERS + 1)


@pytest.mark.slow
@pytest.mark.optimised
def test_on_the_host_and_resumed_they_are_the_same_bits(whole):
    expected, run, _ = whole
    chex.assert_trees_all_equal(on_host(run(client_state="host")), on_host(expected), strict=True)
    again = run(initial=run(num_rounds=2).state)
    chex.assert_trees_all_equal(on_host(again), on_host(expected), strict=True)


@pytest.mark.thorough
@pytest.mark.optimised
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"mesh": "cores"}, marks=pytest.mark.slow),
        {"mesh": "cores", "client_state": "host", "shard_data": True},
    ],
    ids=lambda changes: ",".join(changes),
)
def test_however_it_is_computed_they_are_the_same_bits(whole, changes):
    expected, run, _ = whole
    chex.assert_trees_all_equal(on_host(run(**changes)), on_host(expected), strict=True)


@pytest.mark.thorough
@pytest.mark.optimised
def test_from_a_checkpoint_they_go_on(whole, tmp_path):
    expected, run, prepared = whole
    simulation = prepared()
    Checkpoints(tmp_path).save(2, run(num_rounds=2).state, 0.5)
    restored = Checkpoints(tmp_path).restore(2, simulation.shapes).state
    chex.assert_trees_all_equal(on_host(simulation.run(initial=restored)), on_host(expected), strict=True)


@pytest.mark.slow
def test_a_stream_of_two_passes_keeps_what_a_stack_keeps(kept):
    """In its first round DRAG goes over the cohort twice, from the same rows."""
    drag = fd.aggregators.drag(c=0.25, alpha=0.25)
    stack, stream = (fd.simulate(method(rule=drag), **kept(aggregation=a)) for a in ("stack", "stream"))
    chex.assert_trees_all_close(on_host(stream), on_host(stack), rtol=1e-3, atol=1e-5)
    np.testing.assert_array_equal(stream.state.clients.optimizer.rows.count, stack.state.clients.optimizer.rows.count)


@pytest.mark.slow
def test_cells_of_a_sweep_keep_rows_of_their_own_from_the_same_initial_parameters(kept):
    start = jax.tree.map(lambda x: np.full(x.shape, 0.1, x.dtype), prepare(method(), **kept()).shapes.params)
    same = {"num_rounds": 2, "initial_params": start}
    made = [Settings(algorithm=method(beta), **kept(seed=seed, **same)) for beta, seed in ((0.5, 0), (0.9, 1))]
    for one, cell in zip(made, prepare_batch(made).run([0, 1]), strict=True):
        chex.assert_trees_all_close(on_host(cell), on_host(trace(one).run()), rtol=1e-4, atol=1e-6)


def test_a_run_that_keeps_nothing_has_the_state_that_it_had(settings, fedavg):
    simulation = prepare(fedavg, **settings(local_optimizer=optax.trace(0.9)))
    assert simulation.shapes.clients == NOTHING_KEPT == ClientRows((), ())
    assert simulation.client_state_bytes == 0
    names = jax.eval_shape(flattened, simulation.shapes)
    assert not [name for name in names if name.startswith("clients")]
    assert "round" in names


@pytest.mark.parametrize("place", ["host", "disk"])
def test_an_optimizer_without_a_state_keeps_nothing(settings, fedavg, place):
    kept = settings(local_optimizer=optax.clip(1.0), local_optimizer_state="keep", client_state=place)
    state = prepare(fedavg, **kept).initial_state()
    assert not jax.tree.leaves(state.clients)


@pytest.mark.thorough
def test_a_client_whose_row_is_not_finite_keeps_the_old_one(settings, digits):
    """A client's only input is not finite: it is left out of the round, and its momentum stays at zero."""
    train, test = (part._replace(x=np.float32(part.x)) for part in (digits.train, digits.test))
    train.x[digits.rows[3][: digits.counts[3]]] = np.inf
    data = dataclasses.replace(digits, train=train, test=test)
    full = settings(data=data, cohort_size=NUM_CLIENTS, num_rounds=1, eval_every=1, local_steps=1)
    result = fd.simulate(method(rule=fd.aggregators.fedavg()), **full)
    rows = np.asarray(result.state.clients.carry.rows["Dense_0"]["kernel"])
    np.testing.assert_array_equal(rows.reshape(NUM_CLIENTS, -1).any(1), np.arange(NUM_CLIENTS) != 3)
    assert result.history["num_rejected"].tolist() == [1]


def test_a_state_to_keep_needs_an_optimizer(refused, fedavg):
    message = r"^local_optimizer_state='keep': needs a local_optimizer, such as .*$"
    refused(message, fedavg, local_optimizer_state="keep")


def noisy_direction(grad_fn, w, carry, downlink, batch):
    key, own = jax.random.split(carry)
    gradient = grad_fn(w, batch)
    return jax.tree.map(lambda g: g + 0.1 * jax.random.normal(own, g.shape), gradient), key


@pytest.mark.sample(1)
@pytest.mark.parametrize("place", ["host", "disk"])
def test_a_carried_key_goes_on_wherever_it_is_kept(settings, place):
    """The same run in one piece, and in two pieces of which the first keeps its rows elsewhere."""
    begin = lambda downlink: jax.random.key(0)
    rule = fd.types.ClientRule(begin, noisy_direction, keeps_carry=True)
    method = fd.algorithms.from_aggregator(fd.aggregators.fedavg(), client=rule)
    same = settings(cohort_size=4, local_steps=2, clients_axis="map", eval_every=2)
    whole = fd.simulate(method, **same | {"num_rounds": 4})
    half = fd.simulate(method, **same | {"num_rounds": 2, "client_state": place})
    for then in ("device", place):
        found = fd.simulate(method, **same | {"num_rounds": 4, "client_state": then}, initial=half.state)
        chex.assert_trees_all_equal(found.params, whole.params)
