"""The engine: from an algorithm, a model and a federation to a history."""

from fedjax_drag.simulation.engine import Evaluation, Simulation, prepare, simulate, trace
from fedjax_drag.simulation.program.work import RunState
from fedjax_drag.simulation.result import Result

__all__ = ["Evaluation", "Result", "RunState", "Simulation", "prepare", "simulate", "trace"]
