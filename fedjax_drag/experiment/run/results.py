"""The results folder: what a run writes, and how it is read back.

``config.yaml`` (can be run again by itself), ``environment.json``, ``metrics.jsonl`` (one line per
evaluation), ``summary.json`` and ``checkpoints/``. A comparison has one such folder per label inside
its own. Files are not trusted when they are read: they are checked line by line.
"""

import contextlib
import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import warnings
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from fedjax_drag.experiment.build.experiment import load
from fedjax_drag.experiment.build.resolve import resolve
from fedjax_drag.experiment.config.config import Config, flatten, slug
from fedjax_drag.experiment.config.own import checksums, references
from fedjax_drag.experiment.config.yaml_text import written
from fedjax_drag.experiment.run import lock, metrics_file
from fedjax_drag.experiment.run.errors import FolderError
from fedjax_drag.experiment.run.metrics_file import METRICS, History, plain
from fedjax_drag.files import check_kinds, fitting, read_json, sha256, write_text
from fedjax_drag.simulation.criterion import ACCURACY, Criterion
from fedjax_drag.simulation.model import initial_params
from fedjax_drag.simulation.program.clients_axis import ClientBatching
from fedjax_drag.simulation.result import with_client_seconds
from fedjax_drag.version import __version__

CONFIG, ENVIRONMENT, SUMMARY = "config.yaml", "environment.json", "summary.json"
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

CHECKPOINTS, REPORT, LOGS = initial_params.CHECKPOINTS, "report.html", "logs"
FIGURES = ("accuracy.png", "curve.png")
"""The curve of a run that is judged by its accuracy, and of any other."""

DAMAGED_CHECKPOINTS = "checkpoints.damaged"
"""Where checkpoints that cannot be read are set aside."""

WRITTEN = (CONFIG, ENVIRONMENT, METRICS, SUMMARY, CHECKPOINTS, *FIGURES)
"""Everything that a run writes into its folder, beside its lock and what it sets aside."""

SUMMARY_KEYS = ("rounds", "seconds", "interrupted")
"""What every ``summary.json`` has, beside the final and the best value of the run's criterion."""

FREE = (
    "keep_checkpoints",
    "keep_best",
    "checkpoint_every_seconds",
    "stop_on_divergence",
    "time_clients",
    "patience",
    "stop_when",
)
"""Keys that may change when a run is resumed: they decide what is kept or measured, and where it ends."""

REMEDY = "choose --resume, --overwrite or another --out (in Python resume=True, overwrite=True or another out)"
"""What to do about a folder that already holds a run."""


@dataclasses.dataclass(frozen=True)
class StoredRun:
    """A run read back from its folder.

    Attributes:
      folder: its results folder.
      config: its configuration.
      history: arrays with one entry per evaluation; empty if there is no evaluation yet.
      note: one line about what is missing from the history; empty if nothing is.
      criterion: by what rounds are chosen.
    """

    folder: Path
    config: Config
    history: History
    note: str = ""
    criterion: Criterion = ACCURACY


def folder_of(out: Any, resume: bool = False, overwrite: bool = False) -> Path | None:
    """The results folder that the argument ``out`` names, or None.

    Args:
      out: the argument.
      resume: whether what is in it is to be continued.
      overwrite: whether what is in it is to be replaced.

    Raises:
      ValueError: it is neither the path of a folder nor None, empty, which would be the current folder, or too long; it
        is None and there is something to resume or to overwrite; or both are asked for.
    """
    if resume and overwrite:
        raise ValueError("resume and overwrite: only one of them can be asked for")
    if out is None and not (resume or overwrite):
        return None
    if out is None:
        raise ValueError("out=None: resume and overwrite need the results folder")
    if not isinstance(out, str | os.PathLike) or not os.fspath(out):
        raise ValueError(f"out={out!r}: must be the path of a folder, or None")
    folder = fitting("out", Path(out))
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"out={str(folder)!r}: must be a folder, and this is a file")
    return folder


def check_folder(folder: Path, *, resume: bool, overwrite: bool) -> None:
    """Refuses a folder in which a run may not write; changes nothing.

    Args:
      folder: from :func:`folder_of`.
      resume: whether a run in it is to be continued; where there is nothing yet, one begins.
      overwrite: whether a run in it is to be replaced.

    Raises:
      ValueError: the folder holds a run and neither was asked for; it holds something else to resume; or
        what is to be overwritten is not a results folder.
    """
    where, others = f"out={str(folder)!r}", holds_others(folder)
    if any((folder / name).is_file() for name in ("sweep.yaml", "arena.json")):
        raise ValueError(f"{where}: holds a sweep or an arena; choose another folder")
    if resume and others and not ((folder / CONFIG).is_file() or (folder / CHECKPOINTS).is_dir()):
        raise ValueError(f"{where}: holds no run to resume")
    if resume:
        check_kinds(folder, (CONFIG, ENVIRONMENT, METRICS, SUMMARY, *FIGURES), (CHECKPOINTS, DAMAGED_CHECKPOINTS, LOGS))
    if overwrite and others and not _is_results_folder(folder):
        raise ValueError(f"{where}: not a results folder, so it is not overwritten")
    if not (resume or overwrite) and any((folder / name).exists() for name in WRITTEN):
        raise ValueError(f"{where}: already holds a run; {REMEDY}")


