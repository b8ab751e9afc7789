"""Times how long it takes from a command to its curve, and what an evaluation costs, against another tree.

Every figure comes from processes of their own, as users start them, one of each tree in turn. *Empty* are the cache
folders of fedjax_drag and of JAX before a command, *filled* they are when the same command has run before.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.timing import Row, check_names, check_tree

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "configs" / "quickstart.yaml"

PROGRAMS: Mapping[str, str] = {
    "run": """
from fedjax_drag.cli.main import main
main()
""",
    "simulate": """
import fedjax_drag as fd
getattr(fd.simulation, "keep_compiled", lambda: None)()  # older trees have none
data = fd.data.partition.dirichlet(fd.data.load("digits"), 40, 0.1)
fd.simulate(
    fd.aggregators.drag(c=0.25, alpha=0.25), model=fd.models.mlp(10, hidden=(64,)), data=data, num_rounds=200,
    cohort_size=10, local_steps=5, batch_size=10, step_size=0.02, eval_every=5
)
""",
    "evaluation": """
import sys, time
from pathlib import Path
import fedjax_drag as fd
config, out = sys.argv[2], Path(sys.argv[sys.argv.index("--out") + 1])

def seconds(every, name):
    started = time.perf_counter()
    fd.run(config, ["rounds=300", f"eval_every={every}"], out=out / name, quiet=True)
    return time.perf_counter() - started

seconds(300, "compiles")
once, always = seconds(300, "once"), seconds(1, "always")
print((always - once) / 299)
""",
}
"""What is timed; ``evaluation`` prints the seconds that each of 300 evaluations costs with a results folder."""

CACHES = {"run": ("empty", "filled"), "simulate": ("empty", "filled")}
"""With which caches; all else with a filled one."""


class Turn(NamedTuple):
    """Seconds of a process on the clock and on all cores, and what it printed last."""

    wall: float
    cpu: float
    printed: str


def run(chosen: Sequence[str], repeats: int, before: Path) -> list[Row]:
    """One row for each program and cache.

    Args:
      chosen: of :data:`PROGRAMS`; none for all.
      repeats: processes of each tree.
      before: root of the other tree.

    Raises:
      ValueError: no such program, or no such tree.
    """
    check_names(chosen, PROGRAMS)
    check_tree(before)
    rows: list[Row] = []
    for name in chosen or PROGRAMS:
        for cache in CACHES.get(name, ("filled",)):
            rows.append(_compared(name, cache, repeats, before))
            print(", ".join(f"{column} {value}" for column, value in rows[-1].items()), file=sys.stderr, flush=True)
    return rows


def _compared(name: str, cache: str, repeats: int, before: Path) -> Row:
    """Medians of both trees and of their ratios, processes in turn."""
    turns: list[tuple[Turn, Turn]] = []
    with tempfile.TemporaryDirectory() as folder:
        caches = [Path(folder) / side for side in ("before", "after")]
        if cache == "filled":
            for tree, kept in zip((before, ROOT), caches, strict=True):
                _process(name, tree, kept)
        for number in range(repeats):
            own = [kept if cache == "filled" else kept.with_suffix(f".{number}") for kept in caches]
            turns.append((_process(name, before, own[0]), _process(name, ROOT, own[1])))
    printed = [[float(one.printed) for one in pair] for pair in turns] if turns[0][0].printed else []
    wall = printed or [[one.wall for one in pair] for pair in turns]
    unit, factor = ("ms each", 1e3) if printed else ("s", 1.0)
    old, new = (factor * statistics.median(pair[side] for pair in wall) for side in (0, 1))
    cpu = [statistics.median(pair[side].cpu for pair in turns) for side in (0, 1)]
    ratio = statistics.median(after / earlier for earlier, after in wall)
    row = {"what": name, "cache": cache, "before": f"{old:.1f} {unit}", "after": f"{new:.1f} {unit}"}
    return row | {"ratio": f"{ratio:.2f}", "cpu before": f"{cpu[0]:.1f} s", "cpu after": f"{cpu[1]:.1f} s"}


def _process(name: str, tree: Path, cache: Path) -> Turn:
    """Runs a program in a process of its own, with the package of a tree and a folder for its caches."""
    left_out = ("JAX_", "PYTHONDONTWRITEBYTECODE")  # with the latter modules are compiled in each process
    environment = {key: value for key, value in os.environ.items() if not key.startswith(left_out)}
    environment |= {"PYTHONPATH": str(tree.absolute()), "FEDJAX_DRAG_CACHE": str(cache)}
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["run", str(QUICKSTART), "--quiet", "--out", str(Path(folder) / "out")]
        started, used = time.perf_counter(), os.times()
        command = [sys.executable, "-c", PROGRAMS[name], *arguments]
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
        wall, now = time.perf_counter() - started, os.times()
    if done.returncode:
        raise RuntimeError(f"{name} of {tree}: {done.stderr.strip() or done.returncode}")
    cpu = now.children_user - used.children_user + now.children_system - used.children_system
    return Turn(wall, cpu, done.stdout.strip().splitlines()[-1] if done.stdout.strip() else "")
