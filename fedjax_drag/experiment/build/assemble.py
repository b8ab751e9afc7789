"""A resolved configuration and its data, put together into the settings of a run."""

from collections.abc import Callable, Mapping
from typing import Any

from fedjax_drag.data import FederatedDataset
from fedjax_drag.experiment.build import build
from fedjax_drag.experiment.config.config import Config
from fedjax_drag.experiment.build.traced_numbers import with_numbers
from fedjax_drag.simulation.program.clients_axis import Walk
from fedjax_drag.simulation.settings import Settings

_PARTS = ("local_optimizer", "loss", "augmentation", "root_client")
_AS_THEY_ARE = (
    "cohort_size",
    "local_steps",
    "local_epochs",
    "batch_size",
    "byzantine_fraction",
    "num_byzantine",
    "byzantine_of",
    "root_size",
    "root_bias",
    "root_source",
    "eval_every",
    "seed",
    "nonfinite",
    "clients_axis",
    "clients_per_chunk",
    "mesh",
    "shard_data",
    "aggregation",
    "compute_dtype",
    "rounds_per_compile",
    "diagnostics",
    "client_state",
    "time_clients",
    "stop_on_divergence",
)
"""Keys that mean the same in a configuration and in the settings."""


def assemble(
    config: Config, fed: FederatedDataset, walk: Walk | None = None, numbers: Mapping[str, Any] | None = None
) -> Settings:
    """The settings that a configuration asks for.

    Args:
      config: resolved.
      fed: its data, split among clients.
      walk: how to go through the clients, whatever the configuration says; default what it says.
      numbers: other values for :func:`~fedjax_drag.experiment.build.traced_numbers.numbers` of the configuration, also traced.

    Raises:
      ValueError: a part of the configuration is not valid.
    """
    config, numbers = with_numbers(config, numbers or {}), numbers or {}
    given = {key: getattr(config, key) for key in _AS_THEY_ARE} | (walk._asdict() if walk else {})
    return Settings(
        algorithm=build.method(config, fed.num_clients),
        model=build.model(config, fed),
        data=fed,
        num_rounds=config.rounds,
        attack=build.attack(config, fed),
        step_size=numbers["step_size"] if "step_size" in numbers else build.step_size(config),
        **{key: build.part(config, key) for key in _PARTS},
        **given,
    )


def traced(trace: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls ``trace``; shapes or types that do not go together, or are too large, become a ValueError of one line."""
    try:
        return trace(*args, **kwargs)
    except (TypeError, OverflowError) as error:
        raise ValueError(str(error).splitlines()[0]) from error
