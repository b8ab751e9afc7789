"""The device against the CPU: every rule on the same deltas, and a few runs, in one process."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_drag as fd
from benchmarks.accelerator.part import Cases, Part
from benchmarks.accelerator.sizes import Sizes
from benchmarks.aggregators import prepare, rules
from benchmarks.timing import Row
from benchmarks.workloads import Workload
from fedjax_drag.types import Aggregator, Attack

RULE_BOUND = 5e-6
"""Of float32 against float64 in docs/numerics.md, here of two devices."""

RUN_BOUND = 1e-5
"""Of the parameters after some rounds, as between meshes of different sizes in the tests."""

CLIENTS, NUMBERS, ROUNDS = 20, 10_000, 3
EXACT = "float32"
"""Products without TF32, JAX's default on NVIDIA's GPUs, whose ten bits are no matter of rounding alone."""

_RUNS: dict[str, tuple[str, Callable[[], Aggregator], Callable[[], Attack] | None]] = {
    "fedavg": ("dense", fd.aggregators.fedavg, None),
    "drag": ("convolutional", fd.aggregators.drag, None),
    "br_drag, sign_flip": ("dense", fd.aggregators.br_drag, fd.attacks.sign_flip),
    "median, alie": ("dense", fd.aggregators.median, fd.attacks.alie),
    "krum, ipm": ("convolutional", fd.aggregators.krum, fd.attacks.ipm),
}


def cases(sizes: Sizes) -> Cases:
    """A case for each rule and each run."""
    chosen = sizes.rules or tuple(rules(CLIENTS))
    runs = {f"run, {name}": functools.partial(compare_run, name, sizes) for name in sizes.runs or _RUNS}
    return runs | {name: functools.partial(compare_rule, name) for name in chosen}


def compare_rule(name: str) -> list[Row]:
    """The relative difference of the new parameters."""
    matrix = np.random.default_rng(0).standard_normal((CLIENTS, NUMBERS), np.float32)

    def on(device: Any, precision: str) -> np.ndarray:
        with jax.default_device(device), jax.default_matmul_precision(precision):
            params, deltas = {"w": jnp.zeros(NUMBERS)}, {"w": jnp.asarray(matrix)}
            new, _ = prepare(rules(CLIENTS)[name], params, deltas, CLIENTS).call()
            return np.asarray(new["w"])

    return [_row(f"rule {name}", on, RULE_BOUND)]


def compare_run(name: str, sizes: Sizes) -> list[Row]:
    """The relative difference of the parameters after some rounds."""
    model, rule, attack = _RUNS[name]
    work = sizes.equal[model]
    data = work.data()

    def on(device: Any, precision: str) -> np.ndarray:
        with jax.default_device(device), jax.default_matmul_precision(precision):
            params = fd.simulate(rule(), data=data, **_settings(work, attack)).params
            return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])

    return [_row(f"{ROUNDS} rounds of {work.title}, {name}", on, RUN_BOUND)]


def _settings(work: Workload, attack: Callable[[], Attack] | None) -> dict[str, Any]:
    chosen = {"num_rounds": ROUNDS, "eval_every": ROUNDS, "clients_axis": "vmap", "time_clients": False}
    adversary = {"attack": attack(), "num_byzantine": max(1, work.num_clients // 5)} if attack else {}
    return work.settings() | chosen | adversary | {"progress": False}


def _row(what: str, on: Callable[[Any, str], np.ndarray], bound: float) -> Row:
    here, cpu = jax.devices()[0], jax.devices("cpu")[-1]
    expected = on(cpu, EXACT)
    exact = _difference(on(here, EXACT), expected)
    usual = exact if here.platform == "cpu" else _difference(on(here, "default"), expected)
    return {
        "what": what,
        "difference": f"{exact:.0e}" if exact else "0",
        "bound": f"{bound:.0e}",
        "verdict": "equal" if exact <= bound else "**differs**",
        "as JAX chooses": f"{usual:.0e}" if usual else "0",
    }


def _difference(found: np.ndarray, expected: np.ndarray) -> float:
    """``||found - expected|| / ||expected||``; infinite where only one of them is finite."""
    if not np.array_equal(np.isfinite(found), np.isfinite(expected)):
        return np.inf
    scale = float(np.linalg.norm(expected))
    return float(np.linalg.norm(found - expected)) / (scale or 1.0)


PART = Part(
    name="equality",
    title="The device against the CPU",
    text="Relative differences of the parameters from those that the CPU computes in the same process: of every rule "
    f"on the same {CLIENTS} deltas of {NUMBERS:,} numbers, and of runs. Products in float32 on both; the last "
    "column is with the device's default precision of products, on NVIDIA's GPUs TF32.",
    minutes=2.5,
    cases=cases,
)
