"""Plans of runs and sweeps, with stored programs in the place of what a compiler returns."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from tiny import DRAG, SYNTHETIC, TINY

from fedjax_drag.accelerators import counts, targets
from fedjax_drag.experiment.build.experiment import load_experiment
from fedjax_drag.experiment.plan import as_mapping, as_text, plan_runs, plan_sweep, programs
from fedjax_drag.experiment.plan.programs import typical_steps
from fedjax_drag.experiment.plan.runs import RunPlan
from fedjax_drag.experiment.sweep.grid import load_grid
from fedjax_drag.per_client import PerClient
from fedjax_drag.simulation.devices.placement import placement, resolve_mesh
from fedjax_drag.simulation.engine import LoweredRun
from fedjax_drag.simulation.planning.outline import Lowered
from fedjax_drag.simulation.planning.setup import resolve_batching
from fedjax_drag.simulation.program.clients_axis import ClientBatching

HLO = (Path(__file__).parents[2] / "accelerators" / "gpu.hlo").read_text()
HLO = HLO.replace('backend_config={"known_trip_count"', 'metadata={op_name="jit(f)/rounds/while"}, x={"was"')
HLO = HLO.replace("%constant_5 = s32[] constant(5)", "%constant_5 = s32[] negate(%param_0.2)")
"""A stored program whose loop is that over rounds."""

CONFIG = TINY | SYNTHETIC | DRAG
REFUSED = (
    "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO "
    "temporaries (24.85G) exceeds available HBM (15.75G). HLO module: jit_advance."
)


class Compiler:
    """Compiles nothing; ``temporary`` says how much a program needs, by its number of programs so far."""

    def __init__(self, temporary):
        self.temporary, self.programs = temporary, 0

    def __call__(self, lowered):
        self.programs += 1
        needed = self.temporary(self.programs)
        if needed is None:
            raise programs.TooLargeError(25 * 2**30)
        sizes = {"argument": 3000, "output": 200, "alias": 100, "temp": needed}
        analysis = SimpleNamespace(**{f"{name}_size_in_bytes": size for name, size in sizes.items()})
        return SimpleNamespace(as_text=lambda: HLO, memory_analysis=lambda: analysis)


@pytest.fixture
def target(monkeypatch):
    """An H100 in whose place programs are lowered for the CPU's devices."""
    for name in ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(targets, "_gpu_devices", lambda target: (jax.devices() * 4)[: target.num_devices])
    return targets.find("h100")


@pytest.fixture
def compiler(monkeypatch):
    """Sets the compiler by what its programs need."""

    def use(temporary):
        made = Compiler(temporary)
        monkeypatch.setattr(programs, "compiled", made)
        monkeypatch.setattr("fedjax_drag.experiment.plan.runs.lower_settings", lowered_run)
        monkeypatch.setattr("fedjax_drag.experiment.plan.sweeps.lower_batch", lowered_cells)
        return made

    return use


def state(settings):
    """Shapes of a state of 400 bytes, and of 40 for each client where the method keeps some."""
    row = jax.ShapeDtypeStruct((settings.data.num_clients, 10), "float32")
    kept = {"rows": PerClient(row)} if settings.algorithm.name == "scaffold" else {}
    return {"params": jax.ShapeDtypeStruct((100,), "float32"), **kept}


def lowered_run(settings, devices):
    batching = resolve_batching(settings.clients_axis, settings.clients_per_chunk, "gpu", settings.cohort_size)
    mesh, shapes = resolve_mesh(settings.mesh, settings.cohort_size, devices), state(settings)
    outline = SimpleNamespace(shapes=shapes, shardings=placement(shapes, mesh), rows_on=settings.client_state)
    return LoweredRun(Lowered(None, None), outline, mesh, batching)


def lowered_cells(settings, width, devices):
    return LoweredRun(Lowered(None, None), None, None, ClientBatching("vmap"), width)


def quiet(words):
    del words


def planned(target, say=quiet, **changes):
    (plan,) = plan_runs(load_experiment(CONFIG | changes).runs, target, say)
    return plan


