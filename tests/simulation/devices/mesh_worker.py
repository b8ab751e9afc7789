"""One of several processes that run methods on the devices of all; started by ``test_processes.py``.

Arguments: process id, number of processes, port, devices of each process, folder of the outcome, names of methods.
The first process leaves in the folder ``NAME.npz``, with the leaves of the state from one device (``one-0`` ...) and
from all (``all-0`` ...), and ``NAME.hlo``, the compiled rounds.
"""

import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from conftest import Softmax

import fedjax_drag as fd
from fedjax_drag.simulation.devices import placement, processes


def method(name):
    if name in ("scaffold", "taco"):
        return getattr(fd.algorithms, name)(16)
    rule = {"krum": {"num_byzantine": 2}}.get(name, {})
    return fd.algorithms.from_aggregator(getattr(fd.aggregators, name)(**rule))


def main(process_id, num_processes, port, num_devices, folder, *names):
    jax.config.update("jax_num_cpu_devices", int(num_devices))
    if int(num_processes) > 1:
        processes.initialize(f"127.0.0.1:{port}", int(num_processes), int(process_id))
    settings: dict[str, Any] = {
        "model": Softmax(),
        "data": fd.data.partition.dirichlet(fd.data.load("digits"), num_clients=16, beta=0.3, seed=0),
        "num_rounds": 3,
        "cohort_size": 8,
        "local_steps": 3,
        "batch_size": 4,
        "step_size": 0.1,
        "eval_every": 3,
        "time_clients": True,
        "evaluate_clients": True,
    }
    for name in names:
        name, _, client_state = name.partition("-")
        untimed: dict[str, Any] = settings | {"time_clients": False, "mesh": None}
        one = fd.simulate(method(name), **untimed)
        options: dict[str, Any] = settings | {"mesh": "all", "client_state": client_state or "device"}
        simulation = fd.simulation.prepare(method(name), **options)
        assert simulation.key.sharding.num_devices == int(num_devices) * int(num_processes)
        found = simulation.run()
        for accuracy in ("client_accuracy", "class_accuracy"):
            np.testing.assert_allclose(found.history[accuracy], one.history[accuracy], rtol=1e-6)
        # Every process can read the model, and it is the same in all.
        mine = [np.asarray(leaf) for leaf in jax.tree.leaves(found.params)]
        assert all(map(np.array_equal, mine, processes.from_first(lambda mine=mine: mine)))
        state = placement.fetch(found.state)
        if processes.is_first():
            leaves = {"one": jax.tree.leaves(jax.device_get(one.state)), "all": jax.tree.leaves(state)}
            numbered = {f"{key}-{i}": leaf for key, side in leaves.items() for i, leaf in enumerate(side)}
            np.savez(Path(folder) / f"{name}.npz", **numbered)
            (Path(folder) / f"{name}.hlo").write_text(simulation.lowered.advance.compile().as_text())


if __name__ == "__main__":
    main(*sys.argv[1:])
