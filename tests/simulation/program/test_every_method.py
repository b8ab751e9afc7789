"""Absent clients under every rule, method and attack, through the engine."""

import chex
import flax.linen as nn
import jax
import numpy as np
import pytest
from cases import AGGREGATORS, ALGORITHMS, ATTACKS, parametrize

import fedjax_drag as fd

pytestmark = pytest.mark.slow


class Net(nn.Module):
    """With the names of parameters that the cases of methods with layers of clients' own have."""

    @nn.compact
    def __call__(self, x):
        scale = self.param("scale", nn.initializers.ones, (1,))
        return nn.Dense(10, name="dense")(scale * x.reshape(len(x), -1))


CLIENTS = 8
SETTINGS = {"num_rounds": 4, "eval_every": 2, "cohort_size": CLIENTS, "batch_size": 4, "step_size": 0.05}
SETTINGS |= {"time_clients": False, "model": Net()}
SOMETIMES = np.array([[1] * CLIENTS, [0] * CLIENTS, [1, 0] * 4, [1] * CLIENTS], bool)


@pytest.fixture(scope="module")
def data():
    return fd.data.partition.iid(fd.data.load("digits"), num_clients=CLIENTS)


def finite(tree):
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree))


@parametrize([*AGGREGATORS, *ALGORITHMS])
def test_rounds_without_an_answer_leave_the_parameters_alone(case, data):
    """The second round of four; the whole run stays finite with dropouts and stragglers."""
    run = SETTINGS | {"data": data, "local_steps": (1, 4), "eval_every": 1}
    seen = []
    keep = lambda evaluation: seen.append(jax.tree.map(np.array, evaluation.state.params))
    result = fd.simulate(case.build(), availability=SOMETIMES, dropout_rate=0.3, callbacks=[keep], **run)
    assert result.history["participants"][1] == 0
    chex.assert_trees_all_equal(seen[0], seen[1])
    assert finite(result.params)
    assert np.isfinite(result.history["test_loss"]).all()


@parametrize([case for case in ATTACKS if "aggregate" not in case.build().needs])
def test_attacks_with_absent_clients_stay_finite(case, data):
    attack = case.build()
    on_a_graph = fd.algorithms.decentralised(fd.graphs.torus(2))
    method = on_a_graph if attack.forges_for_each else fd.aggregators.br_drag(c=0.25)
    run = SETTINGS | {"data": data, "local_steps": (1, 4), "attack": attack, "num_byzantine": 2}
    result = fd.simulate(method, availability=SOMETIMES, dropout_rate=0.3, late="drop", deadline=3, **run)
    assert finite(result.params)
    assert (result.history["malicious_weight"] <= 1).all()
