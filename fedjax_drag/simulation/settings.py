"""Every option of a run, declared once: its type, its default, its check and what it means.

The options are grouped: :class:`LocalWork`, :class:`Participation`, :class:`Adversary`, :class:`Execution`,
:class:`Measurement`. A configuration takes the same groups
(:class:`~fedjax_drag.experiment.config.config.Config`). :class:`Parts` are the objects that a run is made of. All
together are the :class:`Arguments` of a run, and :class:`Settings` once checked.
"""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import optax
from jax.sharding import Mesh

from fedjax_drag import checks, kinds
from fedjax_drag.compression import COMPRESSOR, Compressor
from fedjax_drag.data import FederatedDataset
from fedjax_drag.data.augmentation import Augmentation
from fedjax_drag.losses import Loss
from fedjax_drag.simulation.devices.host_state import DEVICE, PLACES
from fedjax_drag.simulation.devices.placement import MESHES
from fedjax_drag.simulation.every_client.split import Split, hold_out
from fedjax_drag.simulation.model.statistics import MODEL_STATES
from fedjax_drag.simulation.model.trainable import Trainable, check_trainable
from fedjax_drag.simulation.options import (
    check_options,
    count,
    count_or_pair,
    documented,
    flag,
    one_of,
    option,
    optional,
    options,
    positive_number_or_pair,
    span,
)
from fedjax_drag.simulation.participation.availability import as_trace, check_availability
from fedjax_drag.simulation.parts import (
    ALGORITHM,
    METHOD,
    STATE,
    check_augmentation,
    check_callbacks,
    check_data,
    check_downlink_compression,
    check_initial_params,
    check_loss,
    check_model_form,
    check_schedule,
    check_step_size,
)
from fedjax_drag.simulation.program.federation import ROOT_SOURCES, count_malicious, malicious_per_cohort
from fedjax_drag.simulation.program.work import FULL, RunState
from fedjax_drag.types import Aggregator, Algorithm, Attack, ClientRule


def check_mesh(name: str, value: Any) -> None:
    """Refuses what is neither a mesh nor the name of one."""
    if isinstance(value, str):
        checks.one_of(name, value, MESHES)
    elif value is not None and not isinstance(value, Mesh):
        allowed = f"one of {', '.join(MESHES)}, or a jax.sharding.Mesh of one axis"
        raise ValueError(f"{name}={checks.shown(value)}: must be {allowed}")


def check_batch_size(name: str, value: Any) -> None:
    """Refuses a batch size that is neither a count nor :data:`~fedjax_drag.simulation.program.work.FULL`."""
    if isinstance(value, str) and value == FULL:
        return
    try:
        count(name, value)
    except ValueError as error:
        raise ValueError(f"{error}, or {FULL!r}") from None


def check_share(name: str, value: Any) -> None:
    """Refuses what is neither a flag nor a share in (0, 1)."""
    if isinstance(value, bool | np.bool_):
        return
    if not checks.is_concrete(value) or not 0.0 < value < 1.0:
        raise ValueError(f"{name}={checks.shown(value)}: must be True, False or a number in (0, 1)")


def check_pass(local_steps: Any, local_epochs: Any) -> None:
    """Refuses a local pass whose length is given in two ways, or in none."""
    if (local_steps is None) == (local_epochs is None):
        raise ValueError(f"local_steps={local_steps!r}, local_epochs={local_epochs!r}: must be exactly one of the two")


def check_deadline(local_steps: Any, deadline: int | None, late: str) -> None:
    """Refuses a deadline before which no client is ready, where clients that are late send nothing."""
    fewest, most = span(local_steps)
    least = most if fewest is None else fewest
    if deadline is not None and late == "drop" and least is not None and deadline < least:
        allowed = f"at least {least}, the fewest local steps of a client, or no client answers"
        raise ValueError(f"deadline={deadline!r}, late='drop': must be {allowed}")


