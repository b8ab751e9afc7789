"""Plans in words and as JSON."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from fedjax_drag.accelerators.counts import Work
from fedjax_drag.accelerators.targets import Target
from fedjax_drag.experiment.plan.runs import RunPlan
from fedjax_drag.experiment.plan.sweeps import CellsPlan, SweepPlan

_ADVICE = {
    "memory": "memory: compute_dtype=bfloat16 halves what activations move, fewer local steps what parameters do",
    "products": "products: matmul_precision=tensorfloat32, or compute_dtype=bfloat16, is faster where it may be used",
    "launches": "launches: more clients in a round, or cells beside each other, cost next to nothing",
}


def as_text(plan: RunPlan | CellsPlan | SweepPlan) -> str:
    """A plan as some lines; of a sweep, for each program those of a run, then the sum."""
    if isinstance(plan, SweepPlan):
        cells = sum(one.cells if isinstance(one, CellsPlan) else 1 for one in plan.programs)
        total = {"programs": f"{len(plan.programs)}, of {cells} cells"}
        if plan.seconds is not None:
            total["the sweep"] = f"about {seconds(plan.seconds)}"
        total |= {f"cannot run {label}": reason for label, reason in plan.failed.items()}
        return "\n\n".join([*map(as_text, plan.programs), _lines("all together", total)])
    share = plan.target.chip.memory
    of_it = f" that JAX takes of the {memory(share)}" if plan.usable < share else ""
    fits = f"{memory(plan.needed)} of {memory(plan.usable)}{of_it} on each device"
    rows = {"fits" if plan.fits else "does not fit": fits}
    rows |= _of_run(plan) if isinstance(plan, RunPlan) else _of_cells(plan)
    return _lines(f"{plan.label} on {plan.target.description}", rows)


def as_mapping(plan: RunPlan | CellsPlan | SweepPlan) -> dict[str, Any]:
    """A plan as plain values: bytes, seconds and numbers of kernels."""
    if isinstance(plan, SweepPlan):
        totals = {"fits": plan.fits, "seconds": plan.seconds, "failed": dict(plan.failed)}
        return {"target": plan.target.name, **totals, "programs": [as_mapping(one) for one in plan.programs]}
    own = {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan) if field.name != "remedy"}
    own |= {"target": plan.target.name, "fits": plan.fits}
    own |= {name: work and _work(work, plan.target) for name, work in own.items() if name in ("round", "evaluation")}
    if isinstance(plan, CellsPlan):
        return own | {"calls": plan.calls, "most_cells": plan.most_cells}
    own["batching"] = plan.batching._asdict()
    if plan.remedy is not None and plan.remedy.plan is not None:
        own["fits_with"] = {"change": plan.remedy.words, "plan": as_mapping(plan.remedy.plan)}
    return own


def _work(work: Work, target: Target) -> dict[str, Any]:
    return {
        "bytes": work.bytes,
        "operations": work.operations,
        "kernels": dict(work.kernels),
        "collectives": {kind: one._asdict() for kind, one in work.collectives.items()},
        "seconds": work.seconds(target.chip),
        "limits": work.limits(target.chip),
    }


def _of_run(plan: RunPlan) -> dict[str, str]:
    rows = {"clients": _clients(plan)}
    if plan.seconds is not None:
        parts = {"data": plan.data, "state": plan.state, "temporary": plan.temporary}
        rows["memory"] = ", ".join(f"{name} {memory(size or 0)}" for name, size in parts.items())
        rows |= _of_work(plan)
        rows["the run"] = f"{plan.rounds:,} rounds, {plan.evaluations:,} evaluations: about {seconds(plan.seconds)}"
    if plan.remedy is not None:
        fit = plan.remedy.plan
        time = f", about {seconds(fit.seconds)} for the run" if fit and fit.seconds is not None else ""
        with_it = f": {memory(fit.needed)} of {memory(fit.usable)}{time}" if fit else ""
        rows["fits with"] = f"{plan.remedy.words}{with_it}"
    return rows


def _of_cells(plan: CellsPlan) -> dict[str, str]:
    shared = f", shared by {plan.devices} devices" if plan.devices > 1 else ""
    rows = {"cells": f"{plan.cells}, {plan.width} at a time{shared}; the program is called {_times(plan.calls)}"}
    if plan.seconds is not None:
        most = plan.most_cells
        could = f"; one program could hold about {most:,}" if most else ""
        rows["memory"] = f"examples {memory(plan.shared or 0)}, a cell {memory(plan.cell or 0)}{could}"
        rows |= _of_work(plan)
        rows["all cells"] = f"about {seconds(plan.seconds)}"
    return rows


def _of_work(plan: RunPlan | CellsPlan) -> dict[str, str]:
    assert plan.round is not None
    assert plan.evaluation is not None
    rows = {"a round": _done(plan.round, plan.target), "evaluation": _done(plan.evaluation, plan.target)}
    limits = plan.round.limits(plan.target.chip)
    rows["most time by"] = _ADVICE[max(limits, key=lambda name: limits[name])]
    if plan.round.collectives:
        each = [f"{_times(one.times)} {kind} of {traffic(one.bytes)}" for kind, one in plan.round.collectives.items()]
        rows["a round sends"] = f"{', '.join(each)} in all, by each device"
    if loops := plan.round.open_loops:
        rows["counted once"] = f"{loops} loop{'s' * (loops > 1)} of a round whose length depends on its data"
    return rows


def _done(work: Work, target: Target) -> str:
    limits = ", ".join(f"{seconds(spent)} by {name}" for name, spent in work.limits(target.chip).items() if spent)
    done = f"{traffic(work.bytes)} moved, {arithmetic(work.operations)}, {work.num_kernels:,} kernels"
    return f"{done}: about {seconds(work.seconds(target.chip))} ({limits})"


def _clients(plan: RunPlan) -> str:
    each, batching = plan.cohort_size // plan.shares, plan.batching
    at_once = each if batching.clients_axis == "vmap" else min(each, batching.clients_per_chunk or 1)
    way = f"{each} of a round, {'all' if at_once == each else at_once} at once ({batching.clients_axis})"
    if plan.devices > plan.shares:
        return f"{way}, on each of {plan.shares} groups of {plan.devices // plan.shares} devices"
    if plan.devices > 1:
        return f"{way}, on each of {plan.devices} devices"
    idle = plan.target.num_devices - 1
    return f"{way}; mesh=all would share them with the {idle} other devices" if idle else way


def _lines(head: str, rows: Mapping[str, str]) -> str:
    return "\n".join([head, *(f"  {name:<13} {value}" for name, value in rows.items())])


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"


def memory(size: float) -> str:
    """Bytes of memory, in binary units."""
    return _scaled(size, {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10})


def traffic(size: float) -> str:
    """Bytes that are moved, in decimal units, as bandwidths are given."""
    return _scaled(size, {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3})


def arithmetic(number: float) -> str:
    """Floating point operations."""
    return _scaled(number, {"TFLOP": 1e12, "GFLOP": 1e9, "MFLOP": 1e6})


def seconds(value: float) -> str:
    """A time; of minutes and hours there are at least two."""
    if value >= 120:
        return _scaled(value / 2, {"h": 3600, "min": 60}, times=2)
    return _scaled(value, {"s": 1, "ms": 1e-3, "us": 1e-6})


def _scaled(value: float, units: Mapping[str, float], times: int = 1) -> str:
    """A value, ``times`` over, in the largest unit that it reaches, or in the smallest."""
    unit = next((name for name, factor in units.items() if value >= factor), [*units][-1])
    return f"{times * value / units[unit]:,.1f} {unit}"
