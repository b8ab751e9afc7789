"""Low-rank adapters of a module's dense layers."""

import functools
import math
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from flax.traverse_util import flatten_dict

from fedjax_drag import checks
from fedjax_drag.models.initialisation import uniform

ADAPTERS = "*lora_[ab]"
"""Pattern of the paths of adapters among a model's parameters."""


class LoRA(nn.Module):
    """A module whose dense layers add ``scale x A B`` to their outputs; the parameters keep their names.

    Attributes:
      model: the module.
      rank: inner length of A and B.
      scale: factor of the product.
      targets: patterns of the paths of the layers.
    """

    model: nn.Module
    rank: int
    scale: float
    targets: tuple[str, ...]

    @property
    def sharding_rules(self) -> Any:
        """Those of the module; adapters are small."""
        return getattr(self.model, "sharding_rules", ())

    def setup(self) -> None:
        """Gives the module's parameters the paths that they have without adapters."""
        nn.share_scope(self, self.model)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns, with its adapters."""
        with nn.intercept_methods(functools.partial(_adapted, self.rank, self.scale, self.targets)):
            outputs = self.model(*args, **kwargs)
        if self.is_initializing():
            paths = list(flatten_dict(self.variables["params"]))
            if not any(path[-1] == "lora_a" for path in paths):
                kernels = ["/".join(path[:-1]) for path in paths if path[-1] == "kernel"]
                has = f"there are {', '.join(kernels)}" if kernels else "it has none"
                raise checks.ArgumentError("targets", f"match no dense layer of the model; {has}", self.targets)
        return outputs


def _adapted(
    rank: int,
    scale: float,
    targets: tuple[str, ...],
    method: Callable[..., Any],
    args: Any,
    kwargs: Any,
    context: nn.module.InterceptorContext,
) -> Any:
    """A method's result; of a dense layer that is a target, with that of its adapters."""
    dense = context.module
    outputs = method(*args, **kwargs)
    if not isinstance(dense, nn.Dense | nn.DenseGeneral) or context.method_name != "__call__":
        return outputs
    path = "/".join(dense.path)
    if not any(fnmatchcase(path, target) or fnmatchcase(dense.path[-1], target) for target in targets):
        return outputs
    x = args[0] if args else kwargs["inputs"]
    axes = _tuple(getattr(dense, "axis", -1))
    inputs, features = tuple(x.shape[axis] for axis in axes), _tuple(dense.features)
    a = dense.param("lora_a", uniform(math.prod(inputs) ** -0.5), (*inputs, rank))
    b = dense.param("lora_b", nn.initializers.zeros, (rank, *features))
    common = dense.dtype or jnp.result_type(x, a, b)  # as the layer computes, also of integers
    x, a, b = (value.astype(common) for value in (x, a, b))
    inner = jnp.tensordot(x, a, (axes, tuple(range(len(axes)))))
    return outputs + scale * jnp.tensordot(inner, b, 1).astype(outputs.dtype)


def _tuple(value: int | Sequence[int]) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(value)


def lora(model: nn.Module, rank: int = 4, targets: str | Sequence[str] = "*", alpha: float | None = None) -> LoRA:
    """Adds low-rank adapters to the dense layers of a linen module; they alone are trained and sent.

    A layer's output becomes ``x W + b + alpha / rank x A B``, with A and B as ``lora_a`` and ``lora_b`` beside the
    layer's ``kernel``. A begins as draws between ``+-1/sqrt(inputs)``, B as zeros, so that the model begins as it is
    without adapters.

    Args:
      model: any linen module with ``nn.Dense`` or ``nn.DenseGeneral`` layers.
      rank: inner length of A and B, at least 1.
      targets: patterns of the layers' paths or names, such as ``["query", "value"]``; default all dense layers.
      alpha: numerator of the factor; default ``rank``, a factor of 1.

    Returns:
      A Flax module that is called as ``model`` is.

    Raises:
      ValueError: if ``rank`` is not a positive integer, ``alpha`` not positive, or ``model`` no linen module.

    References:
      Hu et al., LoRA: Low-rank adaptation of large language models, ICLR 2022, Section 4.1.

    Examples:
      >>> from fedjax_drag.models import mlp
      >>> model = lora(mlp(num_classes=10), rank=2)
    """
    if not isinstance(model, nn.Module):
        raise checks.ArgumentError("model", "must be a linen module", given=model)
    checks.count("rank", rank, 1)
    checks.positive("alpha", alpha := float(rank) if alpha is None else alpha)
    return LoRA(model, rank, alpha / rank, (targets,) if isinstance(targets, str) else tuple(targets))