def check_adversary(attack: Any, byzantine_fraction: float | None, num_byzantine: int | None) -> None:
    """Refuses an attack by nobody knows how many, and malicious clients that do nothing.

    For single runs: beside the attacks of a sweep, None is the honest baseline.

    Args:
      attack: what malicious clients do, or None.
      byzantine_fraction: their share, or None.
      num_byzantine: their number, or None.
    """
    given = byzantine_fraction if num_byzantine is None else num_byzantine
    if attack is not None and given is None:
        raise ValueError(
            "byzantine_fraction=None: must be given with an attack, as the share of malicious clients in [0, 1], or "
            "num_byzantine as their number; 0 is the honest baseline"
        )
    if attack is None and given:
        name = "byzantine_fraction" if num_byzantine is None else "num_byzantine"
        raise ValueError(f"{name}={given}: must be 0 or left out without an attack; set attack, such as sign_flip")


@options
class LocalWork:
    """What a client does in a round.

    Attributes:
      batch_size: B, from 1 to the number of examples of the largest client; or ``"full"``: every local step goes over
        all of the client's examples, as in FedSGD, and an epoch is one step. Batches are then as long as the largest
        client's data, the rest of a smaller client's being padding that does not count; the server's root data are one
        batch as well.
      local_steps: U, >= 1, mini-batches of a local pass, each drawn uniformly from the client's data; None where
        ``local_epochs`` is given. A pair ``(low, high)``: each client takes a number of them that is drawn uniformly
        from ``low`` to ``high``, as ``steps_drawn`` says; the server takes ``high`` on its root data.
      local_epochs: instead of ``local_steps``, how often a pass goes over the client's data, > 0 and not
        necessarily whole: a client with n examples takes ``round(local_epochs * n)`` of them, at least one. Each
        epoch is in an order of its own, without replacement, its last batch smaller than the others where B
        does not divide n. Clients that are done wait for those that run at the same time; under ``"map"`` one
        client runs at a time and nobody waits. The server goes over its root data as often. A pair of integers
        ``(low, high)`` is drawn from as that of ``local_steps`` is.
      local_optimizer_state: what a local pass begins with where there is a ``local_optimizer``: ``"reset"`` (default),
        its state afresh; or ``"keep"``: each client goes on with the state at the end of its last pass, such as its
        momentum, which is kept as ``client_state`` says. The server's root pass begins afresh in any case.
      model_state: what becomes of statistics that a model keeps beside its parameters, such as BatchNorm's running
        means (:mod:`~fedjax_drag.simulation.model.statistics`): every client starts from the server's, which are
        then the ``"average"`` of the clients', the average ``"weighted"`` by numbers of examples, or their
        coordinatewise ``"median"``; or they are ``"frozen"``, and training normalises by them as evaluation does; or
        they are ``"local"``: every client goes on with its own, and the average serves evaluation on the test set.
        Default ``"auto"``: the average, or the median under an attack that forges messages.
    """

    batch_size: int | str = option(check_batch_size)
    local_steps: int | tuple[int, int] | None = option(optional(count_or_pair), default=None)
    local_epochs: float | tuple[int, int] | None = option(optional(positive_number_or_pair), default=None)
    local_optimizer_state: str = option(one_of("reset", "keep"), default="reset")
    model_state: str = option(one_of(*MODEL_STATES), default="auto")


@options
class Participation:
    """Which clients answer, and how much work they do until then.

    Attributes:
      availability: who can be drawn in a round: a probability for all clients; probabilities, one for each client; or a
        trace, a row of them for each round, after whose last row the first one follows again. Also bool, or the path
        of a ``.npy`` or ``.csv`` file of such numbers, with a row for each round. It is drawn anew for each client and
        round. If fewer clients are available than a cohort has places, others fill it up with ``valid`` False.
        Default None: everybody always is.
      dropout_rate: probability, in [0, 1), with which a client that was drawn never answers, drawn anew for each client
        and round: it receives the parameters and works, and its message does not arrive. Default 0.
      steps_drawn: how often a client's number of local steps, or epochs, is drawn from its pair: in every ``"round"``
        (default), or ``"once"`` for the whole run.
      deadline: local steps after which the server waits no longer, >= 1; default None. Its own pass on root data ends
        there too.
      late: what a client sends that has not finished at the deadline: ``"partial"`` (default), what it has; or
        ``"drop"``, nothing.
    """

    availability: Any = option(check_availability, default=None)
    dropout_rate: float = option(partial(checks.in_range, low=0.0, high=1.0, open_high=True), default=0.0)
    steps_drawn: str = option(one_of("round", "once"), default="round")
    deadline: int | None = option(optional(count), default=None)
    late: str = option(one_of("partial", "drop"), default="partial")


