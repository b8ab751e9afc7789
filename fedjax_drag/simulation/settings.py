"""What a run is asked to do: every setting, its default and what is allowed."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import optax
from jax.core import Tracer
from jax.sharding import Mesh

from fedjax_drag import checks
from fedjax_drag.data import FederatedDataset
from fedjax_drag.data.augmentation import Augmentation
from fedjax_drag.losses import Loss
from fedjax_drag.simulation.program.federation import ROOT_SOURCES, count_malicious
from fedjax_drag.simulation.program.round import FULL
from fedjax_drag.types import Algorithm, Attack, ClientRule


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Settings:
    """The settings of a run; numbers are checked when it is made.

    Attributes:
      algorithm: the method, e.g. ``from_aggregator(drag(c=0.25, alpha=0.25))``.
      model: a Flax module with only a ``params`` collection, inputs to logits ``[B, C]``.
      data: a partitioned :class:`~fedjax_drag.data.FederatedDataset`.
      num_rounds: rounds T, >= 1.
      cohort_size: clients in a round S, at most the number of clients.
      batch_size: B, from 1 to the number of examples of the largest client; or ``"full"``: every local step goes over
        all of the client's examples, as in FedSGD, and an epoch is one step. Batches are then as long as the largest
        client's data, the rest of a smaller client's being padding that does not count; the server's root data are one
        batch as well.
      step_size: local step size eta, > 0, or a function of the round (int32, from 0), such as an optax schedule.
        A number may be traced.
      local_steps: U, >= 1, mini-batches of a local pass, each drawn uniformly from the client's data.
      local_epochs: instead of ``local_steps``, how often a pass goes over the client's data, > 0 and not
        necessarily whole: a client with n examples takes ``round(local_epochs * n)`` of them, at least one. Each
        epoch is in an order of its own, without replacement, its last batch smaller than the others where B
        does not divide n. Clients that are done wait for those that run at the same time; under ``"map"`` one
        client runs at a time and nobody waits. The server goes over its root data as often.
      local_optimizer: an optax transformation through which the directions of the client rule go before the step
        ``w -= step_size * transformed``; default none. It starts afresh in every local pass and leaves
        the learning rate to ``step_size``: ``optax.trace(0.9)`` for momentum,
        ``optax.chain(optax.add_decayed_weights(1e-4), optax.trace(0.9))`` for SGD as elsewhere with both, but not
        ``optax.sgd(0.1, 0.9)``, which would climb. The server's root pass uses it too. Methods that take every
        step to be ``step_size`` times the client rule's own direction are then approximate: SCAFFOLD and FedDC, which
        divide deltas by the sum of the step sizes, STEM, TACO and FedNova.
      loss: what is minimised, ``(logits [B, C], labels [B]) -> [B]``; default
        :func:`~fedjax_drag.losses.cross_entropy`. It also gives ``test_loss``.
      augmentation: ``(key, x [B, ...]) -> x``, applied to every training batch after normalisation and before an
        attack on the data, such as :func:`~fedjax_drag.data.augmentation.crop_flip`; default none.
      attack: what malicious clients do; default None.
      byzantine_fraction: share of malicious clients, in [0, 1]; default 0.
      num_byzantine: their number, instead of ``byzantine_fraction``.
      byzantine_of: of what they are a part: of the ``"federation"`` (default), the same clients throughout the run,
        drawn by ``seed``; or of every ``"cohort"``, drawn anew in each round, all of them knowing what the server
        tells them.
      root_size: examples of the server's root data for rules that need it; default 3,000, or a tenth of the
        data they are drawn from where that is less.
      root_bias: least share of the root data that are of class 0, in [0, 1]; default 0.
      root_source: what the root data are drawn from: ``"benign"`` (default), in equal parts from the clients that are
        not malicious throughout; ``"all"``, uniformly at random, by ``seed``, from the examples of all clients, the
        malicious ones' as they are without an attack.
      root_client: what the server runs on its root data, for rules that need it; default
        :func:`~fedjax_drag.clients.sgd`. :func:`~fedjax_drag.clients.robust_sgd` guards against wrong labels there.
      eval_every: rounds between evaluations on the test set; default 10.
      seed: of everything random; default 0.
      nonfinite: ``"reject"`` clients whose message is not finite, or too long for sums in float32 (a norm above
        2.0e31, see docs/numerics.md), or ``"propagate"``: one such message makes the parameters NaN.
      clients_axis: ``"vmap"`` (all clients of a round at once), ``"map"`` (one after another, or in chunks) or
        ``"auto"``: what is fastest for this model, cohort and device by a measurement of a few local steps
        (:mod:`~fedjax_drag.simulation.planning.calibration`), made once and remembered; without one, for a run of
        less than half a minute or with ``FEDJAX_DRAG_CALIBRATE=0`` in the environment, ``"map"`` on a CPU and
        ``"vmap"`` elsewhere. The ways agree to rounding only: for the same bits on another machine, say which.
        :attr:`Simulation.walk` is the one taken.
      clients_per_chunk: clients that run at once under ``"map"``; default 1.
      mesh: a ``jax.sharding.Mesh`` of one axis over whose devices the clients are sharded; ``cohort_size`` must be
        a multiple of their number. ``"cores"``: as many local devices as divide the cohort. ``"all"``: as many
        devices of all processes (:mod:`~fedjax_drag.simulation.devices.processes`), the same number of each.
        ``"auto"``: ``"cores"`` on a CPU of which several devices divide the cohort, where that is faster, else one
        device. Default one device.
      compute_dtype: in which the model runs forward and backward, in training and in evaluation: ``"float32"``, or
        ``"bfloat16"``, faster where the hardware has it, slower elsewhere. Parameters, what clients send, aggregation
        and the loss of the logits are float32 in any case.
      shard_data: whether the devices of ``mesh`` divide the training examples among them, so that each needs memory for
        its share only; in every round the examples of the cohort's clients then travel to the devices that work for
        them. Default False: every device holds all examples, and nothing travels. The results are the same bits.
      aggregation: ``"stream"`` adds up the clients' messages as they come, for methods that need nothing but sums
        (:attr:`~fedjax_drag.types.Algorithm.sums`) and attacks that forge none; ``"stack"`` keeps those of the whole
        cohort. The results are the same to rounding. Default ``"auto"``: stream where it can be done, which is faster
        and needs no memory for the cohort; metrics that compare a client with the whole sum, such as
        the cosine of :func:`~fedjax_drag.aggregators.fedavg`, are only known of a stack.
      rounds_per_compile: most rounds between two visits to the host; default ``eval_every``.
      client_state: where the rows lie that a method keeps for every client, such as SCAFFOLD's control variates:
        ``"device"``, or ``"host"``, from where only the cohort's rows travel, with the same results bit for bit.
        :attr:`Simulation.client_state_bytes` says what they need.
      time_clients: whether to measure, before the first round, how long a client needs for a local step; then the
        history has ``client_seconds``, and ``time_to`` can be asked. It costs the compilation of one local pass.
      stop_on_divergence: whether a run whose parameters are not finite any more ends with the evaluation that finds
        it, as :attr:`Result.diverged_at` then says; default True.
      diagnostics: whether the history keeps per-client metrics; default True.

    Raises:
      ValueError: one line naming the setting, its value and what is allowed.
    """

    algorithm: Algorithm
    model: nn.Module
    data: FederatedDataset
    num_rounds: int
    cohort_size: int
    batch_size: int | str
    step_size: Any
    local_steps: int | None = None
    local_epochs: float | None = None
    local_optimizer: optax.GradientTransformation | None = None
    loss: Loss | None = None
    augmentation: Augmentation | None = None
    attack: Attack | None = None
    byzantine_fraction: float = 0.0
    num_byzantine: int | None = None
    byzantine_of: str = "federation"
    root_size: int | None = None
    root_bias: float = 0.0
    root_source: str = "benign"
    root_client: ClientRule | None = None
    eval_every: int = 10
    seed: int = 0
    nonfinite: str = "reject"
    clients_axis: str = "auto"
    clients_per_chunk: int | None = None
    mesh: Mesh | str | None = None
    shard_data: bool = False
    aggregation: str = "auto"
    compute_dtype: str = "float32"
    rounds_per_compile: int | None = None
    diagnostics: bool = True
    client_state: str = "device"
    time_clients: bool = True
    stop_on_divergence: bool = True

    def __post_init__(self) -> None:
        if self.data.rows is None or self.data.counts is None:
            raise ValueError(
                f"data={self.data.name!r}: not yet split among clients; apply fd.data.partition.dirichlet or another"
            )
        checks.count("num_rounds", self.num_rounds, 1)
        checks.count("cohort_size", self.cohort_size, 1, self.data.num_clients)
        check_work(self.local_steps, self.local_epochs, self.step_size, self.num_rounds)
        check_batch_size(self.batch_size, int(self.data.counts.max()))
        checks.count("eval_every", self.eval_every, 1)
        checks.in_range("root_bias", self.root_bias, 0.0, 1.0)
        checks.one_of("root_source", self.root_source, ROOT_SOURCES)
        checks.count("seed", self.seed, 0, 2**63 - 1)
        checks.one_of("nonfinite", self.nonfinite, ("reject", "propagate"))
        checks.one_of("client_state", self.client_state, ("device", "host"))
        checks.one_of("compute_dtype", self.compute_dtype, ("float32", "bfloat16"))
        for name in ("clients_per_chunk", "rounds_per_compile"):
            if getattr(self, name) is not None:
                checks.count(name, getattr(self, name), 1)

    @property
    def num_malicious(self) -> int:
        """How many clients are malicious, of the federation or of each cohort."""
        return count_malicious(
            self.data.num_clients, self.cohort_size, self.byzantine_fraction, self.num_byzantine, self.byzantine_of
        )

    @property
    def uses_root(self) -> bool:
        """Whether the server trains on root data of its own."""
        return "root_delta" in self.algorithm.needs


def check_work(local_steps: Any, local_epochs: Any, step_size: Any, num_rounds: int) -> None:
    """Checks how long a local pass is and how far its steps go."""
    if (local_steps is None) == (local_epochs is None):
        raise ValueError(f"local_steps={local_steps!r}, local_epochs={local_epochs!r}: must be exactly one of the two")
    if local_steps is not None:
        checks.count("local_steps", local_steps, 1)
    elif checks.is_concrete(local_epochs):
        checks.positive("local_epochs", local_epochs)
    else:
        raise ValueError(f"local_epochs={local_epochs!r}: must be a number > 0")
    if not callable(step_size):
        checks.positive("step_size", step_size)
        return
    for index in (0, num_rounds - 1):
        value: Any = step_size(jnp.int32(index))
        if jnp.shape(value):
            raise ValueError(f"step_size({index}) with shape {jnp.shape(value)}: must be a single number")
        checks.positive(f"step_size({index})", value if isinstance(value, Tracer) else float(value))


def check_batch_size(batch_size: Any, most: int | None = None) -> None:
    """Checks a batch size: a count or :data:`~fedjax_drag.simulation.program.round.FULL`.

    Args:
      batch_size: as it was given.
      most: examples of the largest client; None if that is not known yet.
    """
    if isinstance(batch_size, str) and batch_size == FULL:
        return
    try:
        checks.count("batch_size", batch_size, 1, 2**31 - 1)
    except ValueError as error:
        raise ValueError(f"{error}, or {FULL!r}") from None
    if most is not None and int(batch_size) > most:
        allowed = f"at most {most}, what the largest client has, or {FULL!r} for all data of each client"
        raise ValueError(f"batch_size={batch_size!r}: must be {allowed}")
