"""How a run begins, and who hears of it."""

from collections.abc import Callable, Sequence
from typing import Any

from fedjax_drag import checks, kinds
from fedjax_drag.kinds import Kind
from fedjax_drag.simulation.options import option, optional, options
from fedjax_drag.simulation.run import RunState

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
    initial: RunState | None = option(optional(STATE.check), default=None)
    progress: bool | None = option(optional(checks.flag), default=None)
