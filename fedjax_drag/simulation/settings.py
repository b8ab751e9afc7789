"""The arguments of a run: the objects that it is made of, and the options that say how it goes.

:class:`Parts` are the objects, the groups of :mod:`~fedjax_drag.simulation.option_groups` the options. Together they
are the :class:`Arguments` of a run, and :class:`Settings` once checked.
"""

import os
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer

from fedjax_drag import checks, kinds
from fedjax_drag.algorithms import from_aggregator
from fedjax_drag.clocks import CLOCK, Clock
from fedjax_drag.compression import COMPRESSOR, Compressor
from fedjax_drag.data import FederatedDataset
from fedjax_drag.data.augmentation import Augmentation
from fedjax_drag.data.dataset import DATASET
from fedjax_drag.kinds import Kind
from fedjax_drag.losses import LossFunction, cross_entropy
from fedjax_drag.metrics import accuracy
from fedjax_drag.models.modes import WithModes, module_of
from fedjax_drag.ops.paths import Trainable, check_trainable
from fedjax_drag.selection import SELECTION, Selection, uniform
from fedjax_drag.simulation.criterion import Criterion
from fedjax_drag.simulation.devices.host_state import DEVICE
from fedjax_drag.simulation.devices.model_sharding import divides_model
from fedjax_drag.simulation.model.model import is_model
from fedjax_drag.simulation.option_groups import (
    Adversary,
    EarlyStopping,
    Execution,
    LocalWork,
    Measurement,
    Participation,
    Watching,
    check_pass,
    check_time,
)
from fedjax_drag.simulation.options import check_options, count, documented, option, options, span
from fedjax_drag.simulation.program.federation import (
    ClientSplit,
    count_malicious,
    hold_out,
    lists_of,
)
from fedjax_drag.simulation.program.sampling import as_trace
from fedjax_drag.simulation.run import FULL
from fedjax_drag.types import Aggregator, Algorithm, Attack, ClientRule, Metric, Optimizer

MODEL = Kind(
    (nn.Module, WithModes),
    "a flax.linen or flax.nnx module, such as fd.models.mlp(num_classes=10), or a pair of functions (init, apply)",
    ("models",),
    {
        "flax.nnx": "give an instance, or a function (rngs) -> module",
        "torch": "PyTorch modules cannot be compiled by JAX, write it as a flax.linen.Module",
    },
)


DATA = DATASET._replace(
    phrase="a data set that is split among clients",
    libraries={"builtins.str": "load it by name, fd.data.partition.dirichlet(fd.data.load(name), ...)"},
)


METHOD = Kind(
    (Algorithm, Aggregator),
    "an algorithm or an aggregation rule, such as fd.aggregators.drag()",
    ("aggregators", "algorithms"),
    libraries={
        "flax": "a model is the argument model of fd.simulate",
        "optax": "optimizers are fd.aggregators.fedavg(server_optimizer=...) and local_optimizer=...",
    },
)


ALGORITHM = METHOD._replace(type=Algorithm, phrase="an algorithm, such as fd.algorithms.from_aggregator(rule)")


def as_algorithm(name: str, value: Any) -> Algorithm:
    """An algorithm as it is, and the one that an aggregation rule stands for; anything else is refused."""
    METHOD.check(name, value)
    return from_aggregator(value) if isinstance(value, Aggregator) else value


def check_initial_params(name: str, value: Any) -> None:
    """Refuses what is neither the path of a file nor a pytree of arrays; which ones it must have, the model decides."""
    if isinstance(value, str | os.PathLike):
        return
    leaves = jax.tree.leaves(value)
    if not leaves or not all(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves):
        allowed = "a pytree of arrays like the model's parameters, such as result.params, or the path of a file"
        raise ValueError(f"{name}={checks.shown(value)}: must be {allowed}")


def check_data(name: str, value: Any) -> None:
    """Refuses what is no data set, and one without clients."""
    DATA.check(name, value)
    if value.num_clients == 0:
        raise ValueError(
            f"{name}={value.name!r}: not yet split among clients; apply fd.data.partition.dirichlet or another"
        )


def check_model_form(name: str, value: Any) -> None:
    """Refuses what is no model in any of its forms."""
    if not is_model(value):
        MODEL.check(name, module_of(value))


