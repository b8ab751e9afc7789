"""Times rules of ByzFL and ByzPy and those here in turn, at the sizes of ByzPy's own benchmarks.

Both libraries run on PyTorch, with as many threads as it takes by default. Each gets the matrix as it takes it: ours
as an array of JAX, ByzFL's as a tensor, ByzPy's as a list of tensors. A library that is not installed has no column.
Ours of ARC has the mean of the clipped rows too, theirs return the rows. ByzFL's ARC writes them into the matrix that
it is given, so that a second call would have nothing to clip: it gets a copy each time, which counts.
"""

import importlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.timing import Contestants, Row, in_turn, median_ratio, warm_up
from fedjax_drag import aggregators as a
from fedjax_drag.types import Aggregator

ROWS, WIDTH, MALICIOUS = 64, 65_536, 8
ARC_ROWS = 256

Matrix = np.ndarray[Any, np.dtype[np.float32]]


def _ours(rule: Aggregator) -> Callable[[Matrix], Callable[[], Any]]:
    def ready(matrix: Matrix) -> Callable[[], Any]:
        params, deltas = jnp.zeros(matrix.shape[1]), jnp.asarray(matrix)
        state = rule.init(params)
        extras = {"num_examples": jnp.ones(len(matrix))}
        compiled = jax.jit(lambda d: rule.apply(params, d, state, **extras)[0])
        return lambda: compiled(deltas).block_until_ready()

    return ready


def _theirs(library: str, name: str, *arguments: Any, **named: Any) -> Callable[[Matrix], Callable[[], Any]]:
    """``name`` is a module, a class and a method of the library, such as ``aggregators:CAF:aggregate``."""

    def ready(matrix: Matrix) -> Callable[[], Any]:
        torch = importlib.import_module("torch")
        module, kind, method = name.split(":")
        rule = getattr(importlib.import_module(f"{library}.{module}"), kind)(*arguments, **named)
        rows = torch.from_numpy(matrix)
        given = list(rows) if library == "byzpy" else rows
        in_place = (library, kind) == ("byzfl", "ARC")
        return lambda: getattr(rule, method)(rows.clone() if in_place else given)

    return ready


def _contestants(f: int) -> dict[str, dict[str, Callable[[Matrix], Callable[[], Any]]]]:
    def libraries(ours: Aggregator, byzfl: str, byzpy: str) -> dict[str, Callable[[Matrix], Callable[[], Any]]]:
        return {"here": _ours(ours), "byzfl": _theirs("byzfl", byzfl, f), "byzpy": _theirs("byzpy", byzpy, f)}

    coordinates, norms = "aggregators.coordinate_wise", "aggregators.norm_wise"
    return {
        "trimmed mean": libraries(
            a.trimmed_mean(f / ROWS),
            "aggregators.aggregators:TrMean:__call__",
            f"{coordinates}.trimmed_mean:CoordinateWiseTrimmedMean:aggregate",
        ),
        "CAF": libraries(a.caf(f), "aggregators.aggregators:CAF:__call__", f"{norms}.caf:CAF:aggregate"),
        "MeaMed": libraries(
            a.meamed(f),
            "aggregators.aggregators:Meamed:__call__",
            f"{coordinates}.mean_of_medians:MeanOfMedians:aggregate",
        ),
        "ARC": libraries(
            a.arc(a.fedavg(), f),
            "aggregators.preaggregators:ARC:__call__",
            "pre_aggregators.arc:ARC:pre_aggregate",
        ),
    }


def run(repeats: int) -> list[Row]:
    """A row for each rule: milliseconds of each library, and the ratio of each to ours."""
    rows = []
    for name, libraries in _contestants(MALICIOUS).items():
        size = (ARC_ROWS if name == "ARC" else ROWS, WIDTH)
        matrix = np.random.default_rng(0).standard_normal(size, np.float32)
        ready: Contestants = {}
        for library, prepare in libraries.items():
            try:
                ready[library] = prepare(matrix)
            except ImportError:
                continue
        warm_up(ready)
        times = in_turn(ready, repeats)
        row: Row = {"rule": name, "S": size[0], "d": WIDTH}
        row |= {f"{library} ms": float(np.median(times[library])) for library in ready}
        row |= {
            f"{library} / here": median_ratio(times[library], times["here"]) for library in ready if library != "here"
        }
        rows.append(row)
    return rows
