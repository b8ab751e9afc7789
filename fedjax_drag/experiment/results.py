"""The results folder: what a run writes, and how it is read back.

``config.yaml`` (can be run again by itself), ``environment.json``, ``metrics.jsonl`` (one line per
evaluation), ``summary.json`` and ``checkpoints/``. A comparison has one such folder per label inside
its own. Files that are read may come from anywhere: they are checked line by line.
"""

import dataclasses
import datetime
import importlib.metadata
import json
import math
import platform
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from omegaconf import OmegaConf

from fedjax_drag.experiment import build
from fedjax_drag.experiment.config import Config, flatten, load, slug
from fedjax_drag.simulation.calibration import Walk

CONFIG, ENVIRONMENT, METRICS, SUMMARY = "config.yaml", "environment.json", "metrics.jsonl", "summary.json"
CHECKPOINTS, FIGURE, REPORT, LOGS = "checkpoints", "accuracy.png", "report.html", "logs"
WRITTEN = (CONFIG, ENVIRONMENT, METRICS, SUMMARY, CHECKPOINTS, FIGURE)
"""Everything that a run writes into its folder."""

FREE = ("keep_checkpoints", "keep_best", "stop_on_divergence")
"""Keys that may be another when a run is resumed: they decide what is kept and where it ends."""

REMEDY = "choose --resume, --overwrite or another --out (in Python resume=True, overwrite=True or another out)"
"""What can be done about a folder that already holds something."""

History = dict[str, np.ndarray]
"""Recorded quantities by name, each with one entry per evaluation."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A run read back from its folder.

    Attributes:
      folder: where it lies.
      config: its configuration.
      history: arrays with one entry per evaluation; ``round`` and ``test_accuracy`` at least.
    """

    folder: Path
    config: Config
    history: History


def check_folder(folder: Path, *, resume: bool, overwrite: bool) -> None:
    """Refuses a folder in which a run may not write; changes nothing.

    Args:
      folder: the results folder to be.
      resume: whether a run in it is to be continued.
      overwrite: whether a run in it is to be replaced.

    Raises:
      ValueError: the folder holds a run and neither was asked for; there is no run to resume; or
        what is to be overwritten is not a results folder.
    """
    if resume and overwrite:
        raise ValueError("resume and overwrite: only one of them can be asked for")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"out={str(folder)!r}: must be a folder, and this is a file")
    holds_run = folder.is_dir() and any((folder / name).exists() for name in WRITTEN)
    if resume and not (folder / CONFIG).is_file():
        raise ValueError(f"out={str(folder)!r}: holds no run to resume")
    if overwrite and folder.is_dir() and any(folder.iterdir()) and not _is_results_folder(folder):
        raise ValueError(f"out={str(folder)!r}: not a results folder, so it is not overwritten")
    if holds_run and not (resume or overwrite):
        raise ValueError(f"out={str(folder)!r}: already holds a run; {REMEDY}")


def check_same(folder: Path, config: Config) -> None:
    """Refuses to resume a run under another configuration.

    Only ``rounds`` may have grown, and what changes no number may differ. Keys and arguments that the stored
    configuration does not have, since it is older than they are, take their defaults.

    Raises:
      ValueError: names the first difference.
    """
    try:
        stored, wanted = flatten(build.resolve(load(folder / CONFIG))), flatten(config)
    except ValueError as error:
        raise ValueError(f"the run to resume in {str(folder)!r}: {error}") from None
    for key in [*wanted, *(key for key in stored if key not in wanted)]:
        old, new = stored.get(key), wanted.get(key)
        if old != new and key not in FREE and not (key == "rounds" and config.rounds > stored["rounds"]):
            hint = " or more" if key == "rounds" else ""
            raise ValueError(
                f"{key}={new!r}: the run to resume in {str(folder)!r} has {key}={old!r}; must be that{hint}"
            )


