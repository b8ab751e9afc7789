"""From a configuration to finished runs: plan everything, then execute and record."""

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from fedjax_drag.data import FederatedDataset
from fedjax_drag.experiment.build import build
from fedjax_drag.experiment.build.assemble import assemble, traced
from fedjax_drag.experiment.config.components import Component
from fedjax_drag.experiment.config.config import Config, load, slug
from fedjax_drag.experiment.run import loggers, results
from fedjax_drag.experiment.run.checkpoints import Checkpoints
from fedjax_drag.experiment.run.lock import FolderLock
from fedjax_drag.experiment.run.progress import Progress
from fedjax_drag.experiment.run.recorder import Recorder
from fedjax_drag.simulation import Result, Simulation, trace
from fedjax_drag.simulation.devices.processes import from_first, is_first
from fedjax_drag.simulation.program.clients_axis import Walk


@dataclasses.dataclass(frozen=True)
class Job:
    """One run that is ready to start.

    Attributes:
      label: what it is called in tables and plots.
      config: its resolved configuration.
      simulation: the traced run.
      folder: where its results go, or None.
    """

    label: str
    config: Config
    simulation: Simulation
    folder: Path | None


class Federations:
    """Data sets, and ways to split them, each made once however many runs have them in common."""

    def __init__(self):
        self._made: dict[str, FederatedDataset] = {}

    def dataset(self, config: Config) -> FederatedDataset:
        """The data of a resolved configuration."""
        return self._once(build.dataset, config, config.data)

    def split(self, config: Config) -> FederatedDataset:
        """The same with clients."""

        def made(config):
            return build.federation(config, self.dataset(config))

        return self._once(made, config, config.data, config.partition, config.seed)

    def _once(self, make: Callable[[Config], FederatedDataset], config: Config, *source: Any) -> FederatedDataset:
        key = json.dumps([dataclasses.asdict(part) if isinstance(part, Component) else part for part in source])
        if key not in self._made:
            self._made[key] = make(config)
        return self._made[key]


@dataclasses.dataclass(frozen=True)
class Plan:
    """A checked configuration: all its runs are built, none has started.

    It holds the lock of its folder until the end of its ``with`` block.

    Attributes:
      config: the resolved configuration.
      jobs: its runs; more than one may be listed only under ``compare``.
      folder: where the results go, or None.
      resume: whether runs found there are continued.
      log: what their metrics go to besides.
      lock: of the folder; None without one, and in all processes but the first.
    """

    config: Config
    jobs: tuple[Job, ...]
    folder: Path | None
    resume: bool
    log: tuple[str, ...] = ()
    lock: FolderLock | None = None

    def __enter__(self) -> "Plan":
        return self

    def __exit__(self, *_: Any) -> None:
        if self.lock is not None:
            self.lock.release()


def run(
    config: str | Path | Mapping[str, Any] | Config,
    overrides: Iterable[str] = (),
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool | None = None,
    log: Iterable[str] = (),
) -> Any:
    """Runs the experiment that a configuration describes.

    Args:
      config: path of a YAML file, a mapping of its keys, or a
        :class:`~fedjax_drag.experiment.config.config.Config`.
      overrides: ``key=value`` strings such as ``"rounds=50"`` or ``"aggregator.c=0.5"``.
      out: results folder; None writes nothing.
      resume: continue the run in ``out`` from its newest checkpoint, to the same end as if it had
        not been interrupted.
      overwrite: replace the run in ``out``.
      quiet: True for no progress, None for a bar where standard error is a terminal, else a line every half minute.
      log: what the metrics go to besides ``out``: ``"tensorboard"``, ``"wandb"``, ``"mlflow"``
        (:mod:`fedjax_drag.callbacks`).

    Returns:
      A :class:`~fedjax_drag.simulation.Result`; if the configuration has ``compare``, a dict of them
      by label. One whose parameters did not stay finite says so in ``diverged_at``.

    Raises:
      ValueError: the configuration or the folder is not valid, or another process writes into it; raised before
        anything is computed or written.
      FileNotFoundError: the configuration or the data are not there.
      KeyboardInterrupt: stopped by Ctrl-C, after what was computed has been saved in ``out``.
    """
    with plan(config, overrides, out, resume, overwrite, log=log) as planned:
        finished = execute(planned, quiet)
    return finished if planned.config.compare is not None else next(iter(finished.values()))


