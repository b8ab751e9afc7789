"""One client's work in a round: the mini-batches it draws, its local pass on them, the message that it sends."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from fedjax_drag import per_client, tree
from fedjax_drag.compression import _channel as channel
from fedjax_drag.data.batching import draw_epochs, draw_positions, gather, whole_batches
from fedjax_drag.per_client import PerClient
from fedjax_drag.simulation.model.model import Statistics
from fedjax_drag.simulation.program import sampling
from fedjax_drag.simulation.program.local import PassInput, local_pass
from fedjax_drag.simulation.program.work import (
    FULL,
    NOTHING_KEPT,
    ClientInput,
    ClientRows,
    LocalResult,
    LocalTraining,
    RoundInput,
    Work,
)
from fedjax_drag.types import Attack, Batch, ClientRule, Downlink, Params

ClientPass = Callable[[ClientRule, RoundInput, ClientInput], LocalResult]
"""One client's work in a round."""


class Drawn(NamedTuple):
    """Mini-batches as they are drawn; of one of them, the leaves have no leading axis ``[U]``.

    Attributes:
      places: in the client's list of examples.
      augmentation_key: of its augmentation; None without one.
    """

    places: Int[Array, "*steps batch"]
    augmentation_key: PRNGKeyArray | None


def make_client_pass(attack: Attack | None, work: Work) -> ClientPass:
    """Builds one client's work in a round: the keys, the mini-batches, the local pass.

    Args:
      attack: whose ``poison`` changes what malicious clients train on, or None.
      work: what the clients do; ``model`` and ``training`` are read.
    """
    model, training = work.model, work.training

    def client_pass(client: ClientRule, shared: RoundInput, own: ClientInput) -> LocalResult:
        key_of = functools.partial(sampling.client_key, shared.key, round_index=shared.round, client_id=own.client_id)
        longest = jax.tree.leaves(own.examples)[0].shape[0]
        places, real = draw_batches(training, key_of("batches"), own.num_examples, longest)
        if training.deadline is not None:
            places, real = jax.tree.map(lambda x: x[: training.deadline], (places, real))
        keys = None if training.augmentation is None else jax.random.split(key_of("augmentation"), len(places))
        steps = jnp.arange(len(places))
        each_step = lambda name: jax.vmap(jax.random.fold_in, (None, 0))(key_of(name), steps)
        rngs = {name: each_step(f"model.{name}") for name in model.streams}
        own_keys = each_step("client rule") if client.keyed else None
        return local_pass(
            client,
            functools.partial(model.training_loss, shared.model),
            shared.downlink._replace(own=own.downlink),
            fetch=functools.partial(_fetch, work, attack, shared, own),
            drawn=Drawn(places, keys),
            step_size=training.step_size(shared.round) if callable(training.step_size) else training.step_size,
            given=PassInput(own_statistics(own.kept, shared.model.statistics), rngs, own.kept, own_keys),
            real=real,
            num_steps=own.num_steps,
            optimizer=training.optimizer,
            at_once=work.execution.walk.is_batched,
        )

    return client_pass


def with_send(client_pass: ClientPass, attack: Attack | None) -> ClientPass:
    """The same work, with the message that leaves the client: that of an attacker is the one it has computed."""

    def sent_pass(client: ClientRule, shared: RoundInput, own: ClientInput) -> LocalResult:
        local = client_pass(client, shared, own)
        if not client.sends:
            return local
        key = sampling.client_key(shared.key, "send", shared.round, own.client_id)
        sent = client.send(key, local.uplink)
        if difference := tree.unlike(sent, local.uplink):
            raise ValueError(f"send of the client rule: returns {difference}")
        if attack is not None:
            sent = tree.where(attack.attackers(own.malicious, shared.round), local.uplink, sent)
        return local._replace(uplink=sent)

    return sent_pass


