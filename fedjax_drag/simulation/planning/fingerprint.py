"""A run's fingerprint, made without tracing: two runs have the same one only if their programs are the same."""

import dataclasses
import os
from collections.abc import Hashable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from fedjax_drag.simulation.planning import calibration
from fedjax_drag.simulation.planning.content import read
from fedjax_drag.simulation.program.federation import Federation
from fedjax_drag.simulation.settings import Settings

ONLY_INPUTS = frozenset({"data", "seed", "byzantine_fraction", "num_byzantine", "root_size", "root_bias"}) | {
    *("root_source", "num_rounds", "eval_every", "rounds_per_compile", "time_clients", "stop_on_divergence", "mesh"),
    *("initial_params", "availability", "dropout_rate"),
}
"""Settings that change what the programs are given, or how often they are called, and not the programs."""


ONLY_DATA = frozenset({"name", "train", "validation", "test", "users", "user_names", "rows", "counts", "partition"})
"""What a data set holds beside the constants of its preprocessing."""


def fingerprint(settings: Settings, mesh: Mesh | None, federation: Federation) -> Hashable | None:
    """A key that two runs share only if their programs are the same; None if a part cannot be read.

    Args:
      settings: of the run.
      mesh: devices that share the clients, or None.
      federation: its data on the host, of which only shapes count.
    """
    data, names = settings.data, [field.name for field in dataclasses.fields(settings)]
    model_inputs = type(data), {name: value for name, value in vars(data).items() if name not in ONLY_DATA}
    chosen = settings.num_malicious > 0, settings.num_byzantine_in_cohort, _walk_inputs(settings)
    options = {name: getattr(settings, name) for name in names if name not in ONLY_INPUTS}
    parts = read((options, model_inputs, chosen))
    return None if parts is None else (parts, mesh, _shapes((federation, data.test, data.validation)))


def _walk_inputs(settings: Settings) -> Any:
    """What decides the walk of ``clients_axis="auto"`` beside the programs."""
    if settings.clients_axis != "auto" or settings.clients_per_chunk is not None:
        return None
    counts = None if settings.local_epochs is None else settings.split.training.counts
    return settings.num_rounds, counts, os.environ.get(calibration.ENVIRONMENT_VARIABLE)


def _shapes(arrays: Any) -> Hashable:
    leaves, structure = jax.tree.flatten(arrays)
    return structure, tuple((np.shape(leaf), np.result_type(leaf).str) for leaf in leaves)
