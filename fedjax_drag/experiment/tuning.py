"""How one run is computed fastest on this machine: the alternatives measured, one question after another.

Nothing else in the package is timed. Each question is about keys that change how a run is computed and not what: the
way over the clients of a round, the devices that share them, the visits to the host. Its alternatives are measured with
the answers to the questions before it.
"""

import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fedjax_drag import checks
from fedjax_drag.data import FederatedDataset
from fedjax_drag.experiment.build import build
from fedjax_drag.experiment.build.experiment import Source, load_experiment
from fedjax_drag.experiment.config.config import Config
from fedjax_drag.experiment.config.yaml_text import written
from fedjax_drag.experiment.run.planning import Federations
from fedjax_drag.files import replaced
from fedjax_drag.simulation import Evaluation, Simulation, trace
from fedjax_drag.simulation.devices import memory, placement
from fedjax_drag.simulation.run import PRECISIONS

PRESENT = "present setting"
"""The setting of the first row."""

CHUNKS = (2, 8, 32, 128, 512)
"""Clients at once that are tried, as far as they are fewer than the cohort."""

QUICK_CHUNKS = (8,)

READINGS, QUICK_READINGS = 5, 3

CLEARLY = 0.97
"""Share of the time of the best so far that another setting may take at most to be chosen."""


class Timing(NamedTuple):
    """One setting, measured.

    Attributes:
      setting: what is changed, as ``key=value``.
      keys: the configuration's keys that it changes, with their values.
      seconds: of a round, the median over intervals from evaluation to evaluation; None where it could not be run.
      ratio: its seconds over those of the present setting; None where either is missing.
      bytes: memory of the program of rounds on each device; None where it is not known.
      note: why it was not run, or what else there is to say.
    """

    setting: str
    keys: Mapping[str, Any]
    seconds: float | None = None
    ratio: float | None = None
    bytes: int | None = None
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Tuning:
    """What was measured of a run; printed, it is the table.

    Attributes:
      rows: the settings in the order in which they were measured, the present one first.
      keys: the keys that make the run faster, with their values; empty if nothing is clearly faster.
      config: the configuration with these keys.
    """

    rows: tuple[Timing, ...]
    keys: Mapping[str, Any]
    config: Config

    def __str__(self) -> str:
        return "\n".join([HEAD, *map(line, self.rows), "", self.conclusion])

    @property
    def conclusion(self) -> str:
        """The choice in one line."""
        if not self.keys:
            return "nothing is clearly faster than the present setting"
        return f"fastest: {_shown(self.keys)}"


def tune(
    config: Source,
    overrides: Iterable[str] = (),
    rounds: int = 10,
    quick: bool = False,
    write: str | Path | None = None,
    allow_code: bool = False,
    callback: Callable[[Timing], Any] | None = None,
) -> Tuning:
    """Measures how a run is computed fastest on this machine.

    One setting after another is compiled and timed for some rounds: the ways over the clients of a round
    (``clients_axis``, ``clients_per_chunk``), where there are several devices those that share the clients (``mesh``),
    and visits to the host (``rounds_per_compile``). What is clearly faster is kept for the next question. On
    accelerators the precisions of products follow (``matmul_precision``); they change results, so that none is chosen.
    A setting that cannot be run, such as one that needs too much memory, is named and passed over.

    Args:
      config: of one run, as for :func:`~fedjax_drag.experiment.run.run.run`.
      overrides: ``key=value`` strings.
      rounds: rounds between two readings of the clock, >= 1; at most ``eval_every`` of them are taken. An evaluation
        follows them, whose time counts as well.
      quick: fewer readings, and fewer alternatives.
      write: a new file for the configuration with the keys that were chosen; None writes none.
      allow_code: whether to run code that ``config`` refers to.
      callback: called with each row as soon as it is there; default None.

    Returns:
      A :class:`Tuning`.

    Raises:
      ValueError: the configuration is not valid, or is not one run; or ``write`` is there already.
      OSError: ``write`` cannot be written.
      KeyboardInterrupt: stopped by Ctrl-C; its attribute ``result`` is the :class:`Tuning` so far.

    Examples:
      >>> print(fd.tune("quickstart", ["cohort_size=40"], write="faster.yaml"))  # doctest: +SKIP
    """
    checks.count("rounds", rounds, 1)
    if write is not None and Path(write).exists():
        raise ValueError(f"write={str(write)!r}: is there already; name another file")
    asked = load_experiment(config, overrides, allow_code).config
    if asked.compare is not None:
        raise ValueError(f"compare={list(asked.compare)}: one run is measured at a time; must be null")
    if write is not None:
        Path(write).parent.mkdir(parents=True, exist_ok=True)
    opened = nullcontext() if write is None else replaced(Path(write))  # fails before anything is measured
    with opened as file, placement.sharing():  # all settings have the same data
        clock = _Clock(asked, Federations().split(asked), min(rounds, asked.eval_every), quick, callback)
        try:
            clock.answer()
        except KeyboardInterrupt as stopped:
            stopped.result = clock.tuning()  # pyright: ignore[reportAttributeAccessIssue]
            raise
        tuning = clock.tuning()
        if file is not None:
            file.write(written(tuning.config.to_mapping()).encode())
    return tuning


