"""One round: cohort, local passes, attack, aggregation. A pure function, compiled as part of the run."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from fedjax_drag import per_client, tree
from fedjax_drag.data.augmentation import Augmentation
from fedjax_drag.data.batching import draw_epochs, draw_positions, gather, whole_batches
from fedjax_drag.losses import Loss
from fedjax_drag.simulation.devices.placement import bring, placed, split_coordinates
from fedjax_drag.simulation.program import sampling
from fedjax_drag.simulation.program.attack_metrics import harm, sum_of_benign
from fedjax_drag.simulation.program.clients_axis import Accumulator, Mapper, Walk
from fedjax_drag.simulation.program.dissimilarity import make_dissimilarity, requested
from fedjax_drag.simulation.program.federation import Federation
from fedjax_drag.simulation.program.local import LocalResult, local_pass
from fedjax_drag.simulation.program.streaming import make_stream
from fedjax_drag.types import Algorithm, Attack, Batch, ClientRule, Downlink, Params, State

FULL = "full"
"""The batch size that stands for all examples of a client."""

KNOWLEDGE = ("last_update", "root_delta", "aggregate")
"""What an attack may ask to be told."""


class RunState(NamedTuple):
    """All that a run carries from round to round.

    Attributes:
      params: global parameters.
      algorithm: state of the algorithm.
      round: rounds done, int32 scalar.
      last_update: the last round's change of ``params``; ``()`` unless the attack needs it.
    """

    params: Params
    algorithm: State
    round: jax.Array
    last_update: Any = ()


@dataclasses.dataclass(frozen=True)
class Work:
    """What the clients of a round do.

    Attributes:
      apply: ``(params, x) -> logits [B, C]``.
      loss: ``(logits, labels) -> [B]``.
      preprocess: from stored examples to model inputs.
      num_classes: C.
      cohort_size: S.
      local_steps: U; None where ``local_epochs`` says how long a pass is.
      batch_size: B, or :data:`FULL`.
      step_size: eta; may be traced, or a function of the round.
      over_clients: maps a function of one client over a leading axis.
      mesh: devices that share the clients, or None.
      reject_nonfinite: whether a client whose message is not finite, or too long, is left out.
      root_client: what the server runs on its root data.
      walk: the way that ``over_clients`` takes.
      accumulate_clients: adds up the clients' messages as they come, by the method's ``sums``; None to stack them.
      local_epochs: passes over the client's own data.
      local_optimizer: what transforms the directions of a local pass, or None.
      augmentation: what changes training inputs at random, or None.
      shard_data: whether the devices of ``mesh`` divide the training examples among them.
    """

    apply: Callable[[Params, jax.Array], jax.Array]
    loss: Loss
    preprocess: Callable[[jax.Array], jax.Array]
    num_classes: int
    cohort_size: int
    local_steps: int | None
    batch_size: Any
    step_size: Any
    over_clients: Mapper
    mesh: Mesh | None
    reject_nonfinite: bool
    root_client: ClientRule
    walk: Walk
    local_epochs: float | None = None
    local_optimizer: optax.GradientTransformation | None = None
    augmentation: Augmentation | None = None
    accumulate_clients: Accumulator | None = None
    shard_data: bool = False

    def within_reach(self, federation: Federation, rows: jax.Array) -> tuple[Federation, Any]:
        """The data for work on ``rows``, index lists ``[S, L]`` of clients, or ``[R]`` of the server's root data.

        Returns:
          The federation that the work sees, and for every client what :func:`~fedjax_drag.data.batching.gather` takes
          of it: its list, or, where devices divide the examples among them, its examples where it is worked on.
        """
        if not self.shard_data:
            return federation, rows
        assert self.mesh is not None
        return federation._replace(train=()), bring(federation.train, rows, self.mesh)

    def draw(self, key: jax.Array, count: jax.Array, most: int) -> tuple[jax.Array, jax.Array | None]:
        """The mini-batches of a local pass: places in a list of ``most`` of which the first ``count`` are the client's.

        Returns:
          The places ``[U, B]``, and which of them are real ``[U, B]``, or None if all are.
        """
        size = most if self.batch_size == FULL else self.batch_size
        if self.local_steps is None:
            assert self.local_epochs is not None
            return draw_epochs(key, count, self.local_epochs, size, most)
        if self.batch_size == FULL:
            return whole_batches(count, self.local_steps, most)
        return draw_positions(key, count, self.local_steps, size), None

    def loss_fn(self, params: Params, batch: Batch) -> jax.Array:
        """The mean loss of a batch's real examples, scalar."""
        losses = self.loss(self.apply(params, batch.x), batch.y)
        if batch.real is None:
            return losses.mean()
        return jnp.where(batch.real, losses, 0.0).sum() / jnp.maximum(batch.real.sum(), 1)


