"""How a model is told whether it is in training: by the arguments that the field uses for it."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from fedjax_drag.models.modes import WithModes
from fedjax_drag.simulation.model.functions import model_name

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
