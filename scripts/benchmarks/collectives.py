"""What devices that share the clients of a round send to each other, for every aggregation rule.

A round of the engine is compiled for slices of TPUs, which need not be there (``pip install libtpu``), and the
exchanges are counted in the compiled program: they are the same in every compilation, and nothing is computed.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from tqdm import tqdm

import fedjax_drag as fd
from benchmarks.aggregators import rules
from benchmarks.timing import Row
from benchmarks.workloads import growing
from fedjax_drag.accelerators import targets
from fedjax_drag.accelerators.counts import Collective, work_of

TARGETS = ("v5e:2x2", "v5e:4x4")
COHORT = 64


def run(chosen: Sequence[str], names: Sequence[str]) -> list[Row]:
    """A row for each rule: the kilobytes that each device sends or receives in a round, and in which exchanges.

    Args:
      chosen: names of rules; none: all of them.
      names: of targets; none: :data:`TARGETS`.

    Raises:
      ValueError: an unknown rule or target.
      ImportError: the compiler of a target is not installed.
    """
    known = rules(COHORT)
    for name in chosen:
        if name not in known:
            raise ValueError(f"{name!r}: must be one of {', '.join(known)}")
    slices = {name: targets.find(name).devices for name in names or TARGETS}
    bar = tqdm(chosen or known, leave=False, disable=None)
    return [{"rule": rule} | _of_rule(known[rule], slices) for rule in bar]


def _of_rule(rule: fd.types.Aggregator, slices: Mapping[str, Sequence[Any]]) -> Row:
    work = dataclasses.replace(growing(COHORT), num_clients=2 * COHORT)  # their number changes no exchange
    settings: dict[str, Any] = work.settings() | {"mesh": "all", "clients_axis": "vmap"}
    row: Row = {"server": "stack" if rule.sums is None else "sums"}
    for name, devices in slices.items():
        lowered = fd.simulation.lower(rule, devices=devices, data=work.data(), **settings)
        counts = work_of(lowered.programs.advance.compile().as_text())
        iterates = counts.open_loops > 1  # one is the loop over rounds
        row[f"kB, {name}"] = counts.collective_bytes / 1e3
        row[f"exchanges, {name}"] = _listed(counts.collectives) + (", a step of the loop" if iterates else "")
    return row


def _listed(exchanged: Mapping[str, Collective]) -> str:
    return ", ".join(f"{one.times} {kind}" for kind, one in exchanged.items()) or "none"
