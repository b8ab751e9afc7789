"""How a model is told whether it is in training."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from flax.core import FrozenDict

from fedjax_drag import checks


@dataclasses.dataclass(frozen=True)
class WithModes:
    """A model and the arguments of its call in training and in evaluation; :func:`with_modes` makes it.

    Attributes:
      model: a Flax module, or a pair ``(init, apply)``.
      training: keyword arguments of its call in local training.
      evaluation: keyword arguments of its call in evaluation, and of a linen module's ``init``.
      rngs: names of the random streams that it draws from in training.
    """

    model: Any
    training: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    rngs: tuple[str, ...]


def module_of(model: Any) -> Any:
    """A model without its modes."""
    return model.model if isinstance(model, WithModes) else model


def with_modes(
    model: Any,
    training: Mapping[str, Any] | None = None,
    evaluation: Mapping[str, Any] | None = None,
    rngs: Iterable[str] = ("dropout",),
) -> WithModes:
    """Says how a model is called in training and in evaluation where its signature does not say it.

    A simulation finds ``train``, ``training``, ``is_training``, ``deterministic`` and ``use_running_average`` among the
    arguments of a model's call by itself, and knows the stream ``dropout``.

    Args:
      model: a Flax module whose call takes further keyword arguments, or a pair ``(init, apply)``.
      training: those of its call in local training; default none.
      evaluation: those of its call in evaluation, in which it must draw no random numbers; default none.
      rngs: names of the streams that it draws from in training. Each has a key of its own, derived from the stream's
        name, the round, the client and the step.

    Returns:
      What the argument ``model`` of :func:`fedjax_drag.simulate` takes.

    Raises:
      ValueError: if an argument is of another kind.

    Examples:
      >>> with_modes(Net(), training={"noisy": True}, evaluation={"noisy": False}, rngs=["noise"])  # doctest: +SKIP
    """
    for name, value in (("training", training), ("evaluation", evaluation)):
        if value is not None and not isinstance(value, Mapping):
            raise checks.ArgumentError(name, "must be a mapping of keyword arguments", given=value)
    if isinstance(rngs, str) or not all(isinstance(name, str) for name in rngs):
        raise checks.ArgumentError("rngs", "must be names of streams, such as ['dropout']", given=rngs)
    return WithModes(model, FrozenDict(training or {}), FrozenDict(evaluation or {}), tuple(rngs))
