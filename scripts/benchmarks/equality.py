"""The device against the CPU: every rule on the same deltas, and a few runs, in one process."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

import fedjax_drag as fd
from benchmarks.aggregators import prepare, rules
from benchmarks.timing import Row, check_names
from benchmarks.workloads import WORKLOADS
from fedjax_drag.types import Aggregator, Attack

RULE_BOUND = 5e-6
"""Of float32 against float64 in docs/numerics.md, here of two devices."""

RUN_BOUND = 1e-5
"""Of the parameters after some rounds, as between meshes of different sizes in the tests."""

CLIENTS, NUMBERS, ROUNDS = 20, 10_000, 3
EXACT = "float32"
"""Products without TF32, JAX's default on NVIDIA's GPUs, whose ten bits are no matter of rounding alone."""

Run = tuple[str, Callable[[], Aggregator], Callable[[], Attack] | None]

RUNS: dict[str, Run] = {
    "run fedavg": ("mlp", fd.aggregators.fedavg, None),
    "run drag": ("cnn", fd.aggregators.drag, None),
    "run br_drag, sign_flip": ("mlp", fd.aggregators.br_drag, fd.attacks.sign_flip),
    "run median, alie": ("mlp", fd.aggregators.median, fd.attacks.alie),
    "run krum, ipm": ("cnn", fd.aggregators.krum, fd.attacks.ipm),
}
"""By name: the workload, the rule and the attack."""


def run(chosen: Sequence[str]) -> list[Row]:
    """A row for each rule and run: relative differences of the parameters from those that the CPU computes.

    Args:
      chosen: names of rules and of :data:`RUNS`; none: all of them.

    Raises:
      ValueError: a name is unknown.
    """
    known = [*rules(CLIENTS), *RUNS]
    check_names(chosen, known)
    bar = tqdm(chosen or known, leave=False, disable=None)
    return [compare(name, lambda name=name: _run(*RUNS[name]) if name in RUNS else _rule(name)) for name in bar]


def compare(name: str, params: Callable[[], np.ndarray]) -> Row:
    """The differences with products in float32 on both devices, and with the device's default precision."""

    def on(device: Any, precision: str) -> np.ndarray:
        with jax.default_device(device), jax.default_matmul_precision(precision):
            return params()

    here, bound = jax.devices()[0], RUN_BOUND if name in RUNS else RULE_BOUND
    expected = on(jax.devices("cpu")[-1], EXACT)
    exact, usual = (difference(on(here, precision), expected) for precision in (EXACT, "default"))
    return {
        "what": name,
        "difference": f"{exact:.0e}",
        "bound": f"{bound:.0e}",
        "verdict": "equal" if exact <= bound else "**differs**",
        "as JAX chooses": f"{usual:.0e}",
    }


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    """``||found - expected|| / ||expected||``; infinite where only one of them is finite."""
    if not np.array_equal(np.isfinite(found), np.isfinite(expected)):
        return np.inf
    return float(np.linalg.norm(found - expected) / (np.linalg.norm(expected) or 1.0))


def _rule(name: str) -> np.ndarray:
    matrix = np.random.default_rng(0).standard_normal((CLIENTS, NUMBERS), np.float32)
    new, _ = prepare(rules(CLIENTS)[name], {"w": jnp.zeros(NUMBERS)}, {"w": jnp.asarray(matrix)}, CLIENTS).call()
    return np.asarray(new["w"])


def _run(workload: str, rule: Callable[[], Aggregator], attack: Callable[[], Attack] | None) -> np.ndarray:
    work = WORKLOADS[workload]
    settings: dict[str, Any] = work.settings() | {"num_rounds": ROUNDS, "eval_every": ROUNDS, "clients_axis": "vmap"}
    if attack is not None:
        settings |= {"attack": attack(), "num_byzantine": work.num_clients // 5}
    params = fd.simulate(rule(), data=work.data(), time_clients=False, progress=False, **settings).params
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])
