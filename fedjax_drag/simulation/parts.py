"""The objects that a run is made of: what each of them may be."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.core import Tracer

from fedjax_drag import checks, kinds
from fedjax_drag.algorithms import from_aggregator
from fedjax_drag.compression import COMPRESSOR
from fedjax_drag.data.dataset import DATASET
from fedjax_drag.kinds import Kind
from fedjax_drag.models.modes import WithModes
from fedjax_drag.simulation.model.functions import is_model
from fedjax_drag.simulation.run import RunState
from fedjax_drag.types import Aggregator, Algorithm

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
