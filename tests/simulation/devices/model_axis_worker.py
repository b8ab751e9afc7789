"""Runs on eight devices, two shares of the clients by four parts of the model; started by ``test_model_sharding.py``.

Arguments: a folder, and perhaps names of cases. It leaves there ``NAME.npz``, with the leaves of the state from one
device (``one-0`` ...) and from all (``all-0`` ...); those of ``resume`` are of a run and of the same in two parts.
"""

import sys
from pathlib import Path

import jax
import numpy as np
import optax

import fedjax_drag as fd

RULES = fd.aggregators
ATTACK = {"attack": fd.attacks.sign_flip(), "byzantine_fraction": 0.25}
CASES = {
    "fedavg": (RULES.fedavg(), {}),
    "scaffold": (fd.algorithms.scaffold(8), {"client_state": "host"}),
    "drag": (RULES.drag(), {"shard_data": True, "evaluate_clients": True}),
    "br_drag": (RULES.br_drag(), ATTACK | {"root_size": 16}),
    "krum": (RULES.krum(1), ATTACK),
    "rfa": (RULES.rfa(), ATTACK),
    "geometric_median": (RULES.geometric_median(), ATTACK),
    "median": (RULES.median(), ATTACK | {"clients_axis": "vmap"}),
    "trimmed_mean": (RULES.trimmed_mean(), ATTACK | {"clients_per_chunk": 2}),
    "nnm": (RULES.nnm(aggregator=RULES.krum(1), num_byzantine=1), ATTACK),
    "adam": (RULES.fedavg(), {"local_optimizer": optax.adam(0.01), "local_optimizer_state": "keep"}),
    "resume": (fd.algorithms.scaffold(8), {}),
}
"""A rule or method, and settings."""

MESH = {"clients": 2, "model": 4}


def settings():
    """Of a transformer that learns sequences of tokens."""
    texts = ((np.arange(96)[:, None] * 3 + np.arange(7) * 2) % 32).astype(np.int32)
    data = fd.data.from_arrays(texts[:, :-1], texts[:, -1], texts[:32, :-1], texts[:32, -1])
    return {
        "model": fd.models.transformer(32, layers=1, heads=4, width=16, max_length=8),
        "data": fd.data.partition.iid(data, num_clients=8, seed=0),
        "num_rounds": 3,
        "cohort_size": 4,
        "local_steps": 2,
        "batch_size": 4,
        "step_size": 0.1,
        "eval_every": 3,
    }


def states(name):
    """The state of a case on one device, and on all."""
    method, changes = CASES[name]
    asked = settings() | changes
    if name == "resume":
        first = fd.simulate(method, mesh=MESH, **asked | {"num_rounds": 2})
        return fd.simulate(method, mesh=MESH, **asked).state, fd.simulate(
            method, mesh=MESH, initial=first.state, **asked
        ).state
    alone = {"mesh": None, "shard_data": False}
    whole = fd.simulate(method, mesh=MESH, **asked)
    mlp = whole.params["Block_0"]["mlp_in"]["kernel"]
    assert {shard.data.shape for shard in mlp.addressable_shards} == {(16, 16)}, mlp.sharding
    return fd.simulate(method, **asked | alone).state, whole.state


def main(folder, *names):
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_disable_most_optimizations", True)
    for name in names or CASES:
        sides = dict(zip(("one", "all"), map(jax.device_get, states(name)), strict=True))
        leaves = {f"{side}-{i}": leaf for side, state in sides.items() for i, leaf in enumerate(jax.tree.leaves(state))}
        np.savez(Path(folder) / f"{name}.npz", **leaves)


if __name__ == "__main__":
    main(*sys.argv[1:])
