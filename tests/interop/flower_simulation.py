"""Two SuperNodes in Flower's simulation, in a process of its own: Ray starts others and warns of it.

What came of it goes to the file that is named. Clients are pickled by name, so this is imported by Ray's workers too.
"""

import sys

import jax
import numpy as np
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from test_flower import QUIET, SENT, client, numpy_of, record

from fedjax_drag.aggregators import drag
from fedjax_drag.interop.flower import RuleStrategy

server = ServerApp()


@server.main()
def main(grid, context):
    del context
    result = RuleStrategy(drag(c=0.5, alpha=0.5), **QUIET).start(grid, record(SENT), num_rounds=2)
    reported = result.train_metrics_clientapp[2]
    arrays = numpy_of(result.arrays) | {
        "nodes": np.array(reported["rule/nodes"], np.uint64),
        "known": np.array(sorted(grid.get_node_ids()), np.uint64),
        "divergence": np.array(reported["rule/divergence"], np.float32),
        "accuracy": np.array(result.evaluate_metrics_clientapp[2]["accuracy"]),
    }
    np.savez(sys.argv[1], **arrays)


if __name__ == "__main__":
    jax.config.update("jax_disable_most_optimizations", True)  # as in the tests, for the same bits
    run_simulation(server, client, num_supernodes=2)
