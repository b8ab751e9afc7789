"""A run as a value: the parts and numbers that decide it, its state, and what the steps of a round exchange.

Shapes: S clients in a round (``clients``), M in the federation (``federation``), L entries in a padded list of
examples (``examples``), U local steps (``steps``), B examples in a mini-batch (``batch``), C classes.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from fedjax_drag.clocks import Clock
from fedjax_drag.compression import Compressor
from fedjax_drag.selection import Selected, Selection, StartLoss, uniform
from fedjax_drag.simulation.devices.model_sharding import Specs
from fedjax_drag.simulation.model.model import NO_STATISTICS, Model, ModelState, Statistics
from fedjax_drag.simulation.program.clients_axis import ClientBatching
from fedjax_drag.simulation.program.federation import Federation
from fedjax_drag.simulation.program.keys import client_key, round_key
from fedjax_drag.types import Algorithm, Attack, Batch, ClientRule, Downlink, Params, Part, Scalar, State, Uplink
from fedjax_drag.types._part import CallablePart

FULL = "full"
"""The batch size that stands for all examples of a client."""

PRECISIONS = ("default", "float32", "tensorfloat32", "bfloat16")
"""Of matrix products in local passes; the first is JAX's own setting."""


class Run(Part):
    """All that decides what a run computes, apart from its data and its seed.

    Its parts and their numbers are inputs of the compiled programs; from ``num_clients`` on all but the selection, the
    clock and what goes with it is static. Two runs share programs exactly if their ``jax.tree.structure``, and the
    shapes of their data, are equal.

    Attributes:
      algorithm: the method.
      model: what is trained.
      root_client: what the server runs on its root data.
      step_size: eta, or a function of the round.
      attack: what malicious clients do; None where there are none.
      local_optimizer: transforms the directions of a local pass; None for none.
      augmentation: changes training inputs at random; None for none.
      compression: what clients' messages go through; None to send them as they are.
      downlink_compression: what broadcasts go through, one that feeds its errors back; None to send them as they are.
      num_clients: M.
      cohort_size: S.
      batch_size: B, or :data:`FULL`.
      local_steps: U, the most where clients differ; None where ``local_epochs`` gives the length of a pass.
      local_epochs: passes over the client's own data, the most where clients differ; None where ``local_steps`` is
        given.
      epochs_shuffled: whether each epoch is in an order of its own, or all in that of the client's list.
      fewest: local steps, or epochs, from which on each client's number is drawn; None where all have the same.
      drawn_once: whether a client keeps its number for the whole run.
      deadline: steps after which a pass ends; None for no deadline.
      drop_late: whether a client that the deadline stops sends nothing; only with a deadline.
      keeps_optimizer: whether each client's state of ``local_optimizer`` is kept from round to round.
      statistics: what becomes of the clients' model statistics, one of
        :data:`~fedjax_drag.simulation.program.server.MODEL_STATES` but ``"auto"``.
      reject_nonfinite: whether a client whose message is not finite, or too long, is left out.
      num_byzantine: expected number of malicious clients in a cohort, rounded up; None where it is not the same for all
        runs of the program.
      may_be_absent: whether a client that is drawn, or that the method would draw, may be missing.
      compresses_forged: whether forged messages are what a compressor can send.
      streams: whether clients' messages are added up as they come.
      batching: the way over the clients of a round.
      mesh: devices that share the clients; None for one device.
      specs: how further axes of ``mesh`` divide the parameters; empty where there are none.
      shard_data: whether the devices of ``mesh`` divide the training examples among them.
      diagnostics: whether to report metrics of single clients; what is not reported is not computed.
      matmul_precision: of products in local passes, one of :data:`PRECISIONS`.
      selection: who of the clients that can be drawn takes part in a round.
      clock: how long clients take; None where time is not simulated.
      deadline_seconds: after which the server waits no longer; None for no such deadline.
      message_bytes: of what the server sends to a client, and of what that sends back, ``[2]``; read by the
        clock alone, None without one.
    """

    algorithm: Algorithm
    model: Model
    root_client: ClientRule
    step_size: Scalar
    attack: Attack | None
    local_optimizer: Part | None
    augmentation: CallablePart | None
    compression: Compressor | None
    downlink_compression: Compressor | None
    num_clients: int
    cohort_size: int
    batch_size: int | str
    local_steps: int | None
    local_epochs: float | None
    epochs_shuffled: bool = True
    fewest: int | None = None
    drawn_once: bool = False
    deadline: int | None = None
    drop_late: bool = False
    keeps_optimizer: bool = False
    statistics: str = "average"
    reject_nonfinite: bool = True
    num_byzantine: int | None = None
    may_be_absent: bool = False
    compresses_forged: bool = False
    streams: bool = False
    batching: ClientBatching = ClientBatching("map")
    mesh: Mesh | None = None
    specs: Specs = ()
    shard_data: bool = False
    diagnostics: bool = True
    matmul_precision: str = PRECISIONS[0]
    selection: Selection = uniform()
    clock: Clock | None = None
    deadline_seconds: Scalar | None = None
    message_bytes: jax.Array | None = None

    def batch_length(self, longest: int) -> int:
        """Examples in a mini-batch, padding included, where lists of examples have ``longest`` entries."""
        return longest if isinstance(self.batch_size, str) else self.batch_size

    @property
    def may_be_silent(self) -> bool:
        """Whether a round may be without an answer of a benign client."""
        return self.may_be_absent or self.attack is not None

    @property
    def constants(self) -> Mapping[str, Any]:
        """Extras of the server side that are Python values; they are part of the program."""
        told = {} if self.num_byzantine is None else {"num_byzantine": self.num_byzantine}
        return {"reject_nonfinite": self.reject_nonfinite, **told}


