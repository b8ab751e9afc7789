"""Checks that the parts of a run fit together, on shapes alone: what they would silently do otherwise."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.core import Tracer

from fedjax_drag import checks, kinds, tree
from fedjax_drag.algorithms import TwoSided
from fedjax_drag.attacks._forgery import KNOWLEDGE, check_forgery
from fedjax_drag.data import FederatedDataset
from fedjax_drag.data.augmentation import Augmentation
from fedjax_drag.data.normalization import TOKENS
from fedjax_drag.losses import cross_entropy
from fedjax_drag.models.cnn import CNN
from fedjax_drag.models.lora import LoRA
from fedjax_drag.models.lstm import LSTM
from fedjax_drag.models.mlp import MLP
from fedjax_drag.models.modes import module_of
from fedjax_drag.models.resnet import ResNet18
from fedjax_drag.models.transformer import Transformer
from fedjax_drag.ops.paths import path_of
from fedjax_drag.selection import Selection
from fedjax_drag.simulation.model.forms import LinenForm
from fedjax_drag.simulation.model.model import IN_TRAINING, Model, ModelState, Statistics, model_name
from fedjax_drag.simulation.planning.selecting import check_selection
from fedjax_drag.simulation.program.dissimilarity import requested
from fedjax_drag.simulation.program.programs import first_downlink
from fedjax_drag.simulation.run import Run
from fedjax_drag.types import EXTRAS, Algorithm, Attack, Downlink, Params, Uplink, WrappedAttack
from fedjax_drag.types._part import value_of


def check_parts(run: Run, example: Any, target: Any, rows: jax.ShapeDtypeStruct) -> tuple[Params, ModelState]:
    """Refuses parts that do not fit together; shapes of the trained parameters and of the model's state.

    Args:
      run: whose parts they are; its numbers are traced.
      example: shape and dtype of an input of the model ``[1, *input_shape]``.
      target: the same of a target ``[1, ...]``.
      rows: the same of the clients' lists of examples ``[M, L]``.
    """
    _check_attack(run.attack, run.algorithm)
    _check_compression(run)
    params, state, outputs = check_model(run.model, example, target)
    if requested(run.algorithm.needs) and not hasattr(outputs, "shape"):
        said = f"compares predicted classes; must not, for outputs {tree.described(outputs, 'B')}"
        raise ValueError(f"algorithm={run.algorithm.name}: {said}")
    _check_objective(run.model, outputs, of_length(2, target))
    if run.augmentation is not None:
        _check_augmented(value_of(run.augmentation), example, run.batch_length(rows.shape[1]))
    _check_method(run, params)
    check_selection(run)
    return params, state


def _check_attack(attack: Attack | None, algorithm: Algorithm) -> None:
    """Refuses an attack that needs what this run does not compute."""
    if attack is None:
        return
    if attack.forges_for_each and "exchange" not in algorithm.needs:
        said = f"sends another message to each neighbour; must be used with a method on a graph, not {algorithm.name}"
        raise ValueError(f"attack={attack.name}: {said}")
    for name in sorted(attack.needs):
        checks.one_of("attack: needs", name, KNOWLEDGE)
    if "root_delta" in attack.needs - algorithm.needs:
        raise ValueError("attack: needs the server's root update; the method must be one that has it, such as fltrust")
    malicious = jax.ShapeDtypeStruct((), bool)
    with checks.explained("attack: active", "take a round, int32 and traced, and return a bool"):
        found = jax.eval_shape(attack.attackers, malicious, jax.ShapeDtypeStruct((), jnp.int32))
    tree.check_returned("attack: active", found, malicious)


def check_benign(run: Run, message: Uplink) -> None:
    """Refuses an attack from outside the package, also inside another, that changes what benign clients send.

    It runs on made-up messages in the shapes of the run, once for each attack and shapes; the run's own programs do not
    change.

    Args:
      run: whose attack it is.
      message: of one client, arrays or shapes.
    """
    attack = run.attack
    if attack is None or not attack.forges:
        return
    layers = [attack]
    while isinstance(layers[-1], WrappedAttack):
        layers.append(layers[-1].inner)
    if not all((getattr(one.forge, "__module__", None) or "").startswith("fedjax_drag.") for one in layers):
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct((run.cohort_size, *x.shape), x.dtype), message)
        check_forgery(attack, shapes)


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


def check_secure_aggregation(
    algorithm: Algorithm, statistics: str | None = None, selection: Selection | None = None
) -> None:
    """Refuses a method whose server needs more than sums over clients, or what only a simulation knows.

    Args:
      algorithm: the method.
      statistics: what becomes of the model's statistics, where it has any.
      selection: of cohorts.
    """
    if selection is not None and selection.needs:
        allowed = "one that asks nothing of single clients, such as weighted"
        raise ValueError(f"secure_aggregation=True: selection {selection.name} compares clients; must be {allowed}")
    if statistics == "median":
        raise ValueError("secure_aggregation=True: model_state='median' compares clients; must be 'average' or another")
    rule, reason = algorithm.rule if isinstance(algorithm, TwoSided) else algorithm, None
    asks = rule if "start_loss" in rule.needs else algorithm  # a method around it may keep rows of clients of its own
    if algorithm.streamed is None:
        reason = "has no form of sums, and may compare single messages"
    elif requested(algorithm.needs):
        reason = "needs the dissimilarity of single messages"
    elif "malicious" in algorithm.needs:
        reason = "needs to know who is malicious"
    elif {"start_loss", "client_ids"} <= asks.needs:
        reason = "needs the loss of each client"
    if reason:
        allowed = "a method of sums over clients, such as fedavg, norm_clipping or br_drag"
        raise ValueError(f"secure_aggregation=True: {algorithm.name} {reason}; must be {allowed}")


def _check_objective(model: Model, outputs: Any, targets: Any) -> None:
    """Refuses a loss that is not one number for each of two examples, and metrics that do not take their outputs."""
    taken = f"take outputs {tree.described(outputs, 'B')} and targets {tree.described(targets, 'B')}"
    with checks.explained("loss", f"{taken}, and return one number for each"):
        shape = jax.eval_shape(value_of(model.loss), outputs, targets)
    if getattr(shape, "shape", None) != (2,) or not jnp.issubdtype(shape.dtype, jnp.floating):
        returned = f"{shape.dtype}{list(shape.shape)}" if hasattr(shape, "dtype") else type(shape).__name__
        raise ValueError(f"loss: returns {returned} for two examples; must be floating, [2], one number for each")
    for metric in model.metrics:
        with checks.explained(f"metrics: {metric.name}", taken):
            value = jax.eval_shape(metric, outputs, targets)
        if getattr(value, "shape", None) != ():
            raise ValueError(f"metrics: {metric.name} returns {checks.shown(value)}; must be one number")


def of_length(number: int, arrays: Any) -> Any:
    """Shapes of ``number`` examples like those of a pytree of shapes."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((number, *x.shape[1:]), x.dtype), arrays)