def holds_others(folder: Path, *names: str) -> bool:
    """Whether there is anything in a folder but a lock and these names."""
    return folder.is_dir() and any(path.name not in (*lock.FILES, *names) for path in folder.iterdir())


def check_same(folder: Path, config: Config) -> None:
    """Refuses to resume a run under another configuration.

    Only ``rounds`` may have grown; keys that do not affect the results may differ. Keys and arguments that an older
    stored configuration lacks take their defaults. Without a stored configuration nothing is compared.

    Raises:
      FolderError: the stored configuration cannot be read.
      ValueError: names the first difference.
    """
    _check_jax(folder)
    path = folder / CONFIG
    if not path.is_file():
        return
    if path.read_bytes() != written(config.to_mapping()).encode():
        try:
            if not path.read_text(encoding="utf-8", errors="replace").strip():
                raise ValueError(f"{CONFIG} is empty")
            stored = resolve(load(path))
        except ValueError as error:
            remedy = f"to go on under the configuration that is given, remove that {CONFIG}"
            raise FolderError(f"the run to resume in {str(folder)!r}: {error}; {remedy}") from None
        if (found := first_difference(stored, config)) is not None:
            key, old, new = found
            must = f"the run to resume in {str(folder)!r} has {key}={old!r}; must be that"
            raise ValueError(f"{key}={new!r}: {must}{' or more' if key == 'rounds' else ''}")
    _warn_of_changed_files(folder, config)


def first_difference(before: Config, config: Config) -> tuple[str, Any, Any] | None:
    """The first key by which two resolved configurations are of different runs, its old and its new value."""
    stored, wanted = flatten(before), flatten(config)
    for key in [*wanted, *(key for key in stored if key not in wanted)]:
        old, new = stored.get(key), wanted.get(key)
        if old != new and key not in FREE and not (key == "rounds" and config.rounds > stored["rounds"]):
            return key, old, new
    return None


def _check_jax(folder: Path) -> None:
    """Refuses to go on with a run under other options of JAX; those that its record lacks are not compared."""
    stored = read_environment(folder).get("jax_options")
    stored = stored if isinstance(stored, dict) else {}
    for name, value in jax_options().items():
        if stored.get(name, value) != value:
            raise ValueError(
                f"{name.upper()}={value}: the run to resume in {str(folder)!r} has {stored[name]!r:.40}; must be that"
            )


def jax_options() -> dict[str, Any]:
    """Those of :data:`JAX_OPTIONS` that this JAX has, as they are now."""
    import jax  # imported here: plotting a folder does not need it

    values = {name: getattr(jax.config, name) for name in JAX_OPTIONS if hasattr(jax.config, name)}
    return {name: getattr(value, "value", value) for name, value in values.items()}  # some are of an enumeration


def _warn_of_changed_files(folder: Path, config: Config) -> None:
    """Warns if a file that a configuration refers to is not what it was when the run began."""
    then = read_environment(folder)
    for kind, files in _files(config).items():
        before = then.get(kind)
        for path, checksum in files.items():
            if isinstance(before, dict) and before.get(path, checksum) != checksum:
                warnings.warn(f"{path} has changed since the run in {str(folder)!r} began", stacklevel=2)


def _files(config: Config) -> dict[str, dict[str, str]]:
    """SHA-256 by path of the files that a configuration refers to: code, initial parameters, and who is available."""
    trace = Path(config.availability) if isinstance(config.availability, str) else None
    start = () if config.initial_params is None else (initial_params.located(config.initial_params),)
    files = {
        "code": checksums(references(config.to_mapping())),
        initial_params.NAME: {str(path): sha256(path) for path in start},
        "availability": {} if trace is None else {str(trace): sha256(trace)},
    }
    return {kind: found for kind, found in files.items() if found}


def variants_in(folder: Path) -> set[str]:
    """The names of the folders of the comparison that is in a folder; empty if there is none that can be read."""
    with contextlib.suppress(OSError, ValueError):
        return set(map(slug, load(folder / CONFIG).compare or {}))
    return set()


def check_start(folder: Path, configs: Iterable[Config]) -> None:
    """Refuses to overwrite a folder that has the parameters with which a run is to begin.

    Raises:
      ValueError: naming them.
    """
    for config in configs:
        start = config.initial_params
        if start is not None and Path(initial_params.located(start)).resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"initial_params={start!r}: lies in out={str(folder)!r}, which would be overwritten")


