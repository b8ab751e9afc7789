"""Checkpoints of a run's state and history, written with Orbax.

The state is stored as a flat mapping from each leaf's path to an array, so that a checkpoint can be
read without knowing its classes, with the lines of ``metrics.jsonl`` up to its round, and with a checksum of both,
since Orbax does not notice a flipped bit. Of several processes the first writes and reads the whole state, so that a
run may go on with another number of them.
"""

import contextlib
import functools
import itertools
import json
import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from fedjax_drag import per_client
from fedjax_drag.experiment.run import client_rows
from fedjax_drag.experiment.run.errors import FolderError
from fedjax_drag.experiment.run.results import CHECKPOINTS, DAMAGED_CHECKPOINTS
from fedjax_drag.simulation.devices import row_file
from fedjax_drag.simulation.devices.host_state import completed
from fedjax_drag.simulation.devices.placement import fetch
from fedjax_drag.simulation.devices.processes import checksum, from_first, is_first
from fedjax_drag.simulation.planning.initial_params import CHECKSUM, leaf_name, variables_in
from fedjax_drag.simulation.result import TEST, choice_metric

KEEP = 2
"""How many of the newest are kept by default."""

_HISTORY = "history"

_ROWS = "client_rows"
"""The checksum of rows that are in a file beside the checkpoint."""

T = TypeVar("T")