def _check_augmented(augmentation: Augmentation, example: Any, length: int) -> None:
    """Refuses an augmentation that changes the shape of a batch.

    Args:
      augmentation: of the training inputs.
      example: shape and dtype of an input of the model, ``[1, *input_shape]``.
      length: examples in a mini-batch.
    """
    batch = of_length(length, example)
    name, allowed = f"augmentation={checks.shown(augmentation)}", "x in the same shape"
    given = tree.described(batch, length)
    with checks.explained(name, f"take a key and x, such as {given}, and return {allowed}"):
        after = jax.eval_shape(augmentation, jax.random.key(0), batch)
    if jax.tree.map(jnp.shape, after) != jax.tree.map(jnp.shape, batch):
        returned = jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", after)
        raise ValueError(f"{name}: returns {returned} for x of {given}; must return {allowed}")


def _check_compression(run: Run) -> None:
    """Refuses to compress what a method does not send, or the broadcasts of one whose clients start elsewhere."""
    algorithm, downlink = run.algorithm, run.downlink_compression
    for name, compressor in (("compression", run.compression), ("downlink_compression", downlink)):
        if compressor is not None and algorithm.num_neighbours is not None:
            said = f"is for messages of a server; must be None with algorithm={algorithm.name}, which has none"
            raise ValueError(f"{name}={compressor.name}: {said}")
    if downlink is not None and algorithm.num_models is not None:
        raise ValueError(
            f"downlink_compression={downlink.name}: compresses the one global model; must be None with "
            f"algorithm={algorithm.name}, which sends several"
        )


def _check_method(run: Run, params: Params) -> None:
    """Refuses a method that asks for what no run has, or returns other shapes, which might broadcast without a word."""
    algorithm = run.algorithm
    for name in sorted(algorithm.needs):
        checks.one_of(f"algorithm={algorithm.name}: needs", name, EXTRAS)
    checks.one_of(f"algorithm={algorithm.name}: split", algorithm.split, ("clients", "coordinates"))
    state = jax.eval_shape(algorithm.init, params)
    downlink = jax.eval_shape(functools.partial(first_downlink, algorithm, run.cohort_size), params, state)
    _check_downlink(downlink, run.cohort_size, params)
    if algorithm.eligible is not None:
        found = jax.eval_shape(algorithm.eligible, state)
        tree.check_returned("eligible of the method:", found, jax.ShapeDtypeStruct((run.num_clients,), bool))
    if algorithm.output is not None:
        _check_params("output of the method", jax.eval_shape(algorithm.output, params, state), params)