@options
class Adversary:
    """Who is malicious, and what the server holds against it.

    Attributes:
      byzantine_fraction: share of malicious clients, in [0, 1]. A run with an attack needs it, or ``num_byzantine``, 0
        for the honest baseline; without an attack nobody is malicious. Default None, which is none given.
      num_byzantine: their number, instead of ``byzantine_fraction``.
      byzantine_of: of what they are a part: of the ``"federation"`` (default), the same clients throughout the run,
        drawn by ``seed``; or of every ``"cohort"``, drawn anew in each round, all of them knowing what the server
        sends to them.
      root_size: examples of the server's root data for rules that need it; default 3,000, or a tenth of the
        data they are drawn from where that is less.
      root_bias: least share of the root data that are of class 0, in [0, 1]; default 0.
      root_source: what the root data are drawn from: ``"benign"`` (default), in equal parts from the clients that are
        not malicious throughout; ``"all"``, uniformly at random, by ``seed``, from the examples of all clients, the
        malicious ones' as they are without an attack.
      nonfinite: ``"reject"`` clients whose message is not finite, or too long for sums in float32 (a norm above
        2.0e31, see docs/numerics.md), or ``"propagate"``: one such message makes the parameters NaN.
      forged_messages: with ``compression``, what attackers forge: ``"decompressed"`` (default), any message at all in
        the place of what the server decompresses; or ``"compressed"``, a message that goes through the compressor, as
        that of a client without a memory does, and is then what a compressor can send.
      secure_aggregation: whether the server sees nothing but sums over clients. Methods and rules that must see single
        messages are refused, and the history has no metrics of single clients, as without ``diagnostics``. Nothing is
        encrypted: it is a check of what could run so (docs/secure_aggregation.md). Default False.
    """

    byzantine_fraction: float | None = option(optional(partial(checks.in_range, low=0.0, high=1.0)), default=None)
    num_byzantine: int | None = option(optional(checks.count), default=None)
    byzantine_of: str = option(one_of("federation", "cohort"), default="federation")
    root_size: int | None = option(optional(count), default=None)
    root_bias: float = option(partial(checks.in_range, low=0.0, high=1.0), default=0.0)
    root_source: str = option(one_of(*ROOT_SOURCES), default="benign")
    nonfinite: str = option(one_of("reject", "propagate"), default="reject")
    forged_messages: str = option(one_of("decompressed", "compressed"), default="decompressed")
    secure_aggregation: bool = option(flag, default=False)


