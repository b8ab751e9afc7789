"""Every aggregation rule in float32 beside itself in float64, on hard cohorts; ``docs/numerics.md`` has the table."""

import functools
from typing import Any

import cases
import jax
import numpy as np
import pytest

from fedjax_drag import aggregators
from fedjax_drag.tree import initial_state

S, D, ROUNDS = 13, 48, 2  # an odd number: on a line the geometric median of an even one is not a single point
QUICK = ("drag",)


def norms(rng):
    """Lengths from 1e-4 to 1e4."""
    return rng.normal(size=(S, D)) * np.logspace(-4, 4, S)[rng.permutation(S), None]


def offset(rng):
    """Differences a ten-thousandth of what all have in common."""
    return rng.normal(size=D) + 1e-4 * rng.normal(size=(S, D))


def ties(rng):
    """Pairs of deltas that differ in the sixth digit: whatever is chosen, another would have done nearly as well."""
    half = rng.normal(size=((S + 1) // 2, D))
    return np.concatenate([half, half + 1e-6 * rng.normal(size=half.shape)])[:S][rng.permutation(S)]


def line(rng):
    """Deltas near one line through the origin, so that they hardly span a plane."""
    return np.outer(rng.uniform(0.5, 2.0, S), rng.normal(size=D)) + 1e-5 * rng.normal(size=(S, D))


def tiny(rng):
    """Entries of 1e-22, whose squares float32 does not have."""
    return 1e-22 * (rng.normal(size=D) + rng.normal(size=(S, D)))


def huge(rng):
    """Entries of 1e22, whose squares float32 does not have either."""
    return 1e22 * (rng.normal(size=D) + rng.normal(size=(S, D)))


HARD = (norms, offset, ties, line, tiny, huge)

ROUNDING = 5e-6
"""Bound of ||float32 - float64|| / ||float64|| where nothing else is said: some forty units of float32's last place."""

BOUNDS = {
    # One minus the largest cosine, in a logarithm: of deltas that are nearly parallel little is left of it.
    "foolsgold": {"offset": 1e-4, "line": 2e-3},
    # An iteration that stops where its residual is below the tolerance, 1e-5, here in one step more or less.
    "raga": {"norms": 2e-4},
    # Counts who is nearest: of clients nearly as near another one, and all where float32 has no square.
    "flare": {"ties": 0.5, "tiny": 0.5},
}
"""By builder and kind of cohort, where a rule's own formula is worse conditioned than that."""


def first_of_each():
    """A case of every public rule."""
    found: dict[Any, cases.Case] = {}
    for case in cases.AGGREGATORS:
        found.setdefault(case.builder, case)
    return {case.builder.__name__: case for case in found.values()}


RULES = first_of_each()
TOLD = cases.extras(S)


def split(vectors, dtype):
    """Vectors ``[..., D]`` as a pytree of two leaves, which may be an output layer."""
    vectors = np.asarray(vectors, dtype)
    return {"a": vectors[..., :32].reshape(*vectors.shape[:-1], 2, 16), "b": vectors[..., 32:]}


def told(rng, size, dtype):
    """The extras of a round; the root's update is as long as a delta in the middle."""
    return {
        "client_ids": rng.permutation(S).astype(np.int32),
        "round": np.int32(0),
        "root_delta": split(np.float32(size * rng.normal(size=D) / np.sqrt(D)), dtype),
        "num_examples": rng.integers(1, 90, S).astype(np.int32),
        "dissimilarity": np.asarray(rng.uniform(size=S).astype(np.float32), dtype),
        "start_loss": np.linspace(0.1, 3.0, S, dtype=np.float32).astype(dtype),
        "selection_weight": np.linspace(0.5, 2.0, S, dtype=np.float32).astype(dtype),
        "step_size": np.float32(0.1),
        "staleness": np.arange(S, dtype=np.int32) % 3,
        "starts": split(np.zeros((S, D)), dtype),
        "valid": np.ones(S, bool),
        **{name: TOLD[name] for name in ("predict", "example", "root_data")},
    }


@functools.cache
def compiled(case):
    """A rule, and its ``apply`` as one program for each dtype."""
    rule = case.build(**{"num_clients": S} if "num_clients" in case.settings else {})
    return rule, jax.jit(rule.apply)


def updates(case, hard, dtype):
    """The updates of a few rounds ``[ROUNDS, D]``, float64, computed in ``dtype`` from the same float32 deltas."""
    rng = np.random.default_rng([HARD.index(hard), 5])
    (rule, apply), state, moved = compiled(case), None, []
    for t in range(ROUNDS):
        deltas = hard(rng).astype(np.float32)
        extras = told(rng, float(np.median(np.linalg.norm(deltas.astype(float), axis=1))), dtype)
        extras |= {"key": jax.random.key(t), "round": np.int32(t)}
        zero, stacked = split(np.zeros(D), dtype), split(deltas, dtype)
        if state is None:
            state = initial_state(rule.apply, rule.init(zero), zero, stacked, **extras)
        params, state = apply(zero, stacked, state, **extras)
        leaves = jax.tree.leaves(params)
        assert {leaf.dtype for leaf in leaves} == {np.dtype(dtype)}
        moved.append(np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in leaves]))
    return np.array(moved)


def error(case, hard):
    """The largest ||float32 - float64|| / ||float64|| of the rounds."""
    single = updates(case, hard, np.float32)
    with jax.enable_x64(True):
        double = updates(case, hard, np.float64)
    assert np.isfinite(single).all()
    assert np.isfinite(double).all()
    scale = np.abs(double).max()  # which keeps the squares of the largest ones representable
    return float((np.linalg.norm((single - double) / scale, axis=1) / np.linalg.norm(double / scale, axis=1)).max())


def test_every_rule_is_here():
    assert set(RULES) == set(aggregators.__all__)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in sorted(RULES)]
)
def test_float32_is_as_good_as_its_last_place(name):
    found = {hard.__name__: error(RULES[name], hard) for hard in HARD}
    print(f"\n| `{name}` | " + " | ".join(f"{found[hard.__name__]:.0e}" for hard in HARD) + " |")
    over = {hard: value for hard, value in found.items() if not value <= BOUNDS.get(name, {}).get(hard, ROUNDING)}
    assert not over
