"""``fedavg`` with optax's optimisers on the server against the optimisers' formulas in float64."""

import numpy as np
import optax
import pytest
from reference import numpy_rules, numpy_server_optimizers, twins
from reference.twins import Pair


def averaging(optimizer, weighting="uniform"):
    """A twin: the optimiser steps along the pseudo-gradient ``-sum p g``; its state counts its steps."""

    def twin(G, state, t, e):
        average = numpy_rules.fedavg(G, e["num_examples"] if weighting == "examples" else None)
        memory, steps = (None, 0) if state is None else state
        update, memory = optimizer(-average.update, memory, steps + 1)
        return average._replace(update=update, state=(memory, steps + 1))

    return twin


def fedavg(optimizer, twin, weighting="uniform"):
    return Pair("fedavg", {"weighting": weighting, "server_optimizer": optimizer}, averaging(twin, weighting))


PAIRS = {
    "sgd": fedavg(optax.sgd(0.7), numpy_server_optimizers.sgd(0.7)),
    "fedavgm": fedavg(optax.sgd(0.5, momentum=0.9), numpy_server_optimizers.sgd(0.5, 0.9)),
    "fedavgm-nesterov": fedavg(
        optax.sgd(0.5, momentum=0.9, nesterov=True), numpy_server_optimizers.sgd(0.5, 0.9, nesterov=True)
    ),
    "fedadam": fedavg(optax.adam(0.1, b1=0.9, b2=0.99, eps=1e-3), numpy_server_optimizers.adam(0.1, 0.9, 0.99, 1e-3)),
    "fedyogi": fedavg(optax.yogi(0.1, b1=0.9, b2=0.99, eps=1e-3), numpy_server_optimizers.yogi(0.1, 0.9, 0.99, 1e-3)),
    "fedadagrad": fedavg(optax.adagrad(0.1), numpy_server_optimizers.adagrad(0.1)),
    "fedavgm-examples": fedavg(
        optax.sgd(0.5, momentum=0.9), numpy_server_optimizers.sgd(0.5, 0.9), weighting="examples"
    ),
}


@pytest.mark.parametrize("S", [3, 10])
@pytest.mark.parametrize("name", PAIRS)
def test_agrees_with_its_twin(name, S):
    """Three rounds; with clients missing, a round in which nobody counts is no step of the optimiser."""
    twins.duel(PAIRS[name], S)
    twins.duel(PAIRS[name], S, missing=S // 3)


def test_momentum_worked_by_hand():
    """Means 1, 2, 0 with momentum 1/2 and rate 1 move by 1, 2.5, 1.25."""
    pair = Pair("fedavg", {"server_optimizer": optax.sgd(1.0, momentum=0.5)}, lambda G, s, t, e: numpy_rules.fedavg(G))
    cohorts = [np.full((3, twins.SIZE), mean) for mean in (1.0, 2.0, 0.0)]
    moves = [played.update[0] for played in twins.play(pair, cohorts, np.random.default_rng(0))]
    np.testing.assert_allclose(moves, [1, 2.5, 1.25], rtol=1e-6)


@pytest.mark.parametrize("name", PAIRS)
def test_twins_agree_with_themselves_in_scale(name):
    """Adaptive optimisers forget the scale of large gradients, the others keep it: a check of the twins."""
    rng = np.random.default_rng(1)
    G = twins.random(rng, 10)
    told = {"num_examples": np.ones(10)}
    small, large = (PAIRS[name].twin(scale * G, None, 0, told).update for scale in (1e6, 1e8))
    ratio = np.linalg.norm(large) / np.linalg.norm(small)
    np.testing.assert_allclose(ratio, 1 if name in ("fedadam", "fedyogi", "fedadagrad") else 100, rtol=1e-3)