def _check_downlink(downlink: Any, cohort_size: int, params: Params) -> None:
    if not isinstance(downlink, Downlink):
        raise ValueError(f"broadcast of the method: returns a {type(downlink).__name__}; must return a Downlink")
    _check_params("start of the downlink", downlink.start, params)
    for path, leaf in jax.tree.leaves_with_path(downlink.own):
        if leaf.shape[:1] != (cohort_size,):
            where = f"own of the downlink{jax.tree_util.keystr(path)}"
            raise ValueError(f"{where} with shape {leaf.shape}: must have one entry for each of {cohort_size} clients")


def _check_params(name: str, found: Any, params: Params) -> None:
    tree.check_like(name, found, "the parameters", params)
    tree.check_types(name, found, params)


_OF_NUMBERS = (nn.Dense, nn.DenseGeneral, nn.Conv, MLP, CNN, ResNet18)
"""Modules for which an input is a quantity."""

_REMEDY = f"must have an argument of its call that says so, {' or '.join(IN_TRAINING)}, or fd.models.with_modes"


def check_model(model: Model, example: Any, target: Any) -> tuple[Params, ModelState, Any]:
    """Refuses a model that a run would not train or evaluate as it was written.

    Args:
      model: of the run.
      example: shape and dtype of an input ``[1, *input_shape]``, or a pytree of them.
      target: shape and dtype of a target ``[1, ...]``, or a pytree of them.

    Returns:
      Shapes of the trained parameters, of the model's state, and of its outputs for two examples.

    Raises:
      ValueError: it fails, would train what is not floating, keeps a random key in its collections, draws random
        numbers or changes its collections in evaluation, has dropout that training leaves off, draws random numbers by
        an unknown argument, changes its collections' shape, or has no output (of classes the logits) for each example.
    """
    name = model.form.name
    dropout: list[str] = []
    params, state = jax.eval_shape(model.init, jax.random.key(0))
    if not jax.tree.leaves(params):
        raise ValueError(f"{name}: has no parameters; must have some to be trained")
    for path, leaf in jax.tree.leaves_with_path(params):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            allowed = "must be floating, or be left out by trainable"
            raise ValueError(f"{name}: parameter {path_of(path)} of type {leaf.dtype}: {allowed}")
    # A random key among what clients change and the server averages would draw the same for all.
    for path, leaf in jax.tree.leaves_with_path(state.statistics):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) and not getattr(model.form, "frozen", False):
            allowed = "must draw by self.make_rng or nnx.Rngs, which are new for each client and step"
            raise ValueError(f"{name}: {path_of(path)} is a random key: {allowed}")
    try:
        logits: Any = jax.eval_shape(model.apply, params, state, example)
    except flax.errors.InvalidRngError as error:
        raise ValueError(f"{name}: draws random numbers in evaluation: {_REMEDY}") from error
    except flax.errors.ModifyScopeVariableError as error:
        collections = ", ".join(state.statistics)
        raise ValueError(f"{name}: changes its collections ({collections}) in evaluation: {_REMEDY}") from error
    except Exception as error:  # a user's model may raise anything
        what = f"fails for inputs {tree.described(example, 1)}"
        raise ValueError(f"{name}: {what}: {checks.first_line(error)}") from error
    _check_outputs(logits, model, target)
    with nn.intercept_methods(_listing_dropout(dropout)):
        logits, statistics = _in_training(name, model, params, state, of_length(2, example))
    _check_outputs(logits, model, of_length(2, target))
    tree.check_like(f"{name}: collections after a training step", statistics, "those before", state.statistics)
    if dropout and not model.streams:
        raise ValueError(f"{name}: has dropout ({dropout[0]}) that is off in training: {_REMEDY}")
    if isinstance(model.form, LinenForm) and isinstance(model.form.model, nn.Module):
        _check_flags(name, model.form.model, params, state, example)
    return params, state, logits


def _in_training(name: str, model: Model, params: Params, state: ModelState, example: Any) -> tuple[Any, Statistics]:
    """Shapes of what the forward pass in training returns."""

    def forward(params: Params, state: ModelState, x: jax.Array) -> tuple[Any, Statistics]:
        return model.train(params, state, x, dict.fromkeys(model.streams, jax.random.key(0)), None)

    try:
        return jax.eval_shape(forward, params, state, example)
    except flax.errors.InvalidRngError as error:
        allowed = f"draws from them only, {', '.join(model.streams)}" if model.streams else "draws from some"
        raise ValueError(f"{name}: names other random streams in training than it {allowed}") from error
    except flax.errors.ModifyScopeVariableError as error:
        collections = ", ".join(state.statistics)
        raise ValueError(f"{name}: changes its collections ({collections}) although they are frozen") from error
    except Exception as error:  # a user's model may raise anything
        what = f"fails in training for inputs {tree.described(example, 2)}"
        raise ValueError(f"{name}: {what}: {checks.first_line(error)}") from error


