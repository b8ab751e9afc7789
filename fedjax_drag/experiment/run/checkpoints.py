"""Checkpoints of a run's state and history, written with Orbax.

The state is stored as a flat mapping from each leaf's path to an array, so that a checkpoint can be
read without knowing its classes, with the lines of ``metrics.jsonl`` up to its round, and with a checksum of both,
since Orbax does not notice a flipped bit. A record beside it says what it is
(:mod:`~fedjax_drag.experiment.run.stored.records`). Of several processes the first writes and reads the whole state, so
that a run may go on with another number of them.
"""

import contextlib
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from fedjax_drag import per_client
from fedjax_drag.checks import message_of
from fedjax_drag.experiment.config.config import Config
from fedjax_drag.experiment.run import environment
from fedjax_drag.experiment.run.errors import FolderError, MismatchError
from fedjax_drag.experiment.run.results import CHECKPOINTS, DAMAGED_CHECKPOINTS
from fedjax_drag.experiment.run.stored import client_rows, leaves, records
from fedjax_drag.experiment.run.stored.records import Record
from fedjax_drag.simulation.devices import host_state
from fedjax_drag.simulation.devices.host_state import completed
from fedjax_drag.simulation.devices.processes import from_first, is_first
from fedjax_drag.simulation.model.initial_params import STATE, variables_in

_PARTIAL = ".partial"
"""How the name of a checkpoint that is being written goes on after its round."""

_HISTORY = "history"

_ROWS = "client_rows"
"""The checksum of rows that are in a file beside the checkpoint."""


class Stored(NamedTuple):
    """The contents of a checkpoint.

    Attributes:
      state: after its round.
      history: the lines of ``metrics.jsonl`` up to it.
      dtypes: names of those of its columns.
    """

    state: Any
    history: bytes
    dtypes: Mapping[str, str]


def load_params(folder: str | Path, which: str | int = "latest") -> Any:
    """Global parameters of a run, from one of the checkpoints in its results folder.

    Those that were not trained are among them. Arguments and errors are those of :func:`load_variables`.

    Returns:
      Nested dicts of arrays, as Flax has them: ``model.apply({"params": params}, x)``.

    Examples:
      >>> params = load_params("runs/quickstart", "best")  # doctest: +SKIP
    """
    return load_variables(folder, which)["params"]


def load_variables(folder: str | Path, which: str | int = "latest") -> dict[str, Any]:
    """Global parameters and statistics of a run's model, from one of the checkpoints in its results folder.

    Args:
      folder: the run's results folder.
      which: ``"latest"``, ``"best"`` (of those that are kept the one that is best by the run's ``metric``, on the
        validation examples where the data have any; of equal ones the newest), or the round of a checkpoint.

    Returns:
      Nested dicts of arrays by collection, as Flax has them: ``model.apply(variables, x)``.

    Raises:
      FileNotFoundError: there is no such folder or checkpoint.
      ValueError: ``which`` is something else, or the checkpoint is damaged.

    Examples:
      >>> variables = load_variables("runs/quickstart", "best")  # doctest: +SKIP
    """
    is_round = isinstance(which, int | np.integer) and not isinstance(which, bool)
    if not is_round and which not in ("latest", "best"):
        raise ValueError(f"which={which!r}: must be 'latest', 'best' or the round of a checkpoint")
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{str(folder)!r}: no such results folder")
    checkpoints = Checkpoints(folder)
    rounds = checkpoints.rounds()
    round_number = which if is_round else max(rounds, default=None) if which == "latest" else checkpoints.best()
    if round_number not in rounds:
        there = f"there are those of rounds {', '.join(map(str, rounds))}" if rounds else "there is none"
        raise FileNotFoundError(f"{str(folder)!r}: no checkpoint {which!r}; {there}")
    return checkpoints.variables(round_number)


