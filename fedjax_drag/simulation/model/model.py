"""A model as pure functions: what a run trains, whatever the user has written it in."""

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from fedjax_drag import checks, tree
from fedjax_drag.models.fast_forms import in_fast_forms
from fedjax_drag.models.modes import WithModes, module_of
from fedjax_drag.naming import name_of
from fedjax_drag.ops.paths import Trainable, joined, matches, path_of, split
from fedjax_drag.types import Batch, Examined, Loss, Metric, Params, Part, Prediction
from fedjax_drag.types._part import CallablePart

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def model_name(model: Any) -> str:
    """What a message begins with: ``model=`` and its class, or ``(init, apply)``."""
    inner = module_of(model)
    if is_pair(inner):
        return "model=(init, apply)"
    made = inner.func if isinstance(inner, functools.partial) else inner
    return f"model={type(made).__name__ if isinstance(made, nn.Module) or is_nnx(made) else name_of(made)}"


def is_model(value: Any) -> bool:
    """Whether ``value`` has one of the forms of a model."""
    inner = module_of(value)
    return isinstance(inner, nn.Module) or is_nnx(inner) or is_pair(inner) or is_maker(inner)


def is_nnx(value: Any) -> bool:
    """Whether ``value`` is an nnx module."""
    return isinstance(value, _nnx_modules())


def _nnx_modules() -> tuple[type, ...]:
    """The class of all nnx modules; none where nobody has imported nnx, which takes 0.2 s."""
    nnx = sys.modules.get("flax.nnx")
    return () if nnx is None else (nnx.Module,)


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """The signature of a function or a class, also of an nnx module's, whose metaclass hides it."""
    shown = inspect.signature(function)
    if not inspect.isclass(function) or not all(one.kind in _VARIADIC for one in shown.parameters.values()):
        return shown
    return inspect.Signature(list(inspect.signature(function.__init__).parameters.values())[1:])


def is_maker(value: Any) -> bool:
    """Whether ``value`` is a function ``(rngs) -> nnx module``, such as the class of one."""
    if not callable(value) or isinstance(value, nn.Module) or is_nnx(value):
        return False
    if isinstance(value, type) and not issubclass(value, _nnx_modules()):
        return False
    try:
        parameters = signature_of(value).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [one.name for one in parameters if one.default is one.empty and one.kind not in _VARIADIC]
    return needed == ["rngs"]


def is_pair(value: Any) -> bool:
    """Whether ``value`` is a pair ``(init, apply)`` of functions."""
    return isinstance(value, tuple) and len(value) == 2 and all(callable(part) for part in value)


IN_TRAINING = {
    "train": True,
    "training": True,
    "is_training": True,
    "deterministic": False,
    "use_running_average": False,
}
"""Arguments that switch between training and evaluation, and their values in training."""


class Modes(NamedTuple):
    """Keyword arguments of a model's call.

    Attributes:
      training: in local training.
      evaluation: in evaluation.
      streams: names of the random streams that the user has given; None if the model shows them.
    """

    training: dict[str, Any]
    evaluation: dict[str, Any]
    streams: tuple[str, ...] | None = None


