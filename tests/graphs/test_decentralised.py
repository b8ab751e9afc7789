"""Runs on graphs: what they must equal, how fast they agree, what they withstand, and where they may run."""

import functools

import chex
import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from tiny import TINY

import fedjax_drag as fd
from fedjax_drag import graphs
from fedjax_drag.algorithms import decentralised
from fedjax_drag.graphs import mixing
from fedjax_drag.per_client import PerClient
from fedjax_drag.simulation import trace
from fedjax_drag.simulation.batch import prepare_batch
from fedjax_drag.simulation.settings import Settings

close = functools.partial(chex.assert_trees_all_close, rtol=1e-5, atol=1e-6)
same_bits = functools.partial(chex.assert_trees_all_equal, strict=True)


def test_gossip_on_a_complete_graph_is_fedavg(run):
    """Round for round; everybody has the mean, so that own models are the global one."""
    options = {"evaluate_clients": True, "eval_every": 1}
    alone, plain = run(decentralised(graphs.complete()), **options), run(fd.aggregators.fedavg(), **options)
    close(alone.params, plain.params)
    for name in ("test_accuracy", "test_loss", "train_loss", "client_accuracy"):
        np.testing.assert_allclose(alone.history[name], plain.history[name], rtol=1e-5)
    np.testing.assert_allclose(alone.history["own_accuracy"], alone.history["client_accuracy"], rtol=1e-6)
    assert alone.history["consensus_distance"].max() < 1e-10
    np.testing.assert_allclose(alone.history["weight"], 1 / 12, rtol=1e-5)
    assert alone.cost.bytes_up == alone.cost.bytes_down == 11 * plain.cost.bytes_up


@pytest.mark.parametrize(
    "graph",
    [
        graphs.ring(),
        pytest.param(graphs.torus(2), marks=pytest.mark.thorough),
        pytest.param(graphs.random_regular(4), marks=pytest.mark.thorough),
    ],
    ids=lambda graph: graph.name,
)
def test_models_agree_as_fast_as_the_spectral_gap_says(graph):
    """On quadratics of the same curvature, from models that differ along the slowest eigenvector."""
    nodes, step_size = 12, 0.05
    ones = np.ones((2, 1), np.float32)
    data = fd.data.from_clients([(ones, 0 * ones[:, 0])] * nodes, test=(ones, 0 * ones[:, 0]), mean=(0.0,), std=(1.0,))
    model = (lambda key: {"w": jax.numpy.zeros((1, 1))}, lambda params, x: x @ params["w"])
    simulation = fd.simulation.prepare(
        decentralised(graph),
        model=model,
        data=data,
        loss=fd.losses.mse(),
        metrics=[fd.metrics.mean_squared_error()],
        num_rounds=6,
        cohort_size=nodes,
        local_steps=1,
        batch_size="full",
        step_size=step_size,
        eval_every=1,
        time_clients=False,
    )
    values, vectors = np.linalg.eigh(graph.weights(nodes))
    slowest = vectors[:, np.argsort(np.abs(values))[-2]].astype(np.float32)
    state = simulation.initial_state()
    apart = state.algorithm._replace(models=PerClient({"w": jax.numpy.asarray(slowest[:, None, None])}))
    distance = simulation.run(initial=state._replace(algorithm=apart)).history["consensus_distance"]
    local = 1 - 2 * step_size  # of the gradient 2 w
    wanted = 1 / nodes * (local * (1 - graphs.spectral_gap(graph, nodes))) ** (2 * np.arange(1, 7))
    np.testing.assert_allclose(distance, wanted, rtol=1e-4)


