"""From a configuration to runs that are ready to start: checked, built and traced."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from fedjax_drag.data import FederatedDataset
from fedjax_drag.experiment.build import build
from fedjax_drag.experiment.build.experiment import Experiment, within
from fedjax_drag.experiment.config.components import Component
from fedjax_drag.experiment.config.config import Config, slug
from fedjax_drag.experiment.config.own import own_names
from fedjax_drag.experiment.run import environment, folders, loggers
from fedjax_drag.experiment.run.lock import locked
from fedjax_drag.simulation import Simulation, trace
from fedjax_drag.simulation.devices import placement
from fedjax_drag.simulation.devices.placement import resolve_mesh
from fedjax_drag.simulation.devices.processes import from_first


@dataclasses.dataclass(frozen=True)
class Job:
    """One run that is ready to start.

    Attributes:
      label: its name in tables and plots.
      config: its resolved configuration.
      simulation: the traced run.
      folder: where its results go, or None.
    """

    label: str
    config: Config
    simulation: Simulation
    folder: Path | None


@dataclasses.dataclass(frozen=True)
class CheckedExperiment:
    """A checked experiment: all its runs are built, none has started.

    Attributes:
      config: the resolved configuration.
      jobs: its runs; more than one may be listed only under ``compare``.
      folder: where the results go, or None.
      resume: whether runs in the folder are continued.
      log: tools that receive the metrics as well.
    """

    config: Config
    jobs: tuple[Job, ...]
    folder: Path | None
    resume: bool
    log: tuple[str, ...] = ()


class Federations:
    """Data sets, and their splits among clients, each made once for all runs that share it."""

    def __init__(self) -> None:
        self._made: dict[str, FederatedDataset] = {}

    def dataset(self, config: Config) -> FederatedDataset:
        """The data of a resolved configuration."""
        return self._once(lambda: build.dataset(config), config.data)

    def split(self, config: Config) -> FederatedDataset:
        """The same with clients."""
        data = self.dataset(config)
        return self._once(lambda: build.federation(config, data), config.data, config.partition, config.seed)

    def _once(self, make: Callable[[], FederatedDataset], *source: Any) -> FederatedDataset:
        parts = [part.to_mapping() if isinstance(part, Component) else part for part in source]
        key = repr([parts, [id(name.part) for name in own_names(parts)]])  # objects may have the same label
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]


@contextlib.contextmanager
def plan(
    experiment: Experiment,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    federations: Federations | None = None,
    log: Iterable[str] = (),
) -> Iterator[CheckedExperiment]:
    """Builds all runs of an experiment; locks ``out`` in a block, and clears it to overwrite it.

    Args and exceptions are those of :func:`~fedjax_drag.experiment.run.run.run`; ``federations`` are those that
    earlier plans have loaded.
    """
    folder = folders.folder_of(out, resume, overwrite)
    tools = loggers.check(log, folder)
    with locked(folder, partial(folders.check_folder, resume=resume, overwrite=overwrite)):
        if folder is not None and resume:
            from_first(folders.check_same, folder, experiment.config)
        with placement.sharing():  # the runs of a comparison have the same data
            jobs = _jobs(experiment, folder, resume, federations or Federations())
        if folder is not None and overwrite:
            folders.check_start(folder, experiment.runs.values())
            variants = {slug(label) for label in experiment.runs} if experiment.config.compare else set()
            from_first(folders.clear, folder, variants | folders.variants_in(folder))
        yield CheckedExperiment(experiment.config, jobs, folder, resume, tools)


def _jobs(experiment: Experiment, folder: Path | None, resume: bool, federations: Federations) -> tuple[Job, ...]:
    """The runs of an experiment, those of a comparison in folders of their own."""
    jobs: list[Job] = []
    for label, config in experiment.runs.items():
        compares = experiment.config.compare is not None
        where, place = (f"compare.{label}", folder and folder / slug(label)) if compares else ("", folder)
        with within(where):
            if place is not None and place != folder and resume:
                from_first(folders.check_same, place, config)
            jobs.append(Job(label, config, _prepare(config, federations, place if resume else None), place))
    return tuple(jobs)


def _prepare(config: Config, federations: Federations, begun: Path | None = None) -> Simulation:
    """Builds and traces one run, with the devices of the run begun in a folder."""
    settings = build.settings(config, federations.split(config))
    if begun and config.mesh == "auto":  # as many devices as before, if they are here
        before, mesh = environment.read(begun).get(environment.MESH_DEVICES), resolve_mesh("auto", config.cohort_size)
        as_before = None if before == 1 else "cores" if mesh and mesh.size == before else "auto"
        settings = dataclasses.replace(settings, mesh=as_before)
    return build.traced(trace, settings)
