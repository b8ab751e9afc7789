"""Evaluation of parameters on a whole data set."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from fedjax_drag.simulation.model.model import Model, ModelState
from fedjax_drag.simulation.program.clients_axis import Walk, make_mapper
from fedjax_drag.types import Batch, Params

_EVALUATION_BATCH = 250  # bounds the memory of activations; larger was not faster on CPU

Goal = Callable[..., tuple[jax.Array, jax.Array]]
"""``(x, labels, num_classes) -> (x, wanted)``, see :attr:`fedjax_drag.types.Attack.goal`."""


class Counts(NamedTuple):
    """Sums over examples; of batches, with a leading axis.

    Attributes:
      correct: examples whose class is predicted.
      loss: of all examples.
      targets: examples for which the attacker wants another class than theirs; None without a goal.
      reached: those of them for which the model predicts what the attacker wants; None without a goal.
    """

    correct: Int[Array, "*batches"]
    loss: Float[Array, "*batches"]
    targets: Int[Array, "*batches"] | None = None
    reached: Int[Array, "*batches"] | None = None


def make_evaluate(
    model: Model, goal: Goal | None = None, mesh: Mesh | None = None
) -> Callable[[Params, ModelState, Batch], dict[str, jax.Array]]:
    """Builds ``(params, model_state, examples) -> {"accuracy", "loss"}`` over all examples.

    Args:
      model: whose mean loss over the examples is ``"loss"``.
      goal: of an attack; the result then has ``"attack_success_rate"`` too, the share of the examples that count for
        which the model predicts what the attacker wants.
      mesh: devices that share the batches, or None.
    """
    over_batches = make_mapper(Walk("map"), mesh)
    shares = mesh.size if mesh else 1

    def of_batch(shared: tuple[Params, ModelState, Batch], batch_index: Int[Array, ""]) -> Counts:
        params, state, examples = shared
        return _count(model, goal, functools.partial(model.apply, params, state), examples, batch_index)

    def evaluate(params: Params, state: ModelState, examples: Batch) -> dict[str, jax.Array]:
        number = examples.y.shape[0]
        num_batches = -(-number // (_batch_size(examples) * shares)) * shares
        batches: Counts = over_batches(of_batch, (params, state, examples), jnp.arange(num_batches))
        sums = jax.tree.map(jnp.sum, batches)
        metrics = {"accuracy": sums.correct / number, "loss": sums.loss / number}
        if goal is not None:
            metrics["attack_success_rate"] = sums.reached / sums.targets
        return metrics

    return evaluate


def _batch_size(examples: Batch) -> int:
    return min(_EVALUATION_BATCH, examples.y.shape[0])


def _count(
    model: Model,
    goal: Goal | None,
    apply: Callable[[jax.Array], jax.Array],
    examples: Batch,
    batch_index: Int[Array, ""],
) -> Counts:
    """The sums over one batch of ``examples``; places after the last example do not count."""
    number, size = examples.y.shape[0], _batch_size(examples)
    places = batch_index * size + jnp.arange(size)
    real = places < number
    index = jnp.minimum(places, number - 1)
    x, labels = model.preprocess(examples.x[index]), examples.y[index]
    logits = apply(x)
    correct = (real & (logits.argmax(-1) == labels)).sum()
    loss = jnp.where(real, model.loss(logits, labels), 0.0).sum()
    if goal is None:
        return Counts(correct, loss)
    x, wanted = goal(x, labels, model.num_classes)
    targets = real & (wanted != labels)
    reached = targets & (apply(x).argmax(-1) == wanted)
    return Counts(correct, loss, targets.sum(), reached.sum())
