"""Times every aggregation rule on its own.

The baseline is ``mean``, one product of weights and deltas, which is one pass over the memory of the deltas: no rule
can be faster. Each rule is timed in turn with the mean, and with NumPy on the same matrix where NumPy has the rule.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from benchmarks.roofline import planned_ms
from benchmarks.timing import Row, check_names, median_ratio, seconds_each
from fedjax_drag import aggregators, tree
from fedjax_drag.simulation.devices.memory import available
from fedjax_drag.types import Aggregator, Deltas, Params

COHORTS = (10, 100, 1000)
SIZES = (10**5, 10**6, 10**7)
MAX_NUMPY_ENTRIES = 10**8
"""Largest matrix that NumPy is timed on; its median takes half a minute there."""


def run(chosen: Sequence[str], repeats: int, memory_gib: float | None) -> list[Row]:
    """A row for each size and rule; ``passes`` are multiples of the mean, ``extra_memory`` of the deltas.

    Args:
      chosen: names of rules; none: all of them.
      repeats: timed calls of each.
      memory_gib: memory that may be used; None: what the device has free.

    Raises:
      ValueError: an unknown rule, or too little memory for the smallest deltas.
    """
    known = ["mean", *rules(10)]
    check_names(chosen, known)
    pairs = list(sizes(memory_gib))
    if not pairs:
        raise ValueError(
            f"--memory-gib {memory_gib}: must hold four copies of {COHORTS[0]} deltas of {SIZES[0]:,} numbers"
        )
    return [row for s, d in pairs for row in measure(s, d, chosen or known, repeats)]


def sizes(memory_gib: float | None) -> Iterator[tuple[int, int]]:
    """Pairs (S, d) for which four copies of the deltas fit into memory."""
    memory = memory_gib * 2**30 if memory_gib else available()
    return ((s, d) for s in COHORTS for d in SIZES if 4 * 4 * s * d < memory)


def rules(cohort: int) -> dict[str, Aggregator]:
    """The rules that are timed, set to tolerate a tenth of the cohort as Byzantine; most rules are among them."""
    f = cohort // 10
    a = aggregators
    return {
        "fedavg": a.fedavg(),
        "fedexp": a.fedexp(),
        "drag": a.drag(),
        "br_drag": a.br_drag(),
        "fltrust": a.fltrust(),
        "root_only": a.root_only(),
        "norm_clipping": a.norm_clipping(1.0),
        "centered_clipping": a.centered_clipping(1.0),
        "crfl": a.crfl(10.0),
        "signsgd_majority": a.signsgd_majority(0.01),
        "robust_lr": a.robust_lr(2 * f + 1),
        "foolsgold_taco": a.foolsgold_taco(),
        "clusterguard": a.clusterguard(),
        "median": a.median(),
        "trimmed_mean": a.trimmed_mean(0.1),
        "geometric_median": a.geometric_median(),
        "rfa": a.rfa(),
        "geomed": a.geomed(),
        "autogm": a.autogm(),
        "krum": a.krum(f),
        "multi_krum": a.multi_krum(f),
        "bulyan": a.bulyan(f),
        "meamed": a.meamed(f),
        "monna": a.monna(f),
        "dnc": a.dnc(f),
        "clustering": a.clustering(),
        "clipped_clustering": a.clipped_clustering(),
        "signguard": a.signguard(),
        "lasa": a.lasa(),
        "flame": a.flame(),
        "nnm, krum": a.nnm(a.krum(f), f),
        "bucketing, krum": a.bucketing(a.krum(0), 2),
        "foundationfl, median": a.foundationfl(a.median()),
        "clipping, krum": a.clipping(a.krum(f), 1.0),
        "arc, krum": a.arc(a.krum(f), f),
    }


class Compiled(NamedTuple):
    """A rule that is ready to be timed.

    Attributes:
      call: aggregates the deltas once.
      program: the compiled program.
      compile_seconds: time that its compilation took.
    """

    call: Callable[[], Any]
    program: Any
    compile_seconds: float

    @property
    def extra_bytes(self) -> int:
        """Memory that it needs beyond its inputs; 0 where the compiler does not say."""
        memory = self.program.memory_analysis()
        return memory.temp_size_in_bytes + memory.output_size_in_bytes if memory else 0


def prepare(rule: Aggregator, params: Params, deltas: Deltas, cohort: int) -> Compiled:
    """Compiles a rule for a round after its first, because the first round of some rules, such as DRAG, differs."""
    extras = {
        "key": jax.random.key(0),
        "root_delta": jax.tree.map(lambda d: d[0], deltas),
        "num_examples": jnp.full(cohort, 100),
        "start_loss": jnp.linspace(0.1, 3.0, cohort),
        "selection_weight": jnp.ones(cohort),
        "step_size": jnp.float32(0.1),
        "dissimilarity": jnp.linspace(0.0, 1.0, cohort),
        "client_ids": jnp.arange(cohort),
        "round": jnp.ones((), jnp.int32),
    }
    state = tree.initial_state(rule.apply, rule.init(params), params, deltas, **extras)
    if "round" in getattr(state, "_fields", ()):
        state = state._replace(round=jnp.ones_like(state.round))
    started = time.perf_counter()
    compiled = jax.jit(rule.apply).lower(params, deltas, state, **extras).compile()
    compile_seconds = time.perf_counter() - started
    return Compiled(lambda: compiled(params, deltas, state, **extras), compiled, compile_seconds)


def measure(cohort: int, size: int, chosen: Sequence[str], repeats: int) -> Iterator[Row]:
    """A row for each rule at one size."""
    matrix = np.random.default_rng(0).standard_normal((cohort, size), np.float32)
    deltas, params = {"w": jnp.asarray(matrix)}, {"w": jnp.zeros(size)}
    program = jax.jit(tree.mean).lower(deltas).compile()
    mean = Compiled(lambda: program(deltas), program, 0.0)
    jax.block_until_ready(mean.call())
    progress = tqdm(chosen, desc=f"S={cohort} d={size:.0e}", leave=False, disable=None)
    for name in progress:
        progress.set_postfix_str(name)
        rule = mean if name == "mean" else prepare(rules(cohort)[name], params, deltas, cohort)
        jax.block_until_ready(rule.call())
        in_numpy = IN_NUMPY.get(name) if cohort * size <= MAX_NUMPY_ENTRIES else None
        times, mean_times, numpy_times = [], [], []
        for _ in range(repeats):
            mean_times.append(seconds_each(mean.call))
            times.append(seconds_each(rule.call))
            if in_numpy:
                numpy_times.append(seconds_each(lambda compute=in_numpy: compute(matrix)))
        yield {
            "rule": name,
            "S": str(cohort),
            "d": f"{size:.0e}",
            "ms": 1e3 * statistics.median(times),
            "passes": median_ratio(times, mean_times),
            "planned_ms": planned_ms(rule.program),
            "to_numpy": median_ratio(times, numpy_times) if numpy_times else None,
            "extra_memory": rule.extra_bytes / matrix.nbytes,
            "compile_s": rule.compile_seconds,
        }


def numpy_trimmed_mean(x: np.ndarray) -> np.ndarray:
    """The coordinate-wise mean without a tenth of the values at each end."""
    cut = len(x) // 10
    if not cut:
        return x.mean(0)
    return np.partition(x, (cut, len(x) - cut - 1), axis=0)[cut : len(x) - cut].mean(0)


def numpy_krum(x: np.ndarray) -> np.ndarray:
    """Krum with distances from one Gram product, the fastest and least exact way in NumPy."""
    gram = x @ x.T
    squares = np.diag(gram)
    distances = squares[:, None] + squares[None] - 2 * gram
    np.fill_diagonal(distances, np.inf)
    neighbours = len(x) - len(x) // 10 - 2
    return x[np.sort(distances, axis=1)[:, :neighbours].sum(1).argmin()]


IN_NUMPY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean": lambda x: x.mean(0),
    "median": lambda x: np.median(x, axis=0),
    "trimmed_mean": numpy_trimmed_mean,
    "krum": numpy_krum,
}
"""By rule, the same of a matrix ``[S, d] -> [d]`` in NumPy."""