def modes_of(model: Any, call: Callable[..., Any], given: int) -> Modes:
    """The modes of a model, from the signature of its call and from its wrapper, which counts where both say something.

    Args:
      model: as the user gave it.
      call: the function that is called, a bound method of a module.
      given: how many arguments it receives without a name.

    Raises:
      ValueError: ``call`` needs an argument whose value is not known.
    """
    parameters = list(inspect.signature(call).parameters.values())[given:]
    parameters = [one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    flags = {one.name: IN_TRAINING[one.name] for one in parameters if one.name in IN_TRAINING}
    modes = Modes(flags, {name: not value for name, value in flags.items()})
    if isinstance(model, WithModes):
        modes = Modes(modes.training | dict(model.training), modes.evaluation | dict(model.evaluation), model.rngs)
    needed = {one.name for one in parameters if one.default is one.empty} - {"key", "rngs"}
    missing = sorted(needed - modes.training.keys() | needed - modes.evaluation.keys())
    if missing:
        raise ValueError(
            f"{model_name(model)}: its call needs {', '.join(missing)}; must need its inputs only, or what is known, "
            f"{', '.join(IN_TRAINING)}; "
            f"fd.models.with_modes(model, training={{{missing[0]!r}: ...}}, evaluation=...) says what else it is given"
        )
    return modes


Statistics = Any
"""What the forward pass in training changes beside the parameters, such as BatchNorm's running statistics: a mapping of
Flax's collections; an empty one where a model has none."""

NO_STATISTICS: Statistics = {}

Streams = Mapping[str, PRNGKeyArray]
"""A random key by the name of its stream, such as ``dropout``."""

NO_STREAMS: Streams = {}


@runtime_checkable
class ModelForm(Protocol):
    """A user's model as pure functions of all its parameters; hashable, and equal to another of equal functions."""

    @property
    def name(self) -> str:
        """What a message begins with."""
        ...

    @property
    def streams(self) -> tuple[str, ...]:
        """Names of the random streams of the forward pass in training."""
        ...

    def init(self, key: PRNGKeyArray) -> tuple[Params, Statistics]:
        """Parameters and statistics."""
        ...

    def evaluate(self, params: Params, statistics: Statistics, x: Any) -> Any:
        """Outputs ``[B, ...]``, without random numbers; ``x`` is what the data hold, an array or a pytree of arrays."""
        ...

    def train(
        self, params: Params, statistics: Statistics, x: Any, rngs: Streams, real: jax.Array | None
    ) -> tuple[Any, Statistics]:
        """Outputs ``[B, ...]`` in training and the statistics after the batch; ``real`` marks what is no padding."""
        ...


class Like(NamedTuple):
    """Structure and shapes of a pytree, which are compared by value."""

    structure: Any
    shapes: tuple[jax.ShapeDtypeStruct, ...]

    @classmethod
    def of(cls, arrays: Any) -> "Like":
        """Those of arrays or shapes."""
        leaves, structure = jax.tree.flatten(arrays)
        return cls(structure, tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves))

    @property
    def tree(self) -> Any:
        """A pytree of the shapes."""
        return jax.tree.unflatten(self.structure, self.shapes)


class ModelState(NamedTuple):
    """What a model has beside the parameters that are trained.

    Attributes:
      frozen: the parameters that the server does not train, like those of the model with None in the place of the
        others; ``()`` where it trains all. Those that each client has for itself are there as they began.
      statistics: see :data:`Statistics`.
    """

    frozen: Any = ()
    statistics: Statistics = NO_STATISTICS


_DENSE = ((nn.Dense, "__call__"), (nn.DenseGeneral, "__call__"), (nn.Embed, "attend"))
"""Dense layers of linen, the transposed embedding of a language model among them, and their methods."""