class Stored(NamedTuple):
    """The contents of a checkpoint.

    Attributes:
      state: after its round.
      history: the lines of ``metrics.jsonl`` up to it; None in a checkpoint of an older version, which has none.
    """

    state: Any
    history: bytes | None


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
        rounds = checkpoints.rounds() if (folder / CHECKPOINTS).is_dir() else []
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
    """

    def __init__(self, folder: Path, keep: int = KEEP, keep_best: bool = True, writes: bool = False):
        self._path = (folder / CHECKPOINTS).absolute()
        self._aside = (folder / DAMAGED_CHECKPOINTS).absolute()
        self._keep, self._keep_best, self._writes = keep, keep_best, writes

    @property
    def _ocp(self) -> Any:
        import orbax.checkpoint as ocp  # imported here: slow, and only runs that write need it, after their compilation

        return ocp

    @functools.cached_property
    def _manager(self) -> Any:
        """Made on first use: it starts threads, and a sweep has many runs open at once."""
        from orbax.checkpoint import checkpoint_managers as policies

        self._path.mkdir(exist_ok=True)  # Orbax itself would wait for the other processes
        self._drop_damaged_accuracies()
        kept: list[Any] = [policies.LatestN(self._keep)]
        if self._keep_best:
            best = policies.BestN(get_metric_fn=_accuracy, n=1, keep_checkpoints_without_metrics=False)
            kept.append(best)
        alone = self._ocp.options.MultiprocessingOptions(primary_host=0, active_processes={0})
        options = self._ocp.CheckpointManagerOptions(
            preservation_policy=policies.AnyPreservationPolicy(kept),
            best_fn=_accuracy,
            create=False,
            cleanup_tmp_directories=self._writes,
            enable_async_checkpointing=False,
            multiprocessing_options=alone,
        )
        handlers = self._ocp.StandardCheckpointHandler(multiprocessing_options=alone)
        return self._ocp.CheckpointManager(self._path, item_handlers=handlers, options=options)

    def _drop_damaged_accuracies(self) -> None:
        """Removes accuracies that Orbax could not read at its start; their checkpoints cannot be the best."""
        for path in self._path.glob("*/metrics/metrics"):
            try:
                float(_accuracy(json.loads(path.read_text(encoding="utf-8"))))
            except (ValueError, KeyError, TypeError, RecursionError):
                path.unlink()

    def rounds(self) -> list[int]:
        """The rounds of all checkpoints, the newest last; damaged ones count."""
        return from_first(lambda: sorted(self._manager.all_steps()))

    def latest(self) -> int | None:
        """The round of the newest checkpoint, or None."""
        return max(self.rounds(), default=None)

    def best(self) -> int | None:
        """The round of the checkpoint with the highest accuracy, or None."""
        return from_first(lambda: self._manager.best_step())

    def save(self, round_number: int, state: Any, accuracy: float, history: bytes = b"", metric: str = TEST) -> None:
        """Stores ``state``; it is on disk, whole, when this returns. All processes that have parts of it must call.

        Args:
          round_number: rounds done.
          state: after them, or what :func:`on_host` made of it.
          accuracy: by which the best is chosen.
          history: the lines of ``metrics.jsonl`` so far.
          metric: which accuracy that is.
        """
        rows, leaves = row_file.found_in(state), on_host(state)
        if not is_first():
            return
        if history:
            leaves[_HISTORY] = np.frombuffer(history, np.uint8)
        manager, aside = self._manager, self._rows_aside(round_number)
        if rows is not None:
            leaves[_ROWS] = np.uint32(client_rows.write(rows, aside))
        leaves[CHECKSUM] = np.uint32(checksum(leaves))
        args = self._ocp.args.StandardSave(leaves)
        with _without_logs():
            manager.save(round_number, args=args, metrics={metric: float(accuracy)})
        if rows is not None:
            aside.replace(self._path / str(round_number) / client_rows.FILE)

    def _rows_aside(self, round_number: int) -> Path:
        """Where rows are written before the checkpoint that they belong to."""
        return self._path / f"{client_rows.FILE}.{round_number}"

    def newest(self, read: Callable[[int], T]) -> tuple[int, T] | None:
        """The newest checkpoint that can be read; newer ones are set aside, with a line that says so.

        Args:
          read: ``(round) -> contents``, such as :meth:`restore`; the message of its exception says what is wrong.

        Returns:
          Its round and what was read; None if there is no checkpoint.

        Raises:
          FolderError: there are checkpoints, and none can be read; nothing is moved.
        """
        faults: dict[int, str] = {}
        complete = self.rounds()
        for round_number in sorted({*complete, *self._named()}, reverse=True):
            try:
                if round_number not in complete:
                    raise ValueError(f"checkpoint of round {round_number}: damaged: Orbax regards it as incomplete")
                contents = read(round_number)
            except Exception as error:  # Orbax and TensorStore raise many kinds
                faults[round_number] = _reason(error)
                continue
            for damaged, reason in faults.items():
                from_first(self._set_aside, damaged)
                if is_first():
                    where = f"set aside in {DAMAGED_CHECKPOINTS}, going on from round {round_number}"
                    tqdm.write(f"{reason}; {where}", file=sys.stderr)
            if self._writes:
                from_first(self._prune)
            return round_number, contents
        if not faults:
            return None
        reason = "; ".join(faults.values())
        remedy = "to begin anew, remove that folder and resume"
        raise FolderError(f"{str(self._path)!r}: no checkpoint can be read; {remedy} ({reason})")

    def _named(self) -> list[int]:
        """The rounds of all folders that are named like a checkpoint, also those that Orbax regards as incomplete."""
        return from_first(lambda: [int(path.name) for path in self._path.iterdir() if path.name.isdecimal()])

    def _prune(self) -> None:
        """Removes checkpoints that are not to be kept, which a killed run may have left."""
        complete = sorted(self._manager.all_steps())
        for aside in self._path.glob(f"{client_rows.FILE}.*"):  # of a run that was killed while it wrote them
            round_number = int(aside.suffix[1:])
            if round_number in complete:
                aside.replace(self._path / str(round_number) / client_rows.FILE)
            else:
                aside.unlink()
        kept = {*complete[-self._keep :], *([self._manager.best_step()] if self._keep_best else [])}
        for round_number in {int(path.name) for path in self._path.iterdir() if path.name.isdecimal()} - kept:
            shutil.rmtree(self._path / str(round_number))
        self._manager.reload()

    def _set_aside(self, round_number: int) -> None:
        self._aside.mkdir(exist_ok=True)
        place = self._aside / str(round_number)
        for number in itertools.count(1):
            if not place.exists():
                break
            place = self._aside / f"{round_number}.{number}"
        (self._path / str(round_number)).rename(place)
        self._manager.reload()

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
        shapes = jax.eval_shape(_flatten, like)
        wanted = {name: leaf for name, leaf in shapes.items() if leaf.size}
        stored = from_first(self._read, round_number, wanted)
        history = stored.pop(_HISTORY).tobytes() if _HISTORY in stored else None
        of_rows = stored.pop(_ROWS, None)
        stored |= {name: jnp.zeros(leaf.shape, leaf.dtype) for name, leaf in shapes.items() if not leaf.size}
        state = jax.tree_util.tree_map_with_path(lambda path, leaf: _revive(stored[leaf_name(path)], leaf), like)
        if of_rows is not None:
            state = completed(state, self._with_rows(round_number, whole, int(of_rows)))
        return Stored(state, history)

    def _with_rows(self, round_number: int, like: Any, checksum: int) -> Any:
        """``like`` with the rows of clients that are in a file beside the checkpoint."""
        place, aside = self._path / str(round_number) / client_rows.FILE, self._rows_aside(round_number)
        try:
            return client_rows.read(place if place.exists() else aside, like, checksum)
        except ValueError as error:
            raise ValueError(f"checkpoint of round {round_number}: damaged: {error}") from error

    def variables(self, round_number: int) -> dict[str, Any]:
        """The global parameters, under ``"params"``, and the model's statistics after a round, as nested dicts."""
        return variables_in(self._read(round_number))

    def _stored(self, round_number: int) -> dict[str, Any]:
        """Shapes and dtypes of all that a checkpoint holds."""
        fault = f"checkpoint of round {round_number}: damaged"
        if not (self._path / str(round_number) / "default").is_dir():
            raise ValueError(f"{fault}: holds no state")
        try:
            metadata = dict(self._manager.item_metadata(round_number))
            return {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in metadata.items()}
        except Exception as error:
            raise ValueError(f"{fault}: {_reason(error)}") from error

    def _read(self, round_number: int, wanted: dict[str, Any] | None = None) -> dict[str, Any]:
        """The contents of a checkpoint with its history; the state must have the shapes in ``wanted``."""
        present = self._stored(round_number)
        beside = {name: present.pop(name) for name in (CHECKSUM, _HISTORY, _ROWS) if name in present}
        wanted = present if wanted is None else wanted
        for name in sorted({*wanted, *present}):
            here, there = (str(tree[name].shape) if name in tree else "nothing" for tree in (wanted, present))
            if here != there:
                fault = f"has {there} at {name}; must have {here} for this configuration"
                raise ValueError(f"checkpoint of round {round_number}: {fault}")
        try:
            stored = dict(self._manager.restore(round_number, args=self._ocp.args.StandardRestore(wanted | beside)))
        except Exception as error:
            raise ValueError(f"checkpoint of round {round_number}: damaged: {_reason(error)}") from error
        if CHECKSUM in beside and int(stored.pop(CHECKSUM)) != checksum(stored):
            raise ValueError(f"checkpoint of round {round_number}: damaged: does not match its checksum")
        return stored

    def close(self) -> None:
        """Closes Orbax's manager."""
        if "_manager" in vars(self):
            with contextlib.suppress(Exception):  # saving has already raised what went wrong
                self._manager.close()
            del self._manager