NODE_ATTACKS = {
    "sign_flip": fd.attacks.sign_flip(10.0),
    "alie": fd.attacks.alie(z=20.0),
    "ipm": fd.attacks.ipm(epsilon=20.0),
    "dissensus": fd.attacks.dissensus(2.0),
}
ROBUST = {
    "clippedgossip": mixing.clippedgossip(num_byzantine=3),
    "trimmed mean": mixing.from_rule(fd.aggregators.trimmed_mean(0.34)),
    "krum": mixing.from_rule(fd.aggregators.multi_krum(num_byzantine=2, num_selected=3)),
    "nnm": mixing.from_rule(fd.aggregators.nnm(fd.aggregators.median(), num_byzantine=2)),
}
FAST = (("dissensus", "trimmed mean"),)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("attack", "defence"),
    [
        pytest.param(attack, defence, marks=[] if (attack, defence) in FAST else pytest.mark.slow)
        for attack in NODE_ATTACKS
        for defence in ROBUST
    ],
)
def test_robust_mixing_trains_under_attack_and_gossip_does_not(run, attack, defence):
    told = {"attack": NODE_ATTACKS[attack], "num_byzantine": 2, "num_rounds": 20, "eval_every": 20}
    told |= {"evaluate_clients": True, "step_size": 0.5}
    graph = graphs.random_regular(8)
    plain, robust = (run(decentralised(graph, mix), **told).history for mix in (mixing.gossip(), ROBUST[defence]))
    for name in ("own_accuracy_mean", "own_accuracy_worst_tenth"):
        assert robust[name][-1] > 0.75
        assert plain[name][-1] < 0.6
    assert robust["malicious_weight"][-1] < plain["malicious_weight"][-1]
    assert np.isnan(robust["own_accuracy"][-1]).sum() == 2, "of malicious clients"


@pytest.mark.thorough
def test_who_is_missing_keeps_its_model_and_the_others_do_without_it(run):
    half = run(decentralised(graphs.ring()), availability=0.5, num_rounds=1, eval_every=1)
    there = half.history["valid"][-1]
    assert 0 < there.sum() < 12
    models = half.state.algorithm.models.rows["Dense_0"]["kernel"]
    start = run(decentralised(graphs.ring()), num_rounds=1, eval_every=1, step_size=1e-30).params["Dense_0"]["kernel"]
    np.testing.assert_array_equal(np.abs(models - start).max((1, 2)) > 1e-6, there)
    np.testing.assert_allclose(half.history["weight"][-1].sum(), 1, rtol=1e-5)
    assert not half.history["weight"][-1][~there].any()


@pytest.mark.thorough
def test_a_smaller_cohort_mixes_among_those_who_are_in_it(run):
    some = run(decentralised(graphs.complete()), cohort_size=5, num_rounds=1, eval_every=1)
    plain = run(fd.aggregators.fedavg(), cohort_size=5, num_rounds=1, eval_every=1)
    models = some.state.algorithm.models.rows["Dense_0"]["kernel"]
    moved = np.abs(models - models[np.setdiff1d(np.arange(12), some.history["client_ids"][-1])[0]]).max((1, 2)) > 0
    np.testing.assert_array_equal(np.flatnonzero(moved), some.history["client_ids"][-1])
    close(some.params, plain.params)


@pytest.mark.thorough
def test_a_message_that_is_not_finite_is_not_mixed(run):
    broken = fd.attacks.gaussian(sigma=3e38)
    history = run(decentralised(graphs.ring()), attack=broken, num_byzantine=2, evaluate_clients=True).history
    assert history["num_rejected"][-1] >= 2
    assert np.isfinite(history["test_loss"]).all()
    assert np.isfinite(history["consensus_distance"]).all()


METHODS = {
    "gossip": decentralised(graphs.changing(graphs.ring())),
    "clippedgossip": decentralised(graphs.torus(3), mixing.clippedgossip(), client=fd.clients.momentum_sgd()),
}
UNDER = {"attack": fd.attacks.dissensus(1.5), "num_byzantine": 2, "evaluate_clients": True}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["gossip", pytest.param("clippedgossip", marks=pytest.mark.slow)])
def test_resumed_runs_have_the_same_bits(run, options, name):
    whole, half = run(METHODS[name], **UNDER), run(METHODS[name], num_rounds=2, **UNDER)
    rest = fd.simulate(METHODS[name], initial=half.state, **options(**UNDER))
    same_bits(jax.tree.map(np.asarray, rest.state), jax.tree.map(np.asarray, whole.state))
    host = run(METHODS[name], client_state="host", **UNDER)
    same_bits(jax.tree.map(np.asarray, host.state), jax.tree.map(np.asarray, whole.state))
    same_bits(host.history, whole.history)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [pytest.param("gossip", marks=pytest.mark.slow), "clippedgossip"])
