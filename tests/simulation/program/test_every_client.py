"""Evaluation client by client: who holds out what, the accuracies once more in NumPy, and all ways to compute them."""

import dataclasses
import itertools
import re

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from nets import Net

import fedjax_drag as fd
from fedjax_drag.data.malicious import choose_malicious
from fedjax_drag.simulation import trace
from fedjax_drag.simulation.batch import prepare_batch
from fedjax_drag.simulation.planning.setup import federate
from fedjax_drag.simulation.program.evaluation import by_client_and_class, over_clients
from fedjax_drag.simulation.settings import Settings

SIZES = (1, 2, 3, 40, 1, 300, 7, 25)
"""Examples of each client, so that two hold out none and one batch has the examples of several."""

CLIENT = ("client_accuracy_mean", "client_accuracy_worst_tenth", "client_accuracy_std")


@pytest.fixture(scope="module")
def uneven():
    """Clients of very different sizes; class 9 has no test example."""
    fed = fd.data.load("digits")
    rng = np.random.default_rng(3)
    order, rows = rng.permutation(len(fed.train.y)), np.zeros((len(SIZES), max(SIZES)), np.int32)
    for client, own in enumerate(np.split(order[: sum(SIZES)], np.cumsum(SIZES)[:-1])):
        rows[client, : len(own)] = own
    test = jax.tree.map(lambda x: x[fed.test.y != 9], fed.test)
    return dataclasses.replace(fed, test=test, rows=rows, counts=np.array(SIZES, np.int32))


@pytest.fixture(scope="module")
def evaluated(settings, uneven, fedavg):
    def run(**changes):
        base = {"data": uneven, "cohort_size": 4, "evaluate_clients": 0.3, "clients_axis": "map"}
        return fd.simulate(fedavg, **settings(**base | changes))

    return run


@pytest.fixture(scope="module")
def plain(evaluated):
    return evaluated()


def held_out(fed, fraction):
    """Each client's held-out examples once more."""
    numbers = [min(max(round(fraction * n), 1), n - 1) for n in fed.counts.tolist()]
    return [row[n - held : n].tolist() for row, n, held in zip(fed.rows, fed.counts, numbers, strict=True)]


def hits(fed, params, batch):
    """Whether softmax regression predicts the classes of some examples, in NumPy."""
    layer = params["Dense_0"]
    x = np.asarray(fed.preprocess(batch.x), np.float64).reshape(len(batch.y), -1)
    return (x @ np.asarray(layer["kernel"], np.float64) + np.asarray(layer["bias"])).argmax(1) == batch.y


@pytest.mark.thorough
@pytest.mark.parametrize("number", [0, 3])
def test_accuracies_of_clients_and_classes_once_more_in_numpy(uneven, evaluated, plain, number):
    attack = {"attack": fd.attacks.sign_flip(), "num_byzantine": number}
    result, lying = (evaluated(**attack) if number else plain), choose_malicious(len(SIZES), number, seed=0)
    own = [jax.tree.map(lambda x, rows=rows: x[rows], uneven.train) for rows in held_out(uneven, 0.3)]
    wanted = np.array([hits(uneven, result.params, batch).mean() if len(batch.y) else np.nan for batch in own])
    wanted[lying] = np.nan
    history = result.history
    np.testing.assert_allclose(history["client_accuracy"][-1], wanted, rtol=1e-6)
    assert history["client_accuracy"].shape == (2, len(SIZES))
    rising = np.sort(wanted[np.isfinite(wanted)])
    figures = [rising.mean(), rising[0], np.sqrt(((rising - rising.mean()) ** 2).mean())]
    np.testing.assert_allclose([history[name][-1] for name in CLIENT], figures, rtol=1e-5)
    hit = hits(uneven, result.params, uneven.test)
    of_class = [hit[uneven.test.y == label].mean() for label in range(9)]
    np.testing.assert_allclose(history["class_accuracy"][-1], [*of_class, np.nan], rtol=1e-6)


