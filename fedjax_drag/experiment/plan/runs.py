"""What one run would need on a target."""

import dataclasses

from fedjax_drag import per_client
from fedjax_drag.accelerators.targets import Target
from fedjax_drag.experiment.build import build
from fedjax_drag.experiment.config.config import Config
from fedjax_drag.experiment.plan import programs
from fedjax_drag.experiment.run.planning import Federations
from fedjax_drag.simulation.devices.host_state import DEVICE
from fedjax_drag.simulation.devices.model_sharding import num_shares
from fedjax_drag.simulation.engine import lower_settings
from fedjax_drag.simulation.program.clients_axis import ClientBatching


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


def plan_run(label: str, config: Config, target: Target, federations: Federations, say: programs.Say) -> RunPlan:
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