class Inputs(NamedTuple):
    """What the programs of a run are given beside its state; of the cells of a batch, with a leading axis ``[C]``.

    Attributes:
      run: what is computed.
      federation: the data.
      key: from which all randomness is derived.
    """

    run: Run
    federation: Federation
    key: PRNGKeyArray


class ClientRows(NamedTuple):
    """What the engine keeps for every client from round to round, beside the state of the method.

    Each part is a :class:`~fedjax_drag.per_client.PerClient`, or ``()`` where the run does not keep it.

    Attributes:
      carry: of the client rule, if that keeps it (:attr:`~fedjax_drag.types.ClientRule.keeps_carry`).
      optimizer: state of the local optimizer.
      statistics: of the client's own model, where they are local.
      compression: memory of what the client's messages go through, such as what the server lacks of earlier ones.
      own: parameters that the client has for itself (:meth:`~fedjax_drag.types.ClientRule.own`).
    """

    carry: Any = ()
    optimizer: Any = ()
    statistics: Any = ()
    compression: Any = ()
    own: Any = ()


class Broadcast(NamedTuple):
    """What the server has sent in a round; of several rounds, every leaf has a leading axis.

    Attributes:
      start: of the downlink.
      shared: of the downlink.
      statistics: of the model.
    """

    start: Params
    shared: Any
    statistics: Statistics


NOTHING_KEPT = ClientRows()
"""Of a run that keeps nothing, and of a local pass that begins afresh."""


class RunState(NamedTuple):
    """All that a run carries from round to round.

    Attributes:
      params: global parameters.
      algorithm: state of the algorithm.
      round: rounds done, int32 scalar.
      last_update: the last round's change of ``params``; ``()`` unless the attack needs it.
      model: the model's frozen parameters and its statistics on the server.
      clients: what the engine keeps for every client.
      received: what clients have of the server's broadcasts, where these are compressed; else ``()``.
      selection: what the selection keeps; ``()`` for nothing.
      broadcasts: a :class:`Broadcast` with an axis ``[max_staleness + 1]``, that of round t in the place
        ``t modulo (max_staleness + 1)``; ``()`` where all clients of a cohort start in its round.
      attack: the memory of the attackers; ``()`` for none.
    """

    params: Params
    algorithm: State
    round: jax.Array
    last_update: Any = ()
    model: ModelState = ModelState()
    clients: ClientRows = NOTHING_KEPT
    received: Any = ()
    selection: Any = ()
    broadcasts: Any = ()
    attack: Any = ()


class RoundInput(NamedTuple):
    """What is the same for all clients of a round.

    Attributes:
      federation: the data.
      key: of the run.
      round: index of the round, int32 scalar, from 0.
      downlink: what the server sends to everybody, its ``own`` being ``()``; before that, the global parameters.
      model: the state of the model on the server.
      memory: of the attackers; ``()`` for none.
      broadcasts: of this round and earlier ones, as in :class:`RunState`.
      last_update: the last round's change of the parameters; ``()`` unless the attack needs it.
    """

    federation: Federation
    key: PRNGKeyArray
    round: Int[Array, ""]
    downlink: Downlink
    model: ModelState
    memory: Any = ()
    broadcasts: Any = ()
    last_update: Any = ()

    @classmethod
    def before(cls, inputs: Inputs, state: RunState) -> "RoundInput":
        """That of the next round, before its broadcast."""
        kept = {"memory": state.attack, "last_update": state.last_update}
        return cls(inputs.federation, inputs.key, state.round, Downlink(state.params), state.model, **kept)

    def key_of(self, purpose: str, client_id: Any = None) -> PRNGKeyArray:
        """The random key of a purpose in the round; of one client, if that is given."""
        if client_id is None:
            return round_key(self.key, purpose, self.round)
        return client_key(self.key, purpose, self.round, client_id)

    def seen_by(self, own: "ClientInput") -> "RoundInput":
        """The same with what the client has received, that of an earlier round perhaps."""
        if own.broadcast is None:
            return self
        sent = jax.tree.map(lambda x: x[own.broadcast], self.broadcasts)
        downlink = self.downlink._replace(start=sent.start, shared=sent.shared)
        return self._replace(downlink=downlink, model=self.model._replace(statistics=sent.statistics))


