"""What the arguments of a run may be and what goes together, checked before anything is computed."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.core import Tracer

from fedjax_drag import checks, kinds, tree
from fedjax_drag.algorithms import from_aggregator
from fedjax_drag.attacks._forgery import KNOWLEDGE, check_forgery
from fedjax_drag.compression import COMPRESSOR
from fedjax_drag.data.augmentation import Augmentation
from fedjax_drag.data.dataset import DATASET
from fedjax_drag.kinds import Kind
from fedjax_drag.models.modes import WithModes
from fedjax_drag.simulation.model.model import is_model
from fedjax_drag.simulation.program.clients_axis import ClientBatching
from fedjax_drag.simulation.program.dissimilarity import requested
from fedjax_drag.simulation.run import Run, RunState
from fedjax_drag.types import Aggregator, Algorithm, Attack, Metric, Uplink

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

STATE = Kind(
    RunState,
    "the state of a run, such as result.state",
    libraries={"fedjax_drag.simulation.result.Result": "give its state, result.state"},
    otherwise="parameters to start from are the argument initial_params",
)


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


def check_callbacks(name: str, value: Any) -> None:
    """Refuses anything but several functions."""
    allowed = "a list of functions of an evaluation, such as [print]"
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError(f"{name}={checks.shown(value)}: must be {allowed}")
    for index, callback in enumerate(value):
        kinds.check_function(f"{name}[{index}]", callback, "a function of an evaluation")


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
        MODEL.check(name, value.model if isinstance(value, WithModes) else value)


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


def check_attack(attack: Attack | None, uses_root: bool) -> None:
    """Refuses an attack that needs what this run does not compute."""
    if attack is None:
        return
    for name in sorted(attack.needs):
        checks.one_of("attack: needs", name, KNOWLEDGE)
    if "root_delta" in attack.needs and not uses_root:
        raise ValueError("attack: needs the server's root update; the method must be one that has it, such as fltrust")
    malicious = jax.ShapeDtypeStruct((), bool)
    with checks.explained("attack: active", "take a round, int32 and traced, and return a bool"):
        found = jax.eval_shape(attack.attackers, malicious, jax.ShapeDtypeStruct((), jnp.int32))
    if difference := tree.mismatch(found, malicious):
        raise ValueError(f"attack: active returns {difference}")


def check_benign(run: Run, message: Uplink) -> None:
    """Refuses an attack from outside the package that changes what benign clients send.

    It runs on made-up messages in the shapes of the run, once for each attack and shapes; the run's own programs do not
    change.

    Args:
      run: whose attack it is.
      message: of one client, arrays or shapes.
    """
    attack = run.attack
    if attack is None or not attack.forges or _belongs_to_the_package(attack.forge):
        return
    check_forgery(attack, jax.tree.map(lambda x: jax.ShapeDtypeStruct((run.cohort_size, *x.shape), x.dtype), message))


def _belongs_to_the_package(function: Any) -> bool:
    return (getattr(function, "__module__", None) or "").startswith("fedjax_drag.")


def check_sign(local_optimizer: Any, params: Any) -> None:
    """Refuses an optimizer that descends by itself: one whose first update for a gradient of ones is negative."""
    zeros = jax.tree.map(lambda p: jnp.zeros((1,) * len(p.shape), p.dtype), params)  # one entry a leaf is enough
    ones = jax.tree.map(jnp.ones_like, zeros)
    with checks.explained("local_optimizer", kinds.OF_UPDATES):
        state = local_optimizer.init(zeros)
        jax.eval_shape(local_optimizer.update, ones, state, zeros)  # as the compiled program calls it
        update, _ = local_optimizer.update(ones, state, zeros)
    total = sum(leaf.sum() for leaf in jax.tree.leaves(update))
    if not isinstance(total, Tracer) and total < 0:
        raise ValueError(
            "local_optimizer: reverses directions, as optax.sgd and others with a learning rate do; must leave "
            "that to step_size, such as optax.trace(0.9)"
        )


MOST_AT_ONCE = 512
"""Clients at once under ``"auto"``: enough to occupy any accelerator; more need memory that grows with the cohort."""


def resolve_batching(
    clients_axis: str, clients_per_chunk: int | None, platform: str, cohort_size: int
) -> ClientBatching:
    """The way over the clients of a round: what the settings say, or the platform's usual one for ``"auto"``.

    That is one after another on a CPU, all of whose cores a single client occupies, and all at once elsewhere, in
    chunks of :data:`MOST_AT_ONCE` where the cohort is larger.
    """
    if clients_axis == "vmap" and clients_per_chunk is not None:
        raise ValueError(f"clients_per_chunk={clients_per_chunk}: goes with clients_axis='map', not 'vmap'")
    if clients_axis == "auto":
        if platform != "cpu" and clients_per_chunk is None and cohort_size > MOST_AT_ONCE:
            clients_per_chunk = MOST_AT_ONCE
        clients_axis = "map" if clients_per_chunk is not None or platform == "cpu" else "vmap"
    return ClientBatching(clients_axis, clients_per_chunk)


def check_jit() -> None:
    """Refuses to run where JAX compiles nothing.

    Raises:
      ValueError: ``jax_disable_jit`` is set.
    """
    if jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]
        raise ValueError(
            "jax_disable_jit=True: must be False, for a run is compiled before it starts; jax.debug.print shows values "
            "inside, and a rule called by itself needs no compilation"
        )


def resolve_aggregation(aggregation: str, algorithm: Algorithm, attack: Attack | None) -> bool:
    """Whether messages are added up as they come; ``"auto"`` does so where it can be done."""
    obstacle = None
    if algorithm.streamed is None:
        obstacle = "the method's rule compares the clients with each other"
    elif attack is not None and attack.forges:
        obstacle = "the attack forges messages from those of all clients"
    elif requested(algorithm.needs):
        obstacle = "the method needs the clients' dissimilarity, which is computed from the stacked messages"
    if aggregation == "stream" and obstacle:
        raise ValueError(f"aggregation='stream': {obstacle}; must be 'auto' or 'stack'")
    return aggregation != "stack" and obstacle is None


def check_secure_aggregation(algorithm: Algorithm, statistics: str | None = None) -> None:
    """Refuses a method whose server needs more than sums over clients, or what only a simulation knows.

    Args:
      algorithm: the method.
      statistics: what becomes of the model's statistics, where it has any.
    """
    if statistics == "median":
        raise ValueError("secure_aggregation=True: model_state='median' compares clients; must be 'average' or another")
    reason = None
    if algorithm.streamed is None:
        reason = "has no form of sums, and may compare single messages"
    elif requested(algorithm.needs):
        reason = "needs the dissimilarity of single messages"
    elif "malicious" in algorithm.needs:
        reason = "needs to know who is malicious"
    if reason:
        allowed = "a method of sums over clients, such as fedavg, norm_clipping or br_drag"
        raise ValueError(f"secure_aggregation=True: {algorithm.name} {reason}; must be {allowed}")


def check_metrics(name: str, value: Any) -> None:
    """Refuses what are no metrics, or two of one name."""
    example = "such as [fd.metrics.accuracy(), fd.metrics.f1()]"
    if not isinstance(value, Sequence) or not all(isinstance(one, Metric) for one in value):
        raise ValueError(f"{name}={checks.shown(value)}: must be a list of metrics, {example}")
    names = [one.name for one in value]
    if twice := [one for one in names if names.count(one) > 1 or one == "loss"]:
        raise ValueError(f"{name}: two are called {twice[0]!r}; names must differ")


def check_objective(loss: Callable[..., Any], metrics: Sequence[Metric], outputs: Any, targets: Any) -> None:
    """Refuses a loss that is not one number for each example, and metrics that do not take the outputs.

    Args:
      loss: of outputs and targets.
      metrics: of these.
      outputs: shapes of what the model returns for two examples.
      targets: shapes of theirs.
    """
    taken = f"take outputs {_form(outputs)} and targets {_form(targets)}"
    with checks.explained("loss", f"{taken}, and return one number for each"):
        shape = jax.eval_shape(loss, outputs, targets)
    if getattr(shape, "shape", None) != (2,) or not jnp.issubdtype(shape.dtype, jnp.floating):
        returned = f"{shape.dtype}{list(shape.shape)}" if hasattr(shape, "dtype") else type(shape).__name__
        raise ValueError(f"loss: returns {returned} for two examples; must be floating, [2], one number for each")
    for metric in metrics:
        with checks.explained(f"metrics: {metric.name}", taken):
            value = jax.eval_shape(metric, outputs, targets)
        if getattr(value, "shape", None) != ():
            raise ValueError(f"metrics: {metric.name} returns {checks.shown(value)}; must be one number")


def _form(arrays: Any) -> str:
    return f"{arrays.dtype}[{', '.join(['B', *map(str, arrays.shape[1:])])}]"


def check_augmented(augmentation: Augmentation, example: jax.ShapeDtypeStruct, length: int) -> None:
    """Refuses an augmentation that changes the shape of a batch.

    Args:
      augmentation: of the training inputs.
      example: shape and dtype of an input of the model, ``[1, *input_shape]``.
      length: examples in a mini-batch.
    """
    batch = jax.ShapeDtypeStruct((length, *example.shape[1:]), example.dtype)
    name, allowed = f"augmentation={checks.shown(augmentation)}", "x in the same shape"
    given = f"{batch.dtype}{list(batch.shape)}"
    with checks.explained(name, f"take a key and x, such as {given}, and return {allowed}"):
        after = jax.eval_shape(augmentation, jax.random.key(0), batch)
    if getattr(after, "shape", None) != batch.shape:
        returned = f"{after.dtype}{list(after.shape)}" if hasattr(after, "shape") else type(after).__name__
        raise ValueError(f"{name}: returns {returned} for x of {given}; must return {allowed}")
