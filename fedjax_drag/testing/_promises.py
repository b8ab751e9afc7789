"""Promises, and the random input on which they are checked."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import chex
import jax
import jax.numpy as jnp
import numpy as np

from fedjax_drag import tree
from fedjax_drag.losses import cross_entropy
from fedjax_drag.types import DISSIMILARITIES, EXTRAS, PER_CLIENT_EXTRAS, Batch, Examined, Params, Prediction
from fedjax_drag.types._part import Function

_RTOL, _ATOL = 1e-4, 1e-5
"""Tolerances for float32 sums in another order, some of them inside iterations with a tolerance of their own."""

COMMON = {"weight", "cosine", "num_rejected"}
"""Metrics that every rule and every method has."""

UNASKED = {"client_ids", "round", "key", "num_examples"}
"""Extras that a rule or a method receives whether it needs them or not."""

Subject = TypeVar("Subject")


def check(subject: Subject, promises: Sequence[Callable[[Subject], None]]) -> None:
    """Checks promises; of one that is not kept, the docstring is the line that says so.

    Raises:
      AssertionError: names every broken promise, one per line. If the first is broken, the others are not tried, since
        they would fail in the same way.
    """
    broken: list[str] = []
    for promise in promises:
        try:
            promise(subject)
        except Exception as error:  # a user's part may raise anything
            message = next(iter(str(error).strip().splitlines()), type(error).__name__)
            broken.append(f"- {(promise.__doc__ or '').rstrip('.')}: {message}")
            if promise is promises[0]:
                break
    if broken:
        raise AssertionError("\n".join([f"{len(broken)} of {len(promises)} promises are not kept:", *broken]))


def parameters(given: Params = None) -> Params:
    """The parameters to check with; by default a small pytree of float32 arrays."""
    if given is not None:
        return jax.tree.map(np.asarray, given)
    rng = np.random.default_rng(0)
    shapes = {"kernel": (3, 2), "bias": (2,), "scale": ()}
    return {name: np.asarray(rng.normal(size=shape), np.float32) for name, shape in shapes.items()}


def random_deltas(params: Params, cohort: int, seed: int) -> Params:
    """Normally distributed, like the parameters with a leading axis ``[S]``."""
    rng = np.random.default_rng([1, seed])
    return jax.tree.map(lambda p: rng.normal(size=(cohort, *p.shape)).astype(jnp.result_type(p)), params)


def random_extras(params: Params, cohort: int, round: int, needs: Collection[str]) -> dict[str, Any]:
    """The extras of a round that every rule receives, and those that it needs; all but ``num_byzantine``."""
    rng = np.random.default_rng([2, round])
    extras = {
        "client_ids": rng.permutation(cohort).astype(np.int32),
        "round": np.int32(round),
        "key": jax.random.key(round),
        "num_examples": rng.integers(1, 90, cohort).astype(np.int32),
        "root_delta": jax.tree.map(lambda d: d[0], random_deltas(params, 1, 100 + round)),
        "dissimilarity": rng.uniform(size=cohort).astype(np.float32),
        "malicious": np.arange(cohort) < cohort // 3,
        "start_loss": rng.uniform(0.1, 3.0, cohort).astype(np.float32),
        "selection_weight": rng.uniform(0.5, 2.0, cohort).astype(np.float32),
        "staleness": rng.integers(0, 6, cohort).astype(np.int32),
        "starts": random_deltas(params, cohort, 200 + round),
        "step_size": np.float32(0.1),
        "predict": Function(made_up_model),
        "example": np.zeros(3, np.float32),
        "root_data": Batch(rng.normal(size=(6, 3)).astype(np.float32), np.arange(6) % 2),
    }
    asked = {"dissimilarity" if name in DISSIMILARITIES else name for name in needs}
    return {name: value for name, value in extras.items() if name in asked | UNASKED}


def made_up_model(params: Params, x: jax.Array) -> Prediction:
    """Bounded outputs of inputs ``[B, 3]`` with any parameters, all of which count."""
    row = jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(params)])
    hidden = jnp.tanh((0.5 + jnp.abs(x).sum(1, keepdims=True)) * row)
    return Prediction(hidden[:, ::2], hidden)


def examined(params: Params, batch: Batch, num_classes: int) -> Examined:
    """What a loss of a mini-batch is made of, by :func:`made_up_model` with logits of so many classes."""

    def predict(params: Params) -> Prediction:
        hidden = made_up_model(params, batch.x.reshape(len(batch.y), -1)).representation
        return Prediction(hidden[:, jnp.arange(num_classes) % hidden.shape[1]], hidden)

    return Examined(*predict(params), cross_entropy(), predict, jnp.bincount(batch.y, length=num_classes))


def assert_losses(losses: Any, batch: Batch) -> None:
    """What a loss returns is a finite number for each example of a mini-batch."""
    assert_like("loss returns", losses, jax.ShapeDtypeStruct((len(batch.y),), jnp.float32))
    assert_finite(losses, "loss")


def assert_needs(needs: Collection[str]) -> None:
    """Every name in ``needs`` is that of an extra."""
    unknown = sorted(set(needs) - set(EXTRAS))
    assert not unknown, f"needs={unknown}: must be among {sorted(EXTRAS)}"


def assert_like(what: str, found: Any, like: Any) -> None:
    """A pytree has structure, shapes and dtypes of another."""
    difference = tree.mismatch(found, like)
    assert not difference, f"{what} {difference}"


def assert_close(found: Any, expected: Any) -> None:
    """Two pytrees agree up to rounding."""
    chex.assert_trees_all_close(found, expected, rtol=_RTOL, atol=_ATOL)


def assert_finite(found: Any, what: str = "") -> None:
    """All numbers of a pytree are finite."""
    for path, leaf in jax.tree.leaves_with_path(found):
        assert np.isfinite(leaf).all(), f"{what}{jax.tree_util.keystr(path).lstrip('.')} is not finite"


def tolerated(cohort: int) -> int:
    """A number of malicious clients that every rule accepts in cohorts of S and S - 1."""
    return max(0, cohort // 4 - 1)


def assert_pure(function: Callable[..., Any], *inputs: Any) -> None:
    """Raises AssertionError if a function, traced twice, gives different programs; nothing is compiled."""
    # New functions, since JAX remembers what it has traced.
    first, second = (jax.jit(lambda *args: function(*args)).lower(*inputs).as_text() for _ in range(2))
    assert first == second, "it gives other numbers when it is traced again; random ones must come from key"


def stacked(trees: Sequence[Any]) -> Any:
    """Pytrees of arrays as one with a new leading axis; only keys are stacked by a compiled program."""

    def leaf(*rows: Any) -> Any:
        is_key = jnp.issubdtype(jnp.result_type(rows[0]), jax.dtypes.prng_key)
        return jnp.stack(rows) if is_key else np.stack(rows)

    return jax.tree.map(leaf, *trees)


def rows_of(extras: dict[str, Any], rows: Any) -> dict[str, Any]:
    """The extras of some of the clients, in the order given."""
    of_rows = lambda value: jax.tree.map(lambda x: x[rows], value)
    return {name: of_rows(value) if name in PER_CLIENT_EXTRAS else value for name, value in extras.items()}