def test_two_devices_compute_the_same(run, name):
    alone, both = run(METHODS[name], **UNDER), run(METHODS[name], mesh=Mesh(jax.devices()[:2], ("clients",)), **UNDER)
    chex.assert_trees_all_close(both.params, alone.params, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(both.history["consensus_distance"], alone.history["consensus_distance"], rtol=1e-3)
    np.testing.assert_allclose(both.history["own_accuracy"], alone.history["own_accuracy"], atol=0.05)


@pytest.mark.slow
def test_clients_at_once_compute_the_same(run):
    alone = run(METHODS["gossip"], **UNDER)
    for changes in ({"clients_axis": "vmap"}, {"clients_per_chunk": 3}):
        close(run(METHODS["gossip"], **UNDER, **changes).params, alone.params)


def test_cells_of_a_sweep_are_the_separate_runs(options):
    common = options(num_byzantine=2, clients_axis="map")
    cells = [
        Settings(decentralised(graphs.ring(), mixing.clippedgossip(radius)), attack=fd.attacks.dissensus(2.0), **common)
        for radius in (0.1, 10.0)
    ]
    first, second = prepare_batch(cells).run([0, 1])
    same_bits(trace(cells[1]).run().history, second.history)
    assert (first.history["test_loss"] != second.history["test_loss"]).any()


def test_a_configuration_names_graph_and_mixing(tmp_path):
    config = TINY | {"cohort_size": 8, "num_byzantine": 1, "attack": {"name": "during", "attack": "dissensus"}}
    rule = {"name": "from_rule", "aggregator": {"name": "krum", "num_byzantine": 1}}
    method = {"name": "decentralised", "graph": {"name": "random_regular", "degree": 4}, "mixing": rule}
    result = fd.run(config | {"algorithm": method, "client": "momentum_sgd"}, out=tmp_path / "run", quiet=True)
    assert "consensus_distance" in result.history
    with pytest.raises(ValueError, match=r"algorithm\.graph\.degree=1: must be an integer >= 2"):
        fd.run(config | {"algorithm": method | {"graph": {"name": "random_regular", "degree": 1}}})


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        (
            fd.aggregators.fedavg(),
            UNDER,
            "attack=dissensus: sends another message to each neighbour; must be used",
        ),
        (
            METHODS["gossip"],
            {"compression": fd.compression.top_k(0.1)},
            "compression=.*must be None with algorithm",
        ),
        (METHODS["gossip"], {"secure_aggregation": True}, "secure_aggregation=True: decentralised has no form of sums"),
        (METHODS["gossip"], {"aggregation": "stream"}, "aggregation='stream'"),
        (decentralised(graphs.torus(5)), {}, "rows=5: must divide the 12 clients"),
        (
            decentralised(graphs.ring()),
            {"selection": fd.selection.asynchronous(concurrency=4), "clock": fd.clocks.constant()},
            "selection=asynchronous: must be one whose clients start in the round, as decentralised has no server",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(options, method, changes, message):
    with pytest.raises(ValueError, match=message) as error:
        fd.simulation.prepare(method, **options(**changes))
    assert "\n" not in str(error.value)


def test_a_client_rule_that_changes_what_it_sends_is_refused():
    with pytest.raises(ValueError, match="changes what it sends; must send what it computes"):
        decentralised(graphs.ring(), client=fd.privacy.local_dp(fd.clients.sgd(), 1.0, 1.0))


@pytest.mark.thorough
def test_groups_resume_are_cells_of_a_sweep_and_run_on_two_devices(options):
    """Rules that keep a state in the groups and above."""

    def rule(c):
        above = fd.aggregators.drag(c=0.25)
        return fd.algorithms.from_aggregator(fd.aggregators.hierarchical(3, fd.aggregators.drag(c=c), above))

    common = options(clients_axis="map")
    whole, half = fd.simulate(rule(0.5), **common), fd.simulate(rule(0.5), **common | {"num_rounds": 2})
    rest = fd.simulate(rule(0.5), initial=half.state, **common)
    same_bits(jax.tree.map(np.asarray, rest.state), jax.tree.map(np.asarray, whole.state))
    other, cell = prepare_batch([Settings(rule(c), **common) for c in (0.1, 0.5)]).run([0, 1])
    same_bits(cell.history, whole.history)
    assert (other.history["test_loss"] != cell.history["test_loss"]).any()
    both = fd.simulate(rule(0.5), **common | {"mesh": Mesh(jax.devices()[:2], ("clients",))})
    chex.assert_trees_all_close(both.params, whole.params, rtol=1e-4, atol=1e-5)
