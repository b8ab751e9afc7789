"""Set-up, memory and rounds of a large federation, whose clients are rows of indices into the same examples.

Each contestant is measured in a process of its own.
"""

import functools
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

import fedjax_drag as fd
from benchmarks.timing import Row, check_names, in_own_process, peak_memory
from fedjax_drag.experiment.run.checkpoints import Checkpoints

SIZES = (1000, 100_000, 1_000_000)
COHORT, EXAMPLES_OF_CLIENT, EXAMPLES, CLASSES = 1000, 10, 60_000, 10
MOST_CHECKPOINT_BYTES = 2**30
"""Of rows in memory, all of which a checkpoint holds, above which it is not timed."""


@dataclass(frozen=True)
class Contestant:
    """A method on a federation.

    Attributes:
      title: name in the table.
      method: ``(number of clients) -> algorithm or rule``.
      small: whether the model is the small one, a row of which each client keeps.
      options: ``(number of clients) ->`` further keyword arguments of :func:`fedjax_drag.simulation.prepare`.
    """

    title: str
    method: Callable[[int], Any]
    small: bool = False
    options: Callable[[int], dict[str, Any]] = lambda _: {}

    def data(self, num_clients: int) -> fd.data.FederatedDataset:
        """Random images, and random rows of indices into them."""
        rng = np.random.default_rng(0)
        side = 8 if self.small else 28
        x = rng.integers(0, 256, (EXAMPLES, side, side, 1), dtype=np.uint8)
        y = rng.integers(0, CLASSES, EXAMPLES).astype(np.int32)
        data = fd.data.from_arrays(x, y, x[:1000], y[:1000], CLASSES, "random", (0.5,), (0.25,))
        rows = rng.integers(0, EXAMPLES, (num_clients, EXAMPLES_OF_CLIENT), dtype=np.int32)
        return replace(data, rows=rows, counts=np.full(num_clients, EXAMPLES_OF_CLIENT, np.int32), partition="shared")


CONTESTANTS = {
    "fedavg": Contestant("fedavg", lambda _: fd.aggregators.fedavg()),
    "availability": Contestant(
        "fedavg, a third away", lambda _: fd.aggregators.fedavg(), options=lambda _: {"availability": 2 / 3}
    ),
    "clock": Contestant(
        "fedavg, a clock",
        lambda _: fd.aggregators.fedavg(),
        options=lambda _: {"clock": fd.clocks.log_normal(sigma=1.0)},
    ),
    "asynchronous": Contestant(
        "fedbuff, 2,000 at work",
        lambda _: fd.aggregators.fedbuff(),
        options=lambda number: {
            "clock": fd.clocks.log_normal(sigma=1.0),
            "selection": fd.selection.asynchronous(min(2 * COHORT, number), max_staleness=8),
        },
    ),
    "root": Contestant("br_drag, root data of all", lambda _: fd.aggregators.br_drag()),
    "host": Contestant(
        "scaffold, host", lambda number: fd.algorithms.scaffold(number), True, lambda _: {"client_state": "host"}
    ),
    "disk": Contestant(
        "scaffold, disk", lambda number: fd.algorithms.scaffold(number), True, lambda _: {"client_state": "disk"}
    ),
}


def run(sizes: Sequence[int], chosen: Sequence[str], calls: int) -> list[Row]:
    """A row for each contestant and number of clients.

    Args:
      sizes: numbers of clients; none: :data:`SIZES`.
      chosen: names of contestants; none: all.
      calls: timed pairs of rounds.

    Raises:
      ValueError: a contestant is unknown.
    """
    check_names(chosen, CONTESTANTS)
    pairs = [(name, size) for name in chosen or CONTESTANTS for size in sizes or SIZES]
    return [in_own_process(measure, name, size, calls) for name, size in tqdm(pairs, leave=False, disable=None)]


def measure(name: str, num_clients: int, calls: int) -> Row:
    """Makes a federation and runs it in this process."""
    contestant = CONTESTANTS[name]
    started = time.perf_counter()
    data = contestant.data(num_clients)
    assert data.rows is not None
    assert data.counts is not None
    made = time.perf_counter()
    simulation = fd.simulation.prepare(
        contestant.method(num_clients),
        model=fd.models.mlp(CLASSES, hidden=(16,) if contestant.small else (64,)),
        data=data,
        num_rounds=2 * (calls + 1),
        eval_every=2,
        cohort_size=COHORT,
        local_steps=5,
        batch_size=10,
        step_size=0.01,
        clients_axis="map",
        mesh=None,
        **contestant.options(num_clients),
    )
    prepared = time.perf_counter()
    looks: list[float] = []
    result = simulation.run([lambda _: looks.append(time.perf_counter())])
    rows = [x for part in simulation.federation._replace(train=()) for x in jax.tree.leaves(part)]
    return {
        "program": contestant.title,
        "clients": num_clients,
        "data_s": made - started,
        "prepare_s": prepared - made,
        "compile_s": result.compile_seconds,
        "round_s": statistics.median(np.diff(looks)) / 2,
        "host_bytes": (data.rows.nbytes + data.counts.nbytes) / num_clients,
        "device_bytes": sum(x.nbytes for x in rows) / num_clients,
        "state_bytes": simulation.client_state_bytes / num_clients,
        "peak_memory_mib": peak_memory(),
    } | _checkpoint(simulation, result.state)


def _checkpoint(simulation: fd.simulation.Simulation, state: Any) -> Row:
    """Seconds and size of a checkpoint of ``state``, and seconds to read it; nothing where rows are too many."""
    on_disk = simulation.outline.rows_on == "disk"
    if not on_disk and simulation.client_state_bytes > MOST_CHECKPOINT_BYTES:
        return dict.fromkeys(("saved_s", "saved_mib", "restored_s"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checkpoints = Checkpoints(folder)
        checkpoints.save(0, state, 0.0)  # Orbax is imported, and its threads started
        times = [_seconds(functools.partial(checkpoints.save, 1, state, 0.0))]
        size = sum(path.stat().st_size for path in folder.glob("checkpoints/1/**/*") if path.is_file())
        times.append(_seconds(functools.partial(checkpoints.restore, 1, simulation.shapes)))
    return {"saved_s": times[0], "saved_mib": size / 2**20, "restored_s": times[1]}


def _seconds(function: Callable[[], Any]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started