def with_representation(function: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """A model's function that also returns the input of the last dense layer of linen that it calls; None for none.

    That layer is called outside of loops, as the head of a classifier is.
    """

    def both(*args: Any) -> tuple[Any, Any]:
        inputs: list[Any] = []

        def look(method: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
            if any(isinstance(context.module, layer) and context.method_name == name for layer, name in _DENSE):
                inputs.append(args[0] if args else next(iter(kwargs.values())))
            return method(*args, **kwargs)

        with nn.intercept_methods(look):
            returned = function(*args)
        return returned, inputs[-1] if inputs else None

    return both


class Model(Part):
    """What a run trains: a user's model with the loss it is trained on. Two are equal if all of this is.

    Attributes:
      form: the user's model as pure functions, whatever it is written in.
      loss: ``(outputs [B, ...], targets [B, ...]) -> [B]``.
      preprocess: from stored examples to model inputs.
      num_classes: C; 0 where the targets are no classes.
      metrics: of its predictions.
      trainable: which parameters are trained; None for all.
      personal: which of these each client has for itself, and does not send; None for none.
      compute_dtype: of the forward and backward pass; parameters, statistics and logits stay as they are.
      forms: ``"fast"`` to compute convolutions and poolings by :func:`~fedjax_drag.models.fast_forms.in_fast_forms`;
        ``"as_is"`` to leave the model alone.
    """

    form: ModelForm
    loss: CallablePart
    preprocess: Callable[[Any], Any]
    num_classes: int
    metrics: tuple[Metric, ...] = ()
    trainable: Trainable | None = None
    personal: Trainable | None = None
    compute_dtype: str = "float32"
    forms: str = "fast"

    @property
    def streams(self) -> tuple[str, ...]:
        """Names of the random streams of the forward pass in training."""
        return self.form.streams

    def init(self, key: PRNGKeyArray) -> tuple[Params, ModelState]:
        """The parameters that are sent, and what the model has beside them, as ``key`` draws them."""
        params, statistics = self.form.init(key)
        frozen = ()
        if self.trainable is not None:
            params, frozen = split(params, self.trainable)
        if self.personal is not None:
            personal, params = split(params, self.personal, "layers")
            if not jax.tree.leaves(params):
                allowed = "must leave some to be sent, or the method be local_only"
                raise ValueError(f"layers={checks.shown(self.personal)}: are all parameters; {allowed}")
            frozen = joined(personal, frozen)
        return params, ModelState(frozen, statistics)

    def personal_layers(self, params: Params, state: ModelState) -> Params:
        """The parameters that each client has for itself as they began, None in the place of the others."""
        if not self.personal:
            return jax.tree.map(lambda _: None, params)
        personal, trainable = self.personal, self.trainable or "*"

        def kept(path: Any, leaf: Any) -> Any:
            name = path_of(path)
            return leaf if matches(name, personal) and matches(name, trainable) else None

        return jax.tree_util.tree_map_with_path(kept, state.frozen)

    def apply(self, params: Params, state: ModelState, x: Any) -> Any:
        """Outputs ``[B, ...]`` of inputs in evaluation."""
        return self._cast(self._call(self.form.evaluate, params, state, x), "float32")

    def train(
        self, params: Params, state: ModelState, x: Any, rngs: Streams, real: jax.Array | None
    ) -> tuple[Any, Statistics]:
        """The forward pass in training.

        Args:
          params: the trained parameters.
          state: of the model.
          x: inputs ``[B, ...]``, an array or a pytree of arrays.
          rngs: a key for each stream of the model.
          real: ``[B]`` bool, the examples that are not padding; None if all are real.

        Returns:
          Outputs ``[B, ...]``, and the statistics after the batch.
        """
        outputs, after = self._call(self.form.train, params, state, x, rngs, real)
        return self._cast(outputs, "float32"), after

    def predict(self, params: Params, state: ModelState, x: jax.Array) -> Prediction:
        """Outputs and representation of inputs in evaluation."""
        return self._prediction(*self._call(with_representation(self.form.evaluate), params, state, x))

    def training_loss(
        self,
        state: ModelState,
        params: Params,
        statistics: Statistics,
        batch: Batch,
        rngs: Streams,
        own: Callable[[Examined], jax.Array] | None = None,
        class_counts: jax.Array | None = None,
    ) -> tuple[Float[Array, ""], Statistics]:
        """The mean loss of a batch's real examples by their weights in training, and the statistics after it.

        Args:
          state: of the model; its statistics are those of a client's further models only.
          params: the trained parameters.
          statistics: before the batch.
          batch: the examples.
          rngs: a key for each stream.
          own: a client's own loss of each example ``[B]``; None for ``loss``.
          class_counts: of the client, for ``own``.
        """
        given = params, state._replace(statistics=statistics), batch.x, rngs, batch.real
        if own is None:
            outputs, after = self.train(*given)
            losses = self.loss(outputs, batch.y)
        else:
            (outputs, after), representation = self._call(with_representation(self.form.train), *given)
            here = self._prediction(outputs, representation)
            predict = functools.partial(self.predict, state=state, x=batch.x)
            losses = own(Examined(*here, self.loss, predict, class_counts))
        weights = self.weights(batch.y)
        if weights is not None:
            weights = weights if batch.real is None else jnp.where(batch.real, weights, 0.0)
            return (weights * losses).sum() * tree.inverse(weights.sum()), after
        if batch.real is None:
            return losses.mean(), after
        return jnp.where(batch.real, losses, 0.0).sum() / jnp.maximum(batch.real.sum(), 1), after

    def _prediction(self, outputs: Any, representation: Any) -> Prediction:
        outputs = self._cast(outputs, "float32")
        representation = outputs if representation is None else self._cast(representation, "float32")
        return Prediction(outputs, representation.reshape(representation.shape[0], -1))

    def _call(self, function: Callable[..., Any], params: Params, state: ModelState, x: Any, *others: Any) -> Any:
        """A function of the form of all parameters, in the dtype of the computation and by the forms of layers."""
        everything = self._cast(joined(params, state.frozen), self.compute_dtype)
        function = in_fast_forms(function) if self.forms == "fast" else function
        return function(everything, state.statistics, self._cast(x, self.compute_dtype), *others)

    def weights(self, targets: Any) -> jax.Array | None:
        """What each example weighs in the mean loss, ``[B]``; None where each weighs 1."""
        return self.loss.weights(targets) if isinstance(self.loss, Loss) else None

    def _cast(self, arrays: Any, dtype: str) -> Any:
        """Floating arrays in the dtype of the computation, or back in float32."""
        if self.compute_dtype == "float32":
            return arrays
        floating = lambda x: jnp.issubdtype(x.dtype, jnp.floating)
        return jax.tree.map(lambda x: x.astype(dtype) if floating(x) else x, arrays)
