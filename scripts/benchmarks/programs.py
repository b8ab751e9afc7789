"""Whole programs on an accelerator: compiled beside each other, each by a process of its own, and then timed in turn.

What takes the time on an accelerator that is lent for minutes is compilation, in which XLA tries out kernels. The
programs of all rows compile at once, on as many cores as there are; none is timed before all are ready, or most of the
time of the call is over: then a row says that others were still compiling, which may have slowed it down.
"""

import contextlib
import dataclasses
import json
import os
import selectors
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax

import fedjax_drag as fd
from benchmarks.profiling import recorded
from benchmarks.roofline import planned_ms
from benchmarks.timing import Row
from benchmarks.workloads import COLOUR, NUM_CLASSES, WORKLOADS, Workload
from fedjax_drag.simulation.batch import BatchSimulation, prepare_batch
from fedjax_drag.simulation.devices.memory import needed
from fedjax_drag.simulation.settings import Settings

SCRIPTS = Path(__file__).parents[1]
FILE = "programs.json"
READY = "ready"
_KERNELS = 12  # of a profile
_WAIT = 0.6  # of the time of a call, after which what is ready is timed


@dataclasses.dataclass(frozen=True)
class Program:
    """Cells that run as one program.

    Attributes:
      work: the setting.
      cells: seeds.
      rounds: in a timed call.
      rule: aggregates.
      options: further settings of a cell.
    """

    work: Workload
    cells: int
    rounds: int
    rule: Callable[[], Any] = fd.aggregators.fedavg
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


_COLOUR_CNN = dataclasses.replace(
    WORKLOADS["cnn"], title="CNN 32x32", model=lambda: fd.models.cnn(NUM_CLASSES, "cifar10"), image_shape=COLOUR
)
_PFL = dataclasses.replace(
    WORKLOADS["cifar10"],
    model=lambda: fd.models.cnn(NUM_CLASSES, "pooled_once", dropout=(0.25, 0.5)),
    test_examples=10_000,
)
_MLP = dataclasses.replace(WORKLOADS["mlp"], cohort_size=10)
_FLIPS = {"attack": fd.attacks.sign_flip(), "byzantine_fraction": 0.3}
_DRAG = lambda: fd.aggregators.drag(c=0.25, alpha=0.25)

PROGRAMS = {
    "cnn32": Program(_COLOUR_CNN, 8, 100),
    "cnn28": Program(WORKLOADS["cnn"], 6, 100, _DRAG),
    "mlp": Program(_MLP, 12, 600),
    "mlp-br_drag": Program(_MLP, 12, 600, lambda: fd.aggregators.br_drag(c=0.5), _FLIPS),
    "mlp-raga": Program(_MLP, 12, 100, fd.aggregators.raga, _FLIPS),
    "cnn32-raga": Program(_COLOUR_CNN, 8, 50, fd.aggregators.raga, _FLIPS),
    "w1": Program(WORKLOADS["cnn"], 1, 100, _DRAG),
    "w2": Program(WORKLOADS["lenet"], 1, 10),
    "w3": Program(WORKLOADS["mlp"], 1, 200),
    "pfl": Program(_PFL, 1, 1500, options={"eval_every": 10}),
}
"""By name: the sweeps of the papers, the three workloads of a round, and the benchmark of pfl-research."""

TORCH = {"torch-w1": ("cnn", 5), "torch-w2": ("lenet", 1), "torch-w3": ("mlp", 5), "torch-pfl": ("cifar10", 2)}
"""The plain loop in PyTorch over the clients of a workload, and how many rounds are timed."""

PRECISIONS = {
    "float32": {"matmul_precision": "float32"},
    "tensorfloat32": {"matmul_precision": "tensorfloat32"},
    "bfloat16": {"compute_dtype": "bfloat16"},
}
"""Options of a run by what follows a colon in the name of a row."""


def names() -> list[str]:
    """Of all rows, in the order of what they decide."""
    return [*PROGRAMS, "cnn32:float32", "cnn32:bfloat16", "mlp:float32", *(TORCH if find_spec("torch") else ())]


def run(chosen: Sequence[str], out: Path, minutes: float, profile: bool = False, before: Path | None = None) -> Path:
    """Measures rows that are not measured yet and returns the file that has them all.

    Args:
      chosen: names; none: those of :func:`names`. In front of one, ``before/`` takes it from the tree ``before``.
      out: folder of the file.
      minutes: for this call.
      profile: whether the kernels that take the time are listed too.
      before: root of another tree.

    Raises:
      ValueError: a name is unknown, or no row is measured when the time is over.
    """
    for name in chosen:
        _check(name, before)
    out.mkdir(parents=True, exist_ok=True)
    file, started = out / FILE, time.perf_counter()
    rows = json.loads(file.read_text()) if file.exists() else {}
    children = {name: _start(name, profile, before) for name in chosen or names() if name not in rows}
    left = lambda share: max(0.0, 60 * minutes * share - (time.perf_counter() - started))
    try:
        ready = [name for name, child in children.items() if _line(child, left(_WAIT)) == READY]
        late = [name for name, child in children.items() if name not in ready and child.poll() is None]
        for name in (*ready, *late):
            child = children[name]
            with contextlib.suppress(BrokenPipeError):
                print("go", file=child.stdin, flush=True)
            answer = _line(child, left(1.0))
            while answer == READY:
                answer = _line(child, left(1.0))
            if answer:
                rows[name] = json.loads(answer) | {"beside": "compilation" if late and name != late[-1] else ""}
                file.write_text(json.dumps(rows, indent=1))
                print(name, answer[:160], file=sys.stderr, flush=True)
    finally:
        for child in children.values():
            child.kill()
            child.communicate()
    if not rows:
        raise ValueError(f"--minutes {minutes:g}: no row was measured in that time")
    return file


