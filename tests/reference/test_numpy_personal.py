"""Every method with own models beside its twin: whole runs of the engine, and the evaluation of the own models."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import numpy_personal as twins

import fedjax_drag as fd
from fedjax_drag.algorithms import apfl, ditto, fedper, fedrep, fine_tune, lg_fedavg, local_only, per_fedavg, pfedme

SIZES = (9, 6, 14, 4, 7)
FEATURES, WIDTH, CLASSES = 3, 4, 3
UPPER, LOWER = WIDTH * CLASSES, FEATURES * WIDTH

INNER = {"lam": 2.0, "inner_steps": 2, "inner_step_size": 0.2}
PAIRS = {
    "ditto": (ditto, twins.ditto, {"lam": 0.7}, {}),
    "fedper": (fedper, twins.fedper, {}, {"layers": "upper"}),
    "fedrep": (fedrep, twins.fedrep, {"head_steps": 2}, {"layers": "upper"}),
    "lg_fedavg": (lg_fedavg, twins.lg_fedavg, {}, {"layers": "lower"}),
    "pfedme": (pfedme, twins.pfedme, INNER, {}),
    "per_fedavg": (per_fedavg, twins.per_fedavg, {"alpha": 0.4}, {}),
    "per_fedavg-hessian": (per_fedavg, twins.per_fedavg, {"alpha": 0.4, "variant": "hessian_free", "delta": 0.01}, {}),
    "apfl": (apfl, twins.apfl, {"alpha": 0.3}, {}),
    "apfl-adaptive": (apfl, twins.apfl, {"alpha": 0.3, "adaptive": True}, {}),
    "fine_tune": (fine_tune, twins.fine_tune, {"steps": 3, "step_size": 0.2}, {}),
    "local_only": (local_only, twins.local_only, {}, {}),
}
FAST = ("ditto", "fedrep", "apfl-adaptive", "per_fedavg-hessian")


def init(key):
    lower, upper = jax.random.split(key)
    return {"lower": jax.random.normal(lower, (FEATURES, WIDTH)), "upper": jax.random.normal(upper, (WIDTH, CLASSES))}


def apply(params, x):
    return jnp.tanh(x @ params["lower"]) @ params["upper"]


@functools.cache
def federation():
    """Clients of different sizes, features and labels."""
    rng = np.random.default_rng(2)
    counts = np.array(SIZES, np.int32)
    x = rng.normal(size=(counts.sum(), FEATURES)) + np.repeat(rng.normal(size=(len(SIZES), FEATURES)), counts, 0)
    y = np.concatenate([rng.choice(CLASSES, n, p=rng.dirichlet([0.5] * CLASSES)) for n in SIZES])
    fed = fd.data.from_arrays(x.astype(np.float32), y, x[:9].astype(np.float32), y[:9])
    rows, begin = np.zeros((len(SIZES), max(SIZES)), np.int32), 0
    for row, n in zip(rows, SIZES, strict=True):
        row[:n], begin = np.arange(begin, begin + n), begin + n
    return dataclasses.replace(fed, rows=rows, counts=counts)


def flat(params):
    return np.concatenate([np.asarray(params[name], np.float64).ravel() for name in ("lower", "upper")])


def scores(w, x):
    """Of the network with the parameters ``[D]``, and its hidden layer."""
    hidden = np.tanh(x @ w[:LOWER].reshape(FEATURES, WIDTH))
    return hidden @ w[LOWER:].reshape(WIDTH, CLASSES), hidden


def gradient(x, y, w, which=slice(None)):
    """Of the mean cross entropy, by hand."""
    x, y = x[which], y[which]
    logits, hidden = scores(w, x)
    likelihood = np.exp(logits - logits.max(1, keepdims=True))
    excess = (likelihood / likelihood.sum(1, keepdims=True) - np.eye(CLASSES)[y]) / len(y)
    back = excess @ w[LOWER:].reshape(WIDTH, CLASSES).T * (1 - hidden**2)
    return np.concatenate([(x.T @ back).ravel(), (hidden.T @ excess).ravel()])


def settings(**changes):
    length = {"num_rounds": 4, "local_steps": 3, "eval_every": 1, "evaluate_clients": 0.3, "time_clients": False}
    size = {"cohort_size": 3, "batch_size": "full", "step_size": 0.5, "clients_axis": "map"}
    return {"model": (init, apply), "data": federation(), **length, **size, **changes}


@pytest.mark.parametrize("label", [pytest.param(n, marks=[] if n in FAST else pytest.mark.thorough) for n in PAIRS])
def test_agrees_with_its_twin(label):
    """Parameters, own models, and what these reach on what each client holds out."""
    build, twin, shared, own = PAIRS[label]
    method, fed = build(**shared, **own), federation()
    simulation = fd.simulation.prepare(method, **settings())
    start = simulation.initial_state()
    begin = flat({**start.params, **{k: v for k, v in (start.model.frozen or {}).items() if v is not None}})
    result = simulation.run(initial=start)
    held = np.maximum(np.rint(0.3 * fed.counts), 1).astype(int)
    x, y = np.asarray(fed.preprocess(fed.train.x), np.float64), fed.train.y
    trained = [row[: n - h] for row, n, h in zip(fed.rows, fed.counts, held, strict=True)]
    kept = [row[n - h : n] for row, n, h in zip(fed.rows, fed.counts, held, strict=True)]
    gradients = [functools.partial(gradient, x[rows], y[rows]) for rows in trained]
    head = np.arange(LOWER + UPPER) >= LOWER
    cohorts = [ids.tolist() for ids in result.history["client_ids"]]
    rounds = list(twin(begin, twins.Work(gradients, cohorts, 3, 0.5, head), **shared))
    for accuracies, (_, models) in zip(result.history["own_accuracy"], rounds, strict=True):
        wanted = [(scores(models[m], x[rows])[0].argmax(1) == y[rows]).mean() for m, rows in enumerate(kept)]
        np.testing.assert_allclose(accuracies, wanted, rtol=1e-6)
    theta, models = rounds[-1]
    np.testing.assert_allclose(flat(result.params), theta, rtol=1e-4, atol=1e-5)
    assert label == "local_only" or np.abs(theta - begin).max() > 0.05
    rows = result.state.clients.own
    if rows != ():
        for m in range(len(SIZES)):
            row = jax.tree.map(lambda leaf, m=m: leaf[m], rows.rows)
            found = method.own_model(result.state.params, row)
            np.testing.assert_allclose(flat(found), models[m], rtol=1e-4, atol=1e-5)
        assert np.std(models, axis=0).max() > 0.05
