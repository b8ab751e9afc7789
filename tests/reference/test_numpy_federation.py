"""Every method with a client part beside its twin, on heterogeneous softmax regressions with changing cohorts."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import numpy_federation as twins

from fedjax_drag import clients, tree
from fedjax_drag.aggregators import fedavg
from fedjax_drag.algorithms import from_aggregator, scaffold
from fedjax_drag.simulation.local import local_pass
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
      memory: for each entry that the twin remembers, how to find it in the method's state.
      rtol: what rounding leaves in float64 (rows of weights are float32 everywhere).
    """

    label: str
    build: Callable[..., Algorithm]
    twin: Callable[..., Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    federated: bool = False
    memory: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    rtol: float = 1e-9

    def told(self, num_clients: int) -> dict[str, Any]:
        return {**self.settings, **({"num_clients": num_clients} if self.federated else {})}


def averaged(rule):
    """Server averages what clients running ``rule`` send."""
    return lambda **settings: from_aggregator(fedavg(), client=rule(**settings))


PAIRS = [
    Pair("fedavg", averaged(clients.sgd), twins.fedavg),
    Pair("fedprox", averaged(clients.fedprox), twins.fedprox, {"mu": 0.4}),
    Pair(
        "scaffold",
        scaffold,
        twins.scaffold,
        {"a": 0.8, "server_step_size": 0.7},
        federated=True,
        memory={"server": lambda s: s.control, "own": lambda s: s.client_controls},
    ),
]


def parametrize(test):
    entries = [pytest.param(p, id=p.label, marks=pytest.mark.xdist_group(p.label)) for p in PAIRS]
    return pytest.mark.parametrize("pair", entries)(test)


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
    downlink = method.broadcast(params, state, cohort)

    def one(own, rows_x, rows_y, positions):
        def fetch(at):
            return Batch(rows_x[at], rows_y[at])

        return local_pass(method.client, loss, downlink._replace(own=own), fetch, positions, STEP_SIZE).uplink

    return jax.vmap(one)(downlink.own, x[cohort], y[cohort], places)


@functools.partial(jax.jit, static_argnums=0)
def step(method, params, state, x, y, cohort, places, lost, t):
    """One round; a client may be ``absent``, or have a NaN in its ``delta`` or in its message ``aux``."""

    def broken(where, messages):
        return jax.tree.map(lambda m: jnp.where(where.reshape(-1, *[1] * (m.ndim - 1)), jnp.nan, m), messages)

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
        return params, tree.settle(state, after[1])

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


def assert_agrees(pair, after, expected, origin, rtol, t):
    """Parameters, by how far they have moved, and everything that the twin remembers."""
    (params, state), (theta, memory) = after, expected
    assert_close(flat(params), theta, rtol, f"round {t}, parameters", origin)
    assert memory.keys() == pair.memory.keys()
    for name, find in pair.memory.items():
        value = memory[name]
        found = flat(find(state), lead=value.ndim - 1) if value.ndim else flat(find(state))[0]
        assert_close(found.reshape(value.shape), value, rtol, f"round {t}, {name}")


def remembered(state):
    """What a state holds beside its metrics: paths and leaves."""
    entries = jax.tree_util.tree_leaves_with_path(state)
    return [(jax.tree_util.keystr(p), np.asarray(x)) for p, x in entries if "metrics" not in jax.tree_util.keystr(p)]


@parametrize
def test_agrees_with_its_twin(pair):
    """Three of five clients in each of four rounds, in float32."""
    federation = Federation(num_clients=5, size=3)
    everybody = [(None,) * 3] * 4
    for t, (_, _, _, after, expected) in enumerate(play(pair, federation, everybody, jnp.float32)):
        assert_agrees(pair, after, expected, federation.theta, 1e-5, t)


@parametrize
def test_agrees_to_the_last_digits(pair):
    """In float64; half of eight clients, so that the weights, which are float32 everywhere, are exact."""
    federation = Federation(num_clients=8, size=4, seed=1)
    with jax.enable_x64(True):
        for t, (_, _, _, after, expected) in enumerate(play(pair, federation, [(None,) * 4] * 4, jnp.float64)):
            assert flat(after[0]).dtype == jax.tree.leaves(after[0])[0].dtype == np.float64
            assert_agrees(pair, after, expected, federation.theta, pair.rtol, t)


@parametrize
def test_a_client_that_does_not_count_leaves_no_trace(pair):
    """Absent, or not finite in either half of its message: neither the server nor its own row hears of it."""
    federation = Federation(num_clients=5, size=3, seed=2)
    losses = [(None,) * 3, ("absent", None, None), (None, "delta", None), ("delta", "absent", "absent")]
    losses += [(None, None, "aux"), (None,) * 3, (None,) * 3]
    for t, (cohort, lost, before, after, expected) in enumerate(play(pair, federation, losses, jnp.float32)):
        assert_agrees(pair, after, expected, federation.theta, 1e-5, t)
        gone = lost["absent"] | lost["delta"] | lost["aux"]
        assert int(after[1].metrics["num_rejected"]) == (lost["delta"] | lost["aux"]).sum()
        for (path, old), (_, new) in zip(remembered(before[1]), remembered(after[1]), strict=True):
            if gone.all():
                np.testing.assert_array_equal(new, old, err_msg=f"state{path} after a round without messages")
            elif old.shape[:1] == (5,):
                quiet = np.setdiff1d(np.arange(5), cohort[~gone])
                np.testing.assert_array_equal(new[quiet], old[quiet], err_msg=f"state{path} of clients not heard")
        if gone.all():
            np.testing.assert_array_equal(flat(after[0]), flat(before[0]))
