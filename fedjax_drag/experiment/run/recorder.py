"""Writes a run into its results folder while it is computed, and finds the round from which it resumes."""

import errno
import math
import os
import secrets
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from tqdm import tqdm

from fedjax_drag.checks import message_of
from fedjax_drag.experiment.config.config import Config
from fedjax_drag.experiment.plain import finite, plain, write_json
from fedjax_drag.experiment.run import environment, metrics_file, results
from fedjax_drag.experiment.run.checkpoints import Checkpoints, Stored
from fedjax_drag.experiment.run.metrics_file import METRICS, History
from fedjax_drag.experiment.run.saver import Held, Saver
from fedjax_drag.experiment.run.summary import summary
from fedjax_drag.simulation import Evaluation, Result, Simulation
from fedjax_drag.simulation.batch import BatchSimulation
from fedjax_drag.simulation.criterion import Criterion
from fedjax_drag.simulation.devices.model_sharding import num_shares
from fedjax_drag.simulation.devices.processes import from_first, is_first
from fedjax_drag.simulation.driver import Reason, reason
from fedjax_drag.simulation.result import with_client_seconds

_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a disk, or of a user's share of it, that is full."""


_TIMES = ("compile_seconds", "rounds_per_second")
"""Figures of the session that computed something last."""

_STEP = "seconds_per_local_step"


