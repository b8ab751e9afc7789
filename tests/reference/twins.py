"""Plays a rule beside its twin over a few rounds, with clients missing, and compares what they did."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from reference.numpy_rules import Outcome

from fedjax_drag import aggregators
from fedjax_drag.tree import initial_state

SIZE = 12
FEDERATION = 50
"""Clients that there are; those of a round are drawn from them."""


def seldom(*values: Any, unless: bool) -> Any:
    """Values of a parametrised test that is among the slow ones ``unless`` something holds."""
    return pytest.param(*values, marks=[] if unless else pytest.mark.slow)


PER_CLIENT = ("client_ids", "num_examples", "start_loss", "selection_weight", "dissimilarity")


class Played(NamedTuple):
    """One round of both sides.

    Attributes:
      update: how far the rule moved the parameters, ``[D]``.
      metrics: the rule's metrics.
      outcome: the twin's, None where there is no twin.
      G: float64 deltas of the clients that count, ``[n, D]``.
      seen: which of the S clients they are, ``[S]``.
      extra: what both were told, per-client entries of those clients only, and ``key`` as the rule had it.
      state: the rule's state after the round.
    """

    update: np.ndarray
    metrics: dict[str, np.ndarray]
    outcome: Outcome | None
    G: np.ndarray
    seen: np.ndarray
    extra: dict[str, Any]
    state: Any


@dataclass(frozen=True, eq=False)
class Pair:
    """A rule beside its twin, or beside a check of its own.

    Attributes:
      name: of the builder.
      settings: its arguments.
      twin: ``(G, state, round, extra) -> Outcome`` for the clients that count.
      check: ``(played)``, for rules that choose between possible equals; raises AssertionError.
      smallest: clients without which the rule refuses, or means nothing.
    """

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    twin: Callable[..., Outcome] | None = None
    check: Callable[[Played], None] | None = None
    smallest: int = 1

    @cached_property
    def rule(self) -> Any:
        return getattr(aggregators, self.name)(**self.settings)

    @cached_property
    def apply(self) -> Any:
        return jax.jit(self.rule.apply)

    @cached_property
    def starts(self) -> dict[int, Any]:
        """The states that are made already, by S."""
        return {}

    def start(self, S: int) -> Any:
        """State before the first round for S clients; the rule is traced for it once."""
        if S not in self.starts:
            zero, deltas = as_tree(np.zeros(SIZE)), as_tree(np.zeros((S, SIZE)))
            extra = on_device(extras(np.random.default_rng(0), S, 0), np.ones(S, bool))
            self.starts[S] = initial_state(self.rule.apply, self.rule.init(zero), zero, deltas, **extra)
        return self.starts[S]


def random(rng, S):
    return rng.normal(size=(S, SIZE))


def six_orders(rng, S):
    """Norms from 1e-3 to 1e3."""
    return random(rng, S) * np.logspace(-3, 3, S)[rng.permutation(S), None]


def offset(rng, S):
    """Small differences beside a large common part."""
    return 100 * rng.normal(size=SIZE) + random(rng, S) * 0.1


def tied(rng, S):
    """Few distinct deltas, most of them twice or more, with equal values inside them too."""
    return np.round(random(rng, (S + 2) // 3)[rng.integers(0, (S + 2) // 3, S)], 1)


def repeated(rng, S):
    """As :func:`tied`, but no two different deltas are equally far from a third."""
    return random(rng, (S + 2) // 3)[rng.integers(0, (S + 2) // 3, S)]


def opposed(rng, S):
    """Clients along and against one direction."""
    return np.outer(rng.choice([-1.0, 0.6, 2.3], S), rng.normal(size=SIZE)) + 1e-3 * random(rng, S)


INPUTS = [random, six_orders, offset, tied, opposed]


def as_tree(vectors):
    """Vectors ``[..., 12]`` as a pytree of two leaves; not on a device, where every slice is a program to compile."""
    vectors = np.asarray(vectors, np.float32)
    lead = vectors.shape[:-1]
    return {"a": vectors[..., :8].reshape(*lead, 2, 4), "b": vectors[..., 8:]}


def as_vector(tree):
    """Inverse of :func:`as_tree`, in float64."""
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])


def extras(rng, S, t, scale=1.0):
    """What a rule may be told beside the deltas."""
    return {
        "round": np.int32(t),
        "root_delta": (scale * rng.normal(size=SIZE)).astype(np.float32),
        "num_examples": rng.integers(1, 500, S).astype(np.int32),
        "client_ids": rng.permutation(FEDERATION)[:S].astype(np.int32),
        "dissimilarity": rng.uniform(size=S).astype(np.float32),
        "key": jax.random.key(int(rng.integers(1 << 30))),
        "start_loss": np.linspace(0.1, 3.0, S, dtype=np.float32),
        "selection_weight": np.linspace(0.5, 2.0, S, dtype=np.float32),
        "step_size": np.float32(0.1),
    }


def on_device(extra, valid):
    return {**extra, "root_delta": as_tree(extra["root_delta"]), "valid": valid}


def damage(rng, G, missing):
    """Some clients absent and some not finite, ``missing`` of them together: ``(G, valid)``.

    Half of those that are absent sent nonsense nevertheless.
    """
    G, valid = G.copy(), np.ones(len(G), bool)
    gone = rng.permutation(len(G))[:missing]
    absent, broken = gone[: (2 * missing + 2) // 3], gone[(2 * missing + 2) // 3 :]
    valid[absent] = False
    G[absent[::2]] = np.nan
    for number, m in enumerate(broken):
        G[m, rng.integers(SIZE)] = [np.inf, np.nan, -np.inf][number % 3]
    return G, valid


def play(pair: Pair, cohorts: list, rng: np.random.Generator, valid=None, scale: float = 1.0) -> Iterator[Played]:
    """Rounds of both sides, each from zero parameters; a round in which nobody counts must change nothing."""
    state, twin_state = pair.start(len(cohorts[0])), None
    for t, G in enumerate(cohorts):
        G = np.asarray(G, np.float32)
        here = np.ones(len(G), bool) if valid is None else valid[t]
        seen = here & np.isfinite(G).all(axis=1)
        told = extras(rng, len(G), t, scale)
        params, after = pair.apply(as_tree(np.zeros(SIZE)), as_tree(G), state, **on_device(told, here))
        metrics = {name: np.asarray(value) for name, value in after.metrics.items()}
        assert int(metrics["num_rejected"]) == (here & ~seen).sum()
        if not seen.any():
            assert not as_vector(params).any()
            unchanged = jax.tree.map(np.array_equal, state._replace(metrics={}), after._replace(metrics={}))
            assert all(jax.tree.leaves(unchanged))
            state = after
            continue
        state = after
        extra = {key: value[seen] if key in PER_CLIENT else value for key, value in told.items()}
        extra = {
            key: np.asarray(value, np.float64) if key in ("root_delta", *PER_CLIENT) else value
            for key, value in extra.items()
        }
        exact = G[seen].astype(np.float64)
        outcome = None
        if pair.twin:
            outcome = pair.twin(exact, twin_state, t, {**extra, "seen": seen})
            twin_state = outcome.state
        yield Played(as_vector(params), metrics, outcome, exact, seen, extra, state)


def assert_close(update: np.ndarray, expected: np.ndarray, rtol: float = 1e-5) -> None:
    """The whole update to ``rtol`` of its norm."""
    error = np.linalg.norm(update - expected)
    assert error <= rtol * np.linalg.norm(expected), (error / np.linalg.norm(expected), update, expected)


def assert_agrees(played: Played, outcome: Outcome | None = None) -> None:
    """The update, and what the rule says about its clients; those that do not count weigh nothing."""
    outcome = outcome or played.outcome
    assert outcome is not None
    assert_close(played.update, outcome.update)
    assert_weights(played.metrics, played.seen, outcome)


def assert_weights(metrics: dict[str, np.ndarray], seen: np.ndarray, outcome: Outcome, rtol: float = 1e-4) -> None:
    """Cosines to 1e-5 and weights to ``rtol``."""
    np.testing.assert_allclose(metrics["cosine"][seen], outcome.cosine, atol=1e-5, err_msg="cosine")
    assert not metrics["weight"][~seen].any(), metrics["weight"]
    if np.isfinite(outcome.weight).all():
        atol = 1e-5 * abs(outcome.weight).max()
        np.testing.assert_allclose(metrics["weight"][seen], outcome.weight, rtol, atol, err_msg="weight")


def verify(pair: Pair, played: Played) -> None:
    """The pair's check, or the comparison with its twin."""
    if pair.check:
        pair.check(played)
    else:
        assert_agrees(played)


