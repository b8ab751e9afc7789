"""The cost of a method for a client: gradients, arithmetic, traffic and time."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_drag as fd
from fedjax_drag.data.batching import epoch_steps
from fedjax_drag.simulation.planning.outline import ClientCost, client_cost
from fedjax_drag.simulation.planning.setup import steps_of_clients
from fedjax_drag.simulation.program.evaluation import work_metrics
from fedjax_drag.simulation.run import Attendance, LocalResult, RoundOutcome
from fedjax_drag.simulation.settings import Settings
from fedjax_drag.types import Batch, ClientRule, Uplink

SIZE = 20 * 30 + 30
PARAMS = {"w": jax.ShapeDtypeStruct((20, 30), jnp.float32), "b": jax.ShapeDtypeStruct((30,), jnp.float32)}
BATCH = Batch(jax.ShapeDtypeStruct((4, 20), jnp.float32), jax.ShapeDtypeStruct((4,), jnp.int32))
FEDAVG = fd.aggregators.fedavg()

# Gradients and vector operations of a step; models down and up. By hand, from the equations.
EXPECTED = {
    "sgd": (fd.algorithms.from_aggregator(FEDAVG), 1, 0, 1, 1),
    "fedprox": (fd.algorithms.from_aggregator(FEDAVG, client=fd.clients.fedprox(0.1)), 1, 3, 1, 1),
    "scaffold": (fd.algorithms.scaffold(8), 1, 3, 3, 2),  # g + a (c - c_m); theta, c, c_m; g_m and the change of c_m
    "adabest": (fd.algorithms.adabest(8), 1, 1, 2, 1),
    "feddyn": (fd.algorithms.feddyn(8, a=0.1), 1, 4, 2, 1),
    "fedacg": (fd.algorithms.fedacg(), 1, 3, 1, 1),
    "stem": (fd.algorithms.stem(), 2, 3, 1, 2),
}


def cost(algorithm):
    state = jax.eval_shape(algorithm.init, PARAMS)
    downlink = jax.eval_shape(algorithm.broadcast, PARAMS, state, jax.ShapeDtypeStruct((3,), jnp.int32))
    one = downlink._replace(own=jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), downlink.own))

    def message(downlink):
        carry = algorithm.client.begin(downlink)
        return Uplink(downlink.start, algorithm.client.report(downlink, downlink.start, carry, jnp.float32(1.0)))

    return client_cost(algorithm.client, one, BATCH, jax.eval_shape(message, one))


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", EXPECTED)
def test_costs_match_the_equations(name):
    algorithm, gradients, operations, down, up = EXPECTED[name]
    assert cost(algorithm) == ClientCost(gradients, operations, 4 * SIZE * down, 4 * SIZE * up)


@pytest.mark.thorough
def test_cost_of_taco():
    found = cost(fd.algorithms.taco(8))
    assert (found.gradients, found.vector_operations) == (1, 2)
    assert found.bytes_down == 4 * (2 * SIZE + 1)  # theta and D_t; 1 - alpha_m
    assert found.bytes_up == 4 * (SIZE + 2)  # g_m; K and K eta


def test_a_loop_counts_once_per_iteration():
    def direction(grad_fn, w, carry, downlink, batch):
        gradient = grad_fn(w, batch)
        return jax.lax.scan(lambda g, _: (jax.tree.map(lambda x: 2.0 * x, g), None), gradient, length=5)[0], carry

    client = ClientRule(lambda downlink: (), direction, lambda *_: ())
    lifted = fd.algorithms.from_aggregator(FEDAVG, client=client)
    assert cost(lifted).vector_operations == 5


def test_work_metrics_of_a_round():
    local = LocalResult(Uplink(()), jnp.array([0.5, 2.0, 1.0, 8.0]), jnp.array([3, 7, 5, 4]))
    malicious, valid = jnp.array([False, False, True, False]), jnp.array([True, False, True, True])

    def measured(malicious, valid=None):
        """Of a run whose clients are never absent."""
        run = SimpleNamespace(may_be_absent=False, may_be_silent=False)
        cohort = SimpleNamespace(
            who=Attendance(valid, valid, valid, None), clients=SimpleNamespace(malicious=malicious)
        )
        return work_metrics(run, cohort, RoundOutcome((), (), local, jnp.ones(4, bool), ()))

    done = measured(malicious, valid)
    assert {name: float(value) for name, value in done.items()} == {
        "train_loss": 4.25,
        "participants": 3,
        "local_steps": 12,
        "slowest_steps": 5,
    }
    assert float(measured(malicious)["train_loss"]) == 3.5
    assert np.isnan(measured(jnp.ones(4, bool))["train_loss"])


@pytest.mark.thorough
def test_the_history_counts_the_steps_of_clients_of_different_sizes(settings, digits):
    epochs = settings(local_steps=None, local_epochs=2.0, cohort_size=12, eval_every=2)
    result = fd.simulate(fd.algorithms.scaffold(12), **epochs)
    steps = 2 * -(-digits.counts // 4)
    model = sum(leaf.nbytes for leaf in jax.tree.leaves(result.params))
    for name, per_round in {
        "participants": 12,
        "local_steps": steps.sum(),
        "slowest_steps": steps.max(),
        "gradient_evaluations": steps.sum(),
        "vector_operations": 3 * steps.sum(),
        "bytes_down": 12 * 3 * model,
        "bytes_up": 12 * 2 * model,
    }.items():
        assert result.history[name].tolist() == [2 * per_round] * 3, name


@pytest.mark.parametrize("epochs", [1, 2.0, 0.5, 1.3, [2, 4]])
@pytest.mark.parametrize("batch_size", [4, "full"])
def test_steps_are_foreseen_as_they_are_drawn(settings, digits, epochs, batch_size):
    rule = fd.algorithms.from_aggregator(FEDAVG)
    asked = Settings(algorithm=rule, **settings(local_steps=None, local_epochs=epochs, batch_size=batch_size))
    size = digits.rows.shape[1] if batch_size == "full" else batch_size
    drawn = [4] * 12 if isinstance(epochs, list) else [epochs] * 12
    each = [int(epoch_steps(count, turns, size)) for count, turns in zip(digits.counts, drawn, strict=True)]
    assert steps_of_clients(asked, at_most=True).tolist() == each
    assert (steps_of_clients(asked) <= each).all()


@pytest.mark.thorough
def test_client_seconds_and_time_to(settings, fedavg):
    timed = fd.simulate(fedavg, **settings(time_clients=True))
    assert timed.seconds_per_step > 0
    steps = np.cumsum(timed.history["slowest_steps"])
    np.testing.assert_allclose(timed.history["client_seconds"], steps * timed.seconds_per_step)
    accuracy = timed.history["test_accuracy"][-1]
    row = list(timed.history["round"]).index(timed.rounds_to(accuracy))
    assert timed.time_to(accuracy) == timed.history["client_seconds"][row]
    assert timed.time_to(1.01) is None
    plain = fd.simulate(fedavg, **settings())
    assert all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (plain.params, timed.params)), strict=True))
    with pytest.raises(ValueError, match="time_to: the clients of this run were not timed; set time_clients=True"):
        plain.time_to(0.5)
