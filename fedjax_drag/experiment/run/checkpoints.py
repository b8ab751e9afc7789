"""Checkpoints of a run's state and history, written with Orbax.

The state is stored as a flat mapping from each leaf's path to an array, so that a checkpoint can be
read without knowing its classes, with the lines of ``metrics.jsonl`` up to its round, and with a checksum of both,
since Orbax does not notice a flipped bit. A record beside it says what it is
(:mod:`~fedjax_drag.experiment.run.stored.records`). Of several processes the first writes and reads the whole state, so
that a run may go on with another number of them.
"""

import contextlib
import functools
import itertools
import logging
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from fedjax_drag import per_client
from fedjax_drag.experiment.config.config import Config
from fedjax_drag.experiment.run.errors import FolderError, MismatchError, reason_of
from fedjax_drag.experiment.run.results import CHECKPOINTS, DAMAGED_CHECKPOINTS, RUN, read_environment
from fedjax_drag.experiment.run.stored import client_rows, leaves, records
from fedjax_drag.experiment.run.stored.records import Record
from fedjax_drag.simulation.devices import host_state
from fedjax_drag.simulation.devices.host_state import completed
from fedjax_drag.simulation.devices.processes import checksum, from_first, is_first
from fedjax_drag.simulation.model.initial_params import CHECKSUM, STATE, leaf_name, variables_in

KEEP = 2
"""How many of the newest are kept by default."""

_PARTIAL = ".partial"
"""How the name of a checkpoint that is being written goes on after its round."""

_HISTORY = "history"

_ROWS = "client_rows"
"""The checksum of rows that are in a file beside the checkpoint."""