def verify_all(pair: Pair, cohorts: list, rng: np.random.Generator, scale: float = 1.0) -> int:
    """Verifies every round of :func:`play`; returns the number of those in which somebody counts."""
    return sum(verify(pair, played) is None for played in play(pair, cohorts, rng, scale=scale))


def verify_extreme(pair: Pair, scale: float, S: int = 10) -> None:
    """Squares of these norms over- and underflow in float32; nothing that a rule computes may."""
    rng = np.random.default_rng(7)
    verify_all(pair, [scale * random(rng, S) for _ in range(3)], rng, scale)


def duel(pair: Pair, S: int, missing: int = 0, inputs=INPUTS, num_rounds: int = 3) -> None:
    """Rounds of every kind of input; with ``missing`` clients also a round, the second, in which nobody counts."""
    for number, kind in enumerate(inputs):
        rng = np.random.default_rng([S, number, missing])
        cohorts, valid = [kind(rng, S) for _ in range(num_rounds)], None
        if missing:
            damaged = [damage(rng, G, missing) for G in cohorts]
            damaged.insert(1, (np.full((S, SIZE), np.nan), np.arange(S) % 2 == 0))
            cohorts, valid = [list(part) for part in zip(*damaged, strict=True)]
        for t, played in enumerate(play(pair, cohorts, rng, valid)):
            try:
                verify(pair, played)
            except AssertionError as error:
                raise AssertionError(f"{kind.__name__}, round {t}: {error}") from error