def sending(client_pass: ClientPass, work: Work) -> ClientPass:
    """The same work, with the message as the server decompresses it; the server's own pass sends nothing."""
    compressor = work.compression
    if compressor is None:
        return client_pass

    def sending_pass(client: ClientRule, shared: RoundInput, own: ClientInput) -> LocalResult:
        local = client_pass(client, shared, own)
        key = sampling.client_key(shared.key, "compression", shared.round, own.client_id)
        kept = own.kept.compression
        memory = kept.rows if per_client.is_per_client(kept) else channel.uplink_memory(compressor, local.uplink)
        uplink, memory = channel.send(compressor, local.uplink, memory, key)
        after = PerClient(memory, gathered=True) if per_client.is_per_client(kept) else ()
        return local._replace(uplink=uplink, kept=local.kept._replace(compression=after))

    return sending_pass


def first_rows(client: ClientRule, work: Work, params: Params, statistics: Statistics, uplink: Any) -> ClientRows:
    """What every client has kept before the first round: where a local pass would begin afresh.

    Args:
      client: what the clients compute.
      work: says whether the state of an optimizer is kept, statistics are local and messages compressed.
      params: the initial parameters.
      statistics: of the model at the start.
      uplink: shapes of a client's message, where messages are compressed.
    """
    rows, training, num_clients = NOTHING_KEPT, work.training, work.num_clients
    if client.keeps_carry:
        rows = rows._replace(carry=per_client.repeat(client.begin(Downlink(params)), num_clients))
    if training.keeps_optimizer and training.optimizer is not None:
        rows = rows._replace(optimizer=per_client.repeat(training.optimizer.init(params), num_clients))
    if work.statistics == "local" and jax.tree.leaves(statistics):
        rows = rows._replace(statistics=per_client.repeat(statistics, num_clients))
    if work.compression is not None:
        memory = channel.uplink_memory(work.compression, uplink)
        if jax.tree.leaves(memory):
            rows = rows._replace(compression=per_client.repeat(memory, num_clients))
    return rows


def own_statistics(kept: ClientRows, of_server: Statistics) -> Statistics:
    """The statistics from which a client starts: its own where they are local, else the server's."""
    return of_server if isinstance(kept.statistics, tuple) else kept.statistics.rows


def draw_batches(
    training: LocalTraining, key: PRNGKeyArray, num_examples: Int[Array, ""], longest: int
) -> tuple[Int[Array, "steps batch"], Bool[Array, "steps batch"] | None]:
    """Draws the mini-batches of a local pass.

    Args:
      training: says how many, and how large.
      key: of the draw.
      num_examples: how many entries of the client's list are real.
      longest: entries of the list, padding included.

    Returns:
      Places in the list ``[U, B]``, and which of them are real ``[U, B]``, or None if all are.
    """
    if training.local_steps is None:
        assert training.local_epochs is not None
        return draw_epochs(key, num_examples, training.local_epochs, batch_length(training, longest), longest)
    if training.batch_size == FULL:
        return whole_batches(num_examples, training.local_steps, longest)
    return draw_positions(key, num_examples, training.local_steps, batch_length(training, longest)), None


def batch_length(training: LocalTraining, longest: int) -> int:
    """Examples in a mini-batch, padding included, where lists of examples have ``longest`` entries."""
    return longest if isinstance(training.batch_size, str) else training.batch_size


def _fetch(work: Work, attack: Attack | None, shared: RoundInput, own: ClientInput, drawn: Drawn) -> Batch:
    """The examples of one mini-batch: augmented, and of a malicious client poisoned."""
    batch = gather(shared.federation.train, own.examples, drawn.places, work.model.preprocess)
    if drawn.augmentation_key is not None:
        assert work.training.augmentation is not None
        batch = batch._replace(x=work.training.augmentation(drawn.augmentation_key, batch.x))
    if attack is None or not attack.poisons:
        return batch
    # The same key in every round: an example is poisoned in the same way whenever it is drawn.
    key = jax.random.fold_in(sampling.stream(shared.key, "poison"), own.client_id)
    about = {"positions": drawn.places, "num_examples": own.num_examples, "num_classes": work.model.num_classes}
    if own.attacker_index is not None:
        about["attacker_index"] = own.attacker_index
    poisoned = attack.poison(key, batch, **about)
    if difference := tree.unlike(poisoned, batch):
        raise ValueError(f"attack: poison returns {difference}")
    return tree.where(attack.attackers(own.malicious, shared.round), poisoned, batch)
