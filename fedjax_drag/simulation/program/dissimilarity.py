"""The extra ``dissimilarity``: how far each client's model moved in what it predicts on the client's own data."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedjax_drag import tree
from fedjax_drag.data.batching import gather
from fedjax_drag.simulation.program.clients_axis import map_clients
from fedjax_drag.simulation.program.evaluation import EVALUATION_BATCH
from fedjax_drag.simulation.run import ClientInput, RoundInput, Run
from fedjax_drag.types import DISSIMILARITIES, Batch, Deltas, Params


def flattened(a: Float[Array, "examples classes"], b: Float[Array, "examples classes"], count: Any) -> Float[Array, ""]:
    """1-D Wasserstein distance between all probabilities of ``a`` and all of ``b``.

    Args:
      a: ``[L, C]`` in [0, 1].
      b: ``[L, C]`` in [0, 1].
      count: how many rows are real; those after them are padding.

    Returns:
      A scalar in [0, 1].
    """
    real = jnp.arange(a.shape[0])[:, None] < count
    # Padding sorts behind every probability, on both sides, where it cancels.
    rising = [jnp.sort(jnp.where(real, p, 2.0).reshape(-1)) for p in (a, b)]
    return jnp.abs(rising[0] - rising[1]).sum() / jnp.maximum(count * a.shape[1], 1)


def class_histogram(
    a: Float[Array, "examples classes"], b: Float[Array, "examples classes"], count: Any
) -> Float[Array, ""]:
    """1-D Wasserstein distance over the class index between the mean distributions of ``a`` and of ``b``.

    Args:
      a: ``[L, C]``, a distribution in each row.
      b: ``[L, C]``, a distribution in each row.
      count: how many rows are real; those after them are padding.

    Returns:
      A scalar in [0, C - 1].
    """
    real = jnp.arange(a.shape[0])[:, None] < count
    difference = jnp.where(real, a - b, 0.0).sum(0) / jnp.maximum(count, 1)
    return jnp.abs(jnp.cumsum(difference)[:-1]).sum()


DISTANCES = {"flattened": (flattened, lambda classes: 1.0), "class_histogram": (class_histogram, lambda c: c - 1.0)}
"""Each distance, and the largest value it can have for C classes."""


def requested(needs: Iterable[str]) -> str | None:
    """Which of :data:`DISTANCES` a rule needs, or None.

    Args:
      needs: those of a rule or algorithm, which ask by the names in :data:`~fedjax_drag.types.DISSIMILARITIES`.

    Raises:
      ValueError: for more than one distance.
    """
    names = [DISSIMILARITIES[need] for need in needs if need in DISSIMILARITIES]
    if len(names) > 1:
        raise ValueError(f"dissimilarity={', '.join(sorted(names))}: must be only one")
    return names[0] if names else None


def dissimilarity(
    run: Run, kind: str, shared: RoundInput, clients: ClientInput, deltas: Deltas
) -> Float[Array, " clients"]:
    """The dissimilarity of a cohort's clients.

    Each client compares the softmax predictions of the model it was sent, ``start``, with those of the model that it
    uploads, ``start + delta``: for a malicious client that is the forged one. The examples are all of the client's
    own, as they are; an attacker's changes to its training data are not among them. Both models have the server's
    statistics. If the uploaded model or its predictions are not finite, the distance is the largest possible. There is
    no gradient: an attack that follows the gradient through the server's rule holds the dissimilarities fixed.

    This costs one prediction of every example of the cohort by each of two models. Examples are predicted in batches,
    a client's last being padded, so that at any time only probabilities ``[L, C]`` are kept for the clients that run at
    once.

    Args:
      run: whose model predicts.
      kind: name of one of :data:`DISTANCES`.
      shared: of the round.
      clients: of the cohort.
      deltas: of each of them ``[S, *p]``.
    """
    distance, largest = DISTANCES[kind]

    def of_client(shared: RoundInput, entry: tuple[ClientInput, Params]) -> Float[Array, ""]:
        own, delta = entry
        start, delta = jax.lax.stop_gradient((shared.seen_by(own).downlink.start, delta))
        models = [functools.partial(run.model.apply, w, shared.model) for w in (start, tree.move(start, delta))]
        longest = jax.tree.leaves(own.examples)[0].shape[0]
        fetch = lambda places: gather(shared.federation.train, own.examples, places, run.model.preprocess)
        before, after = _in_batches(functools.partial(_predict, models, fetch), longest, own.num_examples)
        moved = distance(before, after, own.num_examples)
        return jnp.where(jnp.isfinite(moved), moved, largest(before.shape[1]))

    return map_clients(run.batching, run.mesh, of_client, shared, (clients, deltas))


def _predict(
    models: Sequence[Callable[[Any], jax.Array]], fetch: Callable[[jax.Array], Batch], places: Int[Array, " batch"]
) -> list[Float[Array, "batch classes"]]:
    """What each model predicts for the examples at ``places``."""
    x = fetch(places).x
    return [jax.nn.softmax(tree.accurate(model(x))) for model in models]


def _in_batches(
    predict: Callable[[jax.Array], list[jax.Array]], longest: int, count: Int[Array, ""]
) -> list[Float[Array, "examples classes"]]:
    """Predicts the first ``count`` of a list of ``longest`` examples, one batch after another.

    Returns:
      Of each model ``[L', C]``, L' being ``longest`` rounded up to whole batches; zeros after the last batch.
    """
    size = min(EVALUATION_BATCH, longest)

    def write(index: jax.Array, predictions: list[jax.Array]) -> list[jax.Array]:
        places = jnp.minimum(index * size + jnp.arange(size), longest - 1)
        pairs = zip(predictions, predict(places), strict=True)
        return [jax.lax.dynamic_update_slice_in_dim(kept, new, index * size, 0) for kept, new in pairs]

    length = -(-longest // size) * size
    shapes = jax.eval_shape(predict, jax.ShapeDtypeStruct((size,), jnp.int32))
    blank = [jnp.zeros((length, *shape.shape[1:]), shape.dtype) for shape in shapes]
    return jax.lax.fori_loop(0, -(-count // size), write, blank)
