"""Times federated rounds of this tree against those of another one, such as the commit before, in one run.

Each tree has a process with its own package and its own scripts, and the other tree has two, whose
ratio is the noise of the machine. The processes run in turn, never two at a time.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.rounds import CORES, RULES, engine_rounds, names
from benchmarks.timing import Row, check_names, check_tree, in_turn, ratio, warm_up
from benchmarks.workloads import DEFAULT, WORKLOADS

SCRIPTS = Path(__file__).parents[1]
BEFORE, AGAIN, AFTER = "before", "before, again", "this tree"


class Rounds:
    """Rounds of one tree, computed by a process of its own; called as a contestant.

    Args:
      tree: folder that holds the package.
      work: name of the workload.
      program: a rule, with :data:`~benchmarks.rounds.CORES` or without.
      options: further keyword arguments of :func:`fedjax_drag.simulation.prepare`.
    """

    def __init__(self, tree: Path, work: str, program: str, options: Mapping[str, Any]):
        command = [sys.executable, "-m", __name__, work, program, json.dumps(options)]
        path = os.pathsep.join([str(tree.absolute()), str(tree.absolute() / "scripts")])
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(command, cwd=tree, env=os.environ | {"PYTHONPATH": path}, **pipes)

    def __call__(self) -> None:
        """Computes the rounds of a turn; the first call compiles."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            print("go", file=self._process.stdin, flush=True)
        if self._process.stdout.readline().strip() != "done":
            raise RuntimeError(f"{self._process.args}: ended with status {self._process.wait()}")

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()


def run(
    chosen: Sequence[str], repeats: int, options: Mapping[str, Any], only: Collection[str], before: Path
) -> list[Row]:
    """One row for each workload and program of the engine.

    Args:
      chosen: names of workloads; none: ``cnn`` and ``mlp``.
      repeats: timed turns.
      options: further keyword arguments of :func:`fedjax_drag.simulation.prepare`.
      only: programs to time; none: all of the engine.
      before: root of the other tree.

    Raises:
      ValueError: an unknown workload or program, or no package in ``before``.
    """
    check_tree(before)
    check_names(chosen, WORKLOADS)
    # On an accelerator several processes share the device, so none may reserve its memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    engine = [name for name in names() if name.removesuffix(CORES) in RULES]
    check_names(only, engine)
    works = chosen or DEFAULT
    return [_measure(work, name, repeats, options, before) for work in works for name in only or engine]


def _measure(name: str, program: str, repeats: int, options: Mapping[str, Any], before: Path) -> Row:
    work = WORKLOADS[name]
    trees = {BEFORE: before, AFTER: SCRIPTS.parent, AGAIN: before}
    with contextlib.ExitStack() as stack:
        contestants = {label: Rounds(tree, name, program, options) for label, tree in trees.items()}
        for contestant in contestants.values():
            stack.callback(contestant.close)
        warm_up(contestants)
        times = in_turn(contestants, repeats, work.rounds)
    middle = {label: sorted(taken)[len(taken) // 2] for label, taken in times.items()}
    return {
        "workload": work.title,
        "program": program,
        "ms_before": middle[BEFORE],
        "ms_this_tree": middle[AFTER],
        "ratio_to_before": ratio(times, AFTER, BEFORE),
        "ratio_of_before_to_itself": ratio(times, AGAIN, BEFORE),
    }


def _serve(name: str, program: str, options: str) -> None:
    """The process of a tree: computes the rounds of a turn for each line that it reads."""
    import jax

    if program.endswith(CORES):
        jax.config.update("jax_num_cpu_devices", os.cpu_count())
    work, rule = WORKLOADS[name], RULES[program.removesuffix(CORES)]()
    mesh = {"mesh": "cores"} if program.endswith(CORES) else {}
    rounds = None
    for _ in sys.stdin:
        rounds = rounds or engine_rounds(work, work.data(), rule, {**json.loads(options), **mesh}, work.rounds)
        rounds()
        print("done", flush=True)


if __name__ == "__main__":
    _serve(*sys.argv[1:])
