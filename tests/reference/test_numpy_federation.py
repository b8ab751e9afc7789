"""Every method with a client part beside its twin, on heterogeneous softmax regressions with changing cohorts."""

import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quadratics import stateless
from reference import numpy_federation as twins

from fedjax_drag import clients, tree
from fedjax_drag.aggregators import fedavg
from fedjax_drag.algorithms._adabest import adabest
from fedjax_drag.algorithms._fedacg import fedacg
from fedjax_drag.algorithms._fedadmm import fedadmm
from fedjax_drag.algorithms._feddc import feddc
from fedjax_drag.algorithms._feddyn import feddyn
from fedjax_drag.algorithms._fednova import fednova
from fedjax_drag.algorithms._from_aggregator import from_aggregator
from fedjax_drag.algorithms._mime import mime
from fedjax_drag.algorithms._scaffold import scaffold
from fedjax_drag.algorithms._stem import stem
from fedjax_drag.algorithms._taco import taco
from fedjax_drag.algorithms._tailored_fedprox import tailored_fedprox
from fedjax_drag.clients._fedsam import fedsam
from fedjax_drag.simulation.program.local import local_pass
from fedjax_drag.types import Algorithm, Batch

STEPS, BATCH, STEP_SIZE = 4, 3, 0.3
F, C, SIZE = twins.Softmax.features, twins.Softmax.classes, twins.Softmax.size


