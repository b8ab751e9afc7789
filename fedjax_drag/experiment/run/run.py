"""Runs experiments and records them."""

import dataclasses
from collections.abc import Iterable, Mapping
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

from fedjax_drag.experiment.build.experiment import Source, load_experiment
from fedjax_drag.experiment.run import loggers, results
from fedjax_drag.experiment.run.checkpoints import Checkpoints
from fedjax_drag.experiment.run.lock import locked
from fedjax_drag.experiment.run.planning import CheckedExperiment, Job, plan
from fedjax_drag.experiment.run.recorder import Recorder
from fedjax_drag.simulation import Result
from fedjax_drag.simulation.devices.processes import from_first, is_first
from fedjax_drag.simulation.driver import Stopper
from fedjax_drag.simulation.progress import Progress
from fedjax_drag.simulation.result import rejection


def run(
    config: Source,
    overrides: Iterable[str] = (),
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool | None = None,
    log: Iterable[str] = (),
    allow_code: bool = False,
) -> Any:
    """Runs the experiment that a configuration describes.

    Args:
      config: path of a YAML file, a mapping of its keys, or a
        :class:`~fedjax_drag.experiment.config.config.Config`. In a mapping a Python object may stand wherever a name
        may: the part itself (``"aggregator": my_rule(2.0)``), or, with arguments, what builds it (``"aggregator":
        {"name": my_rule, "power": 2.0}``). It is called after its builder; ``{"name": part, "label": "mine"}`` gives it
        another label. ``data`` that are split among clients need no ``partition``.
      overrides: ``key=value`` strings such as ``"rounds=50"`` or ``"aggregator.c=0.5"``.
      out: results folder; None writes nothing.
      resume: continue the run in ``out`` from its newest checkpoint, to the same end as if it had
        not been interrupted.
      overwrite: replace the run in ``out``.
      quiet: True for no progress, None for a bar in a terminal or a notebook, else a line every half minute.
      log: tools that receive the metrics as well as ``out``: ``"tensorboard"``, ``"wandb"``, ``"mlflow"``
        (:mod:`fedjax_drag.callbacks`).
      allow_code: whether to run code that ``config`` refers to, as ``my_rules.py:my_rule`` or ``my_package:my_rule``.
        What ``overrides`` refer to is run in any case, what a results folder refers to never.

    Returns:
      A :class:`~fedjax_drag.simulation.Result`; if the configuration has ``compare``, a dict of them
      by label. One whose parameters did not stay finite says so in ``diverged_at``.

    Raises:
      ValueError: the configuration or the folder is not valid, or another process writes into it; raised before
        anything is computed or written.
      FileNotFoundError: there is no such configuration, or the data are not on this machine.
      KeyboardInterrupt: stopped by Ctrl-C, after what was computed has been saved in ``out``.
    """
    with plan(load_experiment(config, overrides, allow_code), out, resume, overwrite, log=log) as planned:
        finished = execute(planned, quiet)
    return finished if planned.config.compare is not None else next(iter(finished.values()))


def execute(planned: CheckedExperiment, quiet: bool | None = None) -> dict[str, Result]:
    """Runs everything planned, in order.

    Args:
      planned: from :func:`~fedjax_drag.experiment.run.planning.plan`.
      quiet: as for :func:`run`.

    Returns:
      The results by label.
    """
    if planned.folder is not None and planned.config.compare is not None:
        from_first(results.begin, planned.folder, planned.config, planned.resume)
    finished = {}
    for job in planned.jobs:
        with locked(job.folder if job.folder != planned.folder else None):  # that of a variant is its own
            finished[job.label] = _execute(job, planned.resume, quiet, planned.log)
    return finished


def divergences(planned: CheckedExperiment, finished: Mapping[str, Result]) -> list[str]:
    """A line for each run that divergence has stopped: when, and the checkpoint before.

    Args:
      planned: with a folder.
      finished: from :func:`execute`.
    """
    lines = []
    for job in planned.jobs:
        stopped_by = finished[job.label].diverged_at if job.config.stop_on_divergence else None
        if stopped_by is not None and job.folder is not None:
            rounds = Checkpoints(job.folder).rounds()
            good = job.folder / results.CHECKPOINTS / str(rounds[-1]) if rounds else "no checkpoint before"
            fault = f"parameters are not finite after round {stopped_by}"
            lines.append(f"{job.label} diverged: {fault}; last good checkpoint: {good}")
    return lines


def rejections(finished: Mapping[str, Result]) -> list[str]:
    """A line for each run whose last messages were all rejected, so that nothing was learnt from them."""
    found = {label: rejection(result.history) for label, result in finished.items()}
    return [f"{label}: {text}" for label, text in found.items() if text]


def _execute(job: Job, resume: bool, quiet: bool | None, log: Iterable[str]) -> Result:
    by = job.simulation.criterion
    recorder = None if job.folder is None else Recorder(job.folder, job.config, job.simulation, resume, criterion=by)
    start, history = (0, {}) if recorder is None else (recorder.start, recorder.history)
    written = nullcontext() if recorder is None else closing(recorder)
    with written, Progress(job.label, job.config.rounds, start, quiet=quiet if is_first() else True) as bar:
        if job.simulation.client_state_bytes:
            size = job.simulation.client_state_bytes / 2**20
            bar.note(f"{size:,.1f} MiB of state for all clients on the {job.config.client_state}")
        shown = lambda event: bar.update(event.round, by.said(event.metrics))
        callbacks = [shown, Stopper(job.config, history, by)]
        if recorder is None:
            return job.simulation.run(callbacks)
        try:
            with loggers.opened(log, job.folder, job.label, job.config.to_mapping()) as tools:
                rounds = recorder.start if recorder.is_over else job.config.rounds
                untimed = job.simulation.time_clients and recorder.seconds_per_step is None
                rest = dataclasses.replace(job.simulation, num_rounds=rounds, time_clients=untimed)
                result = rest.run([recorder, *callbacks, *tools], recorder.state)
            return recorder.finish(result)
        except KeyboardInterrupt as stopped:
            recorder.interrupted(seconds_per_step=getattr(stopped, "seconds_per_step", None))
            raise