T = TypeVar("T")


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
      which: ``"latest"``, ``"best"`` (of those that are kept the one with the highest validation accuracy, test
        accuracy where the data have no validation split; of equal ones the newest), or the round of a checkpoint.

    Returns:
      Nested dicts of arrays by collection, as Flax has them: ``model.apply(variables, x)``.

    Raises:
      FileNotFoundError: there is no such folder or checkpoint.
      ValueError: ``which`` is something else, or the checkpoint is damaged.

    Examples:
      >>> variables = load_variables("runs/quickstart", "best")  # doctest: +SKIP
    """
    if isinstance(which, bool) or not (isinstance(which, int) or which in ("latest", "best")):
        raise ValueError(f"which={which!r}: must be 'latest', 'best' or the round of a checkpoint")
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{str(folder)!r}: no such results folder")
    with contextlib.closing(Checkpoints(folder)) as checkpoints:
        rounds = checkpoints.rounds()
        round_number = which if isinstance(which, int) else None
        if rounds and round_number is None:
            round_number = rounds[-1] if which == "latest" else checkpoints.best()
        if round_number not in rounds:
            there = f"there are those of rounds {', '.join(map(str, rounds))}" if rounds else "there is none"
            raise FileNotFoundError(f"{str(folder)!r}: no checkpoint {which!r}; {there}")
        return checkpoints.variables(round_number)


class Checkpoints:
    """The checkpoints of one results folder.

    Args:
      folder: the run's results folder.
      keep: how many of the newest are kept, >= 1.
      keep_best: whether the one with the highest validation accuracy is kept as well; test accuracy where the run has
        no validation split.
      writes: whether the caller writes them: then what a killed run left half written is removed.
      config: of the run that writes them or goes on from them; None to read those of any configuration.

    Attributes:
      run: the name of the run that they must be of; None for any.
    """

    def __init__(
        self,
        folder: Path,
        keep: int = KEEP,
        keep_best: bool = True,
        writes: bool = False,
        config: Config | None = None,
    ):
        self._path = (folder / CHECKPOINTS).absolute()
        self._aside = (folder / DAMAGED_CHECKPOINTS).absolute()
        self._keep, self._keep_best, self._writes, self._config = keep, keep_best, writes, config
        run = read_environment(folder).get(RUN)
        self.run = run if isinstance(run, str) else None

    @functools.cached_property
    def _orbax(self) -> Any:
        """Made on first use: it is slow to import, and a sweep has many runs open at once."""
        alone = self._ocp.options.MultiprocessingOptions(primary_host=0, active_processes={0})
        handler = self._ocp.StandardCheckpointHandler(multiprocessing_options=alone)
        return self._ocp.Checkpointer(handler, multiprocessing_options=alone)

    @property
    def _ocp(self) -> Any:
        import orbax.checkpoint as ocp  # imported here: slow, and only runs that write need it, after their compilation

        return ocp

    def rounds(self) -> list[int]:
        """The rounds of all checkpoints, the newest last; damaged ones count."""
        return from_first(self._rounds)

    def _rounds(self) -> list[int]:
        names = [path.name for path in self._path.iterdir() if path.is_dir()] if self._path.is_dir() else []
        return sorted(int(name) for name in names if name.isdecimal() and name == str(int(name)))

    def latest(self) -> int | None:
        """The round of the newest checkpoint, or None."""
        return max(self.rounds(), default=None)

    def best(self) -> int | None:
        """The round of the checkpoint with the highest accuracy, of equal ones the newest; None without one.

        Raises:
          ValueError: the accuracy of one is damaged.
        """
        return from_first(
            lambda: max(self._rounds(), key=lambda number: (self._accuracy(number), number), default=None)
        )

    def _accuracy(self, round_number: int) -> float:
        """By which the best is chosen; -inf for one that is not finite."""
        accuracy = self._record(round_number).accuracy
        return accuracy if accuracy is not None and np.isfinite(accuracy) else -np.inf

    def _record(self, round_number: int) -> Record:
        """What a checkpoint is."""
        return records.read(self._path / str(round_number))

    def save(
        self,
        round_number: int,
        state: Any,
        accuracy: float,
        history: bytes = b"",
        dtypes: Mapping[str, str] | None = None,
    ) -> None:
        """Stores ``state``; it is on disk, whole, when this returns. All processes that have parts of it must call.

        Args:
          round_number: rounds done.
          state: after them, or what :func:`~fedjax_drag.experiment.run.stored.leaves.on_host` made of it.
          accuracy: by which the best is chosen.
          history: the lines of ``metrics.jsonl`` so far.
          dtypes: names of those of its columns.
        """
        rows, arrays = host_state.found_in(state), leaves.on_host(state)
        if not is_first():
            return
        if history:
            arrays[_HISTORY] = np.frombuffer(history, np.uint8)
        self._path.mkdir(exist_ok=True)
        partial, place = self._path / f"{round_number}{_PARTIAL}", self._path / str(round_number)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        try:
            if rows is not None:
                arrays[_ROWS] = np.uint32(client_rows.write(rows, partial / client_rows.FILE))
            arrays[CHECKSUM] = np.uint32(checksum(arrays))
            with _without_logs():
                self._orbax.save(partial / STATE, args=self._ocp.args.StandardSave(arrays))
            mapping = {} if self._config is None else records.plain_mapping(self._config)
            number = float(accuracy) if np.isfinite(accuracy) else None
            records.write(partial, Record(round_number, number, int(arrays[CHECKSUM]), self.run, mapping, dtypes or {}))
            if place.exists():
                shutil.rmtree(place)
            partial.rename(place)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        self._prune()

    def newest(self, read: Callable[[int], T]) -> tuple[int, T] | None:
        """The newest checkpoint that can be read; newer ones are set aside, with a line that says so.

        Args:
          read: ``(round) -> contents``, such as :meth:`restore`; the message of its exception says what is wrong.

        Returns:
          Its round and what was read; None if there is no checkpoint.

        Raises:
          FolderError: there are checkpoints, and none can be read; nothing is moved.
        """
        faults: dict[int, Exception] = {}
        for round_number in reversed(self.rounds()):
            try:
                contents = read(round_number)
            except Exception as error:  # Orbax and TensorStore raise many kinds
                faults[round_number] = error
                continue
            for damaged, error in faults.items():
                from_first(self._set_aside, damaged)
                if is_first():
                    where = f"set aside in {DAMAGED_CHECKPOINTS}, going on from round {round_number}"
                    tqdm.write(f"{reason_of(error)}; {where}", file=sys.stderr)
            if self._writes and self._keep:
                from_first(self._prune)
            return round_number, contents
        if not faults:
            return None
        reason = "; ".join(map(reason_of, faults.values()))
        if any(isinstance(error, MismatchError) for error in faults.values()):
            raise FolderError(f"{str(self._path)!r}: no checkpoint is of this run: {reason}")
        remedy = "to begin anew, remove that folder and resume"
        raise FolderError(f"{str(self._path)!r}: no checkpoint can be read; {remedy} ({reason})")

    def _prune(self) -> None:
        """Removes checkpoints that are not to be kept, and what a killed run has left of them."""
        accuracies: dict[int, float] = {}
        for round_number in self._rounds():
            accuracies[round_number] = -np.inf
            with contextlib.suppress(ValueError):  # damaged: it cannot be the best
                accuracies[round_number] = self._accuracy(round_number)
        kept = {*list(accuracies)[-self._keep :]}
        if self._keep_best and accuracies:
            kept.add(max(accuracies, key=lambda number: (accuracies[number], number)))
        for path in self._path.iterdir():
            number, dot, rest = path.name.partition(".")
            is_partial = number.isdecimal() and dot + rest == _PARTIAL
            if is_partial or path.name in {str(number) for number in accuracies.keys() - kept}:
                shutil.rmtree(path)

    def _set_aside(self, round_number: int) -> None:
        self._aside.mkdir(exist_ok=True)
        place = self._aside / str(round_number)
        for number in itertools.count(1):
            if not place.exists():
                break
            place = self._aside / f"{round_number}.{number}"
        (self._path / str(round_number)).rename(place)

    def restore(self, round_number: int, like: Any) -> Stored:
        """Reads the state of a round, and the history up to it.

        Args:
          round_number: one that was saved.
          like: a state of the same structure, shapes and types (arrays or ``jax.ShapeDtypeStruct``).

        Raises:
          ValueError: the stored state has another structure, or is damaged.
        """
        whole = like
        if from_first(lambda: _ROWS in self._stored(round_number)):
            like = per_client.without_rows(like)
        shapes = jax.eval_shape(leaves.flattened, like)
        wanted = {name: leaf for name, leaf in shapes.items() if leaf.size}
        stored = from_first(self._read, round_number, wanted)
        history = stored.pop(_HISTORY).tobytes() if _HISTORY in stored else b""
        of_rows = stored.pop(_ROWS, None)
        stored |= {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in shapes.items() if not leaf.size}
        state = jax.tree_util.tree_map_with_path(lambda path, leaf: leaves.revived(stored[leaf_name(path)], leaf), like)
        if of_rows is not None:
            state = completed(state, self._with_rows(round_number, whole, int(of_rows)))
        return Stored(state, history, from_first(lambda: dict(self._record(round_number).dtypes)))

    def _with_rows(self, round_number: int, like: Any, checksum: int) -> Any:
        """``like`` with the rows of clients that are in a file beside the checkpoint."""
        try:
            return client_rows.read(self._path / str(round_number) / client_rows.FILE, like, checksum)
        except ValueError as error:
            raise ValueError(f"checkpoint of round {round_number}: damaged: {error}") from error

    def variables(self, round_number: int) -> dict[str, Any]:
        """The global parameters, under ``"params"``, and the model's statistics after a round, as nested dicts."""
        return variables_in(self._read(round_number))

    def _stored(self, round_number: int) -> dict[str, Any]:
        """Shapes and dtypes of all that a checkpoint holds."""
        fault = f"checkpoint of round {round_number}: damaged"
        if not (self._path / str(round_number) / STATE).is_dir():
            raise ValueError(f"{fault}: holds no state")
        try:
            with _without_logs():
                metadata = dict(self._orbax.metadata(self._path / str(round_number) / STATE).item_metadata)
            return {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in metadata.items()}
        except Exception as error:
            raise ValueError(f"{fault}: {reason_of(error)}") from error

    def _read(self, round_number: int, wanted: dict[str, Any] | None = None) -> dict[str, Any]:
        """The contents of a checkpoint with its history; the state must have the shapes and dtypes in ``wanted``."""
        where = f"checkpoint of round {round_number}"
        record, present = self._record(round_number), self._stored(round_number)
        self._check_origin(where, record)
        state = {name: leaf for name, leaf in present.items() if name not in (CHECKSUM, _HISTORY, _ROWS)}
        if wanted is not None:
            leaves.check_fits(where, state, wanted)
        place, args = self._path / str(round_number) / STATE, self._ocp.args.StandardRestore(present)
        try:
            with _without_logs():
                stored = dict(self._orbax.restore(place, args=args))
        except Exception as error:
            raise ValueError(f"{where}: damaged: {reason_of(error)}") from error
        found = int(stored.pop(CHECKSUM, -1))
        if found != checksum(stored) or found != record.state:
            raise ValueError(f"{where}: damaged: does not match its checksum")
        return stored

    def _check_origin(self, where: str, record: Record) -> None:
        """Refuses a checkpoint of another run, or of another configuration."""
        if self.run is not None and record.run not in (None, self.run):
            raise MismatchError(f"{where}: is of another run ({record.run}) than the folder ({self.run})")
        if self._config is not None and record.config and (found := records.difference(record.config, self._config)):
            raise MismatchError(f"{where}: is of a run with {found}")

    def origin(self, round_number: int) -> str | None:
        """The name of the run that the folder is of, or else that wrote a checkpoint."""
        return from_first(lambda: self.run or self._record(round_number).run)

    def close(self) -> None:
        """Closes what Orbax has opened."""
        if "_orbax" in vars(self):
            with contextlib.suppress(Exception):  # saving has already raised what went wrong
                self._orbax.close()
            del self._orbax


@contextlib.contextmanager
def _without_logs() -> Iterator[None]:
    """Silences the log, where Orbax writes pages about what it also raises."""
    logger = logging.getLogger("absl")

    def none(_: logging.LogRecord) -> bool:
        return False

    logger.addFilter(none)
    try:
        yield
    finally:
        logger.removeFilter(none)
