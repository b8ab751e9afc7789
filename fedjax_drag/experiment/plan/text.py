"""Plans in words and as JSON."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from fedjax_drag.accelerators.counts import Work
from fedjax_drag.accelerators.targets import Target
from fedjax_drag.experiment.plan.remedies import MOST_TRIED, Remedy
from fedjax_drag.experiment.plan.run_plan import RunPlan
from fedjax_drag.experiment.plan.sweep_plan import ProgramPlan, SweepPlan
from fedjax_drag.simulation.program.clients_axis import ClientBatching

_WIDTH = 13  # of the first column

_ADVICE = {
    "memory": "memory: compute_dtype=bfloat16 halves what activations move, fewer local steps what parameters do",
    "products": "products: matmul_precision=tensorfloat32, or compute_dtype=bfloat16, is faster where it may be used",
    "launches": "launches: more clients in a round, or cells beside each other, cost next to nothing",
}


def of_run(plan: RunPlan, remedy: Remedy | None = None, sought: bool = False) -> str:
    """A run's plan as some lines.

    Args:
      plan: of the run.
      remedy: what makes it fit, if that was found.
      sought: whether it was looked for.
    """
    lines = [f"{plan.label} on {plan.target.description}", *_rows(_run_rows(plan))]
    if not plan.fits and sought:
        lines += _rows({"fits with": _remedy(remedy)})
    return "\n".join(lines)


def of_sweep(plan: SweepPlan) -> str:
    """A sweep's plan as some lines: for each program those of a run, then the sum."""
    parts = [of_run(one) if isinstance(one, RunPlan) else _program(one, plan.target) for one in plan.programs]
    total = {"programs": f"{len(plan.programs)}, of {sum(map(_cells, plan.programs))} cells"}
    if plan.seconds is not None:
        total["the sweep"] = f"about {seconds(plan.seconds)}"
    for label, reason in plan.failed.items():
        total[f"cannot run {label}"] = reason
    return "\n\n".join([*parts, "\n".join(["all together", *_rows(total)])])


def as_mapping(plan: RunPlan | SweepPlan, remedy: Remedy | None = None) -> dict[str, Any]:
    """A plan as plain values: bytes, seconds and numbers of kernels."""
    if isinstance(plan, SweepPlan):
        programs = [as_mapping(one) if isinstance(one, RunPlan) else _program_mapping(one) for one in plan.programs]
        totals = {"fits": plan.fits, "seconds": plan.seconds, "failed": dict(plan.failed)}
        return {"target": plan.target.name, **totals, "programs": programs}
    own = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}
    chip = plan.target.chip
    own |= {"target": plan.target.name, "batching": plan.batching._asdict(), "fits": plan.fits}
    own |= {name: _work(getattr(plan, name), chip) for name in ("round", "evaluation")}
    if remedy is not None:
        own["fits_with"] = {"change": remedy.words, "plan": as_mapping(remedy.plan)}
    return own


def _program_mapping(plan: ProgramPlan) -> dict[str, Any]:
    own = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan)}
    extra = {"fits": plan.fits, "calls": plan.calls, "most_cells": plan.most_cells}
    return own | extra | {name: _work(getattr(plan, name)) for name in ("round", "evaluation")}


def _work(work: Work | None, chip: Any = None) -> dict[str, Any] | None:
    if work is None:
        return None
    collectives = {kind: one._asdict() for kind, one in work.collectives.items()}
    own = {"bytes": work.bytes, "operations": work.operations, "kernels": dict(work.kernels)}
    own["collectives"] = collectives
    return own if chip is None else own | {"seconds": work.seconds(chip), "limits": work.limits(chip)}


def _run_rows(plan: RunPlan) -> dict[str, str]:
    rows = {"fits" if plan.fits else "does not fit": _fit(plan.needed, plan.usable, plan.target)}
    rows["clients"] = _clients(plan.batching, plan.cohort_size, plan.devices, plan.target)
    if plan.round is None or plan.evaluation is None or plan.seconds is None:
        return rows
    parts = {"data": plan.data, "state": plan.state, "temporary": plan.temporary}
    rows["memory"] = ", ".join(f"{name} {memory(size or 0)}" for name, size in parts.items())
    rows |= _work_rows(plan.round, plan.evaluation, plan.target)
    count = f"{plan.rounds:,} rounds, {plan.evaluations:,} evaluations"
    rows["the run"] = f"{count}: about {seconds(plan.seconds)}"
    return rows


