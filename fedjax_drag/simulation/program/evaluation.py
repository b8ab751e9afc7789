"""What is measured: on the test set, on every client's own data, of the clients' work, of what an attack achieves."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Shaped

from fedjax_drag import tree
from fedjax_drag.data.batching import gather
from fedjax_drag.kernels.arithmetic import expand
from fedjax_drag.simulation.devices.model_sharding import num_shares
from fedjax_drag.simulation.model.model import ModelState
from fedjax_drag.simulation.program.clients_axis import ClientBatching, map_clients
from fedjax_drag.simulation.program.federation import HeldOut
from fedjax_drag.simulation.run import Cohort, RoundOutcome, Run, RunState
from fedjax_drag.types import Batch, Deltas, Metric, Params

EVALUATION_BATCH = 250  # bounds the memory of activations; larger was not faster on CPU

OwnExamples = tuple[Batch, HeldOut, Any]
"""Examples, the held-out ones among them, and the statistics ``[M, ...]`` of clients that keep their own; None in the
place of these where they do not."""

Goal = Callable[..., tuple[jax.Array, jax.Array]]
"""``(x, labels, num_classes) -> (x, wanted)``, see :attr:`fedjax_drag.types.Attack.goal`."""


def evaluate_model(
    run: Run, params: Params, state: ModelState, examples: Batch, goal: Goal | None = None, by_class: bool = False
) -> dict[str, jax.Array]:
    """The model's metrics and ``"loss"`` over all examples.

    Args:
      run: of whose model the mean loss over the examples is ``"loss"``; its devices share the batches.
      params: of the model.
      state: of the model.
      examples: all of them.
      goal: of an attack; the result then has ``"attack_success_rate"`` too, the share of the examples that count for
        which the model predicts what the attacker wants.
      by_class: whether the result also has ``"class_correct"`` and ``"class_examples"``, ``[C]`` int32.
    """
    model, number = run.model, examples.num_examples
    size = _batch_size(number)

    def of_batch(shared: tuple[Params, ModelState, Batch], batch_index: Int[Array, ""]) -> dict[str, Any]:
        """Sums over the examples of a batch."""
        params, state, examples = shared
        places = batch_index * size + jnp.arange(size)
        real = places < number  # those after the last example do not count
        index = jnp.minimum(places, number - 1)
        x, y, _ = gather(examples, examples, index, model.preprocess)
        outputs = model.apply(params, state, x)
        sums: dict[str, Any] = {"metrics": tuple(summed(metric.update(outputs, y), real) for metric in model.metrics)}
        loss, weight = model.loss(outputs, y), model.weights(y)
        if weight is not None:
            loss, sums["weight"] = loss * weight, summed(weight, real)
        sums["loss"] = summed(loss, real)
        if by_class:
            hit = real & (outputs.argmax(-1) == y)
            sums["class_correct"] = jax.ops.segment_sum(hit.astype(jnp.int32), y, model.num_classes)
        if goal is not None:
            returned = goal(x, y, model.num_classes)
            tree.check_returned("attack: goal", returned, (x, y))
            x, wanted = returned
            targets = real & (wanted != y)
            reached = targets & (model.apply(params, state, x).argmax(-1) == wanted)
            sums |= {"targets": targets.sum(), "reached": reached.sum()}
        return sums

    batches = _over_batches(of_batch, (params, state, examples), number, run.mesh)
    sums: dict[str, Any] = jax.tree.map(lambda x: x.sum(0), batches)
    metrics = {metric.name: metric.result(own) for metric, own in zip(model.metrics, sums["metrics"], strict=True)}
    metrics["loss"] = sums["loss"] / sums.get("weight", number)
    if goal is not None:
        metrics["attack_success_rate"] = sums["reached"] / sums["targets"]
    if by_class:
        of_class = jnp.bincount(examples.y, length=model.num_classes)
        metrics |= {"class_correct": sums["class_correct"], "class_examples": of_class}
    return metrics


def summed(values: Any, real: Bool[Array, " batch"]) -> Any:
    """Sums over the examples of a batch that are real."""
    return jax.tree.map(lambda x: jnp.where(expand(real, x), x, 0).sum(0), values)


def _over_batches(of_batch: Callable[[Any, Any], Any], shared: Any, length: int, mesh: Mesh | None) -> Any:
    """``of_batch(shared, index)`` of every batch of a list, one after another, stacked; devices share the batches."""
    shares = num_shares(mesh)
    num_batches = -(-length // (_batch_size(length) * shares)) * shares
    return map_clients(ClientBatching("map"), mesh, of_batch, shared, jnp.arange(num_batches))


def evaluate_clients(run: Run, state: RunState, own: OwnExamples) -> dict[str, jax.Array]:
    """The evaluation of all clients: one pass over their examples, and one sum for each client.

    The batches are as long as those of the evaluation on the test set and may hold the examples of several clients.

    Args:
      run: whose model predicts, the global one or that of the client's cluster; its devices share the batches.
      state: of the run.
      own: of the clients.

    Returns:
      ``client_<metric>`` ``[M]`` for each of the model's metrics, NaN where a client has no example.
    """
    model, clusters = run.model, run.algorithm.clusters and run.algorithm.clusters(state.algorithm)
    _, held_out, _ = own
    counts, length = held_out.counts, len(held_out.examples)
    owner = jnp.repeat(jnp.arange(counts.shape[0]), counts, total_repeat_length=length)
    size = _batch_size(length)

    def of_batch(shared: Any, batch_index: Int[Array, ""]) -> tuple[Any, ...]:
        params, state, (examples, held_out, statistics), owner, clusters = shared
        places = jnp.minimum(batch_index * size + jnp.arange(size), length - 1)  # the last example is repeated
        batch = gather(examples, held_out.examples, places, model.preprocess)

        def of_model(params: Params) -> Any:
            def of_example(client: Int[Array, ""], x: Any) -> Any:
                own = jax.tree.map(lambda rows: rows[client], statistics)
                outputs = model.apply(params, state._replace(statistics=own), jax.tree.map(lambda leaf: leaf[None], x))
                return jax.tree.map(lambda leaf: leaf[0], outputs)

            if statistics is None:
                return model.apply(params, state, batch.x)
            return jax.vmap(of_example)(owner[places], batch.x)

        if clusters is None:
            outputs = of_model(params)
        else:
            chosen = clusters.of_client[owner[places]], jnp.arange(size)
            outputs = jax.tree.map(lambda of_all: of_all[chosen], jax.lax.map(of_model, clusters.models))
        return tuple(metric.update(outputs, batch.y) for metric in metrics)

    metrics = tuple(metric for metric in model.metrics if metric.of_clients)
    added = _over_batches(of_batch, (state.params, state.model, own, owner, clusters), length, run.mesh)
    real = jnp.arange(length) < counts.sum()  # not those after the last client's, in a padded list

    def by_client(x: jax.Array) -> jax.Array:
        x = x.reshape(-1, *x.shape[2:])[:length]
        x = jnp.where(expand(real, x), x, 0).astype(jnp.result_type(x, jnp.int32))
        return jax.ops.segment_sum(x, owner, counts.shape[0], indices_are_sorted=True)

    sums = jax.tree.map(by_client, added)
    figures = (jax.vmap(metric.result)(own) for metric, own in zip(metrics, sums, strict=True))
    return {f"client_{metric.name}": figure for metric, figure in zip(metrics, figures, strict=True)}


def _batch_size(length: int) -> int:
    return min(EVALUATION_BATCH, length)


OF_CLIENTS = ("client_", "own_")
"""What the names of metrics of each client begin with: of the global model, and of the client's own."""

