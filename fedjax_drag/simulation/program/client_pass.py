"""One client's work in a round: the mini-batches it draws, its local pass on them, the message that it sends."""

import contextlib
import functools
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
from fedjax_drag.simulation.run import (
    FULL,
    NOTHING_KEPT,
    PRECISIONS,
    ClientInput,
    ClientRows,
    LocalResult,
    RoundInput,
    Run,
)
from fedjax_drag.types import Attack, Batch, ClientRule, Downlink, Params
from fedjax_drag.types._part import value_of


class Drawn(NamedTuple):
    """Mini-batches as they are drawn; of one of them, the leaves have no leading axis ``[U]``.

    Attributes:
      places: in the client's list of examples.
      augmentation_key: of its augmentation; None without one.
    """

    places: Int[Array, "*steps batch"]
    augmentation_key: PRNGKeyArray | None


def client_pass(run: Run, client: ClientRule, shared: RoundInput, own: ClientInput) -> LocalResult:
    """One client's work in a round: the keys, the mini-batches, the local pass.

    Args:
      run: of which the model and what concerns local passes is read, and the attack, whose ``poison`` changes what
        malicious clients train on.
      client: what the client computes.
      shared: what is the same for all clients.
      own: what it receives for itself.
    """
    key_of = functools.partial(sampling.client_key, shared.key, round_index=shared.round, client_id=own.client_id)
    longest = jax.tree.leaves(own.examples)[0].shape[0]
    places, real = draw_batches(run, key_of("batches"), own.num_examples, longest)
    if run.deadline is not None:
        places, real = jax.tree.map(lambda x: x[: run.deadline], (places, real))
    keys = None if run.augmentation is None else jax.random.split(key_of("augmentation"), len(places))
    steps = jnp.arange(len(places))
    each_step = lambda name: jax.vmap(jax.random.fold_in, (None, 0))(key_of(name), steps)
    rngs = {name: each_step(f"model.{name}") for name in run.model.streams}
    own_keys = each_step("client rule") if client.keyed else None
    precision = run.matmul_precision
    with contextlib.nullcontext() if precision == PRECISIONS[0] else jax.default_matmul_precision(precision):
        return local_pass(
            client,
            functools.partial(run.model.training_loss, shared.model),
            shared.downlink._replace(own=own.downlink),
            fetch=functools.partial(_fetch, run, shared, own),
            drawn=Drawn(places, keys),
            step_size=step_size_of(run, shared.round) if own.step_size is None else own.step_size,
            given=PassInput(own_statistics(own.kept, shared.model.statistics), rngs, own.kept, own_keys),
            real=real,
            num_steps=own.num_steps,
            optimizer=run.local_optimizer and value_of(run.local_optimizer),
            at_once=run.batching.is_batched,
        )


def step_size_of(run: Run, round_index: Int[Array, ""]) -> Any:
    """The step size of a round."""
    return run.step_size(round_index) if callable(run.step_size) else run.step_size


def sent_pass(run: Run, shared: RoundInput, own: ClientInput) -> LocalResult:
    """The same work of a client of the method, with the message as the server receives it.

    An attacker sends what it has computed, without the noise that the client rule adds. What is compressed is what
    leaves the client, its noise included: a function of it reveals no more.
    """
    local = client_pass(run, run.algorithm.client, shared, own)
    return _compressed(run, shared, own, sent(run.algorithm.client, run.attack, shared, own, local))


def sent(
    client: ClientRule, attack: Attack | None, shared: RoundInput, own: ClientInput, local: LocalResult
) -> LocalResult:
    """The result with the message that leaves the client."""
    if not client.sends:
        return local
    key = sampling.client_key(shared.key, "send", shared.round, own.client_id)
    uplink = client.send(key, local.uplink)
    if difference := tree.mismatch(uplink, local.uplink):
        raise ValueError(f"send of the client rule: returns {difference}")
    if attack is not None:
        uplink = tree.where(attack.attackers(own.malicious, shared.round), local.uplink, uplink)
    return local._replace(uplink=uplink)


