"""A client's own examples in a round: those of a mini-batch, their numbers by class, the loss of a model on them."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from fedjax_drag import tree
from fedjax_drag.data.batching import draw_positions, gather
from fedjax_drag.selection import StartLoss
from fedjax_drag.simulation.program.clients_axis import map_clients
from fedjax_drag.simulation.program.evaluation import EVALUATION_BATCH
from fedjax_drag.simulation.program.keys import stream
from fedjax_drag.simulation.run import ClientInput, RoundInput, Run
from fedjax_drag.types import Batch, Params

_REHEARSED = 64  # examples on which an attack rehearses


class Drawn(NamedTuple):
    """Mini-batches as they are drawn; of one of them, the leaves have no leading axis ``[U]``.

    Attributes:
      places: in the client's list of examples.
      augmentation_key: of its augmentation; None without one.
      step: its place in the local pass; None unless the attack needs it.
    """

    places: Int[Array, "*steps batch"]
    augmentation_key: PRNGKeyArray | None
    step: Int[Array, "*steps"] | None = None


def fetch(run: Run, shared: RoundInput, own: ClientInput, drawn: Drawn) -> Batch:
    """The examples of one mini-batch: augmented, and of a malicious client poisoned."""
    batch = gather(shared.federation.train, own.examples, drawn.places, run.model.preprocess)
    if drawn.augmentation_key is not None:
        assert run.augmentation is not None
        batch = batch._replace(x=run.augmentation(drawn.augmentation_key, batch.x))
    attack = run.attack
    if attack is None or not attack.poisons:
        return batch
    # The same key in every round: an example is poisoned in the same way whenever it is drawn.
    key = jax.random.fold_in(stream(shared.key, "poison"), own.client_id)
    about = {"positions": drawn.places, "num_examples": own.num_examples, "num_classes": run.model.num_classes}
    if "attacker_index" in attack.needs:  # on its root data the server is none of the attackers
        about["attacker_index"] = jnp.int32(0) if own.attacker_index is None else own.attacker_index
    if drawn.step is not None:
        about["local_step"] = drawn.step
    if "memory" in attack.needs:
        about["memory"] = shared.memory
    poisoned = attack.poison(key, batch, **about)
    tree.check_returned("attack: poison", poisoned, batch)
    return tree.where(attack.attackers(own.malicious, shared.round), poisoned, batch)


def rehearsed(
    run: Run, shared: RoundInput, clients: ClientInput, params: Params, drawn: Bool[Array, " clients"] | None
) -> Any:
    """The memory of the attackers at the beginning of a round: what they make of true examples of the first of them.

    Args:
      run: with an attack that rehearses.
      shared: of the round, with the memory so far.
      clients: of the cohort.
      params: global parameters.
      drawn: which clients the cohort really has; None for all.
    """
    attack = run.attack
    assert attack is not None
    attackers = attack.attackers(clients.malicious, shared.round) & (True if drawn is None else drawn)
    first = jnp.argmax(attackers)
    row, number = jax.tree.map(lambda x: x[first], (clients.examples, clients.num_examples))
    key = shared.key_of("rehearsal")
    places = jax.random.randint(jax.random.fold_in(key, 0), (_REHEARSED,), 0, number)
    batch = gather(shared.federation.train, row, places, run.model.preprocess)
    loss = lambda params, x, y: run.model.loss(run.model.apply(params, shared.model, x), y).mean()
    after = attack.rehearse(jax.random.fold_in(key, 1), shared.memory, params, batch, loss)
    return tree.where(attackers.any(), after, shared.memory)


def class_counts(run: Run, shared: RoundInput, own: ClientInput) -> Int[Array, " classes"] | None:
    """How many examples of each class a client has; None where examples do not have one label each."""
    targets = own.examples.y if isinstance(own.examples, Batch) else shared.federation.train.y
    if not run.model.num_classes or not jax.tree_util.all_leaves([targets]) or targets.ndim != 1:
        return None
    labels = targets if isinstance(own.examples, Batch) else jnp.asarray(targets)[own.examples]
    real = jnp.arange(len(labels)) < own.num_examples
    return jax.ops.segment_sum(real.astype(jnp.int32), labels, run.model.num_classes)


def loss_moments(
    run: Run, shared: RoundInput, own: ClientInput, params: Params, drawn: Int[Array, " batch"] | None = None
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The mean and the mean square of a model's loss over examples of a client, poisoned ones included, in evaluation.

    Args:
      run: of which the model is read, and the attack.
      shared: what is the same for all clients.
      own: the client's.
      params: of the model.
      drawn: places of the examples in the client's list; default all of it.
    """
    longest = jax.tree.leaves(own.examples)[0].shape[0] if drawn is None else len(drawn)
    number = own.num_examples if drawn is None else longest
    size = min(EVALUATION_BATCH, longest)

    def add(index: Any, totals: Float[Array, "3"]) -> Float[Array, "3"]:
        counted = index * size + jnp.arange(size)
        places = jnp.minimum(counted, number - 1)
        batch = fetch(run, shared, own, Drawn(places if drawn is None else drawn[places], None))
        losses = run.model.loss(run.model.apply(params, shared.model, batch.x), batch.y)
        weights = run.model.weights(batch.y)
        weights = jnp.where(counted < number, 1.0 if weights is None else weights, 0.0)
        return totals + jnp.stack([(weights * losses).sum(), (weights * losses**2).sum(), weights.sum()])

    total, square, weight = jax.lax.fori_loop(0, -(-number // size), add, jnp.zeros(3))
    return total * tree.inverse(weight), square * tree.inverse(weight)


def losses_of(run: Run, shared: RoundInput, clients: ClientInput, batch_size: int | None = None) -> StartLoss:
    """The losses of clients, in evaluation: without augmentation, with the server's statistics of the model.

    The examples are those that a client trains on; an attack on data changes those of malicious clients here as well.

    Args:
      run: what is computed.
      shared: with the parameters, the start of its downlink.
      clients: leading axis of any length.
      batch_size: examples of each on which the loss is estimated; default all.
    """
    return map_clients(run.batching, run.mesh, functools.partial(_loss_of, run, batch_size), shared, clients)


def _loss_of(run: Run, batch_size: int | None, shared: RoundInput, own: ClientInput) -> StartLoss:
    shared, drawn = shared.seen_by(own), None
    if batch_size is not None:
        key = shared.key_of("candidate loss", own.client_id)
        drawn = draw_positions(key, own.num_examples, 1, batch_size)[0]
    mean, square = loss_moments(run, shared, own, shared.downlink.start, drawn)
    return StartLoss(mean, jnp.sqrt(square))