def clear(folder: Path, inner: Collection[str] | None = ()) -> None:
    """Removes what a run wrote in a folder, and in the runs inside it, whose folders go if nothing else is in them.

    Args:
      folder: of the run.
      inner: names of the folders of the runs inside, variants or cells; None for all.
    """
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        named = inner is None or path.name in inner
        if named and path.is_dir() and not path.is_symlink() and _is_results_folder(path):
            with lock.FolderLock(path) as writing:
                clear(path)
                writing.release(remove=True)
    for name in (*WRITTEN, DAMAGED_CHECKPOINTS, REPORT, LOGS):
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def begin(folder: Path, config: Config, resumed: bool = False, **facts: Any) -> None:
    """Makes the folder with its ``config.yaml`` and ``environment.json``.

    Args:
      folder: of the run.
      config: of the run.
      resumed: whether the run goes on; then the environments of the sessions before are kept.
      **facts: what else ``environment.json`` says: the run's name, how it goes through its clients, and what earlier
        sessions took.
    """
    write_config(folder, config)
    last = read_environment(folder) if resumed else {}
    earlier = last.pop(EARLIER, [])
    before = {EARLIER: [*(earlier if isinstance(earlier, list) else []), last]} if last else {}
    write_json(folder / ENVIRONMENT, environment(config.seed) | _files(config) | facts | before)


def write_config(folder: Path, config: Config) -> None:
    """Makes the folder with its ``config.yaml``."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / CONFIG, written(config.to_mapping()))


def read_environment(folder: Path) -> dict[str, Any]:
    """What ``environment.json`` says; empty if it is missing or damaged."""
    try:
        found = read_json(folder / ENVIRONMENT)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def figures_before(folder: Path) -> dict[str, Any]:
    """The summary of a run's last session; if that was killed, what the sessions before it took, as ``seconds``."""
    try:
        return read_summary(folder)
    except (OSError, ValueError):  # missing, or damaged
        return {"seconds": read_environment(folder).get(EARLIER_SECONDS)}


def facts_of(criterion: Criterion) -> dict[str, Any]:
    """A criterion for ``environment.json``."""
    return {"criterion": {key: getattr(criterion, key) for key in CRITERION}}


def read_criterion(folder: Path) -> Criterion:
    """By what the rounds of the run in ``folder`` are chosen: by accuracy where it does not say it, as older ones."""
    stored = read_environment(folder).get("criterion")
    facts: list[Any] = [stored.get(key) for key in CRITERION] if isinstance(stored, dict) else [None]
    return Criterion(*facts) if all(map(isinstance, facts, CRITERION.values())) else ACCURACY


def read_batching(folder: Path) -> ClientBatching | None:
    """How the run in ``folder`` goes through its clients; None if that is not recorded."""
    stored = read_environment(folder)
    try:
        return ClientBatching(stored["clients_axis"], stored["clients_per_chunk"])
    except KeyError:  # begun by another version, or damaged
        return None


def environment(seed: int) -> dict[str, Any]:
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


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file as :func:`~fedjax_drag.files.write_text` does."""
    write_text(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


def read(folder: Path) -> list[StoredRun]:
    """Reads a run, or the runs of a comparison in the order of its configuration.

    Raises:
      FileNotFoundError: ``folder`` does not exist or is not that of a run.
      ValueError: its configuration is not valid.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{str(folder)!r}: no such results folder")
    if not (folder / CONFIG).is_file():
        raise FileNotFoundError(f"{str(folder)!r}: not the results folder of a run: it has no {CONFIG}")
    config = load(folder / CONFIG)
    labels = [slug(label) for label in config.compare or {}]
    if labels:
        begun = [folder / label for label in labels if (folder / label / CONFIG).is_file()]
        return [run for inner in begun for run in read(inner)] or [StoredRun(folder, config, {}, _note(folder, {}, ()))]
    history, damage = metrics_file.read(folder / METRICS)
    with contextlib.suppress(OSError, ValueError):  # not there yet, or damaged
        figures = read_summary(folder)
        history = metrics_file.typed(history, figures.get("dtypes"))
        history = with_client_seconds(history, figures.get("seconds_per_local_step"))
    return [StoredRun(folder, config, history, _note(folder, history, damage), read_criterion(folder))]


def _note(folder: Path, history: History, damage: Sequence[str]) -> str:
    if damage:
        left_out = f"{metrics_file.listed(damage)} left out; --resume restores them from a checkpoint"
        return f"{str(folder / METRICS)!r}: {left_out}"
    return "" if history else f"{str(folder)!r}: no evaluation yet"


def read_summary(folder: Path) -> dict[str, Any]:
    """Reads a run's ``summary.json``.

    Raises:
      OSError: there is none.
      ValueError: it is damaged.
    """
    path = folder / SUMMARY
    try:
        summary = read_json(path)
    except ValueError:
        summary = None
    if not isinstance(summary, dict) or any(key not in summary for key in SUMMARY_KEYS):
        raise ValueError(f"{str(path)!r}: damaged; --resume writes it again")
    return summary


def _is_results_folder(folder: Path) -> bool:
    return (folder / CONFIG).is_file() and ((folder / ENVIRONMENT).is_file() or (folder / METRICS).is_file())


def _git_commit() -> str | None:
    """The commit of the repository that the command runs in, with ``+changes`` where it has some."""
    try:
        command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+changes"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