def make_client_pass(attack: Attack | None, work: Work) -> Callable[..., LocalResult]:
    """Builds ``(client, (federation, key, round, downlink), (id, row, count, malicious, own)) -> LocalResult``.

    It is the local pass of one client, whose message from the server is ``downlink`` with ``own``.
    """
    poison = attack.poison if attack else None

    def client_pass(client, shared, inputs):
        federation, key, round_index, downlink = shared
        client_id, row, count, malicious, own = inputs
        most = jax.tree.leaves(row)[0].shape[0]

        def named(name):
            return jax.random.fold_in(sampling.round_key(key, name, round_index), client_id)

        def fetch(drawn):
            places, augmentation_key = drawn
            batch = gather(federation.train, row, places, work.preprocess)
            if work.augmentation is not None:
                batch = batch._replace(x=work.augmentation(augmentation_key, batch.x))
            if poison is None:
                return batch
            fixed = jax.random.fold_in(sampling.stream(key, "poison"), client_id)
            poisoned = poison(fixed, batch, positions=places, num_examples=count, num_classes=work.num_classes)
            return tree.where(malicious, poisoned, batch)

        positions, real = work.draw(named("batches"), count, most)
        keys = None if work.augmentation is None else jax.random.split(named("augmentation"), len(positions))
        step_size = work.step_size(round_index) if callable(work.step_size) else work.step_size
        downlink, drawn = downlink._replace(own=own), (positions, keys)
        return local_pass(client, work.loss_fn, downlink, fetch, drawn, step_size, real, work.local_optimizer)

    return client_pass


def make_round(
    algorithm: Algorithm, attack: Attack | None, work: Work
) -> Callable[..., tuple[RunState, dict[str, jax.Array], Any]]:
    """Builds ``(federation, key, state, scratch=None) -> (state, metrics, scratch)`` for one round.

    The scratch that a round returns holds the clients' results; given to the next round, their memory is used again.
    It is ``()`` where the clients' messages are added up as they come.

    Metrics are the algorithm's own, ``client_ids`` ``[S]``, ``malicious`` ``[S]`` and those of
    :func:`what_clients_did`; where the algorithm says who is eligible, also ``valid`` ``[S]``; under attack those of
    :func:`harm`. Random draws depend on the key, the round, the client's id and who is eligible only.
    """
    client_pass = make_client_pass(attack, work)
    forge = attack.forge if attack else None
    asks = attack.needs if attack else frozenset()
    emd = requested(algorithm.needs)
    dissimilarity = make_dissimilarity(emd, work.apply, work.preprocess, work.over_clients) if emd else None

    def root_delta(federation, key, round_index, start):
        federation, root = work.within_reach(federation, federation.root_row)
        inputs = (federation.rows.shape[0], root, federation.root_count, False, ())
        return client_pass(work.root_client, (federation, key, round_index, Downlink(start)), inputs).uplink.delta

    stream = None
    if work.accumulate_clients is not None:
        assert algorithm.streamed is not None
        own_pass = functools.partial(client_pass, algorithm.client)
        stream = make_stream(algorithm.streamed, work.accumulate_clients, own_pass, wants_benign=attack is not None)

    def concluded(state, params, after, known, malicious, local, benign):
        """The state after a round and its metrics; entries of length 0 are those that nobody knows."""
        after = per_client.scatter(state.algorithm, after, known["client_ids"])
        update, valid = tree.subtract(params, state.params), known.get("valid")
        of_rule = {name: value for name, value in after.metrics.items() if jnp.size(value)}
        who = {"client_ids": known["client_ids"], "malicious": malicious} | ({} if valid is None else {"valid": valid})
        metrics = of_rule | who | what_clients_did(local, malicious, valid)
        if attack is not None:
            metrics |= harm(benign, update, malicious, of_rule.get("weight"), valid)
        last_update = update if "last_update" in asks else ()
        return placed((RunState(params, after, state.round + 1, last_update), metrics), work.mesh)

    def round_fn(federation: Federation, key: jax.Array, state: RunState, scratch: LocalResult | None = None):
        index = state.round
        ids, eligible = choose_cohort(algorithm, work.cohort_size, federation, key, state)
        malicious = who_is_malicious(federation, key, index, ids)
        # The method sees the cohort's rows only, so that it does not matter where those of the others lie.
        memory = per_client.gather(state.algorithm, ids)
        downlink = algorithm.broadcast(state.params, memory, ids)

        seen, rows = work.within_reach(federation, federation.rows[ids])
        shared = (seen, key, index, downlink._replace(own=()))
        inputs = (ids, rows, federation.counts[ids], malicious, downlink.own)

        known = {
            "client_ids": ids,
            "round": index,
            "key": sampling.round_key(key, "server", index),
            "num_examples": federation.counts[ids],
            "reject_nonfinite": work.reject_nonfinite,
        }
        if eligible is not None:
            known["valid"] = eligible[ids]
        if "malicious" in algorithm.needs:
            known["malicious"] = malicious
        if "root_delta" in algorithm.needs:
            known["root_delta"] = root_delta(federation, key, index, downlink.start)

        if stream is not None:
            params, after, heard = stream(state.params, memory, shared, inputs, malicious, **known)
            return *concluded(state, params, after, known, malicious, heard.local, heard.benign), ()
        local = work.over_clients(functools.partial(client_pass, algorithm.client), shared, inputs, scratch)

        def aggregate(uplink, **changes):
            extras = known | changes
            if dissimilarity is not None:  # of what is uploaded, while it still lies with the clients
                extras["dissimilarity"] = dissimilarity(
                    seen.train, downlink.start, uplink.delta, rows, federation.counts[ids]
                )
            if algorithm.split == "coordinates":
                uplink = split_coordinates(uplink, work.mesh)
            return algorithm.aggregate(state.params, uplink, memory, **extras)

        def foreseen(uplink):
            """The change of the parameters, as one can tell who does not know the server's random draw."""
            another_key = sampling.round_key(key, "attack on server", index)
            return tree.subtract(aggregate(uplink, key=another_key)[0], state.params)

        uplink = local.uplink
        if forge is not None:
            told = {"last_update": state.last_update, "root_delta": known.get("root_delta"), "aggregate": foreseen}
            told = {name: told[name] for name in asks}
            attack_key = sampling.round_key(key, "attack", index)
            uplink = forge(attack_key, uplink, malicious, client_ids=ids, round=index, **told)

        params, after = aggregate(uplink)
        benign = () if attack is None else sum_of_benign(local.uplink.delta, malicious, known.get("valid"))
        return *concluded(state, params, after, known, malicious, local, benign), local

    return round_fn


