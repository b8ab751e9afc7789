"""Cells of a sweep that run as one program, each with a results folder as if it ran alone."""

import sys
import time
from collections.abc import Hashable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from fedjax_drag.experiment.build import build
from fedjax_drag.experiment.run.lock import FolderLock
from fedjax_drag.experiment.run.recorder import Recorder
from fedjax_drag.experiment.run.saver import LARGEST
from fedjax_drag.experiment.sweep.grid import Point, in_common
from fedjax_drag.simulation.batch import BatchEvaluation, BatchSimulation, prepare_batch
from fedjax_drag.simulation.driver import Reason, Stopper
from fedjax_drag.simulation.progress import Progress, has_bars
from fedjax_drag.simulation.result import Result
from fedjax_drag.simulation.settings import Settings

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

_OTHER_FILES = 128
"""Open files that a process needs beside those of the cells of a sweep."""

SECONDS_BETWEEN_CHECKPOINTS = 60.0
"""All cells are saved at the same evaluations, at most this often, and at their end."""


class Member(NamedTuple):
    """A cell that is ready to start.

    Attributes:
      place: in the sweep.
      point: what it is.
      folder: where its results go, or None.
      settings: its settings.
      likeness: equal for cells that can share a program: the rounds they have done, and what is compiled.
    """

    place: int
    point: Point
    folder: Path | None
    settings: Settings
    likeness: Hashable


def run_as_one_program(
    members: Sequence[Member], most: int | None, quiet: bool | None
) -> Iterator[dict[int, Result | Exception]]:
    """Runs cells of one group, divided among all devices of this process.

    Args:
      members: the cells, all after the same number of rounds.
      most: cells in one program; None for what the memory allows.
      quiet: as for a run.

    Yields:
      After every call of the program the outcomes of its cells, by place: a result, or the error of writing its folder.

    Raises:
      ValueError: the cells cannot share a program.
      OSError: a folder cannot be made.
      KeyboardInterrupt: stopped by Ctrl-C; what was computed has been saved.
    """
    first = members[0]
    devices = jax.local_devices()[: len(members)]
    mesh = Mesh(devices, ("cells",)) if len(devices) > 1 else None
    settings = [member.settings for member in members]
    width = most or len(members)
    width = width if first.folder is None else min(width, _most_folders())
    rounds = first.point.config.rounds
    with Progress(f"{_common(members)}, compiling", rounds, quiet=quiet or has_bars() or None, share=len(members)):
        batch = _fitting(settings, width, mesh)
    for begin in range(0, len(members), batch.width):
        which = range(begin, min(begin + batch.width, len(members)))
        yield _Chunk([members[cell] for cell in which], batch).run(which, quiet)


def _most_folders() -> int:
    """How many cells can have their folders open at once: each has two files, metrics and lock."""
    if resource is None:
        return sys.maxsize
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else max(1, (soft - _OTHER_FILES) // 2)


def _fitting(settings: Sequence[Settings], width: int, mesh: Mesh | None) -> BatchSimulation:
    """The program for so many cells at a time, or for as many as fit the memory, compiled."""
    while True:
        batch = build.traced(prepare_batch, settings, width=width, mesh=mesh)
        try:
            return build.traced(batch.compile)
        except MemoryError:
            if batch.width <= (mesh.size if mesh else 1):
                raise
            width = batch.width // 2


class _Chunk:
    """The cells of one call of the program, and what writes their folders."""

    def __init__(self, members: Sequence[Member], batch: BatchSimulation):
        self._members, self._batch = members, batch
        self._saved = time.monotonic()
        self._failed: dict[int, Exception] = {}
        self._recorders: dict[int, Recorder] = {}
        self._stoppers: list[Stopper] = []

    def run(self, which: Sequence[int], quiet: bool | None) -> dict[int, Result | Exception]:
        """Runs the cells in the places ``which`` of the batch."""
        recorders = self._recorders
        with ExitStack() as open_folders:
            for cell, member in enumerate(self._members):
                by = member.settings.criterion
                if member.folder is not None:
                    open_folders.enter_context(FolderLock(member.folder))
                    given = member.folder, member.point.config, self._batch, True, by
                    recorder = Recorder(*given, in_batch=True)
                    recorders[cell] = open_folders.enter_context(closing(recorder))
                history = recorders[cell].history if cell in recorders else {}
                self._stoppers.append(Stopper(member.point.config, history, by))
            starts = sorted({recorder.start for recorder in recorders.values()}) or [0]
            if len(starts) > 1:  # the newest checkpoint of one is damaged
                raise ValueError(f"they go on after different rounds {starts}")
            (start,) = starts
            initial = [recorder.state for recorder in recorders.values()] if start else None
            over = {cell for cell, recorder in recorders.items() if recorder.is_over}
            rounds, cells = self._members[0].point.config.rounds, len(self._members)
            bar = open_folders.enter_context(Progress(_common(self._members), rounds, start, quiet=quiet, share=cells))

            def show(event: BatchEvaluation) -> None:
                one, rows = self._members[0].settings.criterion, list(event.rows.values())
                column = one.among(*rows).column
                bar.update(event.round, one.said({column: np.mean([row[column] for row in rows])}))

            try:
                outcomes = self._batch.run(which, [self._record, show], initial, over)
            except KeyboardInterrupt:
                for recorder in recorders.values():
                    recorder.interrupted(share=1 / cells)
                raise
            for cell, result in enumerate(outcomes):
                if cell in recorders:
                    outcomes[cell] = recorders[cell].finish(result)
            return {member.place: self._failed.get(cell, outcomes[cell]) for cell, member in enumerate(self._members)}

    def _record(self, event: BatchEvaluation) -> dict[int, Reason]:
        ended = {cell: self._stoppers[cell](event.of(cell, with_state=False)) for cell in event.rows}
        save = event.round == event.num_rounds or time.monotonic() - self._saved >= SECONDS_BETWEEN_CHECKPOINTS
        held = save or sum(leaf.nbytes for leaf in jax.tree.leaves(event.states)) <= LARGEST
        if save:
            self._saved = time.monotonic()
        if held:
            event = event._replace(states=jax.device_get(event.states))
        for cell in self._recorders.keys() & event.rows:
            recorder, over = self._recorders[cell], ended[cell] is not None
            try:
                recorder(event.of(cell, with_state=held or over))
                if save or over:
                    recorder.save(event.round)
            except Exception as error:  # in its own folder; the others go on
                self._failed[cell] = error
                self._recorders.pop(cell).close()
        return {cell: why for cell, why in ended.items() if why is not None}


def _common(members: Sequence[Member]) -> str:
    """A name for several cells: how many, and the values that they share."""
    same = in_common(member.point for member in members)
    return f"{len(members)} cells{same and f': {same}'}"