@options
class Execution:
    """How the run is computed.

    Attributes:
      clients_axis: ``"vmap"`` (all clients of a round at once), ``"map"`` (one after another, or in chunks) or
        ``"auto"``: what is fastest for this model, cohort and device by a measurement of a few local steps
        (:mod:`~fedjax_drag.simulation.planning.calibration`), made once and remembered; without one, for a run of
        less than half a minute or with ``FEDJAX_DRAG_CALIBRATE=0`` in the environment, ``"map"`` on a CPU and
        ``"vmap"`` elsewhere. The ways agree to rounding only: for the same bits on another machine, name one.
        :attr:`Simulation.walk` is the one taken.
      clients_per_chunk: clients that run at once under ``"map"``; default 1.
      mesh: the devices over which the clients are sharded; ``cohort_size`` must be a multiple of their number.
        ``"cores"``: as many local devices as divide the cohort. ``"all"``: as many devices of all processes
        (:mod:`~fedjax_drag.simulation.devices.processes`), the same number of each. ``"auto"`` (default): ``"cores"``
        on a CPU of which several devices divide the cohort, where that is faster by an estimate
        (:mod:`~fedjax_drag.simulation.planning.sharing`), else one device. None: one device. In Python also a
        ``jax.sharding.Mesh`` of one axis. A CPU has a device for each core on the command line, and in Python after
        ``fd.use_cores()``; else it has one. The results are the same to rounding.
      shard_data: whether the devices of ``mesh`` divide the training examples among them, so that each needs memory for
        its share only; in every round the examples of the cohort's clients then travel to the devices that work for
        them. Default False: every device holds all examples, and nothing travels. The results are the same bits.
      aggregation: ``"stream"`` adds up the clients' messages as they come, for methods that need nothing but sums
        (:attr:`~fedjax_drag.types.Algorithm.sums`) and attacks that forge none; ``"stack"`` keeps those of the whole
        cohort. The results are the same to rounding. Default ``"auto"``: stream where it can be done, which is faster
        and needs no memory for the cohort; metrics that compare a client with the whole sum, such as
        the cosine of :func:`~fedjax_drag.aggregators.fedavg`, exist for a stack only.
      compute_dtype: in which the model runs forward and backward, in training and in evaluation: ``"float32"``, or
        ``"bfloat16"``, faster where the hardware has it, slower elsewhere. Parameters, what clients send, aggregation
        and the loss of the logits are float32 in any case.
      rounds_per_compile: most rounds between two visits to the host; default ``eval_every``.
      client_state: where the rows lie that are kept for every client, such as SCAFFOLD's control variates or a kept
        momentum: ``"device"``; ``"host"``, memory from where only the cohort's rows travel; or ``"disk"``, a temporary
        file in the folder that ``TMPDIR`` names, for rows that exceed the memory (``docs/scale.md``). The results
        are the same bit for bit.
        :attr:`Simulation.client_state_bytes` says what they need.
    """

    clients_axis: str = option(one_of("auto", "vmap", "map"), default="auto")
    clients_per_chunk: int | None = option(optional(count), default=None)
    mesh: Mesh | str | None = option(check_mesh, default="auto")
    shard_data: bool = option(flag, default=False)
    aggregation: str = option(one_of("auto", "stack", "stream"), default="auto")
    compute_dtype: str = option(one_of("float32", "bfloat16"), default="float32")
    rounds_per_compile: int | None = option(optional(count), default=None)
    client_state: str = option(one_of(*PLACES), default=DEVICE)


@options
class Measurement:
    """What is measured of a run, how often, and when it ends early.

    Attributes:
      eval_every: rounds between evaluations on the test set; default 10.
      diagnostics: whether the history keeps per-client metrics; default True.
      evaluate_clients: whether to evaluate the global model on each client's own examples. Each client then holds out a
        fifth of its examples, or the share in (0, 1) that is given in the place of True: at least one of two examples
        or more, none of a single one. Nobody trains on them, they are not in the server's root data, and the numbers of
        examples that rules weigh by are those that are left. The history has ``client_accuracy_mean``,
        ``client_accuracy_worst_tenth`` and ``client_accuracy_std``
        (:func:`~fedjax_drag.simulation.every_client.accuracies.over_clients`) over the benign clients that hold out
        examples; with ``diagnostics`` the ``client_accuracy`` of each; and ``class_accuracy`` on the test set. All are
        of the parameters, also where the method's output is another model; with ``model_state="local"`` a client's
        examples are evaluated by its own statistics. Default False.
      time_clients: whether to measure, before the first round, how long a client needs for a local step; then the
        history has ``client_seconds``, and ``time_to`` can be asked. It costs the compilation of one local pass.
        Default False.
      stop_on_divergence: whether a run whose parameters are not finite any more ends with the next evaluation, as
        :attr:`Result.diverged_at` then says; default True.
    """

    eval_every: int = option(count, default=10)
    diagnostics: bool = option(flag, default=True)
    evaluate_clients: bool | float = option(check_share, default=False)
    time_clients: bool = option(flag, default=False)
    stop_on_divergence: bool = option(flag, default=True)


GROUPS = (LocalWork, Participation, Adversary, Execution, Measurement)
"""All groups of options."""