def _program(plan: ProgramPlan, target: Target) -> str:
    rows = {"fits" if plan.fits else "does not fit": _fit(plan.needed, plan.usable, target)}
    shared = f", shared by {plan.devices} devices" if plan.devices > 1 else ""
    rows["cells"] = f"{plan.cells}, {plan.width} at a time{shared}; the program is called {_times(plan.calls)}"
    if plan.round is not None and plan.evaluation is not None and plan.seconds is not None:
        most = plan.most_cells
        could = f"; one program could hold about {most:,}" if most else ""
        rows["memory"] = f"examples {memory(plan.shared or 0)}, a cell {memory(plan.cell or 0)}{could}"
        rows |= _work_rows(plan.round, plan.evaluation, target)
        rows["all cells"] = f"about {seconds(plan.seconds)}"
    return "\n".join([f"{plan.label} on {target.description}", *_rows(rows)])


def _work_rows(of_round: Work, of_evaluation: Work, target: Target) -> dict[str, str]:
    rows = {"a round": _done(of_round, target), "evaluation": _done(of_evaluation, target)}
    limits = of_round.limits(target.chip)
    rows["most time by"] = _ADVICE[max(limits, key=lambda name: limits[name])]
    if of_round.collectives:
        each = [f"{_times(one.times)} {kind} of {traffic(one.bytes)}" for kind, one in of_round.collectives.items()]
        rows["a round sends"] = f"{', '.join(each)} in all, by each device"
    if of_round.open_loops:
        loops = "1 loop" if of_round.open_loops == 1 else f"{of_round.open_loops} loops"
        rows["counted once"] = f"{loops} of a round whose length depends on its data"
    return rows


def _done(work: Work, target: Target) -> str:
    chip = target.chip
    limits = ", ".join(f"{seconds(spent)} by {name}" for name, spent in work.limits(chip).items() if spent)
    done = f"{traffic(work.bytes)} moved, {arithmetic(work.operations)}, {work.num_kernels:,} kernels"
    return f"{done}: about {seconds(work.seconds(chip))} ({limits})"


def _fit(needed: int, usable: int, target: Target) -> str:
    share = f" that JAX takes of the {memory(target.chip.memory)}" if usable < target.chip.memory else ""
    return f"{memory(needed)} of {memory(usable)}{share} on each device"


def _clients(batching: ClientBatching, cohort_size: int, devices: int, target: Target) -> str:
    each = cohort_size // devices
    at_once = each if batching.clients_axis == "vmap" else min(each, batching.clients_per_chunk or 1)
    way = f"{each} of a round, {'all' if at_once == each else at_once} at once ({batching.clients_axis})"
    if devices > 1:
        return f"{way}, on each of {devices} devices"
    idle = target.num_devices - 1
    return f"{way}" + (f"; mesh=all would share them with the {idle} other devices" if idle else "")


def _remedy(remedy: Remedy | None) -> str:
    if remedy is None:
        return f"none of {MOST_TRIED} changes that were tried; a smaller model, cohort or batch needs less"
    plan = remedy.plan
    time = "" if plan.seconds is None else f", about {seconds(plan.seconds)} for the run"
    return f"{remedy.words}: {memory(plan.needed)} of {memory(plan.usable)}{time}"


def _cells(plan: ProgramPlan | RunPlan) -> int:
    return plan.cells if isinstance(plan, ProgramPlan) else 1


def _rows(rows: Mapping[str, str]) -> list[str]:
    return [f"  {name:<{_WIDTH}} {value}" for name, value in rows.items()]


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"


def memory(size: float) -> str:
    """Bytes of memory, in binary units."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20)):
        if size >= factor:
            return f"{size / factor:,.1f} {unit}"
    return f"{size / 2**10:,.1f} KiB"


def traffic(size: float) -> str:
    """Bytes that are moved, in decimal units, as bandwidths are given."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= factor:
            return f"{size / factor:,.1f} {unit}"
    return f"{size / 1e3:,.1f} kB"


def arithmetic(number: float) -> str:
    """Floating point operations."""
    for unit, factor in (("TFLOP", 1e12), ("GFLOP", 1e9)):
        if number >= factor:
            return f"{number / factor:,.1f} {unit}"
    return f"{number / 1e6:,.1f} MFLOP"


def seconds(value: float) -> str:
    """A time."""
    if value >= 7200:
        return f"{value / 3600:,.1f} h"
    if value >= 120:
        return f"{value / 60:,.1f} min"
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if value >= factor:
            return f"{value / factor:,.1f} {unit}"
    return f"{value * 1e6:,.1f} us"