def on_host(state: Any) -> dict[str, Any]:
    """The leaves of a state by name, in host memory; of a CPU's state its own buffers. Rows in a file are left out.

    Of several processes all that have parts of the state must call.
    """
    in_memory = {name: leaf for name, leaf in _flatten(state).items() if not isinstance(leaf, row_file.FileRows)}
    leaves = {name: leaf for name, leaf in in_memory.items() if leaf.size}
    return fetch(leaves) if jax.distributed.is_initialized() else jax.device_get(leaves)


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


def _accuracy(metrics: Any) -> float:
    return metrics[choice_metric(metrics)]


def _reason(error: Exception) -> str:
    """The beginning of an error's message; Orbax's may be pages long."""
    first = next(iter(str(error).splitlines()), "") or type(error).__name__
    return first if len(first) <= 160 else first[:159] + "\N{HORIZONTAL ELLIPSIS}"


def _flatten(state: Any) -> dict[str, Any]:
    """Leaves by name, random keys as their raw data: Orbax stores plain arrays of at least one entry."""
    paths = jax.tree_util.tree_flatten_with_path(state)[0]

    def plain(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray):  # state that is kept on the host stays there
            return leaf
        return jax.random.key_data(leaf) if _is_key(leaf) else jnp.asarray(leaf)

    return {leaf_name(path): plain(leaf) for path, leaf in paths}


def _revive(stored: jax.Array, like: Any) -> jax.Array:
    if not _is_key(like):
        return stored
    impl = jax.random.key_impl(jnp.empty(0, jnp.result_type(like)))  # a shape alone does not say it
    return jax.random.wrap_key_data(stored, impl=impl)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)
