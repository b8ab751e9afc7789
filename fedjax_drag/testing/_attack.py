"""The contract of attacks."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_drag import checks, kinds
from fedjax_drag.attacks._forgery import KNOWLEDGE, changed, forged, names_of, varied_like
from fedjax_drag.testing._promises import (
    assert_close,
    assert_finite,
    assert_like,
    assert_losses,
    assert_pure,
    check,
    examined,
    parameters,
    stacked,
)
from fedjax_drag.types import POISON_NEEDS, Attack, Batch, Params, Uplink


@dataclasses.dataclass(frozen=True)
class _AttackBench:
    """An attack and its test input.

    Attributes:
      attack: under test.
      params: the global parameters.
      cohort: S.
      batch: a mini-batch of a malicious client.
      num_classes: C.
    """

    attack: Attack
    params: Params
    cohort: int
    batch: Batch
    num_classes: int

    @property
    def like(self) -> Uplink:
        """Shapes of the messages; aux is like the delta, as in SCAFFOLD."""
        delta = jax.tree.map(lambda p: jax.ShapeDtypeStruct((self.cohort, *p.shape), p.dtype), self.params)
        return Uplink(delta, delta)

    @functools.cached_property
    def uplink(self) -> Uplink:
        """What the clients honestly send."""
        return varied_like(self.like)

    @functools.cached_property
    def forge(self) -> Callable[..., Any]:
        """``(key, uplink, malicious, round) -> uplink``, compiled once."""
        return jax.jit(functools.partial(forged, self.attack))

    def some(self, every: int = 3) -> np.ndarray:
        """Which clients are malicious."""
        return np.arange(self.cohort) % every == 0

    def forged_by(self, malicious: np.ndarray) -> Uplink:
        """The messages of a cohort with these malicious clients."""
        return self.forge(jax.random.key(0), self.uplink, malicious)

    def loss(self, losses: Any) -> Any:
        """What a malicious client minimises."""
        seen = examined(self.params, self.batch, self.num_classes)
        return self.attack.loss(losses, seen, self.batch, **self.known_in_steps)

    def gradient(self, gradient: Params) -> Params:
        """What a malicious client follows."""
        return self.attack.gradient(gradient, self.params, self.params, **self.known_in_steps)

    @property
    def known_in_steps(self) -> dict[str, Any]:
        """What it needs in a local step."""
        known = self.memory | {"last_update": self.params, "local_step": jnp.int32(1)}
        return {name: value for name, value in known.items() if name in self.attack.needs}

    @property
    def memory(self) -> dict[str, Any]:
        """The keyword ``memory``, if it is needed."""
        first = jax.random.key(0)
        return {"memory": self.attack.init(first, self.params)} if "memory" in self.attack.needs else {}

    def poison(self, key: Any, batch: Batch) -> Batch:
        """A mini-batch of a malicious client after the attack."""
        positions, size = jnp.arange(len(batch.y)), jnp.int32(len(batch.y))
        known = {name: jnp.int32(1) for name in self.attack.needs if name in POISON_NEEDS} | self.memory
        about = {"positions": positions, "num_examples": size, "num_classes": self.num_classes}
        return self.attack.poison(key, batch, **about, **known)


def check_attack(
    attack: Attack, *, params: Params = None, cohort: int = 8, batch: Batch | None = None, num_classes: int = 3
) -> None:
    """Checks the behaviour of an attack that simulations rely on.

    The attack is called with made-up messages and a random mini-batch. Its strength is not checked, but that it changes
    nothing of benign clients, keeps shapes, is pure, works under ``jit``, ``scan`` and ``vmap``, and in a cohort of
    which nobody or everybody is malicious, and that a loss of its own is a finite number for each example.

    Args:
      attack: the attack to check.
      params: parameters to use; default a small pytree of float32 arrays.
      cohort: clients in a round, >= 3.
      batch: a mini-batch for ``poison`` and ``goal``; default 6 images ``[8, 8, 1]``.
      num_classes: C, of its labels.

    Raises:
      AssertionError: names every broken promise, one per line.
      ValueError: if ``attack`` is something else, or ``cohort`` not a count from 3.
    """
    kinds.ATTACK.check("attack", attack)
    checks.count("cohort", cohort, 3)
    if batch is None:
        rng = np.random.default_rng(4)
        images = rng.normal(size=(6, 8, 8, 1)).astype(np.float32)
        batch = Batch(jnp.asarray(images), jnp.asarray(rng.integers(0, num_classes, 6), jnp.int32))
    promises = (
        _keeps_shapes,
        *((_leaves_the_benign_alone, _survives_without_benign, _scans) if attack.forges else ()),
        *((_remembers,) if "memory" in attack.needs else ()),
        *((_leaves_benign_neighbours_alone,) if attack.forges_for_each else ()),
        *((_poisons_many,) if attack.poisons else ()),
        *((_has_losses_of_examples,) if attack.has_loss else ()),
        *((_keeps_gradients,) if attack.has_gradient else ()),
        *((_has_a_goal_in_range,) if attack.is_targeted else ()),
        _repeats,
        _knows_its_rounds,
    )
    check(_AttackBench(attack, parameters(params), cohort, batch, num_classes), promises)


def _keeps_shapes(bench: _AttackBench) -> None:
    """Messages and mini-batches keep structure, shapes and dtypes; what it needs is known."""
    attack, key = bench.attack, jax.random.key(0)
    trains_otherwise = attack.poisons or attack.has_loss or attack.has_gradient
    assert trains_otherwise or attack.forges or attack.forges_for_each, "it has neither forge nor poison"
    assert attack.needs <= set(KNOWLEDGE), f"needs={sorted(attack.needs)}: must be among {', '.join(KNOWLEDGE)}"
    if attack.forges:
        assert_like("forge returns", jax.eval_shape(bench.forge, key, bench.uplink, bench.some()), bench.like)
        found = jax.eval_shape(bench.forge, key, bench.uplink, bench.some(), valid=bench.some(2))
        assert_like("forge with absent clients returns", found, bench.like)
    if attack.poisons:
        assert_like("poison returns", jax.eval_shape(bench.poison, key, bench.batch), bench.batch)


def _remembers(bench: _AttackBench) -> None:
    """The memory keeps structure, shapes and dtypes from round to round."""
    before = jax.eval_shape(bench.attack.init, jax.random.key(0), bench.params)
    assert_like("observe returns", jax.eval_shape(bench.attack.observe, before, bench.params, jnp.int32(0)), before)
    loss = lambda params, x, y: sum(leaf.sum() for leaf in jax.tree.leaves((params, x))) + 0.0 * y.sum()
    rehearse = lambda memory: bench.attack.rehearse(jax.random.key(0), memory, bench.params, bench.batch, loss)
    assert_like("rehearse returns", jax.eval_shape(rehearse, before), before)


def _leaves_the_benign_alone(bench: _AttackBench) -> None:
    """What benign clients send comes back bit for bit."""
    for malicious in (bench.some(), ~bench.some(), np.zeros(bench.cohort, bool)):
        after = bench.forged_by(malicious)
        wrong = changed(bench.uplink, after, ~malicious)
        names = [name for name, differs in zip(names_of(after), wrong, strict=True) if differs]
        assert not names, f"forge changes {', '.join(names)}"


def _leaves_benign_neighbours_alone(bench: _AttackBench) -> None:
    """What benign neighbours send to a client comes back bit for bit."""
    models, weight = bench.uplink.delta, jnp.full(bench.cohort, 1 / (bench.cohort + 1))
    own = jax.tree.map(lambda x: x[0], models)
    for malicious in (bench.some(), ~bench.some(), np.zeros(bench.cohort, bool)):
        after = jax.jit(bench.attack.forge_for)(own, models, weight, malicious)
        assert_like("forge_for returns", after, models)
        assert not any(changed(models, after, ~malicious)), "forge_for changes what benign neighbours send"


def _survives_without_benign(bench: _AttackBench) -> None:
    """If all clients are malicious, what they send is as finite as otherwise."""
    if all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(bench.forged_by(bench.some()))):
        assert_finite(bench.forged_by(np.ones(bench.cohort, bool)))


def _scans(bench: _AttackBench) -> None:
    """A scan over rounds equals a loop."""
    keys, malicious = jax.random.split(jax.random.key(6), 3), np.stack([bench.some(every) for every in (2, 3, 4)])

    def body(uplink: Uplink, xs: Any) -> tuple[Uplink, None]:
        return forged(bench.attack, xs[0], uplink, *xs[1:]), None

    scanned, _ = jax.lax.scan(body, bench.uplink, (keys, malicious, np.arange(3)))
    looped = bench.uplink
    for round in range(3):
        looped = bench.forge(keys[round], looped, malicious[round], round)
    assert_close(scanned, looped)


def _repeats(bench: _AttackBench) -> None:
    """The same key and input give the same bits."""
    if bench.attack.forges:
        assert_pure(functools.partial(forged, bench.attack), jax.random.key(5), bench.uplink, bench.some())
    if bench.attack.poisons:
        assert_pure(bench.poison, jax.random.key(5), bench.batch)
    if bench.attack.has_loss:
        assert_pure(bench.loss, np.ones(len(bench.batch.y), np.float32))
    if bench.attack.has_gradient:
        assert_pure(bench.gradient, bench.params)


def _poisons_many(bench: _AttackBench) -> None:
    """Vmap of poison over clients equals a loop; labels stay in range."""
    keys = jax.random.split(jax.random.key(7), 2)
    both = jax.vmap(bench.poison, (0, None))(keys, bench.batch)
    assert_close(both, stacked([bench.poison(key, bench.batch) for key in keys]))
    _assert_labels("poison", both.y, bench)


def _has_losses_of_examples(bench: _AttackBench) -> None:
    """Loss gives a finite number for each example."""
    assert_losses(bench.loss(jnp.ones(len(bench.batch.y))), bench.batch)


def _keeps_gradients(bench: _AttackBench) -> None:
    """A gradient keeps structure, shapes and dtypes."""
    assert_like("gradient returns", jax.eval_shape(bench.gradient, bench.params), bench.params)


def _has_a_goal_in_range(bench: _AttackBench) -> None:
    """Goal gives inputs like those of the batch, and labels in range."""
    goal = jax.jit(lambda x, y: bench.attack.goal(x, y, bench.num_classes, **bench.memory))
    x, wanted = goal(bench.batch.x, bench.batch.y)
    assert_like("goal returns", (x, wanted), (bench.batch.x, bench.batch.y))
    _assert_labels("goal", wanted, bench)


def _knows_its_rounds(bench: _AttackBench) -> None:
    """Active says of every round whether there is an attack, as one bool."""
    found = jax.eval_shape(bench.attack.attackers, jax.ShapeDtypeStruct((), bool), jax.ShapeDtypeStruct((), jnp.int32))
    assert (found.shape, found.dtype) == ((), jnp.dtype(bool)), f"active returns {found.dtype}{list(found.shape)}"


def _assert_labels(name: str, labels: Any, bench: _AttackBench) -> None:
    low, high = int(labels.min()), int(labels.max())
    assert 0 <= low <= high < bench.num_classes, f"{name} gives labels from {low} to {high}"
