"""Evaluation on a whole data set, and the history of a run."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fedjax_drag.losses import Loss
from fedjax_drag.simulation.cost import ClientCost
from fedjax_drag.simulation.mesh import make_mapper
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


class Result(NamedTuple):
    """A finished run.

    Attributes:
      params: final global parameters.
      history: dict of NumPy arrays, one entry (row) for each evaluation: ``round``, ``test_accuracy``, ``test_loss``,
        ``train_loss`` (mean over the rounds since the last evaluation), ``num_rejected`` (sum over them), and of the
        evaluated round the rule's own metrics, per client ``[E, S]``. Where the algorithm hands out another model
        than its parameters, ``output_accuracy`` and ``output_loss`` are that model's. Under attack, of the evaluated
        round: ``cosine_to_benign``, ``malicious_weight``, ``detection_tpr`` and ``detection_fpr`` as
        :func:`~fedjax_drag.simulation.harm.harm` says; and ``attack_success_rate`` on the test set where the attack
        has a goal.
        Of the clients, summed over the rounds since the last evaluation: ``participants``, ``local_steps``,
        ``slowest_steps`` (of each round's client with most), ``gradient_evaluations``, ``vector_operations``,
        ``bytes_down`` and ``bytes_up``. ``client_seconds``, since the start of the run, is what the slowest clients
        would have needed, each by itself on this device.
      state: the whole final state, from which a run can go on.
      seconds: running time without compilation, evaluations included.
      compile_seconds: time spent compiling and timing a client.
      cost: what the method asks of one client, a :class:`~fedjax_drag.simulation.cost.ClientCost`.
      seconds_per_step: measured time of a client's local step; None if it was not measured.
      diverged_at: the first round after which a parameter was not finite; None if there is none. Unless
        ``stop_on_divergence`` was off, the history ends with the evaluation that follows it.
    """

    params: Params
    history: dict[str, np.ndarray]
    state: Any
    seconds: float
    compile_seconds: float
    cost: ClientCost
    seconds_per_step: float | None
    diverged_at: int | None = None

    def rounds_to(self, accuracy: float) -> int | None:
        """First evaluated round whose test accuracy reaches ``accuracy`` (in [0, 1]), or None."""
        return self._first("round", accuracy, int)

    def time_to(self, accuracy: float) -> float | None:
        """``client_seconds`` at the first evaluated round whose test accuracy reaches ``accuracy``, or None.

        Raises:
          ValueError: if the clients were not timed.
        """
        if "client_seconds" not in self.history:
            raise ValueError("time_to: the clients of this run were not timed; set time_clients=True")
        return self._first("client_seconds", accuracy, float)

    def _first(self, name: str, accuracy: float, kind: Callable[[Any], Any]) -> Any:
        reached = np.flatnonzero(self.history["test_accuracy"] >= accuracy)
        return kind(self.history[name][reached[0]]) if reached.size else None


def stack_history(entries: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Turns one dict for each evaluation into a dict of arrays with a leading axis ``[E]``."""
    return {name: np.stack([np.asarray(entry[name]) for entry in entries]) for name in entries[0]} if entries else {}


def client_seconds(history: Mapping[str, np.ndarray], seconds_per_step: float) -> np.ndarray:
    """What the slowest client of every round would have needed so far, summed over the rounds ``[E]``."""
    return np.cumsum(history["slowest_steps"], dtype=np.int64) * seconds_per_step
