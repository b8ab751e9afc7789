"""Decentralised runs of the engine beside their twin: mixing, attacks, and nodes that are missing."""

import functools

import jax
import numpy as np
import pytest
from reference import numpy_graphs as twin

import fedjax_drag as fd
from fedjax_drag.graphs import mixing

NODES, FEATURES, SIZE = 8, 3, 5
EDGES = ((0, 1), (1, 2), (2, 3), (3, 0), (0, 4), (4, 5), (5, 6), (6, 7), (7, 4), (2, 6), (1, 7))
ROUNDS = 4

MIXINGS = {
    "gossip": (mixing.gossip(), twin.gossip),
    "clippedgossip": (mixing.clippedgossip(0.5), twin.clipped(0.5)),
    "clippedgossip-adaptive": (mixing.clippedgossip(), twin.clipped(None)),
    "trimmed mean": (mixing.from_rule(fd.aggregators.trimmed_mean(0.34)), twin.trimmed(1)),
    "nearest": (mixing.from_rule(fd.aggregators.monna(num_byzantine=1, trusted=0)), twin.nearest(1)),
}
ATTACKS = {
    "none": (None, {}),
    "sign_flip": (fd.attacks.sign_flip(3.0), {"flip": 3.0}),
    "dissensus": (fd.attacks.dissensus(1.5), {"strength": 1.5}),
}
FAST = {("gossip", "sign_flip"), ("clippedgossip-adaptive", "dissensus"), ("nearest", "none")}


@functools.cache
def examples():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(NODES, SIZE, FEATURES)).astype(np.float32)
    y = (x @ rng.normal(size=(NODES, FEATURES, 1)))[..., 0].astype(np.float32)
    return x, y


@functools.cache
def federation():
    x, y = examples()
    return fd.data.from_clients(list(zip(x, y, strict=True)), test=(x[0], y[0]))


def gradient(x, y, w):
    return 2 * x.T @ (x @ w - y) / len(y)


@pytest.mark.parametrize(
    ("name", "attacked"),
    [
        pytest.param(name, attack, marks=[] if (name, attack) in FAST else pytest.mark.thorough)
        for name in MIXINGS
        for attack in ATTACKS
    ],
)
def test_agrees_with_its_twin(name, attacked):
    (mix, plain), (attack, told) = MIXINGS[name], ATTACKS[attacked]
    model = (lambda key: {"w": jax.random.normal(key, (FEATURES, 1))}, lambda params, x: x @ params["w"])
    data = federation()
    trimmed = name in ("trimmed mean", "nearest")  # which needs three neighbours at least
    options = {"dropout_rate": 0.0 if trimmed else 0.2, "loss": fd.losses.mse(), "metrics": [fd.metrics.r2()]}
    if attack is not None:
        options |= {"attack": attack, "num_byzantine": 2}
    simulation = fd.simulation.prepare(
        fd.algorithms.decentralised(fd.graphs.from_edges(EDGES), mix),
        model=model,
        data=data,
        num_rounds=ROUNDS,
        cohort_size=NODES,
        local_steps=2,
        batch_size="full",
        step_size=0.1,
        eval_every=1,
        time_clients=False,
        **options,
    )
    start = simulation.initial_state()
    begin = np.asarray(start.params["w"], np.float64)[:, 0]
    result = simulation.run(initial=start)
    history = result.history
    x = np.asarray(data.preprocess(data.train.x), np.float64)
    gradients = [
        functools.partial(gradient, x[row[:n]], np.asarray(data.train.y, np.float64)[row[:n]])
        for row, n in zip(data.rows, data.counts, strict=True)
    ]
    malicious = set(np.flatnonzero(history["malicious"][0])) if attack else set()
    assert len(malicious) == (2 if attack else 0)
    W = twin.metropolis(EDGES, NODES)
    np.testing.assert_allclose(fd.graphs.from_edges(EDGES).weights(NODES), W, atol=1e-12)
    present = history.get("valid", np.ones((ROUNDS, NODES), bool))
    work = {"steps": 2, "step_size": 0.1, "present": present, "malicious": malicious}
    rounds = list(twin.decentralised(begin, gradients, W, plain, **work, **told))
    mean, models = rounds[-1]
    np.testing.assert_allclose(result.params["w"][:, 0], mean, rtol=1e-4, atol=1e-5)
    found = np.asarray(result.state.algorithm.models.rows["w"])[..., 0]
    np.testing.assert_allclose(found, models, rtol=1e-4, atol=1e-5)
    for distance, (mean, models), here in zip(history["consensus_distance"], rounds, present, strict=True):
        counted = [i for i in range(NODES) if here[i] and i not in malicious]
        wanted = np.mean([np.sum((models[i] - mean) ** 2) for i in counted])
        np.testing.assert_allclose(distance, wanted, rtol=1e-3)
    assert np.std(models, axis=0).max() > 0.01
    assert trimmed or not np.all(present)
