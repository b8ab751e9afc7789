"""What a run was computed with, ``environment.json``."""

import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from fedjax_drag.checks import shown
from fedjax_drag.experiment.config.config import Config
from fedjax_drag.experiment.config.own import checksums, own_names, references
from fedjax_drag.experiment.plain import read_mapping, write_json
from fedjax_drag.files import sha256
from fedjax_drag.simulation.criterion import ACCURACY, Criterion
from fedjax_drag.simulation.model import initial_params
from fedjax_drag.version import __version__

ENVIRONMENT = "environment.json"

JAX_OPTIONS = (
    *("jax_enable_x64", "jax_default_prng_impl", "jax_threefry_partitionable", "jax_random_seed_offset"),
    *("jax_high_dynamic_range_gumbel", "jax_default_matmul_precision", "jax_numpy_dtype_promotion"),
    "jax_softmax_custom_jvp",
)
"""Options of JAX that decide what a program computes, on whatever device; recorded under ``jax_options``."""

RUN, MESH_DEVICES = "run", "mesh_devices"
"""Keys of ``environment.json``: the name of the run, which its checkpoints have too; how many devices share clients."""

EARLIER, EARLIER_SECONDS = "earlier_sessions", "earlier_seconds"
"""Keys of ``environment.json``: the environments in which a run was begun and resumed before, and the time it took."""

CRITERION = {"name": str, "higher_is_better": bool, "is_share": bool}
"""What ``environment.json`` says under ``criterion``: by what rounds are chosen."""


def write(folder: Path, config: Config, resumed: bool, **facts: Any) -> None:
    """Writes what a run is computed with.

    Args:
      folder: of the run.
      config: of the run.
      resumed: whether the run goes on; then the environments of the sessions before are kept.
      **facts: what else is said: the run's name, how it goes through its clients, and what earlier sessions took.
    """
    last = read(folder) if resumed else {}
    earlier = last.pop(EARLIER, [])
    before = {EARLIER: [*(earlier if isinstance(earlier, list) else []), last]} if last else {}
    write_json(folder / ENVIRONMENT, current(config.seed) | files_of(config) | facts | before)


def read(folder: Path) -> dict[str, Any]:
    """What ``environment.json`` says; empty if it is missing or damaged."""
    return read_mapping(folder / ENVIRONMENT)


def facts_of(criterion: Criterion) -> dict[str, Any]:
    """A criterion as plain values."""
    return {key: getattr(criterion, key) for key in CRITERION}


def read_criterion(folder: Path) -> Criterion:
    """By what the rounds of the run in ``folder`` are chosen: by accuracy where it does not say it, as older ones."""
    stored = read(folder).get("criterion")
    facts: list[Any] = [stored.get(key) for key in CRITERION] if isinstance(stored, dict) else [None]
    return Criterion(*facts) if all(map(isinstance, facts, CRITERION.values())) else ACCURACY


def current(seed: int) -> dict[str, Any]:
    """What the results of a run depend on besides its configuration."""
    import jax  # imported here: plotting a folder does not need it

    packages = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
    return {
        "python": platform.python_version(),
        "packages": {"fedjax-drag": __version__} | {name: importlib.metadata.version(name) for name in packages},
        "platform": platform.platform(),
        "backend": jax.default_backend(),
        "devices": [str(device) for device in jax.devices()],
        "device_kind": jax.devices()[0].device_kind,
        "jax_options": jax_options(),
        "xla_flags": os.environ.get("XLA_FLAGS"),
        "git_commit": _git_commit(),
        "seed": seed,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def jax_options() -> dict[str, Any]:
    """Those of :data:`JAX_OPTIONS` that this JAX has, as they are now."""
    import jax  # imported here: plotting a folder does not need it

    values = {name: getattr(jax.config, name) for name in JAX_OPTIONS if hasattr(jax.config, name)}
    return {name: getattr(value, "value", value) for name, value in values.items()}  # some are of an enumeration


def files_of(config: Config) -> dict[str, dict[str, str]]:
    """SHA-256 by path of the files that a configuration refers to: code, initial parameters, and who is available.

    And under ``parts`` those that were given as Python objects, by name as short texts, which show their numbers.
    """
    trace = Path(config.availability) if isinstance(config.availability, str) else None
    start = () if config.initial_params is None else (initial_params.located(config.initial_params),)
    mapping = config.to_mapping()
    files = {
        "code": checksums(references(mapping)),
        "parts": {str(name): shown(name.part) for name in own_names(mapping)},
        initial_params.NAME: {str(path): sha256(path) for path in start},
        "availability": {} if trace is None else {str(trace): sha256(trace)},
    }
    return {kind: found for kind, found in files.items() if found}


def _git_commit() -> str | None:
    """The commit of the repository that the command runs in, with ``+changes`` where it has some."""
    try:
        command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+changes"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
