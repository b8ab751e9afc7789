"""``batch_size="full"``: every local step goes over all of a client's examples."""

import jax
import numpy as np
import pytest

import fedjax_drag as fd
from fedjax_drag import aggregators, algorithms, clients
from fedjax_drag.experiment.build.experiment import load

WEIGHTED = algorithms.from_aggregator(aggregators.fedavg(weighting="examples"))
STEP_SIZE = 0.1


def full_gradient(params, x, y):
    """The gradient of softmax regression over all examples given, in float64."""
    z = x @ params[0] + params[1]
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return x.T @ p / len(y), p.mean(0)


def descended(params, x, y, steps):
    for _ in range(steps):
        params = tuple(p - STEP_SIZE * g for p, g in zip(params, full_gradient(params, x, y), strict=True))
    return params


def clients_data(data, rows, counts):
    x = np.asarray(data.preprocess(data.train.x), np.float64).reshape(len(data.train.y), -1)
    return [(x[row[:count]], np.asarray(data.train.y)[row[:count]]) for row, count in zip(rows, counts, strict=True)]


def kernel_and_bias(params):
    return np.asarray(params["Dense_0"]["kernel"], np.float64), np.asarray(params["Dense_0"]["bias"], np.float64)


def check_round(settings, digits, steps, **changes):
    """One round of all clients, weighted by their examples, is the weighted mean of their own results.

    Returns:
      The result, and the initial kernel and bias.
    """
    asked = settings(batch_size="full", step_size=STEP_SIZE, num_rounds=1, cohort_size=12, **changes)
    simulation = fd.simulation.prepare(WEIGHTED, **asked)
    start = kernel_and_bias(simulation.initial_state().params)
    ends = [descended(start, x, y, steps) for x, y in clients_data(digits, digits.rows, digits.counts)]
    expected = [np.average([end[i] for end in ends], axis=0, weights=digits.counts) for i in range(2)]
    result = simulation.run()
    for found, wanted in zip(kernel_and_bias(result.params), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    return result, start


@pytest.mark.thorough
@pytest.mark.parametrize(
    "batching",
    [{"clients_axis": "map"}, {"clients_axis": "vmap"}, {"clients_axis": "map", "clients_per_chunk": 5}],
    ids=["map", "vmap", "chunks"],
)
def test_one_step_of_each_client_is_a_step_on_all_data(settings, digits, batching):
    """FedSGD: the weighted mean of the clients' full gradients is the gradient over the whole federation."""
    assert len(set(digits.counts.tolist())) > 6
    result, start = check_round(settings, digits, 1, local_steps=1, **batching)
    x, y = (np.concatenate(part) for part in zip(*clients_data(digits, digits.rows, digits.counts), strict=True))
    for found, wanted in zip(kernel_and_bias(result.params), descended(start, x, y, 1), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "work", [{"local_steps": 3}, {"local_steps": None, "local_epochs": 3}], ids=["steps", "epochs"]
)
def test_an_epoch_is_one_step(settings, digits, work):
    history = check_round(settings, digits, 3, **work)[0].history
    assert history["local_steps"][-1] == history["gradient_evaluations"][-1] == 36
    assert history["slowest_steps"][-1] == 3


@pytest.mark.thorough
def test_the_root_data_are_one_batch(settings, digits):
    algorithm = algorithms.from_aggregator(aggregators.root_only())
    asked = settings(batch_size="full", local_steps=2, num_rounds=1, root_size=37)
    simulation = fd.simulation.prepare(algorithm, **asked)
    start = kernel_and_bias(simulation.initial_state().params)
    ((x, y),) = clients_data(digits, [np.asarray(simulation.federation.root_row)], [37])
    for found, wanted in zip(kernel_and_bias(simulation.run().params), descended(start, x, y, 2), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_full_batches_combine_with_other_settings(settings):
    algorithm = algorithms.from_aggregator(aggregators.fltrust())
    changes = {
        "batch_size": "full",
        "local_steps": None,
        "local_epochs": 1.5,
        "time_clients": True,
        "augmentation": lambda key, x: x + 1e-3 * jax.random.normal(key, x.shape),
        "attack": fd.attacks.label_flip(),
        "byzantine_fraction": 0.3,
        "root_client": clients.robust_sgd(aggregators.median()),
        "root_size": 20,
    }
    history = fd.simulate(algorithm, **settings(**changes)).history
    assert history["slowest_steps"][-1] == 3 * 2
    assert history["client_seconds"][-1] > 0
    assert history["test_accuracy"][-1] > 0.3, "chance is 0.1"


def test_a_batch_larger_than_the_largest_client_is_refused(settings, digits, fedavg):
    most = int(digits.counts.max())
    fd.simulation.prepare(fedavg, **settings(batch_size=most))
    for number in (most + 1, 10**9):
        with pytest.raises(ValueError) as caught:
            fd.simulation.prepare(fedavg, **settings(batch_size=number))
        reason = f"must be at most {most}, what the largest client has, or 'full' for all data of each client"
        assert str(caught.value) == f"batch_size={number}: {reason}"


@pytest.mark.parametrize("wrong", [0, "ful", 2.5, None, True, [10]])
def test_invalid_batch_sizes_are_refused(refused, fedavg, wrong):
    refused(r"^batch_size=.*: must be an integer in \[1, 2147483647\], or 'full'$", fedavg, batch_size=wrong)
    with pytest.raises(ValueError, match=r"^batch_size=.*: must be an integer in \[1, 2147483647\], or 'full'$"):
        load({"batch_size": wrong})


@pytest.mark.thorough
def test_full_batches_in_a_configuration():
    asked = {"data": "digits", "rounds": 2, "local_steps": 1, "eval_every": 2, "time_clients": False}
    asked |= {"partition": {"name": "dirichlet", "num_clients": 40, "beta": 0.1}}
    result = fd.run(asked, ["batch_size=full", "partition.num_clients=30"])
    assert result.history["local_steps"][-1] == 20
    with pytest.raises(ValueError, match=r"batch_size=5000: must be at most \d+, what the largest client has"):
        fd.run(asked, ["batch_size=5000"])