def test_the_worst_tenth_is_rounded_up_and_clients_without_examples_do_not_count():
    accuracy = np.concatenate([np.arange(21) / 20, [np.nan] * 9])
    found = over_clients(np.random.default_rng(0).permutation(accuracy))
    assert found["client_accuracy_worst_tenth"] == np.float32(np.mean([0, 0.05, 0.1])), "3 of 21 clients"
    assert found["client_accuracy_mean"] == 0.5
    assert over_clients(np.array([0.25]))["client_accuracy_worst_tenth"] == 0.25
    found = {"client_accuracy": np.array([0.75, np.nan, 0.5]), "test_loss": 1.0}
    metrics = [fd.metrics.accuracy()]
    assert by_client_and_class(found, metrics, per_client=False).keys() == {*CLIENT, "test_loss"}
    assert by_client_and_class({"test_loss": 1.0}, metrics, per_client=True) == {"test_loss": 1.0}
    errors = over_clients(accuracy, "client_mean_squared_error", higher_is_better=False)
    assert errors["client_mean_squared_error_worst_tenth"] == np.float32(np.mean([1, 0.95, 0.9]))


@pytest.mark.parametrize("source", ["benign", "all"])
@pytest.mark.parametrize("share", [True, 0.7])
def test_nobody_trains_on_what_is_held_out_and_the_data_set_is_not_changed(uneven, settings, source, share):
    before = uneven.rows.copy(), uneven.counts.copy()
    held = np.concatenate(held_out(uneven, 0.2 if share is True else share)).astype(int)
    rule = fd.algorithms.from_aggregator(fd.aggregators.br_drag(c=0.5))
    given = {"data": uneven, "cohort_size": 4, "batch_size": 2, "root_size": 60, "root_source": source}
    federation = federate(Settings(rule, **settings(evaluate_clients=share, **given)))
    own = [row[:count] for row, count in zip(federation.rows, federation.counts, strict=True)]
    trained = np.concatenate([*own, federation.root_row])
    assert not np.isin(trained, held).any()
    np.testing.assert_array_equal(np.sort(federation.held_out.examples), np.sort(held))
    np.testing.assert_array_equal(np.sort(np.concatenate([*own, held])), np.sort(np.concatenate(_rows(uneven))))
    assert [len(row) >= 1 for row in own] == [True] * len(SIZES)
    assert federation.held_out.counts.tolist() == list(map(len, held_out(uneven, 0.2 if share is True else share)))
    for old, new in zip(before, (uneven.rows, uneven.counts), strict=True):
        np.testing.assert_array_equal(old, new)


def _rows(fed):
    return [row[:count] for row, count in zip(fed.rows, fed.counts, strict=True)]


@pytest.mark.thorough
def test_a_run_is_that_on_the_rest_of_the_rows(settings, uneven, evaluated, plain, fedavg):
    """By content: held-out examples that are replaced by noise change no parameter."""
    x = uneven.train.x.copy()
    held = np.concatenate(held_out(uneven, 0.3)).astype(int)
    x[held] = 255 - x[held]
    noisy = evaluated(data=dataclasses.replace(uneven, train=uneven.train._replace(x=x)))
    jax.tree.map(np.testing.assert_array_equal, noisy.params, plain.params)
    counts = uneven.counts - np.array(list(map(len, held_out(uneven, 0.3))), np.int32)
    rows = uneven.rows[:, : counts.max()]
    rest = fd.simulate(
        fedavg,
        **settings(data=dataclasses.replace(uneven, rows=rows, counts=counts), cohort_size=4, clients_axis="map"),
    )
    jax.tree.map(np.testing.assert_array_equal, rest.params, plain.params)
    np.testing.assert_array_equal(rest.history["test_accuracy"], plain.history["test_accuracy"])
    assert plain.history.keys() - rest.history.keys() == {*CLIENT, "client_accuracy", "class_accuracy"}


@pytest.mark.thorough
def test_several_devices_and_divided_examples_give_the_same_bits(evaluated, plain):
    mesh = Mesh(jax.devices()[:2], ("clients",))
    for options in ({"mesh": mesh}, {"mesh": mesh, "shard_data": True}):
        found = evaluated(**options).history
        for name in (*CLIENT, "client_accuracy", "class_accuracy"):
            np.testing.assert_array_equal(found[name], plain.history[name], err_msg=f"{name} {options}")


@pytest.mark.thorough
def test_a_continued_run_has_the_same_bits_and_histories_without_diagnostics_are_short(evaluated, plain):
    half = evaluated(num_rounds=3)
    rest = evaluated(initial=half.state, diagnostics=False).history
    assert "client_accuracy" not in rest
    for name in (*CLIENT, "class_accuracy", "test_accuracy"):
        np.testing.assert_array_equal(np.append(half.history[name], rest[name], axis=0), plain.history[name])