WORST = 10
"""The worst tenth: one in so many clients, rounded up."""


def by_client_and_class(evaluated: Mapping[str, Any], metrics: Sequence[Metric], per_client: bool) -> dict[str, Any]:
    """An evaluation with accuracies in the place of the counts of classes, and the spread of metrics over clients.

    Args:
      evaluated: of one evaluation, on the host; it has these only if clients are evaluated.
      metrics: of the model.
      per_client: whether to keep the metrics of each client.

    Returns:
      The entries of ``evaluated``; ``class_accuracy`` ``[C]`` in place of counts, NaN for classes without an example;
      and the figures of :func:`over_clients`.
    """
    found = dict(evaluated)
    if "class_correct" in found:
        correct, number = np.float64(found.pop("class_correct")), np.float64(found.pop("class_examples"))
        found["class_accuracy"] = np.where(number > 0, correct / np.maximum(number, 1), np.nan).astype(np.float32)
    for metric in metrics:
        for name in [beginning + metric.name for beginning in OF_CLIENTS]:
            if name in found:
                found |= over_clients(found[name], name, metric.higher_is_better)
                if not per_client:
                    found.pop(name)
    return found


def over_clients(
    values: np.ndarray, name: str = "client_accuracy", higher_is_better: bool = True
) -> dict[str, np.floating]:
    """The spread of a metric over the clients, all of which weigh the same.

    Args:
      values: ``[M]``; NaN for clients that do not count.
      name: of the metric.
      higher_is_better: else the worst clients are those with the highest values.

    Returns:
      With their names behind ``name``: ``_mean``; ``_worst_tenth``, the mean over the tenth of the clients, rounded up,
      that are worst; ``_std``, the standard deviation over the clients (divided by their number). NaN if none counts.

    References:
      Li, Sanjabi, Beirami and Smith, Fair resource allocation in federated learning, ICLR 2020: its Table 1 reports the
      average, the worst 10 %, the best 10 % and the variance over the clients.
    """
    worst_first = np.sort(np.asarray(values, np.float64)[~np.isnan(values)])[:: 1 if higher_is_better else -1]
    worst_first = worst_first if worst_first.size else np.array([np.nan])
    figures = {
        "mean": worst_first.mean(),
        "worst_tenth": worst_first[: -(-len(worst_first) // WORST)].mean(),
        "std": worst_first.std(),
    }
    return {f"{name}_{figure}": np.float32(value) for figure, value in figures.items()}


UNDEFINED = ("detection_tpr", "detection_fpr")
"""Metrics of a round that are NaN where there is nobody of whom they are a share."""


def sum_of_benign(
    deltas: Deltas, malicious: Bool[Array, " clients"], valid: Bool[Array, " clients"] | None = None
) -> Params:
    """Sum of the benign clients' deltas, like the parameters.

    Args:
      deltas: of all clients ``[S, *p]``, forged or not; those that are not usable, see
        :func:`fedjax_drag.tree.usable_rows`, do not count.
      malicious: ``[S]`` bool.
      valid: which clients take part, ``[S]``; default everybody.
    """
    counted = ~malicious & tree.usable_rows(deltas) & (True if valid is None else valid)
    return tree.weighted_sum(counted.astype(jnp.float32), deltas)


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


def work_metrics(run: Run, cohort: Cohort, outcome: RoundOutcome) -> dict[str, jax.Array]:
    """Metrics of the local passes of a round, scalars.

    ``train_loss``: the mean mini-batch loss of the benign clients whose answer was accepted, NaN if there are none. As
    int32 ``participants``: how many answered; ``local_steps``: the steps of all that worked; ``slowest_steps``: those
    of the one with most, on whom a synchronous round waits. Where clients may be absent also ``drawn``: how many
    worked; and where benign ones may be, ``silent_rounds``: 1 if none answered, ``train_loss`` then being 0.
    """
    local, who, malicious = outcome.local, cohort.who, cohort.clients.malicious
    valid = jnp.ones(malicious.shape, bool) if who.valid is None else who.valid
    drawn = valid if who.drawn is None else who.drawn
    benign, steps = ~malicious & valid, jnp.where(drawn, local.steps, 0)
    counted = benign & outcome.accepted
    metrics = {
        "train_loss": jnp.where(counted, local.loss, 0.0).sum() / counted.sum(),
        "participants": valid.sum(dtype=jnp.int32),
        "local_steps": steps.sum(),
        "slowest_steps": steps.max(),
    }
    if run.may_be_absent:
        metrics["drawn"] = drawn.sum(dtype=jnp.int32)
    if run.may_be_silent:
        silent = ~benign.any()
        metrics["train_loss"] = jnp.where(silent, 0.0, metrics["train_loss"])
        metrics["silent_rounds"] = silent.astype(jnp.int32)
    return metrics