def check_downlink_compression(name: str, value: Any) -> None:
    """Refuses what is no compressor, and one whose errors may add up over the rounds."""
    COMPRESSOR.check(name, value)
    if value.contraction is None:
        raise ValueError(f"{name}={checks.shown(value)}: must feed its errors back; set error_feedback=True")


def check_step_size(name: str, value: Any) -> None:
    """Refuses what is neither a positive number nor a function of the round."""
    if callable(value):
        return
    if not checks.is_concrete(value) and getattr(value, "shape", None) != ():
        allowed = "a number > 0, or a function of the round, such as an optax schedule"
        raise ValueError(f"{name}={checks.shown(value)}: must be {allowed}")
    checks.positive(name, value)


def check_loss(name: str, value: Any) -> None:
    """Refuses what is no function, and a function that makes losses."""
    kinds.check_function(name, value, "a loss, such as fd.losses.cross_entropy()", "losses")


def check_metrics(name: str, value: Any) -> None:
    """Refuses what are no metrics, or two of one name."""
    example = "such as [fd.metrics.accuracy(), fd.metrics.f1()]"
    if not isinstance(value, Sequence) or not all(isinstance(one, Metric) for one in value):
        raise ValueError(f"{name}={checks.shown(value)}: must be a list of metrics, {example}")
    names = [one.name for one in value]
    if twice := [one for one in names if names.count(one) > 1 or one == "loss"]:
        raise ValueError(f"{name}: two are called {twice[0]!r}; names must differ")


def check_augmentation(name: str, value: Any) -> None:
    """Refuses what is no function, and a function that makes augmentations."""
    phrase = "a function (key, x) -> x, such as fd.data.augmentation.crop_flip()"
    kinds.check_function(name, value, phrase, "data.augmentation")


def check_schedule(step_size: Callable[..., Any], num_rounds: int) -> None:
    """Checks a schedule at its first and at its last round, and as the compiled program calls it."""
    with checks.explained(f"step_size={checks.shown(step_size)}", kinds.OF_ROUND):
        returned: Any = jax.eval_shape(step_size, jnp.int32(0))
    if getattr(returned, "shape", None) != ():
        raise ValueError(f"step_size(0)={checks.shown(step_size(jnp.int32(0)))}: must be a single number")
    for index in (0, num_rounds - 1):
        value: Any = step_size(jnp.int32(index))
        checks.positive(f"step_size({index})", value if isinstance(value, Tracer) else float(value))