def table_rows(file: Path) -> list[Row]:
    """The rows of a file, without their kernels."""
    columns = (
        "program",
        "ms_per_round",
        "rounds_of_a_cell_per_second",
        "planned_ms",
        "busy_ms",
        "compile_s",
        "beside",
        "device",
    )
    rows = json.loads(file.read_text())
    return [{column: {"program": name, **row}.get(column) for column in columns} for name, row in rows.items()]


def _check(name: str, before: Path | None) -> None:
    own, _, precision = name.removeprefix("before/").partition(":")
    if own not in (*PROGRAMS, *TORCH) or (precision and precision not in PRECISIONS):
        raise ValueError(f"{name!r}: must be one of {', '.join(names())}")
    if name.startswith("before/") and before is None:
        raise ValueError(f"{name!r}: needs --against, the root of the other tree")


def _start(name: str, profile: bool, before: Path | None) -> subprocess.Popen[str]:
    own = name.removeprefix("before/")
    tree = before if own != name and before is not None else SCRIPTS.parent
    path = os.pathsep.join([str(tree.absolute()), str(SCRIPTS), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    if own in TORCH:
        environment["JAX_PLATFORMS"] = "cpu"  # PyTorch has the device
    # The plan is this tree's.
    flags = (["--profile"] if profile else []) + (["--planned"] if own == name else [])
    command = [sys.executable, "-m", __name__, own, *flags]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, **pipes)


def _line(child: subprocess.Popen[str], seconds: float) -> str:
    """The next line of a process; nothing where it has ended, or does not answer in time."""
    assert child.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        return child.stdout.readline().strip() if selector.select(seconds) else ""


# --- in the process of a row


def measure(name: str, profile: bool, planned: bool) -> Row:
    """Compiles a row, waits for its turn, and times it; ``planned`` says whether to add what the plan says of it."""
    if name in TORCH:
        return _measure_torch(*TORCH[name])
    own, _, precision = name.partition(":")
    program = PROGRAMS[own]
    settings: dict[str, Any] = program.work.settings() | {"num_rounds": program.rounds, "eval_every": program.rounds}
    settings |= {"time_clients": False, "clients_axis": "vmap", **program.options, **PRECISIONS.get(precision, {})}
    algorithm, data = fd.algorithms.from_aggregator(program.rule()), program.work.data()
    cells = [Settings(algorithm=algorithm, data=data, seed=seed, **settings) for seed in range(program.cells)]
    batch = prepare_batch(cells).compile()
    _take_turn()
    seconds = [_seconds(batch) for _ in range(3)][1:]
    used = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    program_of_rounds = batch.lowered.advance.compile()
    row = {
        "ms_per_round": 1e3 * min(seconds) / program.rounds,
        "rounds_of_a_cell_per_second": program.cells * program.rounds / min(seconds),
        "planned_ms": planned_ms(program_of_rounds) if planned else None,  # the loop over rounds counts once
        "planned_mib": needed(program_of_rounds) / 2**20 if planned else None,
        "peak_mib": used / 2**20 if used else None,
        "compile_s": round(batch.compile_seconds, 1),
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
    }
    return row | (_profile(batch, program.rounds) if profile else {})


def _seconds(batch: BatchSimulation) -> float:
    started = time.perf_counter()
    batch.run(range(batch.width))
    return time.perf_counter() - started


def _measure_torch(workload: str, rounds: int) -> Row:
    import torch  # pyright: ignore[reportMissingImports]

    from benchmarks.torch_baseline import torch_round

    work, device = WORKLOADS[workload], "cuda" if torch.cuda.is_available() else "cpu"
    one_round = torch_round(work.model(), work.data(), work.cohort_size, work.local_steps, work.batch_size, device)
    _take_turn()
    one_round()
    started = time.perf_counter()
    for _ in range(rounds):
        one_round()
    milliseconds = 1e3 * (time.perf_counter() - started) / rounds
    return {"ms_per_round": milliseconds, "device": torch.cuda.get_device_name() if device == "cuda" else device}


def _profile(batch: BatchSimulation, rounds: int) -> Row:
    """Milliseconds of a round in which the device was busy, and its costliest kernels."""
    times, spans = Counter[str](), []
    for plane in recorded(lambda: batch.run(range(batch.width))).planes:
        for line in plane.lines:
            if "GPU" in plane.name and "Stream" in line.name:
                for event in line.events:
                    times[event.name[:80]] += event.duration_ns
                    spans.append((event.start_ns, event.start_ns + event.duration_ns))
    busy, end = 0.0, 0.0
    for start, stop in sorted(spans):
        busy, end = busy + max(0.0, stop - max(start, end)), max(end, stop)
    kernels = {name: round(spent / 1e6 / rounds, 4) for name, spent in times.most_common(_KERNELS)}
    return {"busy_ms": busy / 1e6 / rounds if spans else None, "kernels": kernels}


def _take_turn() -> None:
    print(READY, flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], "--profile" in sys.argv, "--planned" in sys.argv)), flush=True)
