"""Wrong settings: one line naming the setting, its value and what is allowed, before anything is computed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import fedjax_drag as fd
from fedjax_drag.compression import Compressor
from fedjax_drag.ops.rules import PlainAggregator, SummedAggregator
from fedjax_drag.ops.weighted import WeightedAggregator
from fedjax_drag.types import Aggregator, ClientRule, Downlink


class Flat(nn.Module):
    outputs: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.outputs)(x.reshape(x.shape[0], -1))


class Normalised(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(10)(nn.BatchNorm(use_running_average=False)(x.reshape(x.shape[0], -1)))


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"cohort_size": 13}, ["cohort_size=13", "[1, 12]"]),
        ({"cohort_size": 0}, ["cohort_size=0"]),
        ({"num_rounds": 0}, ["num_rounds=0"]),
        ({"local_steps": 2.5}, ["local_steps=2.5", "integer"]),
        ({"batch_size": -1}, ["batch_size=-1"]),
        ({"step_size": 0.0}, ["step_size=0.0"]),
        ({"step_size": float("nan")}, ["step_size=nan"]),
        ({"byzantine_fraction": 1.5}, ["byzantine_fraction=1.5", "[0, 1]"]),
        ({"clients_axis": "vmpa"}, ["clients_axis='vmpa'", "vmap"]),
        ({"clients_axis": "vmap", "clients_per_chunk": 2}, ["clients_per_chunk=2"]),
        ({"nonfinite": "ignore"}, ["nonfinite='ignore'", "reject"]),
        ({"seed": -1}, ["seed=-1"]),
        ({"model": Flat(3)}, ["model", "(1, 3)", "(1, 10)"]),
        ({"model": nn.Dense(10)}, ["model", "(1, 8, 8, 10)", "(1, 10)"]),
        ({"model": Normalised()}, ["batch_stats", "in evaluation"]),
    ],
)
def test_wrong_settings(refused, fedavg, changes, parts):
    refused(parts, fedavg, **changes)


def test_data_must_be_partitioned(refused, fedavg):
    refused("split among clients", fedavg, data=fd.data.load("digits"))


@pytest.mark.parametrize("loss", [None, fd.losses.cross_entropy()])
def test_a_single_class_is_nothing_to_learn(refused, fedavg, loss):
    x, y = np.zeros((12, 3), np.float32), np.zeros(12, int)
    data = fd.data.partition.iid(fd.data.from_arrays(x, y, x, y), num_clients=12)
    refused("1 classes.*: must have two or more for cross_entropy, which is 0 for one", fedavg, data=data, loss=loss)


def test_krum_needs_a_large_enough_cohort(refused):
    algorithm = fd.algorithms.from_aggregator(fd.aggregators.krum(num_byzantine=3))
    refused("num_byzantine=3: must be at most S - 3 = 2", algorithm)


def test_an_extra_that_does_not_exist_is_refused(refused):
    """A misspelt name that is ignored leaves the rule without what it asked for."""
    rule = fd.aggregators.fedavg()._replace(needs=frozenset({"num_example"}))
    refused(
        r"^algorithm=fedavg: needs='num_example': must be one of client_ids, round.*",
        fd.algorithms.from_aggregator(rule),
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split": "rows"}, "algorithm=fedavg: split='rows': must be one of clients, coordinates"),
        (
            {"eligible": lambda state: jnp.ones(3, bool)},
            r"eligible of the method: returns \(3,\) bool: must be \(12,\) bool",
        ),
        (
            {"eligible": lambda state: jnp.ones(12)},
            r"eligible of the method: returns \(12,\) float32: must be \(12,\) bool",
        ),
        ({"output": lambda params, state: None}, "output of the method: is of type NoneType; must have the structure"),
        ({"broadcast": lambda params, state, ids: params}, "broadcast of the method: returns a dict; must return a"),
        (
            {"broadcast": lambda params, state, ids: Downlink(jax.tree.map(lambda p: p[:1], params))},
            r"start of the downlink\['Dense_0'\]\['bias'\] with shape \(1,\): must be \(10,\), as in the parameters",
        ),
        (
            {"broadcast": lambda params, state, ids: Downlink(jax.tree.map(lambda p: p.astype(int), params))},
            r"start of the downlink\['Dense_0'\]\['bias'\] of type int32: must stay float32",
        ),
        (
            {"broadcast": lambda params, state, ids: Downlink(params, own=jnp.ones(3))},
            r"own of the downlink with shape \(3,\): must have one entry for each of 5 clients",
        ),
    ],
)
def test_a_method_that_breaks_its_contract(refused, fedavg, changes, message):
    """Masks and rows of other lengths would be read beyond their ends, which JAX clamps."""
    refused(f"^{message}", fedavg._replace(**changes))


def test_a_message_keeps_its_shapes_and_types(refused):
    shorter = lambda key, uplink: jax.tree.map(lambda x: x.astype(jnp.bfloat16), uplink)
    client = fd.types.ClientRule(direction=fd.clients.sgd().direction, send=shorter)
    refused(
        r"^send of the client rule: returns delta.* bfloat16: must be .* float32",
        fd.algorithms.from_aggregator(fd.aggregators.median(), client),
    )


def test_root_data_need_benign_examples(refused):
    algorithm = fd.algorithms.from_aggregator(fd.aggregators.br_drag())
    refused("root_size=100000", algorithm, root_size=100_000)
    refused(
        "every client is malicious; root_source='all' takes them from all clients",
        algorithm,
        attack=fd.attacks.sign_flip(),
        byzantine_fraction=1.0,
    )
    refused("root_source='bening': must be one of benign, all", algorithm, root_source="bening")


@pytest.mark.parametrize(
    ("direction", "message"),
    [
        (
            lambda g, w, c, d, b: (0.0, c),
            "direction: is of type float; must have the structure of the parameters",
        ),
        (
            lambda g, w, c, d, b: (jax.tree.map(lambda leaf: leaf[:1], g(w, b)), c),
            r"direction\['Dense_0'\]\['bias'\] with shape \(1,\): must be \(10,\), as in the parameters",
        ),
        (
            lambda g, w, c, d, b: (g(w, b), {"m": 1.0}),
            "carry after a step: is of type dict; must have",
        ),
        (lambda g, w, c, d, b: g(w, b), "direction: returns a dict; must return"),
        (
            lambda g, w, c, d, b: (jax.tree.map(lambda leaf: leaf + 1j, g(w, b)), c),
            "direction: is complex; must be real",
        ),
    ],
)
def test_a_client_rule_that_breaks_its_contract(refused, direction, message):
    client = fd.types.ClientRule(direction=direction)
    refused(f"^{message}", fd.algorithms.from_aggregator(fd.aggregators.median(), client))


@pytest.mark.thorough
def test_a_carry_keeps_its_types(settings):
    """Plain numbers change theirs, as in a scan of JAX."""

    def prepared(begin):
        client = fd.types.ClientRule(begin=begin, direction=lambda g, w, c, d, b: (g(w, b), c + 0.5))
        return fd.simulation.prepare(fd.algorithms.from_aggregator(fd.aggregators.median(), client), **settings())

    prepared(lambda downlink: 0.0)
    prepared(lambda downlink: 0)
    with pytest.raises(ValueError, match=r"^carry after a step of type float32: must stay int32"):
        prepared(lambda downlink: jnp.zeros((), int))


@pytest.mark.parametrize("name", ["validation_accuracy", "drawn", 1])
def test_metrics_of_a_rule_do_not_pose_as_other_columns(refused, fedavg, name):
    rule = fedavg._replace(init=lambda params: fedavg.init(params)._replace(metrics={name: jnp.zeros(())}))
    refused(f"^init of the rule: metrics have the name {name!r}; must be a text", rule)


@pytest.mark.parametrize(
    ("apply", "message"),
    [
        (lambda p, d, s, **_: (d, s), "params that the rule returns.* with shape"),
        (lambda p, d, s, **_: (p, None), "state that the rule returns: is of type NoneType"),
    ],
)
def test_a_rule_that_breaks_its_contract(refused, apply, message):
    rule = fd.types.Aggregator(fd.aggregators.median().init, apply)
    refused(f"^{message}", rule)


@pytest.mark.thorough
def test_state_of_another_algorithm(refused, settings, fedavg):
    other = fd.simulate(fd.algorithms.scaffold(12), **settings(num_rounds=1)).state
    refused("another algorithm", fedavg, initial=other)


@pytest.mark.parametrize(
    ("base", "method"),
    [
        (Aggregator, "init"),
        (WeightedAggregator, "weigh"),
        (PlainAggregator, "combine"),
        (SummedAggregator, "accumulate"),
        (ClientRule, "direction"),
        (Compressor, "num_bytes"),
    ],
)
def test_a_class_without_a_method(refused, fedavg, base, method):
    own = type("own", (base,), {})()
    rule, changes = (own, {}) if isinstance(own, Aggregator) else (fedavg, {})
    if base is ClientRule:
        rule = fd.algorithms.from_aggregator(fd.aggregators.fedavg(), client=own)
    if base is Compressor:
        changes = {"compression": own}
    refused(f"^own: must define {method}", rule, **changes)
