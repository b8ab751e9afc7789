"""The engine: from an algorithm, a model and a federation to a history."""

from fedjax_drag.simulation.devices.compilation_cache import keep_compiled
from fedjax_drag.simulation.engine import LoweredRun, lower, prepare, simulate, trace
from fedjax_drag.simulation.result import Result
from fedjax_drag.simulation.run import RunState
from fedjax_drag.simulation.runner import Evaluation, Simulation

__all__ = [
    "Evaluation",
    "LoweredRun",
    "Result",
    "RunState",
    "Simulation",
    "keep_compiled",
    "lower",
    "prepare",
    "simulate",
    "trace",
]
