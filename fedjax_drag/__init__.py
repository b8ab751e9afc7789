"""Federated learning under data heterogeneity and Byzantine attack, as one compiled JAX program."""

import importlib
import os
from typing import TYPE_CHECKING, Any

from fedjax_drag.version import __version__ as __version__

if TYPE_CHECKING:
    from fedjax_drag import (
        aggregators,
        algorithms,
        attacks,
        callbacks,
        clients,
        clocks,
        compression,
        data,
        graphs,
        losses,
        metrics,
        models,
        privacy,
        selection,
        server_optimizers,
        simulation,
        testing,
        tree,
        types,
    )
    from fedjax_drag.cores import use_cores
    from fedjax_drag.experiment import arena
    from fedjax_drag.experiment.run.run import run
    from fedjax_drag.experiment.sweep.sweep import sweep
    from fedjax_drag.experiment.tuning import tune
    from fedjax_drag.simulation import simulate

__all__ = [
    "aggregators",
    "algorithms",
    "arena",
    "attacks",
    "callbacks",
    "clients",
    "clocks",
    "compression",
    "data",
    "graphs",
    "losses",
    "metrics",
    "models",
    "privacy",
    "run",
    "selection",
    "server_optimizers",
    "simulate",
    "simulation",
    "sweep",
    "testing",
    "tree",
    "tune",
    "types",
    "use_cores",
]

_FUNCTIONS = {
    "run": "fedjax_drag.experiment.run.run",
    "simulate": "fedjax_drag.simulation",
    "sweep": "fedjax_drag.experiment.sweep.sweep",
    "tune": "fedjax_drag.experiment.tuning",
    "use_cores": "fedjax_drag.cores",
}

_MODULES = {"arena": "fedjax_drag.experiment.arena"}


def __getattr__(name: str) -> Any:
    # Loaded on first use: the command line answers --help without JAX, and who imports only the rules gets only them.
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(_FUNCTIONS[name]), name)
    if name in __all__:
        return importlib.import_module(_MODULES.get(name, f"fedjax_drag.{name}"))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


if os.environ.get("FEDJAX_DRAG_USE_CORES"):  # before JAX starts; it is imported for that alone
    importlib.import_module("fedjax_drag.cores").use_cores_if_asked()