@options
class Parts:
    """What a run is made of.

    Attributes:
      algorithm: the method: an :class:`~fedjax_drag.types.Algorithm`, or an aggregation rule such as
        ``fd.aggregators.drag(c=0.25, alpha=0.25)``, which stands for ``fd.algorithms.from_aggregator(rule)``.
      model: inputs to logits ``[B, C]``: a linen module, an nnx module, or a pair of functions ``init(key) -> params``
        (or ``init(key, x)``) and ``apply(params, x) -> logits``. Arguments of its call named ``train``, ``training``,
        ``is_training``, ``deterministic`` and ``use_running_average`` say whether it is in training;
        :func:`fedjax_drag.models.with_modes` names others. In training its random streams, such as ``dropout``, have
        keys by stream, round, client and step. An nnx module starts from its own parameters; a function
        ``(rngs) -> module``, such as its class, makes them by ``seed``, as a linen module does.
      data: a partitioned :class:`~fedjax_drag.data.FederatedDataset`.
      num_rounds: rounds T, >= 1.
      cohort_size: clients in a round S, at most the number of clients.
      step_size: local step size eta, > 0, or a function of the round (int32, from 0), such as an optax schedule.
        A number may be traced.
      seed: of everything random; default 0.
      local_optimizer: an optax transformation through which the directions of the client rule go before the step
        ``w -= step_size * transformed``; default none. It starts afresh in every local pass, unless
        ``local_optimizer_state="keep"``, and leaves the learning rate to ``step_size``: ``optax.trace(0.9)`` for
        momentum, ``optax.chain(optax.add_decayed_weights(1e-4), optax.trace(0.9))`` for SGD as elsewhere with both, but
        not ``optax.sgd(0.1, 0.9)``, which would climb. The server's root pass uses it too. Methods that take every
        step to be ``step_size`` times the client rule's own direction are then approximate: SCAFFOLD, FedDC, FedDyn,
        AdaBest, STEM, TACO and FedNova, each of which says what it takes a step to be.
      trainable: which parameters are trained: a pattern of parameter paths such as ``"head"`` or ``"*/lora_*"``, a list
        of them, or a function of a path; default all. The others stay as they start, on the server alone: rules,
        messages and byte counts have the trained ones only.
      loss: what is minimised, ``(logits [B, C], labels [B]) -> [B]``; default
        :func:`~fedjax_drag.losses.cross_entropy`. It also gives ``test_loss``.
      augmentation: ``(key, x [B, ...]) -> x``, applied to every training batch after normalisation and before an
        attack on the data, such as :func:`~fedjax_drag.data.augmentation.crop_flip`; default none.
      attack: what malicious clients do; default None.
      compression: through which each client's message goes: the delta, and what else the method sends, each by itself.
        The server decompresses it, and everything after that has the decompressed message; the bytes in the history are
        those of the compressed one. What a compressor keeps for each client is kept as ``client_state`` says. Default
        none.
      downlink_compression: through which the difference goes that the server broadcasts: where the local passes are to
        start, less what the clients have received so far. It must feed its errors back. What else a method sends down
        goes as it is. Default none.
      root_client: what the server runs on its root data, for rules that need it; default
        :func:`~fedjax_drag.clients.sgd`. :func:`~fedjax_drag.clients.robust_sgd` guards against wrong labels there.
      initial_params: parameters from which the run starts: a pytree of arrays like the model's own, or variables with
        its statistics, ``{"params": ..., "batch_stats": ...}``; or the path of a safetensors file with such names
        joined by ``/`` or ``.`` (``pip install 'fedjax-drag[safetensors]'``), of a results folder, whose newest
        checkpoint is taken, or of one of its checkpoints. The parameters that are not ``trainable`` must be there too.
        They are an input of the compiled program: runs from other parameters compile nothing anew. Default: drawn by
        ``seed``.
    """

    algorithm: Algorithm | Aggregator = option(METHOD.check, kw_only=False)
    model: Any = option(check_model_form)
    data: FederatedDataset = option(check_data)
    num_rounds: int = option(count)
    cohort_size: int
    step_size: Any = option(check_step_size)
    seed: int = option(partial(checks.count, low=0, high=2**32 - 1), default=0)
    local_optimizer: optax.GradientTransformation | None = option(optional(kinds.OPTIMIZER.check), default=None)
    trainable: Trainable | None = option(optional(check_trainable), default=None)
    loss: Loss | None = option(optional(check_loss), default=None)
    augmentation: Augmentation | None = option(optional(check_augmentation), default=None)
    attack: Attack | None = option(optional(kinds.ATTACK.check), default=None)
    compression: Compressor | None = option(optional(COMPRESSOR.check), default=None)
    downlink_compression: Compressor | None = option(optional(check_downlink_compression), default=None)
    root_client: ClientRule | None = option(optional(kinds.CLIENT_RULE.check), default=None)
    initial_params: Any = option(optional(check_initial_params), default=None)