def clear(folder: Path) -> None:
    """Removes what runs wrote in ``folder`` and in the runs inside it, and nothing else."""
    if not folder.is_dir():
        return
    for inner in sorted(folder.iterdir()):
        if inner.is_dir() and not inner.is_symlink() and _is_results_folder(inner):
            clear(inner)
            if not any(inner.iterdir()):
                inner.rmdir()
    for name in (*WRITTEN, REPORT, LOGS):
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def begin(folder: Path, config: Config, walk: Walk | None = None) -> None:
    """Makes the folder with its ``config.yaml`` and ``environment.json``; the latter says how clients are walked."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / CONFIG, OmegaConf.to_yaml(OmegaConf.create(config.to_mapping())))
    write_json(folder / ENVIRONMENT, environment(config.seed) | (walk._asdict() if walk else {}))


def read_walk(folder: Path) -> Walk | None:
    """How the run in ``folder`` goes through its clients; None if that is not written there."""
    try:
        found = json.loads((folder / ENVIRONMENT).read_text(encoding="utf-8"))
        return Walk(found["clients_axis"], found["clients_per_chunk"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # begun by another version, or damaged
        return None


def environment(seed: int) -> dict[str, Any]:
    """What a run's numbers depend on besides its configuration."""
    import jax  # here, since plotting a folder does not need it

    from fedjax_drag import __version__  # here, since the package imports this module

    packages = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
    return {
        "python": platform.python_version(),
        "packages": {"fedjax-drag": __version__} | {name: importlib.metadata.version(name) for name in packages},
        "platform": platform.platform(),
        "backend": jax.default_backend(),
        "devices": [str(device) for device in jax.devices()],
        "git_commit": _git_commit(),
        "seed": seed,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def write_text(path: Path, text: str) -> None:
    """Writes a file so that a reader sees the old one or the new one, never half of it."""
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file as :func:`write_text` does."""
    write_text(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


def append_metrics(stream: IO[str], metrics: Mapping[str, Any]) -> None:
    """Writes an evaluation as one line of ``metrics.jsonl`` and flushes it."""
    stream.write(json.dumps(plain(metrics), allow_nan=False) + "\n")
    stream.flush()


def plain(value: Any) -> Any:
    """``value`` for JSON: arrays as lists, floats in the shortest form that reads back equal, NaN as None."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, str | bool | int) or value is None:
        return value
    array = np.asarray(value)
    if array.dtype == bool:
        array = array.astype(np.int32)  # metrics are numbers only
    if array.ndim:
        return [plain(entry) for entry in array]
    if not np.issubdtype(array.dtype, np.inexact):
        return array.item()
    number = float(str(array.astype(np.float32) if array.dtype.itemsize < 4 else array))
    return number if math.isfinite(number) else None


def read_metrics(path: Path, *, up_to: int | None = None) -> History:
    """Reads ``metrics.jsonl``; a last line that was cut short when the run was stopped is none.

    Args:
      path: the file.
      up_to: stop after this round, whatever comes later in the file.

    Returns:
      Arrays by name, leading axis evaluations; None reads as NaN.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: a line is not one evaluation like the others; the message has its number.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{str(path)!r}: no such file; not the folder of a run that has begun")
    rows: list[dict[str, np.ndarray]] = []
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                row = _read_row(line)
                if up_to is not None and row["round"] > up_to:
                    break
                if rows:
                    _check_like(row, rows[-1])
                rows.append(row)
            except (ValueError, OverflowError, RecursionError) as error:
                if not line.endswith("\n") or (up_to is not None and rows and rows[-1]["round"] == up_to):
                    break
                reason = "nested too deeply" if isinstance(error, RecursionError) else error
                raise ValueError(f"{str(path)!r}, line {number}: {reason}") from None
    if not rows:
        raise ValueError(f"{str(path)!r}: holds no evaluation yet")
    return {key: np.stack([row[key] for row in rows]) for key in rows[0]}


def read(folder: Path) -> list[Run]:
    """Reads a run, or the runs of a comparison in the order of its configuration.

    Raises:
      FileNotFoundError: ``folder`` or a file in it does not exist.
      ValueError: a file is malformed.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{str(folder)!r}: no such results folder")
    if (folder / METRICS).exists() or not (folder / CONFIG).exists():
        config = load(folder / CONFIG)
        return [Run(folder, config, read_metrics(folder / METRICS))]
    labels = [slug(label) for label in load(folder / CONFIG).compare or {}]
    inner = [folder / label for label in labels if (folder / label / METRICS).is_file()]
    if not inner:
        raise FileNotFoundError(f"{str(folder)!r}: holds no run with results")
    return [run for path in inner for run in read(path)]


def read_summary(folder: Path) -> dict[str, Any]:
    """Reads a run's ``summary.json``."""
    return json.loads((folder / SUMMARY).read_text(encoding="utf-8"))


def join(earlier: History, later: Mapping[str, Any]) -> History:
    """The history of a run and of its continuation, with the continuation's types."""
    return {
        key: np.concatenate([np.asarray(earlier[key], np.asarray(value).dtype), np.asarray(value)])
        for key, value in later.items()
        if key in earlier
    }


def cut_metrics(path: Path, keep: int) -> None:
    """Keeps the first ``keep`` lines of ``metrics.jsonl``."""
    with path.open(encoding="utf-8") as lines:
        kept = [line for _, line in zip(range(keep), lines, strict=False)]
    write_text(path, "".join(kept))


def _read_row(line: str) -> dict[str, np.ndarray]:
    try:
        row = json.loads(line, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg}") from None
    if not isinstance(row, dict):
        raise ValueError("must be a JSON object")
    for key in ("round", "test_accuracy"):
        if key not in row:
            raise ValueError(f"has no {key!r}")
    return {key: _numbers(key, value) for key, value in row.items()}


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _numbers(key: str, value: Any) -> np.ndarray:
    if key == "round" and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31):
        raise ValueError(f"round={value!r:.40}: must be a round number")
    if not all(_is_number(entry) for entry in _leaves(value)):
        raise ValueError(f"{key!r} must be a number or a list of numbers")
    return np.asarray(value) if key == "round" else np.asarray(value, np.float64)


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _leaves(value: Any) -> Iterable[Any]:
    if not isinstance(value, list):
        return [value]
    return (leaf for entry in value for leaf in _leaves(entry))


def _check_like(row: Mapping[str, np.ndarray], last: Mapping[str, np.ndarray]) -> None:
    if row["round"] <= last["round"]:
        raise ValueError(f"round {row['round']} comes after round {last['round']}")
    if row.keys() != last.keys() or any(row[key].shape != last[key].shape for key in row):
        raise ValueError("its entries differ from those of the line before")


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
