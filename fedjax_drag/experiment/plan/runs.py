"""What one run would need on a target, and what makes it fit where it does not."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from fedjax_drag import per_client
from fedjax_drag.accelerators import targets
from fedjax_drag.accelerators.targets import Target
from fedjax_drag.experiment.build import build
from fedjax_drag.experiment.config.config import Config
from fedjax_drag.experiment.plan import programs
from fedjax_drag.experiment.plan.programs import Say
from fedjax_drag.experiment.run.planning import Federations
from fedjax_drag.simulation.devices.host_state import DEVICE, HOST
from fedjax_drag.simulation.devices.model_sharding import num_shares
from fedjax_drag.simulation.engine import lower_settings
from fedjax_drag.simulation.program.clients_axis import ClientBatching

MOST_TRIED = 6
"""Changes that are compiled until one fits."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunPlan(programs.ProgramPlan):
    """A run on a target.

    Attributes:
      batching: the way over the clients of a round.
      cohort_size: clients in a round.
      shares: into how many the devices divide these; fewer than the devices where they divide the model too.
      client_state: bytes of what is kept for every client, by the method and by the engine.
      rounds: of the run.
      evaluations: of the run.
      data: bytes, of those needed, of the examples, index lists and other inputs.
      state: bytes of the run's state.
      temporary: bytes of the largest temporary memory of a program.
      remedy: what makes it fit, if that was looked for.
    """

    batching: ClientBatching
    cohort_size: int
    shares: int
    client_state: int
    rounds: int
    evaluations: int
    data: int | None = None
    state: int | None = None
    temporary: int | None = None
    remedy: "Remedy | None" = None


@dataclasses.dataclass(frozen=True)
class Remedy:
    """A change that makes a run fit.

    Attributes:
      words: what to add to the command; that nothing helps, where ``plan`` is None.
      plan: of the run with it.
    """

    words: str
    plan: RunPlan | None


def plan_run(label: str, config: Config, target: Target, federations: Federations, say: Say) -> RunPlan:
    """Compiles a run for a target; it computes nothing.

    Args:
      label: of the run.
      config: resolved.
      target: whose devices there need not be.
      federations: data that other plans have read.
      say: told what is compiled.

    Raises:
      ValueError: the configuration cannot be run.
      FileNotFoundError: the data are not on this machine.
    """
    settings = build.settings(config, federations.split(config))
    lowered = build.traced(lower_settings, settings, target.devices)
    shapes, devices = lowered.outline.shapes, lowered.mesh.size if lowered.mesh else 1
    plan = RunPlan(
        label=label,
        target=target,
        devices=devices,
        usable=target.chip.usable,
        needed=target.chip.usable + 1,
        batching=lowered.batching,
        cohort_size=settings.cohort_size,
        shares=num_shares(lowered.mesh),
        client_state=per_client.num_bytes(shapes),
        rounds=settings.num_rounds,
        evaluations=programs.num_evaluations(settings),
    )
    say(f"{label}, for {target.description}")
    try:
        made = programs.compile_programs(lowered, settings, lowered.mesh, target.chip)
    except programs.TooLargeError as error:
        return dataclasses.replace(plan, needed=max(error.needed, plan.needed))
    advance, evaluate = made.advance, made.evaluate
    lies, rows = lowered.outline.shardings, 0
    without_rows = programs.array_bytes(*map(per_client.without_rows, (shapes, lies)))
    if lowered.outline.rows_on == DEVICE:
        rows = programs.array_bytes(*map(per_client.found_in, (shapes, lies)))
    resident = advance.arguments + max(0, evaluate.arguments - without_rows)
    state = min(resident, without_rows + rows)
    return dataclasses.replace(
        plan,
        needed=resident + max(advance.peak - advance.arguments, evaluate.output + evaluate.temporary),
        data=resident - state,
        state=state,
        temporary=max(advance.temporary, evaluate.temporary),
        round=made.round,
        evaluation=made.evaluation,
        seconds=made.seconds,
    )


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
    changes = [*itertools.islice(_changes(plan, config), MOST_TRIED)]
    for words, keys, target in changes:
        say(f"{plan.label} does not fit; with {words}")
        try:
            changed = plan_run(plan.label, dataclasses.replace(config, **keys), target, federations, lambda _: None)
        except ValueError:  # the change does not go with the rest of the configuration
            continue
        if changed.fits:
            return Remedy(words, changed)
    return Remedy(f"none of {len(changes)} changes that were tried; a smaller model, cohort or batch needs less", None)


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