@pytest.mark.slow
def test_clients_that_keep_their_statistics_are_evaluated_by_their_own(evaluated, uneven):
    """Once more with plain Flax, client by client; wherever the rows lie."""
    options = {"model": Net(), "model_state": "local", "evaluate_clients": 0.3, "batch_size": 8}
    result = evaluated(**options)
    rows, own = result.state.clients.statistics.rows, held_out(uneven, 0.3)
    everything = jax.tree.map(lambda x: x[np.concatenate(own).astype(int)], uneven.train)
    begins = np.cumsum([0, *map(len, own)])
    x = uneven.preprocess(everything.x)
    logits = jax.jit(lambda statistics: Net().apply({"params": result.params, **statistics}, x, train=False))
    wanted, by_the_average = np.full((2, len(SIZES)), np.nan)
    for client, (begin, end) in enumerate(itertools.pairwise(begins)):
        if begin < end:
            of_client = jax.tree.map(lambda leaf, client=client: leaf[client], rows)
            for statistics, accuracy in ((of_client, wanted), (result.state.model.statistics, by_the_average)):
                hit = np.asarray(logits(statistics)).argmax(1) == everything.y
                accuracy[client] = hit[begin:end].mean()
    np.testing.assert_allclose(result.history["client_accuracy"][-1], wanted, rtol=1e-6)
    assert not np.allclose(wanted, by_the_average, equal_nan=True)
    there = evaluated(**options, client_state="host")
    np.testing.assert_array_equal(there.history["client_accuracy"], result.history["client_accuracy"])
    mesh = evaluated(**options, mesh=Mesh(jax.devices()[:2], ("clients",)))
    np.testing.assert_allclose(mesh.history["client_accuracy"], result.history["client_accuracy"], atol=0.01)


@pytest.mark.slow
def test_cells_of_a_sweep_are_the_separate_runs(settings, uneven):
    base = fd.data.load("digits")

    def one(c, seed):
        data = fd.data.partition.dirichlet(base, num_clients=12, beta=0.1, seed=seed)
        rule = fd.algorithms.from_aggregator(fd.aggregators.drag(c=c, alpha=0.3))
        attack = {"attack": fd.attacks.sign_flip(), "byzantine_fraction": 0.25}
        return Settings(rule, **settings(data=data, seed=seed, evaluate_clients=True, clients_axis="map", **attack))

    made = [one(0.1, 0), one(0.5, 1)]
    lengths = {len(federate(cell).held_out.examples) for cell in made}
    assert len(lengths) == 2, "lists of different lengths, which are padded"
    batch = prepare_batch(made)
    for cell, found in zip(made, batch.run([0, 1]), strict=True):
        alone = trace(cell).run()
        assert alone.history.keys() == found.history.keys()
        for name in (*CLIENT, "client_accuracy", "class_accuracy", "test_accuracy"):
            np.testing.assert_array_equal(found.history[name], alone.history[name])


def _drag(c):
    return fd.algorithms.from_aggregator(fd.aggregators.drag(c=c, alpha=0.3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"evaluate_clients": 1.0}, "evaluate_clients=1.0: must be True, False or a number in (0, 1)"),
        ({"evaluate_clients": 0}, "evaluate_clients=0: must be True, False or a number in (0, 1)"),
        ({"evaluate_clients": "yes"}, "evaluate_clients='yes': must be True, False or a number in (0, 1)"),
        ({"evaluate_clients": True, "batch_size": 300}, "batch_size=300: must be at most 240, what the largest client"),
    ],
)
def test_refusals(settings, uneven, fedavg, changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Settings(fedavg, **settings(data=uneven, cohort_size=4) | changes)


def test_examples_of_two_clients_and_clients_of_one_example_are_refused(settings, uneven, fedavg):
    shared = dataclasses.replace(uneven, rows=np.repeat(uneven.rows[3:4], 8, axis=0))
    with pytest.raises(ValueError, match="an example is in the rows of clients twice"):
        Settings(fedavg, **settings(data=shared, cohort_size=4, evaluate_clients=True))
    single = dataclasses.replace(uneven, counts=np.ones(8, np.int32))
    with pytest.raises(ValueError, match="evaluate_clients=True: no benign client has two examples"):
        federate(Settings(fedavg, **settings(data=single, cohort_size=4, batch_size=1, evaluate_clients=True)))