@dataclass(frozen=True, eq=False)
class Pair:
    """A method beside its twin.

    Attributes:
      label: name of the test case.
      build: ``(**settings) -> Algorithm``.
      twin: the generator in ``numpy_federation``.
      settings: what both are told; ``num_clients`` is added where ``federated``.
      federated: whether both want to know M.
      memory: for each entry that the twin remembers, its place in the method's state, as for ``attrgetter``; ``output``
        and ``eligible`` are asked of the method itself.
      rtol: what rounding leaves in float64; None where the method computes with float32 coefficients.
    """

    label: str
    build: Callable[..., Algorithm]
    twin: Callable[..., Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    federated: bool = False
    memory: Mapping[str, str] = field(default_factory=dict)
    rtol: float | None = 1e-9

    def told(self, num_clients: int) -> dict[str, Any]:
        return {**self.settings, **({"num_clients": num_clients} if self.federated else {})}


def averaged(rule):
    """Server averages what clients running ``rule`` send."""
    return lambda **settings: from_aggregator(fedavg(), client=rule(**settings))


TACO = {"gamma": 0.4, "kappa": 0.4, "max_strikes": 2, "server_step_size": 0.8}


def pairs_of_taco():
    memory = {"alpha": "alpha", "strikes": "strikes", "correction": "gradient"}
    for label, changes in {
        "taco": {"gamma": None, "server_step_size": 1.0},
        "taco-strong": {},
        "taco-correction": {"tailored_aggregation": False},
        "taco-aggregation": {"tailored_correction": False, "gamma": None},
        "taco-neither": {"tailored_correction": False, "tailored_aggregation": False, "gamma": None},
    }.items():
        yield Pair(label, taco, twins.taco, {**TACO, **changes}, federated=True, memory=memory, rtol=None)


VARIATES = {"server": "control", "own": "client_controls.rows"}
ALPHA = {"alpha": "alpha"}

MOMENTUM = {"momentum": "momentum"}
ACG, STEM_MEMORY = {"lam": 0.7, "beta": 0.4}, {"momentum": "memory.momentum", "before": "memory.previous"}
ADABEST = {"server": "correction", "own": "client_corrections.rows", "average": "average", "last": "last_rounds"}
ADMM = {"duals": "client_duals.rows", "models": "client_models.rows"}
DYN = {"server": "correction", "own": "client_corrections.rows"}
DC = {"drifts": "client_drifts.rows", "controls": "client_controls.rows", "drift": "drift", "control": "control"}

PAIRS = [
    Pair("fedavg", averaged(clients.sgd), twins.fedavg),
    Pair("fedprox", averaged(clients.fedprox), twins.fedprox, {"mu": 0.4}),
    Pair("fedprox-tailored", tailored_fedprox, twins.tailored_fedprox, {"mu": 0.4}, True, ALPHA, None),
    Pair("fedsam", averaged(fedsam), twins.fedsam, {"rho": 0.3}),
    Pair("fednova", fednova, twins.fednova, {"rho": 0.5, "mu": 0.4}, memory={"work": "effective_work"}, rtol=1e-7),
    Pair("scaffold", scaffold, twins.scaffold, {"a": 0.8, "server_step_size": 0.7}, True, VARIATES),
    Pair("scaffold-average", scaffold, twins.scaffold, {"a": 0.8, "variate": "average"}, True, VARIATES),
    Pair("scaffold-first", scaffold, twins.scaffold, {"a": 0.8, "variate": "first"}, True, VARIATES),
    Pair("scaffold-tailored", scaffold, twins.scaffold, {"a": 0.8, "tailored": True}, True, VARIATES | ALPHA, None),
    Pair("adabest", adabest, twins.adabest, {"mu": 0.3, "beta": 0.6}, True, ADABEST),
    Pair("feddyn", feddyn, twins.feddyn, {"a": 0.5}, True, DYN),
    Pair("feddc", feddc, twins.feddc, {"a": 0.3, "correction": 0.7}, True, DC),
    Pair("fedadmm", fedadmm, twins.fedadmm, {"rho": 0.5, "server_step_size": 0.7}, True, ADMM),
    Pair("fedacg", fedacg, twins.fedacg, ACG, memory=MOMENTUM),
    Pair("fedacg-global", fedacg, twins.fedacg, {**ACG, "start": "global"}, memory=MOMENTUM),
    Pair("fedacg-mean", fedacg, twins.fedacg, {**ACG, "start": "global", "moves_server": False}, memory=MOMENTUM),
    Pair("stem", stem, twins.stem, {"a": 0.3}),
    Pair("stem-carried", stem, twins.stem, {"a": 0.3, "carry_momentum": True}, memory=STEM_MEMORY),
    Pair("mime", mime, twins.mime, {"b": 0.6}, memory=MOMENTUM),
    Pair("mime-first", mime, twins.mime, {"b": 0.6, "gradient": "first"}, memory=MOMENTUM),
    *pairs_of_taco(),
]


FAST = ("fedprox", "scaffold", "stem", "taco")
"""Methods without memory, with rows of the clients, with two halves of a message and with weights of their own."""
SLOW = ("taco-neither",)
"""What two others have switched off one by one."""


def parametrize(pairs):
    def entry(pair):
        tier = [] if pair.label in FAST else [pytest.mark.slow if pair.label in SLOW else pytest.mark.thorough]
        if pair.label.startswith("taco"):  # its coefficients keep their bits as users' programs compute them
            tier.append(pytest.mark.optimised)
        return pytest.param(pair, id=pair.label, marks=[pytest.mark.xdist_group(pair.label), *tier])

    return pytest.mark.parametrize("pair", [entry(pair) for pair in pairs])


def as_tree(vector):
    """``[D]`` as parameters; not on a device, where every slice is a program to compile."""
    return {"kernel": vector[: F * C].reshape(F, C), "offset": vector[F * C :]}


def flat(state, lead=0):
    """Leaves side by side, in float64: ``[D]``, or ``[M, D]`` with ``lead=1``."""
    leaves = [np.asarray(x, np.float64) for x in jax.tree.leaves(state)]
    return np.concatenate([x.reshape(*x.shape[:lead], -1) for x in leaves], axis=-1)


def loss(params, batch):
    scores = batch.x @ params["kernel"] + params["offset"]
    likelihood = jax.nn.log_softmax(scores)
    return -jnp.take_along_axis(likelihood, batch.y[:, None], axis=1).mean()


def uplink_of(method, params, state, x, y, cohort, places):
    """What the cohort sends."""
    step_size = jnp.asarray(STEP_SIZE, x.dtype)  # a Python float would be weakly typed, and turn float32 beside one
    downlink = method.broadcast(params, state, cohort)

    def one(own, rows_x, rows_y, positions):
        def fetch(at):
            return Batch(rows_x[at], rows_y[at])

        return local_pass(
            method.client, stateless(loss), downlink._replace(own=own), fetch, positions, step_size
        ).uplink

    return jax.vmap(one)(downlink.own, x[cohort], y[cohort], places)


@functools.partial(jax.jit, static_argnums=0)
def step(method, params, state, x, y, cohort, places, lost, t):
    """One round; a client may be ``absent``, or have a NaN in its ``delta`` or in its message ``aux``."""

    def broken(where, messages):
        return jax.tree.map(lambda m: jnp.where(tree.expand(where, m), jnp.nan, m), messages)

    uplink = uplink_of(method, params, state, x, y, cohort, places)
    silent = not jax.tree.leaves(uplink.aux)  # there is no other half to break
    uplink = uplink._replace(
        delta=broken(lost["delta"] | (silent & lost["aux"]), uplink.delta), aux=broken(lost["aux"], uplink.aux)
    )
    extras = {"num_examples": jnp.full(cohort.shape, x.shape[1]), "key": jax.random.key(0)}
    return method.aggregate(params, uplink, state, client_ids=cohort, valid=~lost["absent"], round=t, **extras)


class Federation:
    """The same clients, cohorts and mini-batches for both sides: S of M clients in every round."""

    def __init__(self, num_clients, size, seed=0):
        rng = np.random.default_rng(seed)
        self.problem = twins.Softmax(rng, num_clients)
        self.num_clients, self.size, self.rng = num_clients, size, rng
        self.theta = 0.3 * rng.normal(size=SIZE)

    def rounds(self, losses):
        """For each round its cohort, positions ``[S, K, B]``, masks of lost clients, and what the twin is told."""
        n = self.problem.x.shape[1]
        for t, kinds in enumerate(losses):
            cohort = self.rng.permutation(self.num_clients)[: self.size].astype(np.int32)
            places = self.rng.integers(0, n, (self.size, STEPS, BATCH)).astype(np.int32)
            lost = {k: np.array([kind == k for kind in kinds]) for k in ("absent", "delta", "aux")}
            batches = {
                int(m): [self.problem.gradient(m, at) for at in places[i]]
                for i, m in enumerate(cohort)
                if kinds[i] is None
            }
            yield cohort, places, lost, twins.Round(t, tuple(batches), batches, STEP_SIZE)

    def start(self, method, dtype):
        """Parameters, and a state that has the shapes it will have."""
        params = jax.tree.map(lambda x: jnp.asarray(x, dtype), as_tree(self.theta))
        cohort = np.zeros(self.size, np.int32)
        places = np.zeros((self.size, STEPS, BATCH), np.int32)
        lost = {k: np.zeros(self.size, bool) for k in ("absent", "delta", "aux")}
        state = method.init(params)
        after = jax.eval_shape(
            functools.partial(step, method), params, state, *self.data(dtype), cohort, places, lost, np.int32(0)
        )
        return params, tree.cast_like(state, after[1])

    def data(self, dtype):
        return jnp.asarray(self.problem.x, dtype), jnp.asarray(self.problem.y, jnp.int32)


@functools.cache
def built(pair, num_clients):
    return pair.build(**pair.told(num_clients))


def play(pair, federation, losses, dtype):
    """Yields ``(cohort, lost, before, after, expected)`` of every round; the two in the middle are (params, state)."""
    method, plan = built(pair, federation.num_clients), list(federation.rounds(losses))
    told = pair.told(federation.num_clients)
    expected = twins.run(pair.twin, federation.theta, [entry[3] for entry in plan], **told)
    after = federation.start(method, dtype)
    for (cohort, places, lost, r), outcome in zip(plan, expected, strict=True):
        before = after
        after = step(method, *before, *federation.data(dtype), cohort, places, lost, np.int32(r.number))
        yield cohort, lost, before, after, outcome


def assert_close(actual, expected, rtol, label, origin=0.0):
    """As whole vectors: the error to ``rtol`` of how far ``expected`` is from ``origin``."""
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape, (label, actual.shape, expected.shape)
    error, scale = np.linalg.norm(actual - expected), np.linalg.norm(expected - origin)
    assert error <= rtol * scale, f"{label}: off by {error / scale if scale else np.inf:.2e} of {scale:.3g}"


def assert_agrees(pair, method, after, expected, origin, rtol, t):
    """Parameters, by how far they have moved, and everything that the twin remembers."""
    (params, state), (theta, memory) = after, expected
    assert_close(flat(params), theta, rtol, f"round {t}, parameters", origin)
    asked = {"output": method.output and method.output(params, state)}
    asked |= {"eligible": method.eligible and method.eligible(state)}
    found = {k: v for k, v in asked.items() if v is not None} | {
        k: found_in(state, place) for k, place in pair.memory.items()
    }
    assert found.keys() == memory.keys()
    for name, value in memory.items():
        at = flat(found[name], lead=max(0, np.ndim(value) - 1)).reshape(np.shape(value))
        assert_close(at, value, rtol, f"round {t}, {name}")


def found_in(state, place):
    """A field of the state, or a metric where there is no such field."""
    return operator.attrgetter(place)(state) if hasattr(state, place.partition(".")[0]) else state.metrics[place]


def remembered(state):
    """What a state holds beside its metrics: paths and leaves."""
    entries = jax.tree_util.tree_leaves_with_path(state)
    return [(jax.tree_util.keystr(p), np.asarray(x)) for p, x in entries if "metrics" not in jax.tree_util.keystr(p)]


@parametrize(PAIRS)
@pytest.mark.sample(1)
def test_agrees_with_its_twin(pair):
    """Three of five clients in each of four rounds, in float32."""
    federation, method = Federation(num_clients=5, size=3), built(pair, 5)
    everybody = [(None,) * 3] * 4
    for t, (_, _, _, after, expected) in enumerate(play(pair, federation, everybody, jnp.float32)):
        assert_agrees(pair, method, after, expected, federation.theta, 1e-5, t)


@pytest.mark.slow
@parametrize([pair for pair in PAIRS if pair.rtol])
def test_agrees_to_the_last_digits(pair):
    """In float64; half of eight clients, so that the weights, which are float32 everywhere, are exact."""
    federation, method = Federation(num_clients=8, size=4, seed=1), built(pair, 8)
    with jax.enable_x64(True):
        for t, (_, _, _, after, expected) in enumerate(play(pair, federation, [(None,) * 4] * 4, jnp.float64)):
            assert {leaf.dtype for leaf in jax.tree.leaves(after[0])} == {np.dtype(np.float64)}
            assert_agrees(pair, method, after, expected, federation.theta, pair.rtol, t)


@pytest.mark.thorough
@parametrize(PAIRS)
def test_a_client_that_does_not_count_leaves_no_trace(pair):
    """Absent, expelled, or not finite in either half of its message: nor does its own row hear of it."""
    federation, method = Federation(num_clients=5, size=3, seed=2), built(pair, 5)
    losses = [(None,) * 3, ("absent", None, None), (None, "delta", None), ("delta", "absent", "absent")]
    losses += [(None, None, "aux"), (None,) * 3, (None,) * 3]
    for t, (cohort, lost, before, after, expected) in enumerate(play(pair, federation, losses, jnp.float32)):
        broken = lost["delta"] | lost["aux"]
        present = ~lost["absent"] & (method.eligible(before[1])[cohort] if method.eligible else True)
        counted = present & ~broken
        assert int(after[1].metrics["num_rejected"]) == (present & broken).sum()
        for (path, old), (_, new) in zip(remembered(before[1]), remembered(after[1]), strict=True):
            if not counted.any():
                np.testing.assert_array_equal(new, old, err_msg=f"state{path} after a round without messages")
            elif old.shape[:1] == (5,):
                quiet = np.setdiff1d(np.arange(5), cohort[counted])
                np.testing.assert_array_equal(new[quiet], old[quiet], err_msg=f"state{path} of clients not heard")
        if counted.any():
            assert_agrees(pair, method, after, expected, federation.theta, 1e-5, t)
        else:
            np.testing.assert_array_equal(flat(after[0]), flat(before[0]))


def changed(value):
    """Another value of a setting."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return {"first": "average", "average": "first", "global": "lookahead"}[value]
    return value + 1 if isinstance(value, int) else 1.5 * value


@pytest.mark.thorough
@parametrize(PAIRS)
def test_every_setting_matters_here(pair):
    """Else agreement would say nothing about it."""

    def final(settings):
        plan = [entry[3] for entry in Federation(num_clients=5, size=3).rounds([(None,) * 3] * 4)]
        origin = Federation(num_clients=5, size=3).theta
        return list(twins.run(pair.twin, origin, plan, **settings))[-1][0]

    told = pair.told(5)
    for name, value in pair.settings.items():
        if value is None:
            continue
        moved = np.linalg.norm(final({**told, name: changed(value)}) - final(told))
        assert moved > 1e-3, (name, moved)


@pytest.mark.thorough
def test_fednova_where_clients_take_different_numbers_of_steps():
    """Where it is more than an average: passes of one, two and four steps."""
    settings, federation = {"rho": 0.5, "mu": 0.4}, Federation(num_clients=3, size=3, seed=3)
    method, (x, y) = fednova(**settings), federation.data(jnp.float32)
    passes = [federation.rng.integers(0, x.shape[1], (steps, BATCH)) for steps in (1, 2, 4)]

    @jax.jit
    def round_of(params, state):
        downlink = method.broadcast(params, state, np.arange(3))
        sent = [
            local_pass(
                method.client, stateless(loss), downlink, lambda at, m=m: Batch(x[m, at], y[m, at]), places, STEP_SIZE
            )
            for m, places in enumerate(passes)
        ]
        uplink = jax.tree.map(lambda *rows: jnp.stack(rows), *[one.uplink for one in sent])
        return method.aggregate(params, uplink, state, client_ids=np.arange(3))

    batches = {m: [federation.problem.gradient(m, at) for at in places] for m, places in enumerate(passes)}
    plan = [twins.Round(t, (0, 1, 2), batches, STEP_SIZE) for t in range(2)]
    params = as_tree(federation.theta.astype(np.float32))
    state = method.init(params)
    state = tree.cast_like(state, jax.eval_shape(round_of, params, state)[1])
    for theta, memory in twins.run(twins.fednova, federation.theta, plan, **settings):
        params, state = round_of(params, state)
        assert_close(flat(params), theta, 1e-5, "parameters", federation.theta)
        np.testing.assert_allclose(state.metrics["effective_work"], memory["work"], rtol=1e-6)
