"""Writes a run into its results folder while it is computed, and finds the round from which it resumes."""

import errno
import os
import secrets
import sys
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from tqdm import tqdm

from fedjax_drag.experiment.config.config import Config
from fedjax_drag.experiment.run import metrics_file, results
from fedjax_drag.experiment.run.checkpoints import Checkpoints, Stored
from fedjax_drag.experiment.run.metrics_file import METRICS, History
from fedjax_drag.experiment.run.saver import Saver
from fedjax_drag.experiment.run.stored.leaves import on_host
from fedjax_drag.experiment.run.summary import summary
from fedjax_drag.simulation import Evaluation, Result, Simulation
from fedjax_drag.simulation.batch import BatchSimulation
from fedjax_drag.simulation.devices.processes import from_first, is_first
from fedjax_drag.simulation.driver import Reason, reason
from fedjax_drag.simulation.result import TEST, VALIDATION, choice_metric, with_client_seconds

_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a disk, or of a user's share of it, that is full."""


_SUMMARISED = ("round", TEST, VALIDATION)
"""Metrics of which the summary of a run is made that was stopped."""


_TIMES = ("compile_seconds", "rounds_per_second")
"""Figures of the session that computed something last."""


class _Earlier(NamedTuple):
    """What a run had done before it is resumed."""

    round: int
    lines: bytes
    history: History
    state: Any
    dtypes: Mapping[str, str]