def who_is_malicious(federation: Federation, key: jax.Array, round_index: Any, ids: jax.Array) -> jax.Array:
    """Which clients of a cohort are malicious, ``[S]`` bool."""
    if federation.malicious_per_cohort is None:
        return federation.malicious[ids]
    order = jax.random.permutation(sampling.round_key(key, "malicious", round_index), ids.shape[0])
    return order < federation.malicious_per_cohort


def what_clients_did(local: LocalResult, malicious: jax.Array, valid: jax.Array | None = None) -> dict[str, jax.Array]:
    """Their part of a round's metrics, scalars.

    ``train_loss``: the benign clients' mean mini-batch loss, NaN if there are none. As int32 ``participants``: how many
    took part; ``local_steps``: the steps of all; ``slowest_steps``: those of the one with most, on whom a synchronous
    round waits.

    Args:
      local: results with a leading axis ``[S]``.
      malicious: ``[S]`` bool.
      valid: which clients take part at all, ``[S]``; default everybody.
    """
    valid = jnp.ones(malicious.shape, bool) if valid is None else valid
    benign, steps = ~malicious & valid, jnp.where(valid, local.steps, 0)
    return {
        "train_loss": jnp.where(benign, local.loss, 0.0).sum() / benign.sum(),
        "participants": valid.sum(dtype=jnp.int32),
        "local_steps": steps.sum(),
        "slowest_steps": steps.max(),
    }


def choose_cohort(
    algorithm: Algorithm, cohort_size: int, federation: Federation, key: jax.Array, state: RunState
) -> tuple[jax.Array, jax.Array | None]:
    """The clients of the next round ``[S]``, and who is eligible ``[M]`` if the algorithm has a say in that."""
    eligible = algorithm.eligible(state.algorithm) if algorithm.eligible else None
    cohort_key = sampling.round_key(key, "cohort", state.round)
    return sampling.cohort(cohort_key, federation.rows.shape[0], cohort_size, eligible), eligible
