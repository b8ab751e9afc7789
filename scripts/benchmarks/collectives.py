"""What devices that share the clients of a round send to each other, by aggregation rule.

Each rule is compiled alone, for a stack of deltas that slices of TPUs divide by client, as they do after the local
steps; rules that need whole columns first divide it by coordinate, as the engine does. The TPUs need not be there
(``pip install libtpu``), nothing is computed, and the exchanges are the same in every compilation.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tqdm import tqdm

import fedjax_drag as fd
from benchmarks.aggregators import rules
from benchmarks.timing import Row, check_names
from fedjax_drag import tree
from fedjax_drag.accelerators import targets
from fedjax_drag.accelerators.counts import Collective, work_of
from fedjax_drag.simulation.devices.placement import everywhere, split_coordinates

TARGETS = ("v5e:2x2", "v5e:4x4")
COHORT, SIDE = 64, 1024
"""Clients, and the side of the one square matrix of parameters."""


def run(chosen: Sequence[str], names: Sequence[str]) -> list[Row]:
    """A row for each rule: the megabytes that each device sends or receives in a round, and in which exchanges.

    Args:
      chosen: names of rules; none: all of them.
      names: of targets; none: :data:`TARGETS`.

    Raises:
      ValueError: an unknown rule or target.
      ImportError: the compiler of a target is not installed.
    """
    known = rules(COHORT)
    check_names(chosen, known)
    meshes = {name: Mesh(targets.find(name).devices, ("clients",)) for name in names or TARGETS}
    bar = tqdm(chosen or known, leave=False, disable=None)
    return [{"rule": rule} | _of_rule(known[rule], meshes) for rule in bar]


def _of_rule(rule: fd.types.Aggregator, meshes: Mapping[str, Mesh]) -> Row:
    row: Row = {"needs": "sums" if rule.streamed is not None else "stack"}
    for name, mesh in meshes.items():
        counts = work_of(_compiled(rule, mesh))
        row[f"MB, {name}"] = counts.collective_bytes / 1e6
        steps = ", a step of the loop" if counts.open_loops else ""
        row[f"exchanges, {name}"] = _listed(counts.collectives) + steps
    return row


def _compiled(rule: fd.types.Aggregator, mesh: Mesh) -> str:
    """The text of the rule's program."""
    everyone, by_client = everywhere(mesh), NamedSharding(mesh, PartitionSpec("clients"))
    params: Any = {"w": jax.ShapeDtypeStruct((SIDE, SIDE), jnp.float32)}
    deltas: Any = {"w": jax.ShapeDtypeStruct((COHORT, SIDE, SIDE), jnp.float32)}
    numbers = jax.ShapeDtypeStruct((COHORT,), jnp.int32)
    extras: dict[str, Any] = {
        "key": jax.eval_shape(lambda: jax.random.key(0)),
        "root_delta": params,
        "num_examples": numbers,
        "dissimilarity": jax.ShapeDtypeStruct((COHORT,), jnp.float32),
        "client_ids": numbers,
        "round": jax.ShapeDtypeStruct((), jnp.int32),
    }

    def initial(params: Any, deltas: Any, extras: Any) -> Any:
        return tree.initial_state(rule.apply, rule.init(params), params, deltas, **extras)

    def apply(params: Any, deltas: Any, state: Any, extras: Any) -> Any:
        if rule.split == "coordinates":
            deltas = split_coordinates(deltas, mesh)
        return rule.apply(params, deltas, state, **extras)

    state = jax.eval_shape(initial, params, deltas, extras)
    shardings = everyone, by_client, everyone, everyone
    program = jax.jit(apply, in_shardings=shardings, out_shardings=everyone)
    return program.lower(params, deltas, state, extras).compile().as_text() or ""


def _listed(exchanged: Mapping[str, Collective]) -> str:
    return ", ".join(f"{one.times} {kind}" for kind, one in exchanged.items()) or "none"