def test_plan_of_a_run(target, compiler):
    compiler(lambda number: 10_000)
    plan = planned(target)
    whole = counts.work_of(HLO, {"rounds": 1})
    assert (plan.fits, plan.rounds, plan.evaluations, plan.devices, plan.batching) == (
        True,
        6,
        3,
        1,
        ClientBatching("vmap"),
    )
    assert plan.temporary == 10_000
    assert (plan.state, plan.data) == (400, 3000 + (3000 - 400) - 400)  # both programs are given the parameters
    assert plan.needed == plan.data + plan.state + 200 + plan.temporary
    assert plan.round.bytes == 4 * 32 + 4 + 4 * 32 + (32 + 4 + 32) + 12
    assert plan.round.num_kernels == 3
    assert plan.round.collectives == {}, "it is beside the loop over rounds"
    assert plan.evaluation.bytes == whole.bytes
    call = whole.num_kernels - 3
    assert plan.seconds == pytest.approx(4e-6 * (6 * 3 + 3 * call + 3 * whole.num_kernels))


def test_words_of_a_run(target, compiler):
    compiler(lambda number: 3 * 2**30)
    plan = planned(target)
    lines = as_text(plan).splitlines()
    assert lines[0] == "tiny on NVIDIA H100 80GB HBM3"
    assert lines[1] == "  fits          3.0 GiB of 59.3 GiB that JAX takes of the 79.1 GiB on each device"
    assert lines[2] == "  clients       4 of a round, all at once (vmap)"
    assert lines[4] == "  a round       0.3 kB moved, 0.0 MFLOP, 3 kernels: about 12.0 us (12.0 us by launches)"
    assert lines[-1].startswith("  the run       6 rounds, 3 evaluations: about ")
    mapping = json.loads(json.dumps(as_mapping(plan)))
    assert (mapping["fits"], mapping["target"], mapping["temporary"]) == (True, "h100", 3 * 2**30)
    assert mapping["round"]["kernels"] == {"fusion": 2, "add": 1}
    assert mapping["round"]["seconds"] == pytest.approx(12e-6)


def test_a_run_that_does_not_fit_is_told_what_does(target, compiler):
    compiler(lambda number: 90 * 2**30 if number <= 2 else 2**30)
    plan = planned(target)
    assert not plan.fits
    assert plan.remedy.words == "clients_per_chunk=2"
    assert plan.remedy.plan.batching == ClientBatching("map", 2)
    words = as_text(plan)
    assert "  does not fit  90.0 GiB of 59.3 GiB" in words
    assert "  fits with     clients_per_chunk=2: 1.0 GiB of 59.3 GiB, about " in words
    assert as_mapping(plan)["fits_with"]["change"] == "clients_per_chunk=2"


def test_changes_are_tried_in_turn(target, compiler):
    said = []
    compiler(lambda number: 90 * 2**30)
    plan = planned(target, said.append, algorithm="scaffold", aggregator="fedavg")
    assert plan.remedy.plan is None
    expected = ["clients_per_chunk=2", "clients_axis=map", "client_state=host", "mesh=all --target h100:2"]
    expected += ["mesh=all shard_data=true --target h100:2", "compute_dtype=bfloat16"]
    assert said[1:] == [f"tiny does not fit; with {words}" for words in expected]
    assert "  fits with     none of 6 changes" in as_text(plan)
    assert "fits_with" not in as_mapping(plan)


@pytest.mark.parametrize(("place", "times"), [("device", 1), ("host", 2)])
@pytest.mark.parametrize("own", [20_000, 1_000])
def test_own_models_are_part_of_an_evaluation(target, compiler, monkeypatch, place, times, own):
    """Of six clients, on the device all at once and else as many as the cohort of four; what needs most counts."""
    made = compiler(lambda number: {1: 10_000, 2: 15_000, 3: own}[number])

    def with_own_models(settings, devices):
        found = lowered_run(settings, devices)
        lowered = Lowered(None, None, evaluate_own=object())
        return LoweredRun(lowered, found.outline, found.mesh, found.batching)

    monkeypatch.setattr("fedjax_drag.experiment.plan.runs.lower_settings", with_own_models)
    plan = planned(target, client_state=place)
    whole = counts.work_of(HLO, {"rounds": 1})
    assert made.programs == 3
    assert plan.evaluation.bytes == (1 + times) * whole.bytes
    assert plan.evaluation.num_kernels == (1 + times) * whole.num_kernels
    assert plan.evaluation.collectives == {
        kind: ((1 + times) * one.times, (1 + times) * one.bytes) for kind, one in whole.collectives.items()
    }
    assert plan.temporary == max(15_000, own)
    assert plan.needed == plan.data + plan.state + 200 + max(15_000, own)
    call = whole.num_kernels - 3
    assert plan.seconds == pytest.approx(4e-6 * (6 * 3 + 3 * call + 3 * (1 + times) * whole.num_kernels))