class Checkpoints:
    """The checkpoints of one results folder.

    Args:
      folder: the run's results folder.
      keep: how many of the newest are kept, >= 1.
      keep_best: whether the best one is kept as well.
      config: of the run that writes them or goes on from them; None to read those of any configuration.

    Attributes:
      run: the name of the run that they must be of; None for any.
    """

    def __init__(self, folder: Path, keep: int = 2, keep_best: bool = True, config: Config | None = None):
        self._path = (folder / CHECKPOINTS).absolute()
        self._aside = (folder / DAMAGED_CHECKPOINTS).absolute()
        self._keep, self._keep_best, self._config = keep, keep_best, config
        run = environment.read(folder).get(environment.RUN)
        self.run = run if isinstance(run, str) else None

    def rounds(self) -> list[int]:
        """The rounds of all checkpoints, the newest last; damaged ones count."""
        return from_first(self._rounds)

    def _rounds(self) -> list[int]:
        names = [path.name for path in self._path.iterdir() if path.is_dir()] if self._path.is_dir() else []
        return sorted(int(name) for name in names if name.isdecimal() and name == str(int(name)))

    def best(self) -> int | None:
        """The round of the best checkpoint, of equal ones the newest; None without one.

        Raises:
          ValueError: the record of one is damaged.
        """
        return from_first(lambda: max(map(self._merit, self._rounds()), default=(-np.inf, None))[1])

    def best_merit(self) -> float:
        """The highest merit of those that are not damaged; -inf without one."""
        return from_first(lambda: max(self._merits(), default=(-np.inf, 0))[0])

    def _merits(self) -> Iterator[tuple[float, int]]:
        for round_number in self._rounds():
            with contextlib.suppress(ValueError):  # damaged: it cannot be the best
                yield self._merit(round_number)

    def _merit(self, round_number: int) -> tuple[float, int]:
        """By which the best is chosen: its merit, -inf for one that is not finite, and its round."""
        with _named(round_number):
            merit = records.read(self._path / str(round_number)).accuracy
        return merit if merit is not None and np.isfinite(merit) else -np.inf, round_number

    def save(
        self,
        round_number: int,
        state: Any,
        merit: float,
        history: bytes = b"",
        dtypes: Mapping[str, str] | None = None,
    ) -> None:
        """Stores ``state``; it is on disk, whole, when this returns. All processes that have parts of it must call.

        Args:
          round_number: rounds done.
          state: after them, or what :func:`~fedjax_drag.experiment.run.stored.leaves.on_host` made of it.
          merit: by which the best is chosen, the highest.
          history: the lines of ``metrics.jsonl`` so far.
          dtypes: names of those of its columns.
        """
        rows, arrays = host_state.found_in(state), leaves.on_host(state)
        if not is_first():
            return
        if history:
            arrays[_HISTORY] = np.frombuffer(history, np.uint8)
        place = self._path / str(round_number)
        partial = place.with_suffix(_PARTIAL)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        if rows is not None:
            arrays[_ROWS] = np.uint32(client_rows.write(rows, partial / client_rows.FILE))
        stored = leaves.write(partial / STATE, arrays)
        config = {} if self._config is None else records.plain_mapping(self._config)
        finite = float(merit) if np.isfinite(merit) else None
        records.write(partial, Record(round_number, finite, stored, self.run, config, dtypes or {}))
        partial.rename(place)
        self._prune()

    def newest(self, like: Any) -> tuple[int, Stored] | None:
        """The newest checkpoint that can be read; newer ones are set aside, with a line that says so.

        Args:
          like: as for :meth:`restore`.

        Returns:
          Its round and its contents; None if there is no checkpoint.

        Raises:
          FolderError: there are checkpoints, and none can be read; nothing is moved.
        """
        faults: dict[int, Exception] = {}
        for round_number in reversed(self.rounds()):
            try:
                contents = self.restore(round_number, like)
            except ValueError as error:
                faults[round_number] = error
                continue
            for damaged, error in faults.items():
                from_first(self._set_aside, damaged)
                if is_first():
                    where = f"set aside in {DAMAGED_CHECKPOINTS}, going on from round {round_number}"
                    tqdm.write(f"{error}; {where}", file=sys.stderr)
            if self._keep:
                from_first(self._prune)
            return round_number, contents
        if not faults:
            return None
        reason = "; ".join(map(str, faults.values()))
        if any(isinstance(error, MismatchError) for error in faults.values()):
            raise FolderError(f"{str(self._path)!r}: no checkpoint is of this run: {reason}")
        remedy = "to begin anew, remove that folder and resume"
        raise FolderError(f"{str(self._path)!r}: no checkpoint can be read; {remedy} ({reason})")

    def _prune(self) -> None:
        """Removes checkpoints that are not to be kept, and what a killed run has left of them."""
        rounds = self._rounds()
        kept = rounds[-self._keep :]
        if self._keep_best:
            kept.append(max(self._merits(), default=(0, 0))[1])
        unfinished = [path for path in self._path.glob(f"*{_PARTIAL}") if path.stem.isdecimal()]
        for path in [*unfinished, *(self._path / str(number) for number in rounds if number not in kept)]:
            shutil.rmtree(path)

    def _set_aside(self, round_number: int) -> None:
        """Moves a checkpoint that cannot be read; an earlier one of its round makes room for it."""
        place = self._aside / str(round_number)
        shutil.rmtree(place, ignore_errors=True)
        self._aside.mkdir(exist_ok=True)
        (self._path / place.name).rename(place)

    def restore(self, round_number: int, like: Any) -> Stored:
        """Reads the state of a round, and the history up to it.

        Args:
          round_number: one that was saved.
          like: a state of the same structure, shapes and types (arrays or ``jax.ShapeDtypeStruct``).

        Raises:
          ValueError: the stored state has another structure, or is damaged.
        """
        arrays, dtypes = from_first(self._read, round_number)
        history = arrays.pop(_HISTORY, np.zeros(0, np.uint8)).tobytes()
        rows = arrays.pop(_ROWS, None)
        with _named(round_number):
            if rows is None:
                return Stored(leaves.rebuilt(arrays, like), history, dtypes)
            state = leaves.rebuilt(arrays, per_client.without_rows(like))
            with_rows = client_rows.read(self._path / str(round_number) / client_rows.FILE, like, int(rows))
            return Stored(completed(state, with_rows), history, dtypes)

    def variables(self, round_number: int) -> dict[str, Any]:
        """The global parameters, under ``"params"``, and the model's statistics after a round, as nested dicts."""
        return variables_in(self._read(round_number)[0])

    def _read(self, round_number: int) -> tuple[dict[str, Any], dict[str, str]]:
        """The arrays of a checkpoint by name, and the dtypes of its history."""
        folder = self._path / str(round_number)
        with _named(round_number):
            record = records.read(folder)
            if self.run is not None and record.run not in (None, self.run):
                raise MismatchError(f"is of another run ({record.run}) than the folder ({self.run})")
            if self._config is not None and (found := records.difference(record.config, self._config)):
                raise MismatchError(f"is of a run with {found}")
            arrays, stored = leaves.read(folder / STATE)
            if stored != record.state:
                raise ValueError("does not match its checksum")
        self.run = self.run or record.run
        return arrays, dict(record.dtypes)


@contextlib.contextmanager
def _named(round_number: int) -> Iterator[None]:
    """Names the checkpoint in the message of an error; what is no mismatch is damage."""
    where = f"checkpoint of round {round_number}"
    try:
        yield
    except MismatchError as error:
        raise MismatchError(f"{where}: {error}") from None
    except Exception as error:  # Orbax and TensorStore raise many kinds, with messages of pages
        raise ValueError(f"{where}: damaged: {message_of(error)[:160]}") from error
