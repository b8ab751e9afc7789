"""From a configuration to finished runs: plan everything, then execute and record."""

import dataclasses
import errno
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedjax_drag.data import FederatedDataset
from fedjax_drag.experiment import build, loggers, results
from fedjax_drag.experiment.assemble import assemble, traced
from fedjax_drag.experiment.checkpoints import Checkpoints
from fedjax_drag.experiment.components import Component
from fedjax_drag.experiment.config import Config, load, slug
from fedjax_drag.experiment.progress import Progress, summary
from fedjax_drag.experiment.results import History
from fedjax_drag.simulation import Evaluation, Result, Simulation, trace
from fedjax_drag.simulation.batch import BatchSimulation
from fedjax_drag.simulation.calibration import Walk
from fedjax_drag.simulation.distributed import from_first, is_first
from fedjax_drag.simulation.metrics import client_seconds


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

    Attributes:
      config: the resolved configuration.
      jobs: its runs; more than one may be listed only under ``compare``.
      folder: where the results go, or None.
      resume: whether runs found there are continued.
      log: what their metrics go to besides.
    """

    config: Config
    jobs: tuple[Job, ...]
    folder: Path | None
    resume: bool
    log: tuple[str, ...] = ()


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
        :class:`~fedjax_drag.experiment.config.Config`.
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
      ValueError: the configuration or the folder is not valid; raised before anything is computed
        or written.
      FileNotFoundError: the configuration or the data are not there.
      KeyboardInterrupt: stopped by Ctrl-C, after what was computed has been saved in ``out``.
    """
    planned = plan(config, overrides, out, resume, overwrite, log=log)
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
    """Checks and builds all runs of a configuration; writes nothing but clears ``out`` to overwrite it.

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
    if folder is not None:
        from_first(partial(results.check_folder, folder, resume=resume, overwrite=overwrite))
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
    return Plan(whole, jobs, folder, resume, tools)


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
    return {job.label: _execute(job, planned.resume, quiet, planned.log) for job in planned.jobs}


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
        if place is not None and (place / results.CONFIG).is_file():
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


class Recorder:
    """Writes a run's evaluations, checkpoints and summary as they come; a callback of the engine.

    Each of several processes has one, of which the first writes.

    Args:
      folder: the results folder; made here.
      config: the run's configuration.
      simulation: the run, or those that it is one of, which knows what its state looks like.
      resume: continue from the newest checkpoint in the folder that can be read, if there is one.

    Raises:
      ValueError: there are checkpoints, and none can be read.

    Attributes:
      start: rounds already done.
      state: the state after them, or None at the beginning.
    """

    def __init__(self, folder: Path, config: Config, simulation: Simulation | BatchSimulation, resume: bool):
        self._folder = folder
        self._begun = time.perf_counter()
        from_first(results.begin, folder, config, simulation.walk)
        from_first(partial((folder / results.SUMMARY).unlink, missing_ok=True))
        self._checkpoints = Checkpoints(folder, config.keep_checkpoints, config.keep_best, writes=True)
        try:
            newest = self._checkpoints.newest(partial(self._recorded, simulation.shapes)) if resume else None
        except BaseException:
            self._checkpoints.close()
            raise
        earlier: tuple[History, Any] = ({}, None)
        self.start, (self._earlier, self.state) = newest or (0, earlier)
        metrics = folder / results.METRICS
        if newest:
            from_first(results.cut_metrics, metrics, len(self._earlier["round"]))
        self._rows: list[dict[str, Any]] = []
        place = metrics if is_first() else Path(os.devnull)
        self._stream: IO[str] = place.open("a" if newest else "w", encoding="utf-8")

    def _recorded(self, shapes: Any, round_number: int) -> tuple[History, Any]:
        """The evaluations up to a round that has a checkpoint, and the state in it."""
        history = from_first(partial(results.read_metrics, self._folder / results.METRICS, up_to=round_number))
        if history["round"][-1] != round_number:
            ends = f"{results.METRICS} ends at round {history['round'][-1]}"
            raise ValueError(f"checkpoint of round {round_number}: {ends}")
        return history, self._checkpoints.restore(round_number, shapes)

    def __call__(self, event: Evaluation) -> None:
        """Records an evaluation: first its line, then the state after it, unless it is one to go back from.

        Raises:
          OSError: one line with what was wrong with the folder, the round, and how to go on.
        """
        with self._writing(event.round):
            if is_first() and not (self._folder / results.METRICS).exists():
                raise FileNotFoundError(f"{str(self._folder)!r} is gone")
            results.append_metrics(self._stream, event.metrics)
            self._rows.append({key: event.metrics[key] for key in ("round", "test_accuracy")})
            if event.state is not None and event.diverged_at is None:
                self._checkpoints.save(event.round, event.state, event.metrics["test_accuracy"])

    @contextmanager
    def _writing(self, round_number: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # Orbax has its own for a disk that is full
            full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)
            reason = "No space left on device" if full else next(iter(str(error).splitlines()), type(error).__name__)
            remedy = f"{'free space' if full else 'put that right'} and run again with --resume"
            raise OSError(f"{reason} at round {round_number} in {str(self._folder)!r}; {remedy}") from error

    def finish(self, result: Result) -> Result:
        """Writes the summary; returns the result with the history from before a resume."""
        history = self._earlier
        if result.history:
            history = results.join(self._earlier, result.history) if self._earlier else result.history
        if result.seconds_per_step is not None and history:
            history |= {"client_seconds": client_seconds(history, result.seconds_per_step)}
        seconds = result.seconds + result.compile_seconds
        figures = summary(history, seconds, result.compile_seconds) | self._session()
        done = int(history["round"][-1]) - self.start
        figures["rounds_per_second"] = round(done / result.seconds, 3) if done and result.seconds else None
        figures |= {"client_cost": result.cost._asdict(), "seconds_per_local_step": result.seconds_per_step}
        if result.diverged_at is not None:
            figures["diverged_at"] = result.diverged_at
        with self._writing(figures["rounds"]):
            self._conclude(figures | {"interrupted": False})
        return result._replace(history=history)

    def interrupted(self) -> None:
        """Writes the summary of a run that was stopped; its evaluations and checkpoints are already there."""
        keys = ("round", "test_accuracy")
        history = {
            key: np.concatenate([self._earlier.get(key, np.zeros(0)), np.array([row[key] for row in self._rows])])
            for key in keys
        }
        figures = summary(history, time.perf_counter() - self._begun, None) | self._session()
        self._conclude(figures | {"interrupted": True})

    def close(self) -> None:
        """Closes the files."""
        with suppress(OSError):  # of a line that could not be written, which has been told
            self._stream.close()
        self._checkpoints.close()

    def _conclude(self, figures: dict[str, Any]) -> None:
        if is_first():
            results.write_json(self._folder / results.SUMMARY, figures)

    def _session(self) -> dict[str, Any]:
        return {"resumed_from_round": self.start} if self.start else {}