@documented
@options
class Arguments(Measurement, Execution, Adversary, Participation, LocalWork, Parts):
    """The arguments of a run: :class:`Parts`, :class:`LocalWork`, :class:`Participation`, :class:`Adversary`,
    :class:`Execution` and :class:`Measurement` together.
    """


@options
class Watching:
    """How a run begins, and who hears of it.

    Attributes:
      callbacks: functions that are called with an :class:`~fedjax_drag.simulation.runner.Evaluation` after each
        evaluation.
      initial: state to continue from, such as ``result.state``; default a fresh start.
      progress: True for a progress bar in a terminal or a notebook, and elsewhere a line for each evaluation on
        standard error; False for neither; default None: the bar where there can be one, and no lines.
    """

    callbacks: Sequence[Callable[..., Any]] = option(check_callbacks, default=())
    initial: RunState | None = option(optional(STATE.check), default=None)
    progress: bool | None = option(optional(flag), default=None)


@documented
@options
class SimulateArguments(Watching, Arguments):
    """The arguments of :func:`~fedjax_drag.simulation.engine.simulate`."""


@documented
@options
class Settings(Arguments):
    """The :class:`Arguments` of a run, checked when they are made; ``algorithm`` is no rule any more.

    Raises:
      ValueError: one line naming the setting, its value and what is allowed.
    """

    algorithm: Algorithm = option(ALGORITHM.check, kw_only=False)

    def __post_init__(self) -> None:
        check_options(self)
        checks.count("cohort_size", self.cohort_size, 1, self.data.num_clients)
        if self.algorithm.num_clients not in (None, self.data.num_clients):
            own, those = self.algorithm.num_clients, self.data.num_clients
            raise ValueError(f"algorithm={self.algorithm.name}: num_clients={own}: must be {those}, that of the data")
        check_pass(self.local_steps, self.local_epochs)
        check_deadline(self.local_steps, self.deadline, self.late)
        _ = self.availability_trace
        if self.local_optimizer_state == "keep" and self.local_optimizer is None:
            raise ValueError("local_optimizer_state='keep': needs a local_optimizer, such as optax.trace(0.9)")
        if callable(self.step_size):
            check_schedule(self.step_size, self.num_rounds)
        counts = self.split.training.counts
        assert counts is not None
        most = int(counts.max())
        if self.batch_size != FULL and int(self.batch_size) > most:
            has = "trains on" if self.evaluate_clients else "has"
            allowed = f"at most {most}, what the largest client {has}, or {FULL!r} for all data of each client"
            raise ValueError(f"batch_size={self.batch_size!r}: must be {allowed}")

    @property
    def reports_clients(self) -> bool:
        """Whether the history has metrics of single clients."""
        return self.diagnostics and not self.secure_aggregation

    @cached_property
    def split(self) -> Split:
        """What the clients train on, and what they hold out."""
        return hold_out(self.data, self.evaluate_clients)

    @cached_property
    def availability_trace(self) -> np.ndarray | None:
        """``availability`` as an array ``[T, M]``; None where everybody is always available."""
        return as_trace(self.availability, self.data.num_clients)

    @property
    def may_be_absent(self) -> bool:
        """Whether a client can be missing for another reason than the method's."""
        return self.availability_trace is not None or bool(self.dropout_rate) or self.drops_late

    @property
    def drops_late(self) -> bool:
        """Whether a client can be late and then sends nothing."""
        as_long = self.local_epochs is None and span(self.local_steps)[0] is None
        return self.deadline is not None and self.late == "drop" and not as_long

    @property
    def num_malicious(self) -> int:
        """How many clients are malicious, of the federation or of each cohort."""
        return count_malicious(
            self.data.num_clients, self.cohort_size, self.byzantine_fraction, self.num_byzantine, self.byzantine_of
        )

    @property
    def num_byzantine_in_cohort(self) -> int:
        """How many clients of a cohort are malicious on the average, rounded up: what rules are told."""
        return malicious_per_cohort(self.data.num_clients, self.cohort_size, self.num_malicious, self.byzantine_of)[0]

    @property
    def uses_root(self) -> bool:
        """Whether the server trains on root data of its own."""
        return "root_delta" in self.algorithm.needs