class Recorder:
    """Writes a run's evaluations, checkpoints and summary; a callback of the engine.

    Each of several processes has one; only the first writes. The caller holds the lock of the folder.

    Args:
      folder: the results folder.
      config: the run's configuration.
      simulation: the run, or the batch of runs that it is part of; it gives the shapes of the state.
      resume: continue from the newest checkpoint in the folder that can be read, if there is one.
      criterion: by what the best state is chosen.
      in_batch: whether the run is one of several in a program, which resume from the same round: then states are
        written by :meth:`save`, and when the run is stopped or ends.

    Raises:
      FolderError: there are checkpoints, and none can be read.

    Attributes:
      start: rounds already done.
      state: the state after them, or None at the beginning.
      history: of the evaluations before.
      is_over: whether nothing is left to do after them.
      seconds_per_step: of a client, where an earlier session has timed it; else None.
    """

    def __init__(
        self,
        folder: Path,
        config: Config,
        simulation: Simulation | BatchSimulation,
        resume: bool,
        criterion: Criterion,
        in_batch: bool = False,
    ):
        self._folder, self._config, self._criterion = folder, config, criterion
        self._begun = time.perf_counter()
        self._checkpoints = Checkpoints(folder, config.keep_checkpoints, config.keep_best, config)
        earlier = self._checkpoints.newest(simulation.shapes) if resume else None
        self.start, (self.state, lines, self._dtypes) = earlier or (0, Stored(None, b"", {}))
        self._lines = bytearray(lines)
        self.history = self._history()
        self._before = from_first(results.figures_before, folder) if earlier else {}
        self._seconds_before = finite(self._before.get("seconds")) or 0.0
        if earlier:
            _note(from_first(metrics_file.restore, folder, lines))
        elif resume and (folder / METRICS).exists():
            _note(f"{str(folder)!r}: no checkpoint to go on from; begins anew")
        self._checkpoints.run = (self._checkpoints.run if earlier else None) or secrets.token_hex(8)
        self.is_over = bool(earlier) and (self.start >= config.rounds or self._ended_early(self.history) is not None)
        self.seconds_per_step = finite(self._before.get(_STEP)) if config.time_clients else None
        if self.is_over and from_first(environment.read, folder):
            from_first(results.write_config, folder, config)
        else:
            spec = simulation.spec  # of a sweep's program: the devices share its cells
            facts = spec.batching._asdict() | {environment.MESH_DEVICES: num_shares(spec.mesh)}
            facts |= {"criterion": environment.facts_of(criterion), environment.RUN: self._checkpoints.run}
            facts |= {environment.EARLIER_SECONDS: round(self._seconds_before, 3)} if self._seconds_before else {}
            from_first(partial(results.begin, folder, config, earlier is not None, **facts))
        from_first(partial((folder / results.SUMMARY).unlink, missing_ok=True))
        best = self._checkpoints.best_merit() if earlier else -math.inf
        every = math.inf if in_batch else config.checkpoint_every_seconds
        keep = min(config.keep_checkpoints, 1) if in_batch else config.keep_checkpoints
        self._saver = Saver(self._checkpoints, keep, config.keep_best, every, best)
        place = folder / METRICS if is_first() else Path(os.devnull)
        self._stream: IO[bytes] = place.open("ab" if earlier else "wb")

    def _history(self) -> History:
        """What is in the lines so far."""
        return metrics_file.typed(metrics_file.parse(bytes(self._lines)).history, self._dtypes)

    def __call__(self, event: Evaluation) -> None:
        """Records an evaluation: its line at once, and the state after it, unless the run has diverged, in time.

        Raises:
          OSError: one line with the fault of the folder, the round, and how to go on; it may have come up since the
            last call, in the thread that writes checkpoints.
        """
        with self._writing(event.round):
            if is_first() and not (self._folder / METRICS).exists():
                raise FileNotFoundError(f"{str(self._folder)!r} is gone")
            line = metrics_file.line_of(event.metrics)
            self._dtypes = {name: str(np.asarray(value).dtype) for name, value in event.metrics.items()}
            self._append(line)
            self._lines += line
            if event.state is not None and event.diverged_at is None:
                end = len(self._lines)
                lines_so_far = lambda: bytes(self._lines[:end])
                self._saver.hold(Held(event.round, event.state, self._merit(event), lines_so_far, self._dtypes))

    def save(self, round_number: int) -> None:
        """Writes the states that are to be kept after a round; raises as a call does."""
        with self._writing(round_number):
            self._saver.finish()

    def _merit(self, event: Evaluation) -> float:
        """By which the best state is chosen, as it reads back from ``metrics.jsonl``."""
        by = self._criterion.among(event.metrics)
        value = plain(event.metrics[by.column])
        return float(by.merits(np.nan if value is None else value))

    def _append(self, line: bytes) -> None:
        self._stream.write(line)
        self._stream.flush()

    @contextmanager
    def _writing(self, round_number: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # Orbax raises many kinds
            # TensorStore, which writes the checkpoints, raises a ValueError that quotes the operating system's text.
            full = getattr(error, "errno", None) in _FULL or os.strerror(errno.ENOSPC) in str(error)
            reason = os.strerror(errno.ENOSPC) if full else message_of(error)
            remedy = f"{'free space' if full else 'put that right'} and run again with --resume"
            raise OSError(f"{reason} at round {round_number} in {str(self._folder)!r}; {remedy}") from error

    def finish(self, result: Result) -> Result:
        """Writes the summary; returns the result with the history and the timing from before a resume."""
        if self.seconds_per_step is not None:
            result = result._replace(seconds_per_step=self.seconds_per_step)
        history = with_client_seconds(metrics_file.join(self.history, result.history), result.seconds_per_step)
        done = int(history["round"][-1]) - self.start
        seconds = result.seconds + result.compile_seconds if done or "rounds" not in self._before else 0.0
        figures = summary(history, self._seconds_before + seconds, result.compile_seconds, self._criterion)
        figures["rounds_per_second"] = round(done / result.seconds, 3) if done and result.seconds else None
        if not done:  # nothing was left to compute
            figures |= {name: self._before[name] for name in _TIMES if name in self._before}
        figures |= {"client_cost": result.cost._asdict(), _STEP: result.seconds_per_step}
        figures |= {} if result.diverged_at is None else {"diverged_at": result.diverged_at}
        figures |= {"metrics_crc32": zlib.crc32(self._lines), "interrupted": False}
        result = result._replace(history=history, ended_early=self._ended_early(history))
        with self._writing(figures["rounds"]):
            self._saver.finish()
            self._conclude(figures, result.ended_early)
        return result

    def _ended_early(self, history: History) -> Reason | None:
        over = not history or history["round"][-1] >= self._config.rounds
        return None if over else reason(history, self._config, self._criterion)

    def interrupted(self, share: float = 1.0, seconds_per_step: float | None = None) -> None:
        """Writes the newest states and the summary of a run that was stopped; its evaluations are already there.

        Args:
          share: of this session's time that counts for the run, which may be one of several in a program.
          seconds_per_step: of a client, if this session has timed it.
        """
        history = self._history()
        seconds = share * (time.perf_counter() - self._begun)
        figures = summary(history, self._seconds_before + seconds, None, self._criterion)
        ended = self._ended_early(history)  # in a program with others that went on
        figures[_STEP] = self.seconds_per_step or seconds_per_step
        self._conclude(figures | {"interrupted": ended is None}, ended)
        self.save(figures["rounds"])

    def close(self) -> None:
        """Closes the files, after the newest states are written: whatever ended the run, it can go on from them."""
        with suppress(Exception):  # what ended the run is reported
            self._saver.finish()
        with suppress(OSError):  # a line that could not be written was reported before
            self._stream.close()

    def _conclude(self, figures: dict[str, Any], ended_early: str | None) -> None:
        """Writes the summary."""
        figures |= {"resumed_from_round": self.start} if self.start else {}
        figures |= {} if ended_early is None else {"ended_early": ended_early}
        if is_first():
            write_json(self._folder / results.SUMMARY, figures | {"dtypes": self._dtypes})


def _note(text: str) -> None:
    """A line on standard error, if there is something to say."""
    if text and is_first():
        tqdm.write(text, file=sys.stderr)
