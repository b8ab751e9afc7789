"""Times every aggregation rule on its own; run by ``scripts/benchmark.py --aggregators``.

The yardstick is ``mean``, one product of weights and deltas, which is one pass over the memory of the deltas: no rule
can be faster. Each rule is timed in turn with it, and with NumPy on the same matrix where NumPy has the rule.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from fedjax_drag import aggregators, tree
from fedjax_drag.types import Aggregator

COHORTS = (10, 100, 1000)
SIZES = (10**5, 10**6, 10**7)
ENTRIES_FOR_NUMPY = 10**8
"""NumPy is left out above this many entries, where its median takes half a minute."""


def rules(cohort: int) -> dict[str, Aggregator]:
    """Every rule, with a tenth of the cohort taken for Byzantine."""
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
        "signsgd_majority": a.signsgd_majority(0.01),
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
        "clustering": a.clustering(),
        "nnm, krum": a.nnm(a.krum(f), f),
        "bucketing, krum": a.bucketing(a.krum(0), 2),
    }


def numpy_mean(x: np.ndarray) -> np.ndarray:
    """As written by everybody."""
    return x.mean(0)


def numpy_trimmed_mean(x: np.ndarray) -> np.ndarray:
    """A tenth of the values cut from each end."""
    cut = len(x) // 10
    if not cut:
        return x.mean(0)
    return np.partition(x, (cut, len(x) - cut - 1), axis=0)[cut : len(x) - cut].mean(0)


def numpy_krum(x: np.ndarray) -> np.ndarray:
    """Distances from one Gram product, as quick as NumPy allows (and as inexact)."""
    gram = x @ x.T
    squares = np.diag(gram)
    apart = squares[:, None] + squares[None] - 2 * gram
    np.fill_diagonal(apart, np.inf)
    neighbours = len(x) - len(x) // 10 - 2
    return x[np.sort(apart, axis=1)[:, :neighbours].sum(1).argmin()]


IN_NUMPY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean": numpy_mean,
    "median": lambda x: np.median(x, axis=0),
    "trimmed_mean": numpy_trimmed_mean,
    "krum": numpy_krum,
}


def seconds(call: Callable[..., Any], *arguments: Any) -> float:
    """How long one call takes."""
    started = time.perf_counter()
    jax.block_until_ready(call(*arguments))
    return time.perf_counter() - started


def sizes(memory_gib: float | None) -> Iterator[tuple[int, int]]:
    """Pairs (S, d) whose deltas, four times over, fit into memory."""
    memory = memory_gib * 2**30 if memory_gib else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return ((s, d) for s in COHORTS for d in SIZES if 4 * 4 * s * d < memory)


def prepare(rule: Aggregator, params: Any, deltas: Any, cohort: int) -> tuple[Callable[[], Any], int, float]:
    """A compiled call of a rule in its second round, the bytes it needs beyond its inputs, and seconds to compile."""
    extras = {
        "key": jax.random.key(0),
        "root_delta": jax.tree.map(lambda d: d[0], deltas),
        "num_examples": jnp.full(cohort, 100),
        "dissimilarity": jnp.linspace(0.0, 1.0, cohort),
        "client_ids": jnp.arange(cohort),
        "round": jnp.ones((), jnp.int32),
    }
    state = tree.initial_state(rule.apply, rule.init(params), params, deltas, **extras)
    if "round" in getattr(state, "_fields", ()):
        state = state._replace(round=jnp.ones_like(state.round))  # the first round of DRAG is another
    started = time.perf_counter()
    compiled = jax.jit(rule.apply).lower(params, deltas, state, **extras).compile()
    taken = time.perf_counter() - started
    memory = compiled.memory_analysis()
    extra = memory.temp_size_in_bytes + memory.output_size_in_bytes if memory else 0
    return lambda: compiled(params, deltas, state, **extras), extra, taken


def measure(cohort: int, size: int, chosen: list[str], repeats: int) -> Iterator[dict[str, Any]]:
    """A row for each rule at one size."""
    matrix = np.random.default_rng(0).standard_normal((cohort, size), np.float32)
    deltas = {"w": jnp.asarray(matrix)}
    params = {"w": jnp.zeros(size)}
    mean = jax.jit(tree.mean).lower(deltas).compile()
    seconds(mean, deltas)
    progress = tqdm(chosen, desc=f"S={cohort} d={size:.0e}", leave=False, disable=None)
    for name in progress:
        progress.set_postfix_str(name)
        if name == "mean":
            call, memory, compiling = lambda: mean(deltas), 0, 0.0
        else:
            call, memory, compiling = prepare(rules(cohort)[name], params, deltas, cohort)
        seconds(call)
        in_numpy = IN_NUMPY.get(name) if cohort * size <= ENTRIES_FOR_NUMPY else None
        times, passes, numpys = [], [], []
        for _ in range(repeats):
            passes.append(seconds(mean, deltas))
            times.append(seconds(call))
            if in_numpy:
                numpys.append(seconds(in_numpy, matrix))
        ms = 1e3 * statistics.median(times)
        yield {
            "rule": name,
            "S": str(cohort),
            "d": f"{size:.0e}",
            "ms": ms,
            "passes": statistics.median(t / p for t, p in zip(times, passes, strict=True)),
            "to_numpy": statistics.median(t / n for t, n in zip(times, numpys, strict=True)) if numpys else None,
            "extra_memory": memory / matrix.nbytes,
            "compile_s": compiling,
        }


def run(chosen: list[str], repeats: int, memory_gib: float | None) -> list[dict[str, Any]]:
    """Rows for all sizes; ``passes`` are multiples of the mean, ``extra_memory`` of the deltas.

    Raises:
      ValueError: an unknown rule.
    """
    known = ["mean", *rules(10)]
    for name in chosen:
        if name not in known:
            raise ValueError(f"{name!r}: must be one of {', '.join(known)}")
    return [row for s, d in sizes(memory_gib) for row in measure(s, d, chosen or known, repeats)]