class ClientInput(NamedTuple):
    """What one client of a round receives for itself; of a whole cohort, every leaf has a leading axis ``[S]``.

    Attributes:
      client_id: int32 scalar.
      examples: the client's examples as :func:`~fedjax_drag.data.batching.gather` takes them: indices ``[L]`` into the
        training examples, or the examples themselves, padded.
      num_examples: how many of them are the client's, int32 scalar.
      malicious: bool scalar.
      downlink: the client's own part of the server's message, ``Downlink.own``.
      kept: what the client has kept of earlier rounds; default nothing.
      num_steps: local steps until the pass ends, int32 scalar; None for all that are drawn.
      attacker_index: number of the client among the malicious ones, int32 scalar; None unless the attack needs it.
      step_size: of this round, the same for all; None where a pass asks the run for it.
      broadcast: the place of what it has received among the broadcasts, int32 scalar; None for that of this round.
    """

    client_id: Int[Array, "*clients"]
    examples: Int[Array, "*clients examples"] | Batch
    num_examples: Int[Array, "*clients"]
    malicious: Bool[Array, "*clients"]
    downlink: Any = ()
    kept: ClientRows = NOTHING_KEPT
    num_steps: Int[Array, "*clients"] | None = None
    attacker_index: Int[Array, "*clients"] | None = None
    step_size: Float[Array, "*clients"] | None = None
    broadcast: Int[Array, "*clients"] | None = None


class LocalResult(NamedTuple):
    """What a local pass produces; of a whole cohort, every leaf has a leading axis ``[S]``.

    Attributes:
      uplink: the client's message; ``()`` where it was added up already.
      loss: mean mini-batch loss over the pass (scalar).
      steps: local steps taken, int32 scalar.
      statistics: of the model after the pass.
      kept: what the client keeps for later rounds, with the parts of :attr:`ClientInput.kept`.
    """

    uplink: Uplink
    loss: Float[Array, "*clients"]
    steps: Int[Array, "*clients"]
    statistics: Statistics = NO_STATISTICS
    kept: ClientRows = NOTHING_KEPT


class Attendance(NamedTuple):
    """Who takes part in a round; a mask ``[S]`` that is None holds for all clients.

    Attributes:
      drawn: who receives the server's message and works.
      valid: whose message reaches the server and counts.
      present: who is available, does not drop out and is not late, whether the method lets it take part or not.
      num_steps: local steps of each client without a deadline ``[S]``; None where they need not be known before.
      seconds: that the round lasts, float32 scalar; None without a clock.
      num_too_stale: messages that reach the server and are too stale to count; None where all start in this round.
    """

    drawn: Bool[Array, " clients"] | None
    valid: Bool[Array, " clients"] | None
    present: Bool[Array, " clients"] | None
    num_steps: Int[Array, " clients"] | None
    seconds: Float[Array, ""] | None = None
    num_too_stale: Int[Array, ""] | None = None


class Cohort(NamedTuple):
    """A round whose cohort is drawn and whose clients have not started yet.

    Attributes:
      params: global parameters before the round.
      shared: what is the same for all clients.
      clients: what each client receives for itself, leading axis ``[S]``.
      state: state of the algorithm, with the rows of the cohort's clients only.
      extras: what the algorithm's server side is given by keyword.
      who: who works and who answers.
      selected: the draw.
      received: what clients have of the server's broadcasts, that of this round included; see :class:`RunState`.
      start_loss: where the local passes start, ``[S]``; None unless the method or the selection needs it.
    """

    params: Params
    shared: RoundInput
    clients: ClientInput
    state: State
    extras: dict[str, Any]
    who: Attendance
    selected: Selected
    received: Any = ()
    start_loss: StartLoss | None = None


class RoundOutcome(NamedTuple):
    """What the server made of a round's local passes.

    Attributes:
      params: global parameters after the round.
      state: state of the algorithm after the round, with the rows of the cohort's clients only.
      local: the clients' results, leading axis ``[S]``.
      accepted: ``[S]`` bool, whose messages are usable.
      benign_sum: the sum of the benign clients' deltas as they computed them; ``()`` without an attack.
    """

    params: Params
    state: State
    local: LocalResult
    accepted: jax.Array
    benign_sum: Params
