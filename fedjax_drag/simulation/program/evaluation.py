"""What is measured: on the test set, on every client's own data, of the clients' work, of what an attack achieves."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Shaped

from fedjax_drag import tree
from fedjax_drag.data.batching import gather
from fedjax_drag.simulation.model.model import Model, ModelState
from fedjax_drag.simulation.program.clients_axis import ClientBatching, map_clients
from fedjax_drag.simulation.program.federation import HeldOut
from fedjax_drag.simulation.run import LocalResult
from fedjax_drag.types import Batch, Deltas, Params

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


def evaluate_model(
    model: Model,
    params: Params,
    state: ModelState,
    examples: Batch,
    *,
    goal: Goal | None = None,
    mesh: Mesh | None = None,
    by_class: bool = False,
) -> dict[str, jax.Array]:
    """``{"accuracy", "loss"}`` over all examples.

    Args:
      model: whose mean loss over the examples is ``"loss"``.
      params: of the model.
      state: of the model.
      examples: all of them.
      goal: of an attack; the result then has ``"attack_success_rate"`` too, the share of the examples that count for
        which the model predicts what the attacker wants.
      mesh: devices that share the batches, or None.
      by_class: whether the result also has ``"class_correct"`` and ``"class_examples"``, ``[C]`` int32.
    """
    number = examples.y.shape[0]
    size = _batch_size(number)

    def of_batch(shared: tuple[Params, ModelState, Batch], batch_index: Int[Array, ""]) -> Counts:
        params, state, examples = shared
        places = batch_index * size + jnp.arange(size)
        real = places < number  # those after the last example do not count
        index = jnp.minimum(places, number - 1)
        x, labels = model.preprocess(examples.x[index]), examples.y[index]
        logits = model.apply(params, state, x)
        hit = real & (logits.argmax(-1) == labels)
        correct = hit.sum()
        loss = jnp.where(real, model.loss(logits, labels), 0.0).sum()
        of_class = jax.ops.segment_sum(hit.astype(jnp.int32), labels, model.num_classes) if by_class else None
        if goal is None:
            return Counts(correct, loss, of_class=of_class)
        returned = goal(x, labels, model.num_classes)
        if difference := tree.mismatch(returned, (x, labels)):
            raise ValueError(f"attack: goal returns {difference}")
        x, wanted = returned
        targets = real & (wanted != labels)
        reached = targets & (model.apply(params, state, x).argmax(-1) == wanted)
        return Counts(correct, loss, targets.sum(), reached.sum(), of_class)

    batches: Counts = _over_batches(of_batch, (params, state, examples), number, mesh)
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


def _over_batches(of_batch: Callable[[Any, Any], Any], shared: Any, length: int, mesh: Mesh | None) -> Any:
    """``of_batch(shared, index)`` of every batch of a list, one after another, stacked; devices share the batches."""
    shares = mesh.size if mesh else 1
    num_batches = -(-length // (_batch_size(length) * shares)) * shares
    return map_clients(ClientBatching("map"), mesh, of_batch, shared, jnp.arange(num_batches))


def evaluate_clients(
    model: Model,
    params: Params,
    state: ModelState,
    train: Any,
    held_out: HeldOut,
    statistics: Any,
    mesh: Mesh | None = None,
) -> dict[str, jax.Array]:
    """The evaluation of all clients: one pass over their examples, and one sum for each client.

    The batches are as long as those of the evaluation on the test set and may hold the examples of several clients.

    Args:
      model: whose predictions are counted.
      params: of the global model.
      state: of the model.
      train: training examples; not used if ``held_out`` has the examples themselves.
      held_out: which of them are held out.
      statistics: of every client's own model; None unless clients keep their own.
      mesh: devices that share the batches, or None.

    Returns:
      ``client_correct`` and ``client_examples``, ``[M]`` int32 each.
    """
    counts = held_out.counts
    length = jax.tree.leaves(held_out.examples)[0].shape[0]
    owner = jnp.repeat(jnp.arange(counts.shape[0]), counts, total_repeat_length=length)
    size = _batch_size(length)

    def is_correct(shared: Any, batch_index: Int[Array, ""]) -> Bool[Array, " batch"]:
        params, state, train, held_out, statistics, owner = shared
        places = jnp.minimum(batch_index * size + jnp.arange(size), length - 1)  # the last example is repeated
        batch = gather(train, held_out.examples, places, model.preprocess)
        if statistics is None:
            return model.apply(params, state, batch.x).argmax(-1) == batch.y

        def of_example(client: Int[Array, ""], x: jax.Array) -> jax.Array:
            own = jax.tree.map(lambda rows: rows[client], statistics)
            return model.apply(params, state._replace(statistics=own), x[None])[0]

        return jax.vmap(of_example)(owner[places], batch.x).argmax(-1) == batch.y

    correct = _over_batches(is_correct, (params, state, train, held_out, statistics, owner), length, mesh)
    # Places after the last client's examples, in the last batch and in a padded list, do not count.
    correct = correct.reshape(-1)[:length] & (jnp.arange(length) < counts.sum())
    summed = jax.ops.segment_sum(correct.astype(jnp.int32), owner, counts.shape[0], indices_are_sorted=True)
    return {"client_correct": summed, "client_examples": counts}


def _batch_size(length: int) -> int:
    return min(EVALUATION_BATCH, length)


WORST = 10
"""The worst tenth: one in so many clients, rounded up."""


def by_client_and_class(evaluated: Mapping[str, Any], per_client: bool) -> dict[str, Any]:
    """An evaluation with accuracies in the place of the counts that they are made of.

    Args:
      evaluated: of one evaluation, on the host; it has counts only if clients are evaluated.
      per_client: whether to keep the accuracy of each client.

    Returns:
      The entries of ``evaluated`` that are no counts; ``class_accuracy`` ``[C]``, NaN for classes without an example;
      the figures of :func:`over_clients`; and ``client_accuracy`` ``[M]``, NaN for clients that do not count.
    """
    metrics = dict(evaluated)
    if "class_correct" in metrics:
        metrics["class_accuracy"] = _shares(metrics.pop("class_correct"), metrics.pop("class_examples"))
    if "client_correct" in metrics:
        of_clients = _shares(metrics.pop("client_correct"), metrics.pop("client_examples"))
        metrics |= over_clients(of_clients)
        if per_client:
            metrics["client_accuracy"] = of_clients
    return metrics


def over_clients(accuracy: np.ndarray) -> dict[str, np.floating]:
    """The spread of an accuracy over the clients, all of which weigh the same.

    Args:
      accuracy: ``[M]``; NaN for clients that do not count, of which there is one at least.

    Returns:
      ``client_accuracy_mean``; ``client_accuracy_worst_tenth``, the mean over the tenth of the clients, rounded up,
      whose accuracy is lowest; ``client_accuracy_std``, the standard deviation over the clients (divided by their
      number).

    References:
      Li, Sanjabi, Beirami and Smith, Fair resource allocation in federated learning, ICLR 2020: its Table 1 reports the
      average, the worst 10 %, the best 10 % and the variance over the clients.
    """
    rising = np.sort(np.asarray(accuracy, np.float64)[~np.isnan(accuracy)])
    figures = {
        "client_accuracy_mean": rising.mean(),
        "client_accuracy_worst_tenth": rising[: -(-len(rising) // WORST)].mean(),
        "client_accuracy_std": rising.std(),
    }
    return {name: np.float32(figure) for name, figure in figures.items()}


def _shares(correct: Any, number: Any) -> np.ndarray:
    """``correct / number`` as float32; NaN where there is nothing."""
    number = np.asarray(number, np.float64)
    return np.where(number > 0, np.asarray(correct) / np.maximum(number, 1), np.nan).astype(np.float32)


UNDEFINED = ("detection_tpr", "detection_fpr")
"""Metrics that are NaN where there is nobody of whom they are a share."""


def sum_of_benign(
    honest: Deltas, malicious: Bool[Array, " clients"], valid: Bool[Array, " clients"] | None = None
) -> Params:
    """Sum of the benign clients' deltas, like the parameters.

    Args:
      honest: the deltas ``[S, *p]`` as the clients computed them, before any was forged; those that are not
        usable, see :func:`fedjax_drag.tree.usable_rows`, do not count.
      malicious: ``[S]`` bool.
      valid: which clients take part, ``[S]``; default everybody.
    """
    counted = ~malicious & tree.usable_rows(honest) & (True if valid is None else valid)
    return tree.weighted_sum(counted.astype(jnp.float32), honest)


def attack_metrics(
    benign: Params,
    update: Params,
    malicious: Bool[Array, " clients"],
    weight: Shaped[Array, " clients"] | None = None,
    valid: Bool[Array, " clients"] | None = None,
    present: Bool[Array, " clients"] | None = None,
) -> dict[str, Float[Array, ""]]:
    """What malicious clients reached in a round.

    Args:
      benign: of :func:`sum_of_benign`.
      update: change of the global parameters.
      malicious: ``[S]`` bool.
      weight: each client's weight in the rule, ``[S]``; None if the rule has none.
      valid: which clients take part, ``[S]``; default everybody.
      present: which clients are not absent, ``[S]``, whether the method lets them take part or not; default everybody.

    Returns:
      Scalars. ``cosine_to_benign``: of ``update`` with the benign clients' mean delta, 0 if either is zero.
      If there are weights, ``malicious_weight``: the malicious clients' share of the sum of the weights' absolute
      values; and of a rule that rejects clients, be it by weight 0 or by expelling them, ``detection_tpr`` and
      ``detection_fpr``: the shares of the malicious and of the benign clients present that it rejected, NaN where there
      are none.
    """
    valid = jnp.ones(malicious.shape, bool) if valid is None else valid
    metrics = {"cosine_to_benign": tree.cosines(jax.tree.map(lambda u: u[None], update), benign)[0]}
    if weight is None:
        return metrics
    size = jnp.where(valid, jnp.abs(weight), 0.0)
    rejected = size == 0
    there = lambda clients: clients if present is None else clients & present
    return metrics | {
        "malicious_weight": jnp.where(malicious, size, 0.0).sum() * tree.inverse(size.sum()),
        "detection_tpr": (rejected & there(malicious)).sum() / there(malicious).sum(),
        "detection_fpr": (rejected & there(~malicious)).sum() / there(~malicious).sum(),
    }


def work_metrics(
    local: LocalResult,
    malicious: Bool[Array, " clients"],
    valid: Bool[Array, " clients"] | None = None,
    drawn: Bool[Array, " clients"] | None = None,
    may_be_absent: bool = False,
    accepted: Bool[Array, " clients"] | None = None,
) -> dict[str, jax.Array]:
    """Metrics of the local passes of a round, scalars.

    ``train_loss``: the mean mini-batch loss of the benign clients whose answer was accepted, NaN if there are none. As
    int32 ``participants``: how many answered; ``local_steps``: the steps of all that worked; ``slowest_steps``: those
    of the one with most, on whom a synchronous round waits. Where clients may be absent also ``drawn``: how many
    worked; and ``silent_rounds``: 1 if no benign client answered, ``train_loss`` then being 0.

    Args:
      local: results with a leading axis ``[S]``.
      malicious: ``[S]`` bool.
      valid: which clients answer, ``[S]``; default everybody.
      drawn: which clients work, ``[S]``; default those that answer.
      may_be_absent: whether a client may be missing for another reason than the method's.
      accepted: whose messages are usable, ``[S]``; default everybody's.
    """
    valid = jnp.ones(malicious.shape, bool) if valid is None else valid
    drawn = valid if drawn is None else drawn
    benign, steps = ~malicious & valid, jnp.where(drawn, local.steps, 0)
    counted = benign if accepted is None else benign & accepted
    metrics = {
        "train_loss": jnp.where(counted, local.loss, 0.0).sum() / counted.sum(),
        "participants": valid.sum(dtype=jnp.int32),
        "local_steps": steps.sum(),
        "slowest_steps": steps.max(),
    }
    if may_be_absent:
        silent = ~benign.any()
        metrics["train_loss"] = jnp.where(silent, 0.0, metrics["train_loss"])
        metrics |= {"drawn": drawn.sum(dtype=jnp.int32), "silent_rounds": silent.astype(jnp.int32)}
    return metrics
