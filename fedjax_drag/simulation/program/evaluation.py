"""Evaluation on a whole data set, and the history of a run."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from fedjax_drag.losses import Loss
from fedjax_drag.simulation.program.clients_axis import make_mapper
from fedjax_drag.types import Batch, Params

_EVALUATION_BATCH = 250  # bounds the memory of activations; larger was not faster on CPU


def make_evaluate(
    apply: Callable[[Params, jax.Array], jax.Array],
    loss: Loss,
    preprocess: Callable[[jax.Array], jax.Array],
    num_classes: int,
    goal: Callable[..., tuple[jax.Array, jax.Array]] | None = None,
    mesh: Mesh | None = None,
) -> Callable[[Params, Batch], dict[str, jax.Array]]:
    """Builds ``(params, examples) -> {"test_accuracy", "test_loss"}`` over all examples.

    Args:
      apply: ``(params, x) -> logits [B, C]``.
      loss: ``(logits, labels) -> [B]``, whose mean is ``"test_loss"``.
      preprocess: from stored examples to model inputs.
      num_classes: C.
      goal: of an attack; the result then has ``"attack_success_rate"`` too, the share of the examples that count for
        which the model says what the attacker wants.
      mesh: devices that share the batches, or None.
    """
    over_batches = make_mapper("map", None, mesh)
    shares = mesh.size if mesh else 1

    def evaluate(params, examples):
        number = examples.y.shape[0]
        size = min(_EVALUATION_BATCH, number)
        num_batches = -(-number // (size * shares)) * shares

        def totals(shared, batch_index):
            params, examples = shared
            places = batch_index * size + jnp.arange(size)
            real = places < number
            index = jnp.minimum(places, number - 1)
            x, labels = preprocess(examples.x[index]), examples.y[index]
            logits = apply(params, x)
            sums = {
                "correct": (real & (logits.argmax(-1) == labels)).sum(),
                "loss": jnp.where(real, loss(logits, labels), 0.0).sum(),
            }
            if goal is not None:
                x, wanted = goal(x, labels, num_classes)
                counts = real & (wanted != labels)
                sums |= {"asked": counts.sum(), "reached": (counts & (apply(params, x).argmax(-1) == wanted)).sum()}
            return sums

        sums = over_batches(totals, (params, examples), jnp.arange(num_batches))
        sums = {name: x.sum() for name, x in sums.items()}
        metrics = {"test_accuracy": sums["correct"] / number, "test_loss": sums["loss"] / number}
        if goal is not None:
            metrics["attack_success_rate"] = sums["reached"] / sums["asked"]
        return metrics

    return evaluate
