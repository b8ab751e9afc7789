"""Times the simulator: whole rounds against what they cannot do without, and its parts by themselves.

    python scripts/benchmark.py                     # a federated round of the CNN and of the MLP
    python scripts/benchmark.py cnn lenet mlp cifar10 --repeats 9 --json benchmark.json --markdown benchmark.md
    python scripts/benchmark.py lenet --only fedavg --only "fedavg, mesh=cores" --only torch --repeats 3
    python scripts/benchmark.py lenet --profile     # into which operations the time goes
    python scripts/benchmark.py --growth            # time for a client, and memory, as the cohort grows to 10,000
    python scripts/benchmark.py --growth 10 1000
    python scripts/benchmark.py --sweep             # up to 256 cells of a sweep as one program, against separate runs
    python scripts/benchmark.py --sweep 64
    python scripts/benchmark.py --aggregators       # every aggregation rule alone, against one pass over the deltas
    python scripts/benchmark.py --aggregators drag median
    python scripts/benchmark.py --clients           # what each method's correction costs a client

Contestants of a row's kind are timed in one process in turn, and ratios are medians over the turns; what they
are is said in round_benchmark.py, growth_benchmark.py, sweep_benchmark.py, aggregator_benchmark.py,
client_benchmark.py and profile_benchmark.py.
"""

import json
import os
from pathlib import Path
from typing import Annotated, Any

import aggregator_benchmark
import client_benchmark
import growth_benchmark
import jax
import profile_benchmark
import round_benchmark
import sweep_benchmark
import typer
from benchmark_timing import in_turn, peak_memory, table, warm_up
from benchmark_workloads import WORKLOADS, Workload


def rounds(chosen: list[str], repeats: int, options: dict[str, Any], only: list[str]) -> list[dict[str, Any]]:
    """Rows of the workloads."""
    for name in only:
        if name not in round_benchmark.names():
            raise ValueError(f"{name!r}: must be one of {'; '.join(round_benchmark.names())}")
    return [row for work in workloads(chosen) for row in round_benchmark.measure(work, repeats, options, only)]


def profiles(chosen: list[str], options: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of the operations."""
    return [row for work in workloads(chosen) for row in profile_benchmark.measure(work, options)]


def workloads(chosen: list[str]) -> list[Workload]:
    """Those with the chosen names."""
    for name in chosen:
        if name not in WORKLOADS:
            raise ValueError(f"{name!r}: must be one of {', '.join(WORKLOADS)}")
    return [WORKLOADS[name] for name in chosen or ["cnn", "mlp"]]


def growth(chosen: list[str], repeats: int, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of the cohorts."""
    largest = max(growth_benchmark.COHORTS)
    for size in chosen:
        if not size.isdecimal() or not 1 <= int(size) <= largest:
            raise ValueError(f"{size!r}: must be a cohort size from 1 to {largest}")
    return growth_benchmark.run([int(size) for size in chosen], repeats, options)


def widths(chosen: list[str]) -> list[dict[str, Any]]:
    """Rows of the sweeps."""
    for size in chosen:
        if not size.isdecimal() or int(size) < 1:
            raise ValueError(f"{size!r}: must be a number of cells, at least 1")
    return sweep_benchmark.run([int(size) for size in chosen])


def local_steps(repeats: int) -> list[dict[str, Any]]:
    """Rows of the methods."""
    work = WORKLOADS["lenet"]
    contestants, costs = client_benchmark.contestants(work.model(), work.data(), work.batch_size)
    warm_up(contestants)
    return client_benchmark.rows(in_turn(contestants, repeats), costs)


def main(
    chosen: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"Of {', '.join(WORKLOADS)}, default cnn and mlp; with --aggregators, of the rules; with --growth, "
            "cohort sizes; with --sweep, numbers of cells."
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Timed calls of each contestant.", min=1)] = 9,
    clients_axis: Annotated[str, typer.Option(help="auto, vmap or map.")] = "auto",
    clients_per_chunk: Annotated[int | None, typer.Option(help="Clients that run at once under map.")] = None,
    cores: Annotated[bool, typer.Option(help="Make each core a device, and also shard the clients over them.")] = True,
    profile: Annotated[bool, typer.Option("--profile", help="Show where the time of a round goes instead.")] = False,
    growing: Annotated[bool, typer.Option("--growth", help="Let the cohort grow instead.")] = False,
    sweep: Annotated[bool, typer.Option("--sweep", help="Time a sweep as one program instead, once.")] = False,
    aggregators: Annotated[bool, typer.Option("--aggregators", help="Time the aggregation rules instead.")] = False,
    clients: Annotated[bool, typer.Option("--clients", help="Time the local steps of the methods instead.")] = False,
    memory_gib: Annotated[float | None, typer.Option(help="Memory that --aggregators may use; default all.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Of the workloads' contestants this beside bare, e.g. fedavg; may be repeated. Default all."),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the rows to this file.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Also write the table to this file.")] = None,
) -> None:
    """Times a federated round against the bare local steps and against PyTorch, or what an option names."""
    if cores and not (aggregators or clients or growing or profile):
        jax.config.update("jax_num_cpu_devices", os.cpu_count())
    options = {"clients_axis": clients_axis, "clients_per_chunk": clients_per_chunk}
    try:
        if aggregators:
            rows = aggregator_benchmark.run(chosen or [], repeats, memory_gib)
        elif clients:
            rows = local_steps(repeats)
        elif sweep:
            rows = widths(chosen or [])
        elif profile:
            rows = profiles(chosen or [], options)
        elif growing:
            rows = growth(chosen or [], repeats, options)
        else:
            rows = rounds(chosen or [], repeats, options, only or [])
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    device = jax.devices()[0].device_kind
    how = "once" if profile or sweep else f"median of {repeats}"
    text = f"jax {jax.__version__}, {device}, {os.cpu_count()} cores, {how}\n\n{table(rows)}\n"
    print(f"{text}\nPeak memory of the process: {peak_memory():,.0f} MiB")
    if json_file:
        json_file.write_text(json.dumps(rows, indent=1))
    if markdown:
        markdown.write_text(text)


if __name__ == "__main__":
    typer.run(main)
