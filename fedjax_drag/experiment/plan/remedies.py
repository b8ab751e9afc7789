"""What makes a run fit that does not: changes to its configuration, compiled one after the other."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from fedjax_drag.accelerators import targets
from fedjax_drag.accelerators.targets import Target
from fedjax_drag.experiment.config.config import Config
from fedjax_drag.experiment.plan.programs import Say
from fedjax_drag.experiment.plan.runs import Remedy, RunPlan, plan_run
from fedjax_drag.experiment.run.planning import Federations
from fedjax_drag.simulation.devices.host_state import DEVICE, HOST

MOST_TRIED = 6
"""Changes that are compiled until one fits."""


def plan_runs(runs: Mapping[str, Config], target: Target, say: Say) -> Iterator[RunPlan]:
    """Compiles the runs of an experiment for a target, and changes of those that do not fit, until one fits.

    Args:
      runs: resolved configurations by label.
      target: whose devices there need not be.
      say: told what is compiled.

    Raises:
      ValueError: a configuration cannot be run.
      FileNotFoundError: the data are not on this machine.
    """
    federations = Federations()
    for label, config in runs.items():
        plan = plan_run(label, config, target, federations, say)
        yield plan if plan.fits else dataclasses.replace(plan, remedy=_remedy(plan, config, federations, say))


def _remedy(plan: RunPlan, config: Config, federations: Federations, say: Say) -> Remedy:
    """The first change with which a run fits, of those that change its results least."""
    tried = 0
    for words, changes, target in itertools.islice(_changes(plan, config), MOST_TRIED):
        tried += 1
        say(f"{plan.label} does not fit; with {words}")
        try:
            changed = plan_run(plan.label, dataclasses.replace(config, **changes), target, federations, lambda _: None)
        except ValueError:  # the change does not go with the rest of the configuration
            continue
        if changed.fits:
            return Remedy(words, changed)
    return Remedy(f"none of {tried} changes that were tried; a smaller model, cohort or batch needs less", None)


def _changes(plan: RunPlan, config: Config) -> Iterator[tuple[str, Mapping[str, Any], Target]]:
    """Changes that need less memory: words, keys and the target."""
    at_once = plan.cohort_size if plan.batching.clients_axis == "vmap" else plan.batching.clients_per_chunk or 1
    chunks = _chunks(plan, at_once)
    for chunk in chunks:
        keys = {"clients_axis": "map", "clients_per_chunk": chunk if chunk > 1 else None}
        words = f"clients_per_chunk={chunk}" if chunk > 1 else "clients_axis=map"
        yield words, keys, plan.target
    if plan.client_state and config.client_state == DEVICE:
        yield f"client_state={HOST}", {"client_state": HOST}, plan.target
    larger = _larger(plan)
    if larger is not None:
        for words, keys in (("mesh=all", {}), ("mesh=all shard_data=true", {"shard_data": True})):
            yield f"{words} --target {larger.name}", {"mesh": "all", **keys}, larger
    if config.compute_dtype == "float32":
        yield "compute_dtype=bfloat16", {"compute_dtype": "bfloat16"}, plan.target
    if config.cohort_size > 1:
        smaller = max(1, config.cohort_size // 4)
        yield f"cohort_size={smaller}", {"cohort_size": smaller}, plan.target


def _chunks(plan: RunPlan, at_once: int) -> list[int]:
    """How many clients at once instead: of a half, a quarter and so on what the memory should hold; less; and one."""
    if at_once == 1:
        return []
    fixed = (plan.data or 0) + (plan.state or 0)
    share = max(1e-9, 0.8 * (plan.usable - fixed) / max(1, plan.needed - fixed))
    first = max(1, at_once >> max(1, math.ceil(-math.log2(share))))
    return sorted({first, max(1, first // 2), 1}, reverse=True)


def _larger(plan: RunPlan) -> Target | None:
    """The same kind of device, twice to four times as many, if the cohort divides among them."""
    kind = plan.target.name.lower().partition(":")[0]
    names = [f"{kind}:{n}" for n in (2, 4, 8)] if kind in targets.GPUS else _SLICES[kind]
    larger = (target for target in map(targets.find, names) if target.num_devices > plan.devices)
    return next((target for target in larger if plan.cohort_size % target.num_devices == 0), None)


_SLICES = {
    "v5e": ["v5e:2x2", "v5e:2x4", "v5e:4x4"],
    "v6e": ["v6e:2x2", "v6e:2x4", "v6e:4x4"],
    "v5p": ["v5p:2x2x1", "v5p:2x2x2"],
}
