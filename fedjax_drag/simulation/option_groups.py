"""The options of a run in groups: each is declared once, with its type, its default, its check and what it means.

A configuration takes them too (:class:`~fedjax_drag.experiment.config.config.Config`), but for :class:`Watching`, which
is for Python; the objects that a run is made of are :class:`~fedjax_drag.simulation.settings.Parts`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from jax.sharding import Mesh

from fedjax_drag import checks, kinds
from fedjax_drag.kinds import Kind
from fedjax_drag.selection import Selection
from fedjax_drag.simulation.devices.host_state import DEVICE, PLACES
from fedjax_drag.simulation.devices.model_sharding import CLIENTS, ShardingRules, check_rules
from fedjax_drag.simulation.devices.placement import MESHES
from fedjax_drag.simulation.options import (
    LARGEST,
    count,
    one_of,
    option,
    options,
    or_pair,
    positive_number,
    span,
)
from fedjax_drag.simulation.program.federation import ROOT_SOURCES
from fedjax_drag.simulation.program.sampling import check_availability
from fedjax_drag.simulation.program.server import MODEL_STATES
from fedjax_drag.simulation.run import FULL, PRECISIONS, RunState


def check_mesh(name: str, value: Any) -> None:
    """Refuses what is neither a mesh, nor the name of one, nor the sizes of its axes."""
    if isinstance(value, str):
        checks.one_of(name, value, MESHES)
    elif isinstance(value, Mapping) and CLIENTS in value:
        for axis, size in value.items():
            count(f"{name}.{axis}", size)
    elif value is not None and not isinstance(value, Mesh):
        sizes = f"sizes of axes such as {{{CLIENTS}: 2, model: 4}}"
        allowed = f"one of {', '.join(MESHES)}, None, {sizes}, or a jax.sharding.Mesh"
        raise ValueError(f"{name}={checks.shown(value)}: must be {allowed}")


def check_batch_size(name: str, value: Any) -> None:
    """Refuses a batch size that is neither a count nor :data:`~fedjax_drag.simulation.run.FULL`."""
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
      epoch_order: the order of a client's examples in an epoch: ``"random"`` (default), anew in each; or ``"fixed"``,
        that of the partition in all of them, as a loader that does not shuffle goes over its data. It needs
        ``local_epochs``.
      local_optimizer_state: what a local pass begins with where there is a ``local_optimizer``: ``"reset"`` (default),
        its state afresh; or ``"keep"``: each client goes on with the state at the end of its last pass, such as its
        momentum, which is kept as ``client_state`` says. The server's root pass begins afresh in any case.
      model_state: what becomes of statistics that a model keeps beside its parameters, such as BatchNorm's running
        means (:mod:`~fedjax_drag.simulation.program.server`): every client starts from the server's, which are
        then the ``"average"`` of the clients', the average ``"weighted"`` by numbers of examples, or their
        coordinatewise ``"median"``; or they are ``"frozen"``, and training normalises by them as evaluation does; or
        they are ``"local"``: every client goes on with its own, and the average serves evaluation on the test set.
        Default ``"auto"``: the average, or the median under an attack that forges messages.
    """

    batch_size: int | str = option(check_batch_size)
    local_steps: int | tuple[int, int] | None = option(or_pair(count), default=None)
    local_epochs: float | tuple[int, int] | None = option(or_pair(positive_number), default=None)
    epoch_order: str = option(one_of("random", "fixed"), default="random")
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
      dropout_rate: probability, in [0, 1), with which a client that was drawn never answers: it receives the parameters
        and works, and its message does not arrive. It is drawn anew for each client and round. Default 0.
      steps_drawn: how often a client's number of local steps, or epochs, is drawn from its pair: in every ``"round"``
        (default), or ``"once"`` for the whole run.
      deadline: local steps after which the server waits no longer, >= 1; default None. Its own pass on root data ends
        there too.
      late: what a client sends that has not finished at the deadline: ``"partial"`` (default), what it has; or
        ``"drop"``, nothing. It needs ``deadline``.
      deadline_seconds: deadline in seconds of the ``clock``, > 0. Who is later sends nothing. Default None.
    """

    availability: Any = option(check_availability, default=None)
    dropout_rate: float = option(partial(checks.in_range, low=0.0, high=1.0, open_high=True), default=0.0)
    steps_drawn: str = option(one_of("round", "once"), default="round")
    deadline: int | None = option(count, default=None)
    late: str = option(one_of("partial", "drop"), default="partial")
    deadline_seconds: float | None = option(checks.positive, default=None)


@options
class Adversary:
    """Who is malicious, and what the server holds against it.

    Attributes:
      byzantine_fraction: share of malicious clients, in [0, 1]. A run with an attack needs it, or ``num_byzantine``, 0
        for the honest baseline; without an attack nobody is malicious. Default None, which is none given.
      num_byzantine: their number, instead of ``byzantine_fraction``.
      byzantine_of: whether they are a part of the federation or of every cohort: of the ``"federation"`` (default), the
        same clients throughout the run, drawn by ``seed``; or of every ``"cohort"``, drawn anew in each round, all of
        them knowing what the server sends to them.
      root_size: examples of the server's root data for rules that need it; default 3,000, or a tenth of the
        data they are drawn from where that is less.
      root_bias: least share of the root data that are of class 0, in [0, 1]; default 0.
      root_source: what the root data are drawn from: ``"benign"`` (default), in equal parts from the clients that are
        not malicious throughout; ``"all"``, uniformly at random, by ``seed``, from the examples of all clients, the
        malicious ones' as they are without an attack; ``"biased"``, as these, but with exactly the share ``root_bias``
        of class 0, so that the root data are not distributed as the clients' are.
      nonfinite: what becomes of messages that are not finite, or too long for sums in float32: ``"reject"`` (default)
        their clients; or ``"propagate"``: one makes the parameters NaN. Too long is a norm above 2.0e31, see
        docs/numerics.md.
      forged_messages: with ``compression``, what attackers forge: ``"decompressed"`` (default), any message at all in
        the place of what the server decompresses; or ``"compressed"``, a message that goes through the compressor, as
        that of a client without a memory does, and is then what a compressor can send.
      secure_aggregation: whether the server sees nothing but sums over clients. Methods and rules that must see single
        messages are refused, and the history has no metrics of single clients, as without ``diagnostics``. Nothing is
        encrypted: it is a check of what could run so (docs/secure_aggregation.md). Default False.
    """

    byzantine_fraction: float | None = option(partial(checks.in_range, low=0.0, high=1.0), default=None)
    num_byzantine: int | None = option(checks.count, default=None)
    byzantine_of: str = option(one_of("federation", "cohort"), default="federation")
    root_size: int | None = option(count, default=None)
    root_bias: float = option(partial(checks.in_range, low=0.0, high=1.0), default=0.0)
    root_source: str = option(one_of(*ROOT_SOURCES), default="benign")
    nonfinite: str = option(one_of("reject", "propagate"), default="reject")
    forged_messages: str = option(one_of("decompressed", "compressed"), default="decompressed")
    secure_aggregation: bool = option(checks.flag, default=False)


@options
class Execution:
    """How the run is computed.

    Attributes:
      clients_axis: how the clients of a round are gone through: ``"vmap"`` (all at once), ``"map"`` (one after another,
        or in chunks) or ``"auto"`` (default): one after another on a CPU, all of whose cores a single client occupies,
        and all at once elsewhere, in chunks of 512 where the cohort is larger. The ways agree to rounding only.
        :attr:`Simulation.batching` is the one taken.
      clients_per_chunk: clients that run at once under ``"map"``; default 1.
      mesh: the devices over which the clients are sharded; ``cohort_size`` must be a multiple of their number.
        ``"cores"``: as many local devices as divide the cohort. ``"all"``: as many devices of all processes
        (:mod:`~fedjax_drag.simulation.devices.processes`), the same number of each. ``"auto"`` (default): ``"cores"``
        on a CPU of which several devices divide the cohort, where that is faster by an estimate
        (:mod:`~fedjax_drag.simulation.planning.setup`), else one device. None: one device. Sizes of axes by name,
        ``{"clients": 2, "model": 4}``: the clients are sharded over the first only, and along the others the devices
        divide every client's model, its deltas and its state (``docs/scale.md``); ``cohort_size`` must be a multiple of
        the first. In Python also a ``jax.sharding.Mesh`` of one axis, or of axes of which one is ``"clients"``. A CPU
        has a device for each core on the command line, and in Python after ``fd.use_cores()``; else it has one. The
        results are the same to rounding.
      sharding_rules: how the further axes of ``mesh`` divide the model: pairs of a regular expression, which is
        searched in the path of a parameter, and a ``jax.sharding.PartitionSpec`` or a list of its entries, such as
        ``("mlp_in/kernel", P(None, "model"))``; ``P()`` is a copy on every device. The first pair that matches counts,
        then those of the model, its attribute ``sharding_rules``, which
        :func:`~fedjax_drag.models.transformer` has. Of what none matches, parameters of at least 65,536 entries
        are divided along their largest axis that the devices divide. Default None: no pairs of your own.
      shard_data: whether the devices of ``mesh`` divide the training examples among them, so that each needs memory for
        its share only; in every round the examples of the cohort's clients then travel to the devices that work for
        them. Default False: every device holds all examples, and nothing travels. The results are the same bits.
      aggregation: whether messages are added up as they come or kept: ``"stream"`` adds up the clients' messages as
        they come, for methods that need nothing but sums (:attr:`~fedjax_drag.types.Algorithm.streamed`) and attacks
        that forge none; ``"stack"`` keeps those of the whole cohort. The results are the same to rounding. Default
        ``"auto"``: stream where it can be done, which is faster and needs no memory for the cohort; metrics that
        compare a client with the whole sum, such as the cosine of :func:`~fedjax_drag.aggregators.fedavg`, exist for a
        stack only.
      compute_dtype: in which the model runs forward and backward, in training and in evaluation: ``"float32"``, or
        ``"bfloat16"``, faster where the hardware has it, slower elsewhere. Parameters, what clients send, aggregation
        and the loss of the logits are float32 in any case.
      matmul_precision: of matrix products and convolutions in local passes, the server's on its root data too:
        ``"float32"``; or ``"tensorfloat32"`` or ``"bfloat16"``, whose factors keep 10 or 7 bits of the mantissa: faster
        on hardware that has them, float32 elsewhere. Default ``"default"``: as JAX's own
        ``jax_default_matmul_precision`` says, which is tensorfloat32 on NVIDIA's GPUs and bfloat16 on TPUs. It does
        not concern rules, norms and evaluation, and all arrays stay float32.
      model_forms: ``"fast"``, the default: convolutions and poolings of any model, also of one's own, are computed in
        the form that is fast on the platform (:func:`~fedjax_drag.models.fast_forms.in_fast_forms`), equal up to
        rounding; ``"as_is"``: the model is computed as it is written.
      rounds_per_compile: most rounds between two visits to the host; default ``eval_every``.
      client_state: where the rows lie that are kept for every client, such as SCAFFOLD's control variates or a kept
        momentum: ``"device"``; ``"host"``, memory from where only the cohort's rows travel; or ``"disk"``, a temporary
        file in the folder that ``TMPDIR`` names, for rows that exceed the memory (``docs/scale.md``). The results
        are the same bit for bit.
        :attr:`Simulation.client_state_bytes` says what they need.
    """

    clients_axis: str = option(one_of("auto", "vmap", "map"), default="auto")
    clients_per_chunk: int | None = option(count, default=None)
    mesh: Mesh | Mapping[str, int] | str | None = option(check_mesh, default="auto")
    sharding_rules: ShardingRules | None = option(check_rules, default=None)
    shard_data: bool = option(checks.flag, default=False)
    aggregation: str = option(one_of("auto", "stack", "stream"), default="auto")
    compute_dtype: str = option(one_of("float32", "bfloat16"), default="float32")
    model_forms: str = option(one_of("fast", "as_is"), default="fast")
    matmul_precision: str = option(one_of(*PRECISIONS), default="default")
    rounds_per_compile: int | None = option(count, default=None)
    client_state: str = option(one_of(*PLACES), default=DEVICE)


@options
class Measurement:
    """What is measured of a run, how often, and when it ends early.

    Attributes:
      eval_every: rounds between evaluations on the test set; default 10.
      diagnostics: whether the history keeps per-client metrics; default True.
      evaluate_clients: whether to evaluate the global model on each client's own examples. Those are its own test
        examples where the data have some (``FederatedDataset.client_test``). Else each client holds out a
        fifth of its examples, or the share in (0, 1) that is given in the place of True: at least one of two examples
        or more, none of a single one. Nobody trains on them, they are not in the server's root data, and the numbers of
        examples that rules weigh by are those that are left. The history has ``client_accuracy_mean``,
        ``client_accuracy_worst_tenth`` and ``client_accuracy_std``
        (:func:`~fedjax_drag.simulation.program.evaluation.over_clients`) over the benign clients that have such
        examples; with ``diagnostics`` the ``client_accuracy`` of each; and ``class_accuracy`` on the test set. All are
        of the parameters, also where the method's output is another model, but where it trains several models a
        client's accuracy is that of the one it uses; with ``model_state="local"`` a client's examples are evaluated by
        its own statistics. A method that gives clients models of their own has ``own_accuracy_mean`` and so on of these
        models too. Default False.
      time_clients: whether to measure, before the first round, how long a client needs for a local step; then the
        history has ``client_seconds``, and ``time_to`` can be asked. It costs the compilation of one local pass.
        Default False.
      stop_on_divergence: whether a run whose parameters are not finite any more ends with the next evaluation, as
        :attr:`Result.diverged_at` then says; default True. Messages that are rejected leave them finite.
    """

    eval_every: int = option(count, default=10)
    diagnostics: bool = option(checks.flag, default=True)
    evaluate_clients: bool | float = option(check_share, default=False)
    time_clients: bool = option(checks.flag, default=False)
    stop_on_divergence: bool = option(checks.flag, default=True)


def check_stop_when(name: str, value: Any) -> None:
    """Refuses what is neither a number nor a function; the metric decides which numbers there are."""
    if not callable(value) and not (checks.is_concrete(value) and abs(value) <= LARGEST):
        raise ValueError(f"{name}={checks.shown(value)}: must be an accuracy in (0, 1], or for fd.simulate a function")


@options
class EarlyStopping:
    """When a run ends before its last round; asked after each evaluation.

    Attributes:
      patience: evaluations in a row, >= 1, of which none is better than the best before, after which the run ends: by
        ``metric``, on the validation examples where the data have any, else on the test examples. Default None: never.
      stop_when: value of ``metric``, such as an accuracy in (0, 1], at which the run ends; for ``fd.simulate`` also a
        function of an :class:`~fedjax_drag.simulation.runner.Evaluation` that returns True where the run is to end.
        Default None.
    """

    patience: int | None = option(count, default=None)
    stop_when: Any = option(check_stop_when, default=None)


STATE = Kind(
    RunState,
    "the state of a run, such as result.state",
    libraries={"fedjax_drag.simulation.result.Result": "give its state, result.state"},
    otherwise="parameters to start from are the argument initial_params",
)


def check_callbacks(name: str, value: Any) -> None:
    """Refuses anything but several functions."""
    allowed = "a list of functions of an evaluation, such as [print]"
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError(f"{name}={checks.shown(value)}: must be {allowed}")
    for index, callback in enumerate(value):
        kinds.check_function(f"{name}[{index}]", callback, "a function of an evaluation")


@options
class Watching:
    """How a run begins, and who hears of it.

    Attributes:
      callbacks: functions that are called with an :class:`~fedjax_drag.simulation.runner.Evaluation` after each
        evaluation. Where one returns True the run ends, with its result. An exception of one carries the result so
        far as its attribute ``result``.
      initial: state to continue from, such as ``result.state``; default a fresh start.
      progress: True for a progress bar in a terminal or a notebook, and elsewhere a line for each evaluation on
        standard error; False for neither; default None: the bar where there can be one, and no lines.
    """

    callbacks: Sequence[Callable[..., Any]] = option(check_callbacks, default=())
    initial: RunState | None = option(STATE.check, default=None)
    progress: bool | None = option(checks.flag, default=None)


def check_pass(run: Any) -> None:
    """Refuses what options of :class:`LocalWork` and :class:`Participation` do not say together.

    That is the length of a local pass in two ways, or in none; an order of steps that are drawn; and late clients that
    send nothing where there is no deadline, or one before which no client is ready.
    """
    if (run.local_steps is None) == (run.local_epochs is None):
        given = f"local_steps={run.local_steps!r}, local_epochs={run.local_epochs!r}"
        raise ValueError(f"{given}: must be exactly one of the two")
    if run.local_epochs is None and run.epoch_order != "random":
        raise ValueError(f"epoch_order={run.epoch_order!r}: needs local_epochs; the batches of local_steps are drawn")
    if run.late == "drop" and run.deadline is None:
        raise ValueError("late='drop': needs deadline; after deadline_seconds a client sends nothing in any case")
    fewest, most = span(run.local_steps)
    least = most if fewest is None else fewest
    if run.late == "drop" and least is not None and run.deadline < least:
        allowed = f"at least {least}, the fewest local steps of a client, or no client answers"
        raise ValueError(f"deadline={run.deadline!r}, late='drop': must be {allowed}")


def check_time(has_clock: bool, selection: Selection, deadline_seconds: float | None, drawn_anew: bool) -> None:
    """Refuses what needs a clock, without one, and what is for rounds that wait, where none does.

    Args:
      has_clock: whether the run has one.
      selection: of cohorts.
      deadline_seconds: of a round, or None.
      drawn_anew: whether malicious clients are drawn anew for every cohort.
    """
    is_asynchronous, name = selection.max_staleness is not None, f"selection={selection.name}"
    if not has_clock and (is_asynchronous or deadline_seconds is not None):
        asks = name if is_asynchronous else f"deadline_seconds={deadline_seconds}"
        raise ValueError(f"{asks}: needs a clock, such as clock=fd.clocks.log_normal(sigma=1.0)")
    if is_asynchronous and deadline_seconds is not None:
        allowed = "must be None, as the server waits for no single client"
        raise ValueError(f"deadline_seconds={deadline_seconds}, {name}: {allowed}")
    if is_asynchronous and drawn_anew:
        allowed = "must be 'federation', as clients are malicious before a cohort has formed"
        raise ValueError(f"byzantine_of='cohort', {name}: {allowed}")


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
