"""Evaluation of parameters on a whole data set."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from fedjax_drag import tree
from fedjax_drag.simulation.model.model import Model, ModelState
from fedjax_drag.simulation.program.clients_axis import Walk, make_mapper
from fedjax_drag.types import Batch, Params

EVALUATION_BATCH = 250  # bounds the memory of activations; larger was not faster on CPU

Goal = Callable[..., tuple[jax.Array, jax.Array]]
"""``(x, labels, num_classes) -> (x, wanted)``, see :attr:`fedjax_drag.types.Attack.goal`."""


class Counts(NamedTuple):
    """Sums over examples; of batches, with a leading axis.

    Attributes:
      correct: examples whose class is predicted.
      loss: of all examples.
      targets: examples for which the attacker wants another class than theirs; None without a goal.
      reached: those of them for which the model predicts what the attacker wants; None without a goal.
      of_class: correct examples of each class; None unless asked for.
    """

    correct: Int[Array, "*batches"]
    loss: Float[Array, "*batches"]
    targets: Int[Array, "*batches"] | None = None
    reached: Int[Array, "*batches"] | None = None
    of_class: Int[Array, "*batches classes"] | None = None


def make_evaluate(
    model: Model, goal: Goal | None = None, mesh: Mesh | None = None, by_class: bool = False
) -> Callable[[Params, ModelState, Batch], dict[str, jax.Array]]:
    """Builds ``(params, model_state, examples) -> {"accuracy", "loss"}`` over all examples.

    Args:
      model: whose mean loss over the examples is ``"loss"``.
      goal: of an attack; the result then has ``"attack_success_rate"`` too, the share of the examples that count for
        which the model predicts what the attacker wants.
      mesh: devices that share the batches, or None.
      by_class: whether the result also has ``"class_correct"`` and ``"class_examples"``, ``[C]`` int32.
    """
    over_batches = make_mapper(Walk("map"), mesh)
    shares = mesh.size if mesh else 1

    def of_batch(shared: tuple[Params, ModelState, Batch], batch_index: Int[Array, ""]) -> Counts:
        params, state, examples = shared
        return _count(model, goal, functools.partial(model.apply, params, state), examples, batch_index, by_class)

    def evaluate(params: Params, state: ModelState, examples: Batch) -> dict[str, jax.Array]:
        number = examples.y.shape[0]
        num_batches = -(-number // (_batch_size(examples) * shares)) * shares
        batches: Counts = over_batches(of_batch, (params, state, examples), jnp.arange(num_batches))
        sums: Counts = jax.tree.map(lambda x: x.sum(0), batches)
        metrics: dict[str, Any] = {"accuracy": sums.correct / number, "loss": sums.loss / number}
        if goal is not None:
            assert sums.reached is not None
            assert sums.targets is not None
            metrics["attack_success_rate"] = sums.reached / sums.targets
        if by_class:
            of_class = jnp.bincount(examples.y, length=model.num_classes)
            metrics |= {"class_correct": sums.of_class, "class_examples": of_class}
        return metrics

    return evaluate


def _batch_size(examples: Batch) -> int:
    return min(EVALUATION_BATCH, examples.y.shape[0])


def _count(
    model: Model,
    goal: Goal | None,
    apply: Callable[[jax.Array], jax.Array],
    examples: Batch,
    batch_index: Int[Array, ""],
    by_class: bool,
) -> Counts:
    """The sums over one batch of ``examples``; places after the last example do not count."""
    number, size = examples.y.shape[0], _batch_size(examples)
    places = batch_index * size + jnp.arange(size)
    real = places < number
    index = jnp.minimum(places, number - 1)
    x, labels = model.preprocess(examples.x[index]), examples.y[index]
    logits = apply(x)
    hit = real & (logits.argmax(-1) == labels)
    correct = hit.sum()
    loss = jnp.where(real, model.loss(logits, labels), 0.0).sum()
    of_class = jax.ops.segment_sum(hit.astype(jnp.int32), labels, model.num_classes) if by_class else None
    if goal is None:
        return Counts(correct, loss, of_class=of_class)
    returned = goal(x, labels, model.num_classes)
    if difference := tree.unlike(returned, (x, labels)):
        raise ValueError(f"attack: goal returns {difference}")
    x, wanted = returned
    targets = real & (wanted != labels)
    reached = targets & (apply(x).argmax(-1) == wanted)
    return Counts(correct, loss, targets.sum(), reached.sum(), of_class)