def plan(
    config: str | Path | Mapping[str, Any] | Config,
    overrides: Iterable[str] = (),
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    federations: Federations | None = None,
    log: Iterable[str] = (),
) -> Plan:
    """Checks and builds all runs of a configuration; locks ``out``, and clears it to overwrite it.

    Args and exceptions are those of :func:`run`; ``federations`` are what earlier plans have loaded.
    """
    loaded = load(config, overrides)
    variants = loaded.variants()
    if loaded.compare is not None and not variants:
        raise ValueError("compare={}: must have at least one label, or be null")
    whole = build.resolve(loaded)
    singles = {label: _labelled(label, build.resolve, variant) for label, variant in variants.items()}
    folder = None if out is None else Path(out)
    if folder is None and (resume or overwrite):
        raise ValueError("out=None: resume and overwrite need the results folder")
    tools = loggers.check(log, folder)
    places = {label: folder and folder / slug(label) for label in singles}
    lock = None if folder is None else locked(folder, partial(results.check_folder, resume=resume, overwrite=overwrite))
    try:
        if resume:
            from_first(_check_resumable, whole, singles, places, folder)
        federations = federations or Federations()
        if not singles:
            jobs = (Job(whole.name, whole, _prepare(whole, federations, folder if resume else None), folder),)
        else:
            jobs = tuple(
                Job(label, single, _labelled(label, _prepare, single, federations, place if resume else None), place)
                for (label, single), place in zip(singles.items(), places.values(), strict=True)
            )
        if overwrite and folder is not None:
            from_first(results.clear, folder)
    except BaseException:
        if lock is not None:
            lock.release()
        raise
    return Plan(whole, jobs, folder, resume, tools, lock)


def locked(folder: Path, check: Callable[[Path], Any]) -> FolderLock | None:
    """The lock of a results folder that has passed a check, in the first of several processes.

    Args:
      folder: the results folder to be.
      check: ``(folder) -> None`` raises an error if it is not fit. It is asked before the folder is made, and once more
        when it is locked: until then another process may have written there.
    """
    held: list[FolderLock] = []

    def take() -> None:
        check(folder)
        lock = FolderLock(folder)
        try:
            check(folder)
        except BaseException:
            lock.release()
            raise
        held.append(lock)

    from_first(take)
    return held[0] if held else None


def execute(planned: Plan, quiet: bool | None = None) -> dict[str, Result]:
    """Runs everything planned, in order.

    Args:
      planned: from :func:`plan`.
      quiet: as for :func:`run`.

    Returns:
      The results by label.
    """
    if planned.folder is not None and planned.config.compare is not None:
        from_first(results.begin, planned.folder, planned.config)
    finished = {}
    for job in planned.jobs:
        lock = None
        if job.folder is not None and job.folder != planned.folder:  # of a comparison
            lock = locked(job.folder, lambda _: None)
        try:
            finished[job.label] = _execute(job, planned.resume, quiet, planned.log)
        finally:
            if lock is not None:
                lock.release()
    return finished


def divergences(planned: Plan, finished: Mapping[str, Result]) -> list[str]:
    """A line for each run that divergence has stopped: when, and the checkpoint before.

    Args:
      planned: with a folder.
      finished: from :func:`execute`.
    """
    lines = []
    for job in planned.jobs:
        stopped_by = finished[job.label].diverged_at if job.config.stop_on_divergence else None
        if stopped_by is not None and job.folder is not None:
            with closing(Checkpoints(job.folder)) as checkpoints:
                latest = checkpoints.latest()
            good = "no checkpoint before" if latest is None else job.folder / results.CHECKPOINTS / str(latest)
            fault = f"parameters are not finite after round {stopped_by}"
            lines.append(f"{job.label} diverged: {fault}; last good checkpoint: {good}")
    return lines


def _labelled(label: str, function: Any, *args: Any) -> Any:
    """Calls a function; its errors name the variant they are about."""
    try:
        return function(*args)
    except ValueError as error:
        raise ValueError(f"compare.{label}: {error}") from error


def _check_resumable(
    whole: Config, singles: Mapping[str, Config], places: Mapping[str, Path | None], folder: Path | None
) -> None:
    assert folder is not None
    results.check_same(folder, whole)
    for label, single in singles.items():
        place = places[label]
        if place is not None:
            _labelled(label, results.check_same, place, single)


def _prepare(config: Config, federations: Federations, begun: Path | None = None) -> Simulation:
    """Builds and traces one run, which goes through its clients as the one in the folder ``begun`` did."""
    walk = from_first(results.read_walk, begun) if begun else None
    return traced(trace, assemble(config, federations.split(config), walk and Walk(*walk)))


def _execute(job: Job, resume: bool, quiet: bool | None, log: Iterable[str]) -> Result:
    recorder = None if job.folder is None else Recorder(job.folder, job.config, job.simulation, resume)
    start = 0 if recorder is None else recorder.start
    bar = Progress(job.label, job.config.rounds, start, quiet if is_first() else True)
    if job.simulation.client_state_bytes:
        size = job.simulation.client_state_bytes / 2**20
        bar.note(f"{size:,.1f} MiB of state for all clients on the {job.config.client_state}")
    callbacks = [lambda event: bar.update(event.round, event.metrics)]
    if recorder is None:
        try:
            return job.simulation.run(callbacks)
        finally:
            bar.close()
    try:
        with loggers.opened(log, job.folder, job.label, job.config.to_mapping()) as tools:
            result = job.simulation.run([recorder, *callbacks, *tools], recorder.state)
        return recorder.finish(result)
    except KeyboardInterrupt:
        recorder.interrupted()
        raise
    finally:
        bar.close()
        recorder.close()