def test_a_compiler_that_refuses(target, compiler):
    compiler(lambda number: None)
    plan = planned(target)
    assert (plan.fits, plan.round, plan.seconds) == (False, None, None)
    assert plan.needed > plan.usable
    assert len(as_text(plan).splitlines()) == 4, "that it does not fit, how many clients, and no change helps"
    assert as_mapping(plan)["round"] is None


def test_refusals_are_read(monkeypatch):
    def refuse(message):
        def fail():
            raise jax.errors.JaxRuntimeError(message)

        return SimpleNamespace(compile=fail)

    with pytest.raises(programs.TooLargeError) as refused:
        programs.compiled(refuse(REFUSED))
    assert refused.value.needed == int(24.85 * 2**30)
    with pytest.raises(programs.TooLargeError) as refused:
        programs.compiled(refuse("RESOURCE_EXHAUSTED: Ran out of memory. Used 20.5M of 15.75M hbm."))
    assert refused.value.needed == int(20.5 * 2**20)
    with pytest.raises(jax.errors.JaxRuntimeError, match="UNIMPLEMENTED"):
        programs.compiled(refuse("UNIMPLEMENTED: sort"))


SWEEP = CONFIG | {"axes": {"aggregator.c": [0.1, 0.2], "seed": [0, 1, 2]}}


def test_plan_of_a_sweep(target, compiler):
    compiler(lambda number: 12_000)
    plan = plan_sweep(load_grid(SWEEP), target, quiet)
    (program,) = plan.programs
    assert (program.cells, program.width, program.calls, program.fits) == (6, 6, 1, True)
    assert program.cell * 6 <= program.needed - program.shared < program.cell * 6 + 6
    assert program.most_cells == (program.usable - program.shared) // program.cell
    assert plan.seconds == program.seconds
    words = as_text(plan)
    assert words.startswith("6 cells on NVIDIA H100 80GB HBM3\n  fits ")
    assert "  cells         6, 6 at a time; the program is called once" in words
    assert "  programs      1, of 6 cells" in words
    assert json.loads(json.dumps(as_mapping(plan)))["programs"][0]["most_cells"] == program.most_cells


def test_a_sweep_that_does_not_fit_is_halved(target, compiler):
    compiler(lambda number: 90 * 2**30 if number <= 2 else 2**30)
    said = []
    plan = plan_sweep(load_grid(SWEEP), target, said.append)
    (program,) = plan.programs
    assert (program.width, program.calls) == (3, 2)
    assert [words.partition(", for")[0] for words in said] == [
        f"program 1 of 1: 6 cells: {width} of 6 cells at a time" for width in (6, 3)
    ]


@pytest.mark.parametrize("place", ["host", "disk"])
def test_cells_whose_rows_are_not_on_the_device_are_planned_alone(target, compiler, place):
    """As a sweep runs them."""
    compiler(lambda number: 10_000)
    plan = plan_sweep(load_grid(SWEEP | {"client_state": place}), target, quiet)
    assert [type(program) for program in plan.programs] == [RunPlan] * 6


def test_cells_that_cannot_be_run_are_named(target, compiler):
    compiler(lambda number: 10_000)
    plan = plan_sweep(load_grid(CONFIG | {"axes": {"batch_size": [4, 1000]}}), target, quiet)
    assert len(plan.programs) == 1
    (reason,) = plan.failed.values()
    assert "batch_size=1000" in reason
    assert "cannot run" in as_text(plan)


def test_steps_of_clients_that_wait_for_each_other():
    class Own:
        cohort_size = 4

    steps = np.array([1.0, 3.0, 2.0, 6.0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedjax_drag.experiment.plan.programs.steps_of_clients", lambda settings: steps)
        assert typical_steps(Own, ClientBatching("map"), None) == 3
        assert typical_steps(Own, ClientBatching("map", 2), None) == round((3 + 6) / 2)
        assert typical_steps(Own, ClientBatching("vmap"), None) == 6


def test_the_target_says_what_is_usable(target):
    assert dataclasses.replace(target.chip).usable == int(0.75 * target.chip.memory)


@pytest.mark.thorough
def test_a_program_of_this_machine(target):
    plan = planned(target)
    assert plan.fits
    assert plan.round.open_loops == 1, "DRAG's pass over the cohort, which the first round takes twice"
    assert plan.round.bytes > 10_000
    assert plan.seconds > 6 * plan.round.num_kernels * 2e-6
