"""Runs on eight devices, two shares of the clients by four parts of the model; started by ``test_model_sharding.py``.

Arguments: a folder, and perhaps names. It leaves there ``NAME.npz``, with the leaves of the outcome on one device
(``one-0`` ...) and on all (``all-0`` ...). Names are those of runs of a transformer, and of rules on deltas alone.
"""

import sys
from pathlib import Path

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import fedjax_drag as fd
from fedjax_drag.simulation.devices.model_sharding import spec_of, specs_of
from fedjax_drag.simulation.devices.placement import placement, resolve_mesh, split_coordinates

RULES = fd.aggregators


def transformer(**options):
    """A tiny one."""
    return fd.models.transformer(32, layers=1, heads=4, width=16, max_length=8, **options)


ATTACK = {"attack": fd.attacks.sign_flip(), "byzantine_fraction": 0.25}
RUNS = {
    "fedavg": (RULES.fedavg(), {}),
    "scaffold": (fd.algorithms.scaffold(8), {}),
    "drag": (RULES.drag(), {}),
    "br_drag": (RULES.br_drag(), ATTACK | {"root_size": 16}),
    "krum": (RULES.krum(1), ATTACK),
    "host": (fd.algorithms.scaffold(8), {"client_state": "host"}),
    "disk": (fd.algorithms.scaffold(8), {"client_state": "disk"}),
    "shard_data": (RULES.fedavg(), {"shard_data": True}),
    "compressed": (RULES.fedavg(), {"compression": fd.compression.error_feedback(fd.compression.top_k(0.2))}),
    "own models": (fd.algorithms.ditto(8), {"evaluate_clients": 0.25, "client_state": "host"}),
    "scanned": (RULES.fedavg(), {"model": transformer(scan_layers=True)}),
}
"""A rule or method, and settings."""

ALONE = {
    "rfa": RULES.rfa(),
    "geometric_median": RULES.geometric_median(),
    "median": RULES.median(),
    "trimmed_mean": RULES.trimmed_mean(),
    "nnm": RULES.nnm(aggregator=RULES.krum(1), num_byzantine=1),
    "bulyan": RULES.bulyan(1),
}
"""Rules that compare clients, on deltas of eight."""

MESH = {"clients": 2, "model": 4}


def settings():
    """Of a transformer that learns sequences of tokens."""
    texts = ((np.arange(96)[:, None] * 3 + np.arange(7) * 2) % 32).astype(np.int32)
    data = fd.data.from_arrays(texts[:, :-1], texts[:, -1], texts[:32, :-1], texts[:32, -1])
    return {
        "model": transformer(),
        "data": fd.data.partition.iid(data, num_clients=8, seed=0),
        "num_rounds": 3,
        "cohort_size": 4,
        "local_steps": 2,
        "batch_size": 4,
        "step_size": 0.1,
        "eval_every": 3,
    }


def run(name):
    """The state of a run on one device, and on all."""
    method, changes = RUNS[name]
    asked = settings() | changes
    whole = fd.simulate(method, mesh=MESH, **asked)
    kernel = whole.params.get("blocks", whole.params.get("Block_0"))["mlp_in"]["kernel"]
    assert {shard.data.shape[-2:] for shard in kernel.addressable_shards} == {(16, 16)}, kernel.sharding
    one = fd.simulate(method, mesh=None, **asked | {"shard_data": False})
    return [[ended.state, dict(ended.history)] for ended in (one, whole)]


def aggregate(name):
    """Parameters and state of a rule after a round on one device, and on all."""
    rule, rng, number = ALONE[name], np.random.default_rng(0), 8
    shapes = {
        "Block_0": {"mlp_in": {"kernel": (16, 64), "bias": (64,)}, "mlp_out": {"kernel": (64, 16)}},
        "tokens": {"embedding": (32, 5)},
        "scale": (),
    }
    is_shape = lambda x: isinstance(x, tuple)
    params = jax.tree.map(lambda shape: np.zeros(shape, np.float32), shapes, is_leaf=is_shape)
    spread = lambda shape: np.linspace(1, 3, number).reshape(-1, *[1] * len(shape)).astype(np.float32)
    draw = lambda shape: spread(shape) * rng.normal(size=(number, *shape)).astype(np.float32)
    deltas = jax.tree.map(draw, shapes, is_leaf=is_shape)
    one = jax.jit(rule.apply)(params, deltas, rule.init(params))

    mesh = resolve_mesh(MESH, number)
    specs = specs_of([*fd.models.transformer(8).sharding_rules, ("tokens", P("model"))], params, mesh)

    def on_clients(path, x):
        return jax.device_put(x, NamedSharding(mesh, P("clients", *spec_of(path, x.shape, specs)[1:])))

    divided = jax.tree_util.tree_map_with_path(on_clients, deltas)
    state = rule.init(params)
    params, state = (jax.device_put(tree, placement(tree, mesh, specs)) for tree in (params, state))
    return one, jax.jit(lambda p, d, s: rule.apply(p, split_coordinates(d, mesh, specs), s))(params, divided, state)


def main(folder, *names):
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_disable_most_optimizations", True)
    for name in names or [*RUNS, *ALONE]:
        sides = dict(zip(("one", "all"), jax.device_get((run if name in RUNS else aggregate)(name)), strict=True))
        leaves = {f"{side}-{i}": leaf for side, found in sides.items() for i, leaf in enumerate(jax.tree.leaves(found))}
        np.savez(Path(folder) / f"{name}.npz", **leaves)


if __name__ == "__main__":
    main(*sys.argv[1:])