class Recorder:
    """Writes a run's evaluations, checkpoints and summary; a callback of the engine.

    Each of several processes has one; only the first writes. The caller holds the lock of the folder.

    Args:
      folder: the results folder; made here.
      config: the run's configuration.
      simulation: the run, or the batch of runs that it is part of; it gives the shapes of the state.
      resume: continue from the newest checkpoint in the folder that can be read, if there is one.
      every_seconds: time between checkpoints; with 0 the state of every evaluation that has one is on disk when the
        call returns. Default that of the configuration.

    Raises:
      FolderError: there are checkpoints, and none can be read.

    Attributes:
      start: rounds already done.
      state: the state after them, or None at the beginning.
      history: of the evaluations before.
      is_over: whether nothing is left to do after them.
    """

    def __init__(
        self,
        folder: Path,
        config: Config,
        simulation: Simulation | BatchSimulation,
        resume: bool,
        every_seconds: float | None = None,
    ):
        self._folder, self._config = folder, config
        self._begun = time.perf_counter()
        from_first(partial(folder.mkdir, parents=True, exist_ok=True))
        self._checkpoints = Checkpoints(folder, config.keep_checkpoints, config.keep_best, writes=True, config=config)
        try:
            earlier = self._resumed(simulation.shapes, config.keep_checkpoints) if resume else None
            before = self._checkpoints.origin(earlier.round) if earlier else None
            self._checkpoints.run = before or from_first(secrets.token_hex, 8)
            self._before = from_first(_figures_before, folder) if earlier else {}
            self._seconds_before = from_first(results.seconds_before, folder) if earlier else 0.0
            self.is_over = earlier is not None and (
                earlier.round >= config.rounds or reason(earlier.history, config) is not None
            )
            if self.is_over and from_first(results.read_environment, folder):
                from_first(results.write_config, folder, config)
            else:
                of_run = simulation.batching, simulation.mesh_devices, self._seconds_before if earlier else None
                from_first(results.begin, folder, config, *of_run, self._checkpoints.run)
            from_first(partial((folder / results.SUMMARY).unlink, missing_ok=True))
        except BaseException:
            self._checkpoints.close()
            raise
        self.start, lines, history, self.state, dtypes = earlier or _Earlier(0, b"", {}, None, {})
        self._dtypes = dtypes
        self.history = metrics_file.typed(history, self._dtypes)
        self._lines = bytearray(lines)
        every_seconds = config.checkpoint_every_seconds if every_seconds is None else every_seconds
        options = (config.keep_checkpoints, config.keep_best, every_seconds)
        self._best, self._keeps_best = self._best_so_far(), config.keep_best and config.keep_checkpoints > 0
        self._saver = Saver(self._checkpoints, *options, best=self._best)
        self._remembered: tuple[Any, ...] | None = None
        self._rows: list[dict[str, Any]] = []
        place = folder / METRICS if is_first() else Path(os.devnull)
        self._stream: IO[bytes] = place.open("ab" if earlier else "wb")

    def _resumed(self, shapes: Any, keeps: int) -> _Earlier | None:
        """What the newest checkpoint that can be read holds; ``metrics.jsonl`` is made to agree with it."""

        def read(round_number: int) -> Stored:
            return self._checkpoints.restore(round_number, shapes)

        newest = self._checkpoints.newest(read)
        if newest is None:
            if not keeps and is_first() and (self._folder / METRICS).exists():
                tqdm.write(f"{str(self._folder)!r}: no checkpoint to go on from; begins anew", file=sys.stderr)
            return None
        round_number, (state, lines, dtypes) = newest
        note = from_first(metrics_file.restore, self._folder, lines)
        if note and is_first():
            tqdm.write(note, file=sys.stderr)
        return _Earlier(round_number, lines, metrics_file.parse(lines).history, state, dtypes)

    def _best_so_far(self) -> float:
        """The accuracy of the best checkpoint; -inf without one."""
        best = self._checkpoints.best() if self.history else None
        if best is None:
            return -np.inf
        accuracies = self.history[choice_metric(self.history)][self.history["round"] == best]
        return float(accuracies[0]) if accuracies.size else -np.inf

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
            self._rows.append({key: event.metrics[key] for key in _SUMMARISED if key in event.metrics})
            if event.state is not None and event.diverged_at is None:
                self._save_remembered(unless=event)
                self._saver.hold(*self._to_hold(event))
                self._best = max(self._best, _accuracy(event))

    def is_best(self, event: Evaluation) -> bool:
        """Whether the accuracy is the highest so far, in a run that keeps the state that has it."""
        return self._keeps_best and event.diverged_at is None and _accuracy(event) >= self._best

    def remember(self, event: Evaluation) -> None:
        """Keeps the state of a recorded evaluation in memory until a later one is saved: the best between two."""
        round_number, state, *others = self._to_hold(event)
        self._remembered = round_number, {name: np.array(leaf) for name, leaf in on_host(state).items()}, *others
        self._best = _accuracy(event)

    def _save_remembered(self, unless: Evaluation | None = None) -> None:
        """Saves the state that is remembered, unless that of another evaluation is as good."""
        remembered, self._remembered = self._remembered, None
        if remembered is not None and (unless is None or not self.is_best(unless)):
            self._saver.hold(*remembered)

    def _to_hold(self, event: Evaluation) -> tuple[Any, ...]:
        """The arguments of :meth:`~.saver.Saver.hold` for the newest evaluation."""
        end = len(self._lines)
        return event.round, event.state, _accuracy(event), lambda: bytes(self._lines[:end]), self._dtypes

    def _append(self, line: bytes) -> None:
        self._stream.write(line)
        self._stream.flush()

    @contextmanager
    def _writing(self, round_number: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # Orbax raises many kinds
            full = _is_full_disk(error)
            reason = os.strerror(errno.ENOSPC) if full else next(iter(str(error).splitlines()), type(error).__name__)
            remedy = f"{'free space' if full else 'put that right'} and run again with --resume"
            raise OSError(f"{reason} at round {round_number} in {str(self._folder)!r}; {remedy}") from error

    def finish(self, result: Result) -> Result:
        """Writes the summary; returns the result with the history from before a resume."""
        history = self.history
        if result.history:
            history = metrics_file.join(self.history, result.history) if self.history else result.history
        history = with_client_seconds(history, result.seconds_per_step)
        done = int(history["round"][-1]) - self.start
        seconds = result.seconds + result.compile_seconds if done or not self._before else 0.0
        figures = summary(history, self._seconds_before + seconds, result.compile_seconds) | self._session()
        figures["rounds_per_second"] = round(done / result.seconds, 3) if done and result.seconds else None
        if not done:  # nothing was left to compute
            figures |= {name: self._before[name] for name in _TIMES if name in self._before}
        figures |= {"client_cost": result.cost._asdict(), "seconds_per_local_step": result.seconds_per_step}
        if result.diverged_at is not None:
            figures["diverged_at"] = result.diverged_at
        result = result._replace(history=history, ended_early=self._ended_early(history))
        if result.ended_early is not None:
            figures["ended_early"] = result.ended_early
        figures["metrics_crc32"] = zlib.crc32(self._lines)
        with self._writing(figures["rounds"]):
            self._save_remembered()
            self._saver.finish()
            self._conclude(figures | {"interrupted": False})
        return result

    def _ended_early(self, history: History) -> Reason | None:
        return None if not history or history["round"][-1] >= self._config.rounds else reason(history, self._config)

    def interrupted(self, share: float = 1.0) -> None:
        """Writes the newest states and the summary of a run that was stopped; its evaluations are already there.

        Args:
          share: of this session's time that counts for the run, which may be one of several in a program.
        """
        present = {*self.history, *chain(*self._rows)}
        history = {
            key: np.concatenate([self.history.get(key, np.zeros(0)), np.array([row[key] for row in self._rows])])
            for key in _SUMMARISED
            if key in present
        }
        seconds = share * (time.perf_counter() - self._begun)
        figures = summary(history, self._seconds_before + seconds, None) | self._session()
        ended = self._ended_early(history)
        over = {} if ended is None else {"ended_early": ended}  # in a program with others that went on
        self._conclude(figures | {"interrupted": ended is None} | over)
        with self._writing(figures["rounds"]):
            self._saver.finish()

    def close(self) -> None:
        """Closes the files, after the newest states are written: whatever ended the run, it can go on from them."""
        with suppress(Exception):  # what ended the run is reported
            self._saver.finish()
        with suppress(OSError):  # a line that could not be written was reported before
            self._stream.close()
        self._checkpoints.close()

    def _conclude(self, figures: dict[str, Any]) -> None:
        if is_first():
            results.write_json(self._folder / results.SUMMARY, figures | {"dtypes": self._dtypes})

    def _session(self) -> dict[str, Any]:
        return {"resumed_from_round": self.start} if self.start else {}


def _accuracy(event: Evaluation) -> float:
    """By which the best state is chosen, as it reads back from ``metrics.jsonl``."""
    accuracy = metrics_file.plain(event.metrics[choice_metric(event.metrics)])
    return np.nan if accuracy is None else float(accuracy)


def _figures_before(folder: Path) -> dict[str, Any]:
    """The summary that the session before has written; empty if it was killed."""
    try:
        return results.read_summary(folder)
    except (OSError, ValueError):  # missing, or damaged
        return {}


def _is_full_disk(error: Exception) -> bool:
    """Whether writing failed for lack of space.

    TensorStore, which writes the checkpoints, raises a ValueError without an error number; its message quotes the
    operating system's text.
    """
    return getattr(error, "errno", None) in _FULL or os.strerror(errno.ENOSPC) in str(error)