@options
class Parts:
    """What a run is made of.

    Attributes:
      algorithm: the method: an :class:`~fedjax_drag.types.Algorithm`, or an aggregation rule such as
        ``fd.aggregators.drag(c=0.25, alpha=0.25)``, which stands for ``fd.algorithms.from_aggregator(rule)``.
      model: a linen module, an nnx module or a pair of functions, from inputs to logits ``[B, C]``; where the data have
        several arrays an example, from the pytree of them, and to a pytree if it returns several. The pair is
        ``init(key) -> params`` (or ``init(key, x)``) and ``apply(params, x) -> logits``. Arguments of its call named
        ``train``, ``training``, ``is_training``, ``deterministic`` and ``use_running_average`` say whether it is in
        training; :func:`fedjax_drag.models.with_modes` names others. In training its random streams, such as
        ``dropout``, have keys by stream, round, client and step. An nnx module starts from its own parameters; a
        function ``(rngs) -> module``, such as its class, makes them by ``seed``, as a linen module does.
      data: a partitioned :class:`~fedjax_drag.data.FederatedDataset`.
      num_rounds: rounds T, >= 1.
      cohort_size: clients in a round S, at most the number of clients.
      step_size: local step size eta, > 0, or a function of the round (int32, from 0), such as an optax schedule.
        A number may be traced.
      seed: of everything random; default 0.
      local_optimizer: an optax transformation of the client rule's directions, before ``w -= step_size * transformed``;
        default none. It starts afresh in every local pass, unless
        ``local_optimizer_state="keep"``, and leaves the learning rate to ``step_size``: ``optax.trace(0.9)`` for
        momentum, ``optax.chain(optax.add_decayed_weights(1e-4), optax.trace(0.9))`` for SGD as elsewhere with both, but
        not ``optax.sgd(0.1, 0.9)``, which would climb. The server's root pass uses it too. Methods that take every
        step to be ``step_size`` times the client rule's own direction are then approximate: SCAFFOLD, FedDC, FedDyn,
        AdaBest, STEM, TACO and FedNova, each of which says what it takes a step to be.
      trainable: which parameters are trained: a pattern of parameter paths such as ``"head"`` or ``"*/lora_*"``, a list
        of them, or a function of a path; default all. The others stay as they start, on the server alone: rules,
        messages and byte counts have the trained ones only.
      loss: what is minimised, ``(outputs [B, ...], targets [B, ...]) -> [B]``, such as one of
        :mod:`fedjax_drag.losses`; default :func:`~fedjax_drag.losses.cross_entropy` where the data have labels. It also
        gives ``test_loss``.
      metrics: what is measured of the predictions, of :mod:`fedjax_drag.metrics` or your own; the history has
        ``test_<name>`` and, as of accuracies, ``validation_<name>`` and others. Default
        :func:`~fedjax_drag.metrics.accuracy` where the data have labels, else nothing but the loss.
      metric: the name of the one by which the best round is chosen, ``patience`` ends the run and ``rounds_to`` counts,
        or ``loss``; default ``accuracy`` where it is measured, else the first metric, else the loss.
      augmentation: of every training batch, ``(key, x [B, ...]) -> x``; after normalisation and before an attack on the
        data, such as :func:`~fedjax_drag.data.augmentation.crop_flip`; default none.
      attack: what malicious clients do; default None.
      compression: the compressor through which each client's message goes: the delta, and what else the method sends,
        each by itself. The server decompresses it, and everything after that has the decompressed message; the bytes in
        the history are those of the compressed one. What a compressor keeps for each client is kept as ``client_state``
        says. Default none.
      downlink_compression: the compressor through which the server's broadcast goes, as a difference: where the local
        passes are to start, less what the clients have received so far. It must feed its errors back. What else a
        method sends down goes as it is. Default none.
      selection: who of the clients that can be drawn takes part in a round, one of :mod:`fedjax_drag.selection` or your
        own; default :func:`~fedjax_drag.selection.uniform`. What it keeps is part of the run's state. Losses that it
        asks of clients, and the parameters they are asked with, are not in the byte counts of the history.
      clock: how long clients take, one of :mod:`fedjax_drag.clocks` or your own; the history then has ``seconds``, the
        simulated duration of the rounds. Default none.
      root_client: what the server runs on its root data, for rules that need it; default
        :func:`~fedjax_drag.clients.sgd`. :func:`~fedjax_drag.clients.robust_sgd` guards against wrong labels there.
      initial_params: parameters from which the run starts: a pytree of arrays like the model's own, or variables with
        its statistics, ``{"params": ..., "batch_stats": ...}``; or the path of a safetensors file with such names
        joined by ``/`` or ``.`` (``pip install 'fedjax-drag[safetensors]'``), of a results folder, whose newest
        checkpoint is taken, or of one of its checkpoints. The parameters that are not ``trainable`` must be there too;
        adapters of :func:`~fedjax_drag.models.lora` may be left out, and are drawn by ``seed`` then.
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
    local_optimizer: Optimizer | optax.GradientTransformation | None = option(kinds.OPTIMIZER.check, default=None)
    trainable: Trainable | None = option(check_trainable, default=None)
    loss: LossFunction | None = option(check_loss, default=None)
    metrics: Sequence[Metric] | None = option(check_metrics, default=None)
    metric: str | None = None
    augmentation: Augmentation | None = option(check_augmentation, default=None)
    attack: Attack | None = option(kinds.ATTACK.check, default=None)
    compression: Compressor | None = option(COMPRESSOR.check, default=None)
    downlink_compression: Compressor | None = option(check_downlink_compression, default=None)
    selection: Selection | None = option(SELECTION.check, default=None)
    clock: Clock | None = option(CLOCK.check, default=None)
    root_client: ClientRule | None = option(kinds.CLIENT_RULE.check, default=None)
    initial_params: Any = option(check_initial_params, default=None)


@documented
@options
class Arguments(Measurement, Execution, Adversary, Participation, LocalWork, Parts):
    """The arguments of a run: :class:`Parts`, :class:`LocalWork`, :class:`Participation`, :class:`Adversary`,
    :class:`Execution` and :class:`Measurement` together.
    """


@options
class SimulateArguments(EarlyStopping, Watching, Arguments):
    """The arguments of :func:`~fedjax_drag.simulation.engine.simulate`."""


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
        try:
            self.selected_by.check_sizes(self.data.num_clients, self.cohort_size)
        except ValueError as error:
            raise ValueError(f"selection={self.selected_by.name}: {error}") from None
        drawn_anew = self.byzantine_of == "cohort" and self.num_malicious > 0
        check_time(self.clock is not None, self.selected_by, self.deadline_seconds, drawn_anew)
        if self.algorithm.num_clients not in (None, self.data.num_clients):
            own, those = self.algorithm.num_clients, self.data.num_clients
            raise ValueError(f"algorithm={self.algorithm.name}: num_clients={own}: must be {those}, that of the data")
        if not self.data.has_labels:
            self._check_targets()
        elif self.data.num_classes == 1 and (self.loss is None or isinstance(self.loss, cross_entropy)):
            allowed = "must have two or more for cross_entropy, which is 0 for one; or give another loss"
            raise ValueError(f"data={self.data!r}: {allowed}")
        _ = self.criterion
        check_pass(self)
        _ = self.availability_trace
        if self.local_optimizer_state == "keep" and self.local_optimizer is None:
            raise ValueError("local_optimizer_state='keep': needs a local_optimizer, such as optax.trace(0.9)")
        if callable(self.step_size):
            check_schedule(self.step_size, self.num_rounds)
        most = int(lists_of(self.split.training)[1].max())
        if self.batch_size != FULL and int(self.batch_size) > most:
            has = "trains on" if self.evaluate_clients else "has"
            allowed = f"at most {most}, what the largest client {has}, or {FULL!r} for all data of each client"
            raise ValueError(f"batch_size={self.batch_size!r}: must be {allowed}")

    def _check_targets(self) -> None:
        """Refuses what needs a label for each example, where targets are something else."""
        targets = f"data={self.data!r}"
        if self.loss is None:
            allowed = "loss must be given, such as fd.losses.mse() or token_cross_entropy()"
            is_column = getattr(self.data.train.y, "shape", ())[1:] == (1,)
            labels = ".ravel() of a column" if is_column else ".argmax(1) of one-hot ones"
            raise ValueError(f"{targets}: {allowed}; labels are integers [N], {labels}")
        if self.attack is not None and self.attack.needs_labels:
            raise ValueError(f"attack={self.attack.name}: needs one label for each example, which is not in {targets}")

    @property
    def measured(self) -> tuple[Metric, ...]:
        """The metrics of the run."""
        return (accuracy(),) * self.data.has_labels if self.metrics is None else tuple(self.metrics)

    @cached_property
    def criterion(self) -> Criterion:
        """By what rounds are chosen."""
        return Criterion.of(self.measured, self.metric)

    @property
    def selected_by(self) -> Selection:
        """Who of the clients that can be drawn takes part."""
        return self.selection or uniform()

    @property
    def reports_clients(self) -> bool:
        """Whether the history has metrics of single clients."""
        return self.diagnostics and not self.secure_aggregation

    @cached_property
    def split(self) -> ClientSplit:
        """What the clients train on, and what they hold out."""
        return hold_out(self.data, self.evaluate_clients)

    @cached_property
    def availability_trace(self) -> np.ndarray | None:
        """``availability`` as an array ``[T, M]``; None where everybody is always available."""
        return as_trace(self.availability, self.data.num_clients)

    @property
    def may_be_absent(self) -> bool:
        """Whether a client can be missing for another reason than the method's."""
        waits_not = self.deadline_seconds is not None or self.selected_by.max_staleness is not None
        return self.availability_trace is not None or bool(self.dropout_rate) or self.drops_late or waits_not

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
    def is_run_alone(self) -> bool:
        """Whether no other run shares its program: rows of clients are on the host, or devices divide its model."""
        return self.client_state != DEVICE or divides_model(self.mesh)