def _compressed(run: Run, shared: RoundInput, own: ClientInput, local: LocalResult) -> LocalResult:
    """The result with the message as the server decompresses it."""
    compressor = run.compression
    if compressor is None:
        return local
    key = sampling.client_key(shared.key, "compression", shared.round, own.client_id)
    kept = own.kept.compression
    memory = kept.rows if per_client.is_per_client(kept) else channel.uplink_memory(compressor, local.uplink)
    uplink, memory = channel.send(compressor, local.uplink, memory, key)
    after = PerClient(memory, gathered=True) if per_client.is_per_client(kept) else ()
    return local._replace(uplink=uplink, kept=local.kept._replace(compression=after))


def first_rows(run: Run, params: Params, statistics: Statistics, uplink: Any) -> ClientRows:
    """What every client has kept before the first round: where a local pass would begin afresh.

    Args:
      run: says whether the state of an optimizer is kept, statistics are local and messages compressed.
      params: the initial parameters.
      statistics: of the model at the start.
      uplink: shapes of a client's message, where messages are compressed.
    """
    rows, client = NOTHING_KEPT, run.algorithm.client
    repeated = functools.partial(per_client.repeat, num_clients=run.num_clients)
    if client.keeps_carry:
        rows = rows._replace(carry=repeated(client.begin(Downlink(params))))
    if run.keeps_optimizer and run.local_optimizer is not None:
        rows = rows._replace(optimizer=repeated(value_of(run.local_optimizer).init(params)))
    if run.statistics == "local" and jax.tree.leaves(statistics):
        rows = rows._replace(statistics=repeated(statistics))
    if run.compression is not None:
        memory = channel.uplink_memory(run.compression, uplink)
        if jax.tree.leaves(memory):
            rows = rows._replace(compression=repeated(memory))
    return rows


def own_statistics(kept: ClientRows, of_server: Statistics) -> Statistics:
    """The statistics from which a client starts: its own where they are local, else the server's."""
    return of_server if isinstance(kept.statistics, tuple) else kept.statistics.rows


def draw_batches(
    run: Run, key: PRNGKeyArray, num_examples: Int[Array, ""], longest: int
) -> tuple[Int[Array, "steps batch"], Bool[Array, "steps batch"] | None]:
    """Draws the mini-batches of a local pass.

    Args:
      run: says how many, and how large.
      key: of the draw.
      num_examples: how many entries of the client's list are real.
      longest: entries of the list, padding included.

    Returns:
      Places in the list ``[U, B]``, and which of them are real ``[U, B]``, or None if all are.
    """
    if run.local_steps is None:
        assert run.local_epochs is not None
        return draw_epochs(key, num_examples, run.local_epochs, batch_length(run, longest), longest)
    if run.batch_size == FULL:
        return whole_batches(num_examples, run.local_steps, longest)
    return draw_positions(key, num_examples, run.local_steps, batch_length(run, longest)), None


def batch_length(run: Run, longest: int) -> int:
    """Examples in a mini-batch, padding included, where lists of examples have ``longest`` entries."""
    return longest if isinstance(run.batch_size, str) else run.batch_size


def _fetch(run: Run, shared: RoundInput, own: ClientInput, drawn: Drawn) -> Batch:
    """The examples of one mini-batch: augmented, and of a malicious client poisoned."""
    batch = gather(shared.federation.train, own.examples, drawn.places, run.model.preprocess)
    if drawn.augmentation_key is not None:
        assert run.augmentation is not None
        batch = batch._replace(x=run.augmentation(drawn.augmentation_key, batch.x))
    attack = run.attack
    if attack is None or not attack.poisons:
        return batch
    # The same key in every round: an example is poisoned in the same way whenever it is drawn.
    key = jax.random.fold_in(sampling.stream(shared.key, "poison"), own.client_id)
    about = {"positions": drawn.places, "num_examples": own.num_examples, "num_classes": run.model.num_classes}
    if own.attacker_index is not None:
        about["attacker_index"] = own.attacker_index
    poisoned = attack.poison(key, batch, **about)
    if difference := tree.mismatch(poisoned, batch):
        raise ValueError(f"attack: poison returns {difference}")
    return tree.where(attack.attackers(own.malicious, shared.round), poisoned, batch)