def _check_outputs(outputs: Any, model: Model, targets: Any) -> None:
    """Refuses outputs that are not floating, or of classes not the logits of all of them."""
    number, got = jax.tree.leaves(targets)[0].shape[0], getattr(outputs, "shape", None)
    given = f"model: returns {type(outputs).__name__ if got is None else f'shape {got}'} for {number} examples"
    if model.num_classes and got != (*targets.shape, model.num_classes):
        remedy = "" if isinstance(model.loss, cross_entropy) else "; integers that are no classes need num_classes=0"
        raise ValueError(f"{given}; must be {(*targets.shape, model.num_classes)}, the logits{remedy}")
    leaves = jax.tree.leaves(outputs)
    if not leaves or any(getattr(leaf, "shape", ())[:1] != (number,) for leaf in leaves):
        raise ValueError(f"{given}; must be an array, or several, with an entry for each")
    if not any(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves):
        types = ", ".join(str(leaf.dtype) for leaf in leaves)
        raise ValueError(f"model: returns outputs of type {types}; must be floating, or nothing is learned")


def check_tokens(user_model: Any, data: FederatedDataset) -> None:
    """Refuses data whose tokens a model of the package does not know: it would compute NaN, or with others.

    Args:
      user_model: as the user gave it.
      data: of the run.
    """
    inner = module_of(user_model)
    inner = inner.model if isinstance(inner, LoRA) else inner
    if not isinstance(inner, LSTM | Transformer) or getattr(data.train.x, "dtype", None) not in TOKENS:
        return
    own = data.client_test and data.client_test.examples
    inputs = [part.x for part in (data.train, data.test, data.validation, own) if part is not None and len(part.x)]
    low, high = min(int(x.min()) for x in inputs), max(int(x.max()) for x in inputs)
    if low < 0 or high >= inner.num_classes:
        raise ValueError(
            f"{model_name(user_model)}: tokens of {data.name} from {low} to {high}: must be in "
            f"[0, {inner.num_classes - 1}], since num_classes={inner.num_classes} is the number of its tokens too"
        )


@contextlib.contextmanager
def refusing_tokens(user_model: Any) -> Iterator[None]:
    """Within it, a layer that takes tokens as quantities is a ValueError."""

    def look(call: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        tokens = args and hasattr(args[0], "dtype") and jnp.issubdtype(args[0].dtype, jnp.integer)
        if tokens and context.method_name == "__call__" and isinstance(context.module, _OF_NUMBERS):
            raise ValueError(
                f"{model_name(user_model)}: takes tokens ({args[0].dtype} of shape {args[0].shape}) as quantities; "
                "must begin with an embedding, as models.lstm and flax.linen.Embed do, or be given floating inputs"
            )
        return call(*args, **kwargs)

    with nn.intercept_methods(look):
        yield


def _listing_dropout(layers: list[str]) -> Callable[..., Any]:
    """An interceptor that lists layers of Flax that have dropout."""

    def look(call: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        layer = context.module
        if context.method_name == "__call__" and type(layer).__module__.startswith("flax."):
            rate = getattr(layer, "rate" if isinstance(layer, nn.Dropout) else "dropout_rate", 0.0)
            if isinstance(rate, int | float) and rate > 0:
                layers.append(f"{type(layer).__name__} of rate {rate:g}")
        return call(*args, **kwargs)

    return look


def _check_flags(name: str, module: nn.Module, params: Params, state: ModelState, example: Any) -> None:
    """Refuses a module that draws random numbers by a flag of its call which no run sets, such as ``noisy=False``."""
    apply: Callable[..., Any] = module.apply
    for one in inspect.signature(module.__call__).parameters.values():
        if not isinstance(one.default, bool) or one.name in IN_TRAINING:
            continue
        forward = functools.partial(apply, **{one.name: not one.default})
        try:
            jax.eval_shape(lambda p, s, x, f=forward: f({"params": p, **s}, x), params, state.statistics, example)
        except flax.errors.InvalidRngError:
            raise ValueError(f"{name}: draws random numbers with {one.name}={not one.default}: {_REMEDY}") from None
        except Exception:  # what else a module of one's own does with a flag that no run sets is its own affair
            pass
