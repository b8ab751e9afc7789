"""Every rule alone, in multiples of the mean and beside the shortest time in which its bytes can be moved."""

import functools
import statistics
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import aggregators
from benchmarks.accelerator.part import Cases, Part
from benchmarks.accelerator.parts.counts import planned_ms, work
from benchmarks.accelerator.sizes import Sizes
from benchmarks.timing import Row, median_ratio, seconds_each
from fedjax_drag import tree


def cases(sizes: Sizes, which: int) -> Cases:
    """A case for each rule at one of the sizes of deltas."""
    chosen = sizes.rules or tuple(aggregators.rules(sizes.cohort))
    return {name: functools.partial(measure, name, sizes, sizes.dimensions[which]) for name in chosen}


def measure(name: str, sizes: Sizes, dimension: int) -> list[Row]:
    """Times a rule in turn with the mean."""
    cohort = sizes.cohort
    params, deltas, mean = inputs(cohort, dimension)
    rule = aggregators.prepare(aggregators.rules(cohort)[name], params, deltas, cohort)
    jax.block_until_ready(rule.call())
    times, mean_times = [], []
    for _ in range(sizes.repeats):
        mean_times.append(seconds_each(lambda: mean(deltas)))
        times.append(seconds_each(rule.call))
    ms, done = 1e3 * statistics.median(times), work(rule.program)
    planned = planned_ms(done, sizes)
    return [
        {
            "rule": name,
            "S": str(cohort),
            "d": f"{dimension:.0e}",
            "ms": ms,
            "to_mean": median_ratio(times, mean_times),
            "passes": done and done.bytes / deltas["w"].nbytes,
            "kernels": done and done.num_kernels,
            "planned_ms": planned,
            "to_planned": ms / planned if planned else None,
            "extra_memory": rule.extra_bytes / deltas["w"].nbytes,
            "compile_s": rule.compile_seconds,
            "_open_loops": done and done.open_loops,
        }
    ]


@functools.lru_cache(maxsize=1)
def inputs(cohort: int, dimension: int) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Parameters, deltas drawn on the device, and the compiled mean."""
    deltas = {"w": jax.random.normal(jax.random.key(0), (cohort, dimension))}
    mean = jax.jit(tree.mean).lower(deltas).compile()
    jax.block_until_ready(mean(deltas))
    return {"w": jnp.zeros(dimension)}, deltas, mean


_TEXT = (
    "*to mean*: multiples of the time of the mean, which is one pass over the deltas, timed in turn. *passes*: bytes "
    "that the compiled program moves, in multiples of those of the deltas. *planned*: of each kernel the longest of "
    "its bytes, its products and its launch, at the rates that the plan takes for the device (without rates where it "
    "has no such device); loops whose length depends on the deltas count once. *extra memory*: in multiples of the "
    "deltas."
)

PART = Part(
    name="rules",
    title="Rules against the mean",
    text=_TEXT,
    minutes=3.0,
    cases=functools.partial(cases, which=0),
)

LARGE = Part(
    name="large_rules",
    title="Rules against the mean, ten times the parameters",
    text=_TEXT,
    minutes=3.0,
    cases=functools.partial(cases, which=1),
)
