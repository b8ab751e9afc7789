"""Clients' own models: what methods have in common with others, all ways to keep and evaluate them, what is sent."""

import dataclasses
import functools

import chex
import flax.linen as nn
import jax
import numpy as np
import optax
import pytest
from jax.sharding import Mesh
from nets import Net

import fedjax_drag as fd
from fedjax_drag import tree
from fedjax_drag.algorithms import apfl, ditto, fedbn, fedper, fedrep, fine_tune, local_only, per_fedavg, pfedme
from fedjax_drag.simulation import trace
from fedjax_drag.simulation.batch import prepare_batch
from fedjax_drag.simulation.settings import Settings

same_bits = functools.partial(chex.assert_trees_all_equal, strict=True)
MOMENTUM = optax.trace(0.5)
OWN = ("own_accuracy_mean", "own_accuracy_worst_tenth", "own_accuracy_std", "own_accuracy")


class TwoLayers(nn.Module):
    """A body and a head."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(10, name="head")(nn.tanh(nn.Dense(4, name="body")(x.reshape(len(x), -1))))


SHORT = {
    "model": TwoLayers(),
    "evaluate_clients": True,
    "clients_axis": "map",
    "num_rounds": 4,
    "eval_every": 2,
    "local_optimizer": MOMENTUM,
}


@pytest.fixture(scope="module")
def run(settings):
    @functools.cache
    def once(method, **changes):
        return fd.simulate(method, **settings(**SHORT | changes))

    return once


@pytest.mark.thorough
def test_ditto_without_its_pull_is_local_training_beside_fedavg(run, fedavg):
    """Of the optimizer too, whose momentum both models have."""
    both, alone, plain = run(ditto(lam=0.0)), run(local_only()), run(fedavg)
    chex.assert_trees_all_close(both.params, plain.params, rtol=1e-5, atol=1e-6)
    chex.assert_trees_all_close(both.state.clients.own, alone.state.clients.own, rtol=1e-5, atol=1e-6)
    for name in OWN:
        np.testing.assert_allclose(both.history[name], alone.history[name], rtol=1e-6)
    for name in ("client_accuracy", "test_accuracy", "train_loss", "bytes_up"):
        np.testing.assert_allclose(both.history[name], plain.history[name], rtol=1e-5)
    assert (alone.cost.bytes_up, alone.cost.bytes_down) == (0, 0)
    assert np.nanmax(np.abs(both.history["own_accuracy"] - both.history["client_accuracy"])) > 0.1


@pytest.mark.thorough
def test_fedper_without_layers_is_fedavg_and_own_models_are_the_global_one(run, fedavg):
    nothing, plain = run(fedper(())), run(fedavg)
    chex.assert_trees_all_close(nothing.params, plain.params, rtol=1e-6)
    np.testing.assert_array_equal(nothing.history["own_accuracy"], nothing.history["client_accuracy"])
    np.testing.assert_array_equal(nothing.history["client_accuracy"], plain.history["client_accuracy"])


@pytest.mark.thorough
def test_apfl_between_the_global_and_a_local_model(run, fedavg):
    plain, local = run(fedavg), run(local_only())
    for alpha, name, other in ((0.0, "client_accuracy", plain), (1.0, "own_accuracy", local)):
        mixed = run(apfl(alpha))
        np.testing.assert_allclose(mixed.history["own_accuracy"], other.history[name], rtol=1e-6)
        chex.assert_trees_all_close(mixed.params, plain.params, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_per_fedavg_without_adaptation_is_fedavg_on_half_of_each_batch(settings, fedavg, digits):
    """Where every example is there twice, at an even and an odd place, the half is the whole."""
    rows, counts = np.repeat(digits.rows[:, :9], 2, axis=1), np.minimum(2 * digits.counts, 18)
    twice = settings(data=dataclasses.replace(digits, rows=rows, counts=counts.astype(np.int32)), batch_size="full")
    plain = fd.simulate(fedavg, **twice)
    for variant in ("first_order", "hessian_free"):
        chex.assert_trees_all_close(
            fd.simulate(per_fedavg(alpha=0.0, variant=variant), **twice).params, plain.params, rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("work", [{"local_steps": 5}, {"local_epochs": 2, "local_steps": None}], ids=["full", "epochs"])
def test_per_fedavg_takes_a_single_example_for_both_halves(settings, fedavg, digits, work):
    """Of clients that have one, beside which the padding of a batch has others."""
    single = dataclasses.replace(digits, rows=digits.rows[:, :3], counts=np.ones_like(digits.counts))
    single = settings(data=single, **{"batch_size": "full", **work})
    plain, halves = fd.simulate(fedavg, **single), fd.simulate(per_fedavg(alpha=0.0), **single)
    chex.assert_trees_all_close(halves.params, plain.params, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_pfedme_tends_to_fedavg(run, fedavg):
    """For a strong pull, with inner steps that are as small."""
    plain = run(fedavg, local_optimizer=None).params
    distance = []
    for lam in (30.0, 300.0):
        held = run(pfedme(lam=lam, inner_steps=2, inner_step_size=1 / lam), local_optimizer=None).params
        distance.append(float(tree.norm(tree.subtract(held, plain))))
    assert distance[1] < 0.2 * distance[0] < 0.1


@pytest.mark.thorough
def test_fine_tuning_changes_nothing_of_the_run(run, fedavg):
    tuned, plain = run(fine_tune(3)), run(fedavg)
    same_bits(tuned.params, plain.params)
    np.testing.assert_array_equal(tuned.history["client_accuracy"], plain.history["client_accuracy"])
    assert np.nanmean(tuned.history["own_accuracy"][-1]) > np.nanmean(plain.history["client_accuracy"][-1])


def test_layers_that_stay_are_in_no_message_and_the_others_are_all_that_rules_see(run):
    method = fedper("head", aggregator=fd.aggregators.krum(num_byzantine=1))
    result = run(method, attack=fd.attacks.gaussian(3.0), num_byzantine=2)
    body = 4 * sum(x.size for x in jax.tree.leaves(result.params["body"]))
    assert (result.cost.bytes_up, result.cost.bytes_down) == (body, body)
    assert result.state.params["head"] == {"kernel": None, "bias": None}
    same_bits(result.params["head"], result.state.model.frozen["head"])
    heads = result.state.clients.own.rows["head"]["kernel"]
    assert heads.shape == (12, 4, 10)
    drawn = np.unique(result.history["client_ids"])
    assert (np.abs(heads[drawn] - result.params["head"]["kernel"]).max((1, 2)) > 0).all()
    assert np.isnan(result.history["own_accuracy"][-1]).sum() == 2, "of malicious clients"


@pytest.mark.thorough
def test_fedrep_takes_a_share_of_each_clients_own_steps(settings):
    """Two epochs of clients with one and three batches: half of their steps are one epoch, on the head."""
    sizes = (4, 12)
    draw = np.random.default_rng(0).standard_normal
    own = [(draw((size, 3), np.float32), np.arange(size) % 2) for size in sizes]
    data = fd.data.from_clients(own, test=own[0], num_classes=10)
    few = {"model": TwoLayers(), "data": data, "cohort_size": 2, "num_rounds": 1, "eval_every": 1, "local_steps": None}
    few |= {"local_epochs": 2, "batch_size": 4, "num_byzantine": 0}
    heads = lambda steps: fd.simulate(fedrep("head", steps), **settings(**few)).state.clients.own.rows["head"]
    by_share = heads(0.5)
    for client, steps in enumerate((1, 3)):
        of_client = lambda leaf, client=client: np.asarray(leaf[client])
        same_bits(jax.tree.map(of_client, by_share), jax.tree.map(of_client, heads(steps)))
    with pytest.raises(ValueError, match="head_steps"):
        fedrep("head", 1.5)


METHODS = {"ditto": ditto(), "fedrep": fedrep("head", head_steps=1), "fine_tune": fine_tune(2)}
every_method = pytest.mark.parametrize("name", METHODS)


@pytest.mark.optimised
@pytest.mark.slow
@every_method
def test_wherever_rows_are_and_however_often_a_run_is_interrupted_the_bits_are_the_same(run, settings, name):
    whole = run(METHODS[name])
    half = run(METHODS[name], num_rounds=2)
    for place in ("host", "disk", "device"):
        there = run(METHODS[name], client_state=place)
        same_bits(jax.tree.map(np.asarray, there.state), jax.tree.map(np.asarray, whole.state))
        same_bits(there.history, whole.history)
        rest = fd.simulate(METHODS[name], initial=half.state, client_state=place, **settings(**SHORT))
        same_bits(jax.tree.map(np.asarray, rest.state), jax.tree.map(np.asarray, whole.state))
        for column in OWN:
            np.testing.assert_array_equal(rest.history[column][0], whole.history[column][1])


@pytest.mark.optimised
@pytest.mark.slow
@every_method
@pytest.mark.parametrize("clients", [12, 11])
def test_over_two_devices_and_for_several_clients_at_once(run, name, clients):
    """Of eleven clients the devices evaluate one twice."""
    data = fd.data.partition.dirichlet(fd.data.load("digits"), num_clients=clients, beta=0.3, seed=0)
    alone = run(METHODS[name], cohort_size=4, data=data)
    mesh = Mesh(jax.devices()[:2], ("clients",))
    for changes in ({"mesh": mesh}, {"clients_axis": "vmap"}, {"clients_per_chunk": 3}):
        other = run(METHODS[name], cohort_size=4, data=data, **changes)
        for column in OWN:
            np.testing.assert_allclose(other.history[column], alone.history[column], atol=0.02)


@pytest.mark.slow
def test_examples_that_devices_divide(run):
    mesh = {"mesh": Mesh(jax.devices()[:2], ("clients",)), "cohort_size": 4}
    whole = run(ditto(), **mesh)
    same_bits(run(ditto(), shard_data=True, **mesh).history, whole.history)
    with pytest.raises(ValueError, match="shard_data=True: fine_tune trains clients' own models where they are eval"):
        run(fine_tune(2), shard_data=True, **mesh)


@pytest.mark.optimised
@pytest.mark.slow
def test_cells_of_a_sweep_are_the_separate_runs(settings):
    common = settings(model=TwoLayers(), evaluate_clients=True, clients_axis="map")
    for method in (lambda x: ditto(lam=x), lambda x: fine_tune(2, step_size=x)):
        cells = [Settings(method(x), **common) for x in (0.1, 1.0)]
        for cell, found in zip(cells, prepare_batch(cells).run([0, 1]), strict=True):
            same_bits(trace(cell).run().history, found.history)


@pytest.mark.thorough
@pytest.mark.parametrize("method", [local_only(), fine_tune(steps=3)])
def test_clients_with_test_examples_of_their_own(method):
    """Their labels are none of those that the client trains on, so that training examples in their place would show."""
    rng = np.random.default_rng(0)
    make = lambda labels, number: (rng.normal(size=(number, 4)).astype(np.float32), rng.choice(labels, number))
    clients = [make([0, 1], 12 + client) for client in range(4)]
    tests = [make([2, 3], 5 + client) for client in range(4)]
    data = fd.data.from_clients(clients, client_test=tests)
    options = {"model": fd.models.mlp(4, hidden=()), "data": data, "evaluate_clients": True, "step_size": 0.5}
    options |= {"num_rounds": 3, "eval_every": 3, "cohort_size": 4, "local_steps": 4, "batch_size": 4}
    whole = fd.simulate(method, **options)
    cells = [Settings(algorithm=method, **options | {"seed": seed}) for seed in (0, 1)]
    cell = prepare_batch(cells).run([0, 1])[0]
    np.testing.assert_array_equal(cell.history["own_accuracy"], whole.history["own_accuracy"])
    if method == local_only():
        for client, (x, y) in enumerate(tests):
            own = tree.take(whole.state.clients.own.rows, client)
            outputs = options["model"].apply({"params": own}, data.preprocess(x))
            found = whole.history["own_accuracy"][-1, client]
            np.testing.assert_allclose(found, (outputs.argmax(-1) == y).mean(), rtol=1e-6)
    assert whole.history["own_accuracy"].max() < 0.5, "trained for other labels"
    assert whole.history["client_accuracy"].max() < 0.5


def test_fedbn_keeps_what_normalises_and_its_statistics(run, digits):
    """Once more with plain Flax, client by client."""
    result = run(fedbn("bn"), model=Net(rate=0.0), evaluate_clients=0.3, batch_size=8)
    rows, statistics = result.state.clients.own.rows, result.state.clients.statistics.rows
    assert {name for name, leaves in rows.items() if jax.tree.leaves(leaves)} == {"bn"}
    assert result.cost.bytes_up == 4 * (65 * 16 + 17 * 10)
    for client in (1, 5):
        own, stats = jax.tree.map(lambda leaf, client=client: leaf[client], (rows, statistics))
        held = max(round(0.3 * digits.counts[client]), 1)
        places = digits.rows[client, digits.counts[client] - held : digits.counts[client]]
        params = {**result.params, "bn": own["bn"]}
        x, y = digits.preprocess(digits.train.x[places]), digits.train.y[places]
        found = Net(rate=0.0).apply({"params": params, **stats}, x, train=False).argmax(-1) == y
        np.testing.assert_allclose(result.history["own_accuracy"][-1][client], found.mean(), rtol=1e-6)
    assert np.ptp(rows["bn"]["scale"], axis=0).max() > 0


@pytest.mark.thorough
def test_adapters_that_stay_are_those_of_their_layer(run):
    model = fd.models.lora(TwoLayers(), rank=2)
    result = run(fedper("head"), model=model)
    assert result.cost.bytes_up == 4 * (64 * 2 + 2 * 4), "the body's adapters"
    rows = result.state.clients.own.rows
    assert {name: leaf is not None for name, leaf in rows["head"].items()} == {
        "kernel": False,
        "bias": False,
        "lora_a": True,
        "lora_b": True,
    }


@pytest.mark.thorough
def test_other_metrics_than_accuracy(settings):
    draw = np.random.default_rng(0).standard_normal
    x = draw((200, 3), np.float32)
    y = x @ draw(3, np.float32)
    fed = fd.data.partition.iid(fd.data.from_arrays(x[:160], y[:160], x[160:], y[160:]), num_clients=5)
    options = {"data": fed, "model": fd.models.mlp(1, hidden=()), "loss": fd.losses.mse(), "evaluate_clients": True}
    metrics = [fd.metrics.mean_squared_error()]
    history = fd.simulate(local_only(), **settings(**options, metrics=metrics, num_rounds=30, cohort_size=5)).history
    errors = history["own_mean_squared_error"]
    assert (errors[-1] < 0.5 * errors[0]).all()
    np.testing.assert_allclose(history["own_mean_squared_error_worst_tenth"], errors.max(1), rtol=1e-6)


TRAINED = {
    "ditto": ditto(aggregator=fd.aggregators.br_drag(c=0.5)),
    "fedper": fedper("head", aggregator=fd.aggregators.krum()),
    "fedrep": fedrep("head", head_steps=6, aggregator=fd.aggregators.median()),
    "lg_fedavg": fd.algorithms.lg_fedavg("body", aggregator=fd.aggregators.trimmed_mean(0.2)),
    "pfedme": pfedme(lam=5.0, aggregator=fd.aggregators.br_drag(c=0.5)),
    "per_fedavg": per_fedavg(alpha=0.1, aggregator=fd.aggregators.br_drag(c=0.5)),
    "apfl": apfl(adaptive=True, aggregator=fd.aggregators.median()),
    "fine_tune": fine_tune(aggregator=fd.aggregators.br_drag(c=0.5)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINED)
def test_trains_under_attack_by_any_rule(run, name):
    attack = {"attack": fd.attacks.sign_flip(), "byzantine_fraction": 0.2, "root_size": 50}
    length = {"num_rounds": 60, "eval_every": 30, "cohort_size": 10, "local_steps": 10, "local_optimizer": None}
    history = run(TRAINED[name], **attack, **length).history
    assert history["own_accuracy_mean"][-1] > 0.65
    assert np.isfinite(history["train_loss"]).all()


def test_a_configuration_names_them():
    config = {
        "data": {"name": "synthetic", "num_examples": 60, "num_test_examples": 20, "dim": 8},
        "partition": {"name": "iid", "num_clients": 6},
        "model": {"name": "mlp", "hidden": [4]},
        "algorithm": {"name": "fedrep", "layers": ["Dense_1"], "head_steps": 1},
        "aggregator": {"name": "krum", "num_byzantine": 1},
        "rounds": 2,
        "cohort_size": 6,
        "local_steps": 2,
        "batch_size": 4,
        "step_size": 0.1,
        "evaluate_clients": True,
        "time_clients": False,
    }
    result = fd.run(config)
    assert result.cost.bytes_up == 4 * 9 * 4
    assert result.history["own_accuracy"].shape[1] == 6