@dataclasses.dataclass
class _Clock:
    """The measurements of one run; ``best`` has the answers so far."""

    asked: Config
    fed: FederatedDataset
    interval: int
    quick: bool
    callback: Callable[[Timing], Any] | None
    rows: list[Timing] = dataclasses.field(default_factory=list)
    best: Timing = dataclasses.field(default_factory=lambda: Timing(PRESENT, {}))
    known: dict[Any, Timing] = dataclasses.field(default_factory=dict)

    def answer(self) -> None:
        """Measures the present setting, then the alternatives of every question."""
        _ = self._traced({})  # a configuration that is wrong is refused, not passed over
        self.best = self._measured({})
        for alternatives in self._questions():
            before = self.best
            for keys in alternatives:
                row = self._measured(keys, before.keys)
                if row.seconds is not None and (self.best.seconds is None or row.seconds < CLEARLY * self.best.seconds):
                    self.best = row
        if not self.quick and jax.default_backend() != "cpu":
            for precision in PRECISIONS[1:]:
                self._measured({"matmul_precision": precision}, self.best.keys, "changes results: not chosen")

    def tuning(self) -> Tuning:
        """What is known so far."""
        keys = {key: value for key, value in self.best.keys.items() if value != getattr(self.asked, key)}
        return Tuning(tuple(self.rows), keys, dataclasses.replace(self.asked, **keys))

    def _questions(self) -> list[list[dict[str, Any]]]:
        """The alternatives of each question: ways over the clients, devices that share them, visits to the host."""
        chunks = [size for size in (QUICK_CHUNKS if self.quick else CHUNKS) if size < self.asked.cohort_size]
        ways = [("map", None), *(("map", size) for size in chunks), ("vmap", None)]
        questions: list[list[dict[str, Any]]] = [[{"clients_axis": way, "clients_per_chunk": n} for way, n in ways]]
        if jax.local_device_count() > 1:
            questions.append([{"mesh": None}, {"mesh": "cores"}])
        if not self.quick:
            questions.append([{"rounds_per_compile": None}, {"rounds_per_compile": 1}])
        return questions

    def _traced(self, keys: Mapping[str, Any]) -> Simulation:
        readings = QUICK_READINGS if self.quick else READINGS
        # Whether a run is worth sharing depends on its length: that of the configuration.
        traced = build.traced(trace, build.settings(dataclasses.replace(self.asked, **keys), self.fed))
        return dataclasses.replace(
            traced,
            num_rounds=(readings + 1) * self.interval,
            eval_every=self.interval,
            rounds_per_compile=min(traced.rounds_per_compile, self.interval),
            time_clients=False,
            stop_on_divergence=False,
        )

    def _measured(self, changes: Mapping[str, Any], before: Mapping[str, Any] | None = None, note: str = "") -> Timing:
        """The row of a setting: changes to the answers before."""
        said = dict(changes)
        if self.asked.clients_per_chunk is None and changes.get("clients_per_chunk", 0) is None:
            said.pop("clients_per_chunk", None)  # as it is
        row = Timing(_shown(said) or PRESENT, {**(before or {}), **changes}, note=note)
        try:
            simulation = self._traced(row.keys)
            precision = simulation.spec.matmul_precision
            program = (simulation.batching, simulation.mesh, simulation.rounds_per_compile, precision)
            if program in self.known:  # such as clients_axis=auto and what it stands for
                same = self.known[program]
                row = same._replace(setting=row.setting, keys=row.keys, note=note or f"same as {same.setting}")
            else:
                seconds = _seconds(simulation, self.interval)
                needed = memory.needed(simulation.lowered.advance.compile()) or None
                first = self.rows[0].seconds if self.rows else seconds
                row = row._replace(seconds=seconds, ratio=first and seconds / first, bytes=needed)
                self.known[program] = row
        except (ValueError, MemoryError, jax.errors.JaxRuntimeError) as error:
            if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
                raise
            row = row._replace(note=f"cannot be run: {next(iter(str(error).splitlines()), 'out of memory')}")
        self.rows.append(row)
        if self.callback is not None:
            self.callback(row)
        return row


def _seconds(simulation: Simulation, interval: int) -> float:
    """Median seconds of a round, over the intervals from evaluation to evaluation; the first one is not counted."""
    times: list[float] = []

    def read(event: Evaluation) -> None:
        jax.block_until_ready(event.state)
        times.append(time.perf_counter())

    simulation.run([read])
    return statistics.median(after - before for before, after in itertools.pairwise(times)) / interval


_WIDTH = 44
"""Of the column of settings; rows are printed one by one, before the longest is known."""

HEAD = f"{'':<{_WIDTH}}  {'ms a round':>10}  {'ratio':>6}  {'MiB':>9}"


def line(row: Timing) -> str:
    """A row of the table."""
    seconds = "-" if row.seconds is None else f"{1e3 * row.seconds:.3f}"
    ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
    size = "-" if row.bytes is None else f"{row.bytes / 2**20:,.1f}"
    return f"{row.setting:<{_WIDTH}}  {seconds:>10}  {ratio:>6}  {size:>9}  {row.note}".rstrip()


def _shown(keys: Mapping[str, Any]) -> str:
    """``key=value`` words as the command line takes them."""
    return " ".join(f"{key}={'null' if value is None else value}" for key, value in keys.items())
