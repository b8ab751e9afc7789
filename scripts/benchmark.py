"""Times the simulator: whole rounds and single parts, each against a baseline measured in the same process.

    python scripts/benchmark.py                     # a federated round of the CNN and of the MLP workload
    python scripts/benchmark.py cnn lenet mlp cifar10 --repeats 9 --json benchmark.json
    python scripts/benchmark.py lenet --only fedavg --only "fedavg, mesh=cores" --only torch --repeats 3
    python scripts/benchmark.py cnn mlp --against ../before  # of this tree against another, such as the last commit's
    python scripts/benchmark.py profile lenet       # the operations that take the time of a round
    python scripts/benchmark.py growth 10 1000      # time a client and peak memory as the cohort grows to 10,000
    python scripts/benchmark.py federation 1000000  # set-up, memory and rounds of a federation of a million clients
    python scripts/benchmark.py sweep 64            # a sweep of up to 256 cells as one program, against separate runs
    python scripts/benchmark.py aggregators drag    # aggregation rules alone, against one pass over the deltas
    python scripts/benchmark.py libraries           # rules beside those of ByzFL and ByzPy, where these are installed
    python scripts/benchmark.py clients             # the local steps of every method, against those of FedAvg
    python scripts/benchmark.py kernels             # the kernels' fast forms, against their references
    python scripts/benchmark.py start --against ../before  # from the command to the curve, and what an evaluation costs
    python scripts/benchmark.py programs --minutes 4  # sweeps on a GPU, compiled beside each other, timed in turn
    python scripts/benchmark.py convolution         # forms of the convolution, of the models of the workloads
    python scripts/benchmark.py networks            # published networks as users write them, beside PyTorch
    python scripts/benchmark.py equality            # results of a GPU or TPU against those of the CPU

``rounds`` is the subcommand that runs if none is named. All contestants of a comparison are timed in turn in one
process; ratios are medians over the turns. The modules of ``benchmarks/`` describe the contestants.
"""

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import jax
import typer

from benchmarks import (
    against,
    aggregators,
    clients,
    convolution,
    equality,
    federation,
    growth,
    kernels,
    libraries,
    networks,
    profiling,
    programs,
    rounds,
    start,
    sweeps,
)
from benchmarks.timing import Row, peak_memory, table
from benchmarks.workloads import WORKLOADS

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

Workloads = Annotated[
    list[str] | None,
    typer.Argument(metavar="[WORKLOAD]...", help=f"One of {', '.join(WORKLOADS)}; default cnn and mlp."),
]
Repeats = Annotated[int, typer.Option(help="Timed calls of each contestant.", min=1)]
ClientsAxis = Annotated[str, typer.Option(help="How clients run: auto, vmap or map.")]
ClientsPerChunk = Annotated[int | None, typer.Option(help="Clients that run at once under map.")]
Cores = Annotated[bool, typer.Option(help="Make each core a device, over which clients or cells can be sharded.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Also write the rows to this file.")]


@app.callback()
def _app() -> None:
    """Times a federated round against the bare local steps and against PyTorch, or a part of the simulator."""


@app.command("rounds")
def time_rounds(
    chosen: Workloads = None,
    repeats: Repeats = 9,
    clients_axis: ClientsAxis = "auto",
    clients_per_chunk: ClientsPerChunk = None,
    cores: Cores = True,
    only: Annotated[
        list[str] | None, typer.Option(help="A contestant to time beside bare, e.g. fedavg; repeatable. Default all.")
    ] = None,
    before: Annotated[
        Path | None, typer.Option("--against", help="Root of another tree: time the engine's rounds of both in turn.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Times federated rounds; the default."""
    if cores:
        _make_each_core_a_device()
    options = {"clients_axis": clients_axis, "clients_per_chunk": clients_per_chunk}
    with _misuse():
        if before is None:
            rows = rounds.run(chosen or [], repeats, options, only or [])
        else:
            rows = against.run(chosen or [], repeats, options, only or [], before)
    _report(rows, f"median of {repeats}", json_file)


@app.command("aggregators")
def time_aggregators(
    chosen: Annotated[list[str] | None, typer.Argument(metavar="[RULE]...", help="Rules; default all.")] = None,
    repeats: Repeats = 9,
    memory_gib: Annotated[float | None, typer.Option(help="Memory that may be used, in GiB; default all.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Times aggregation rules alone."""
    with _misuse():
        rows = aggregators.run(chosen or [], repeats, memory_gib)
    _report(rows, f"median of {repeats}", json_file)


@app.command("libraries")
def time_libraries(repeats: Repeats = 9, json_file: JsonFile = None) -> None:
    """Times aggregation rules beside those of ByzFL and ByzPy."""
    _report(libraries.run(repeats), f"median of {repeats}", json_file)


@app.command("kernels")
def time_kernels(
    size: Annotated[int, typer.Option(help="Clients.", min=2)] = 10,
    width: Annotated[int, typer.Option(help="Parameters of each.", min=10)] = 200_000,
    repeats: Repeats = 9,
    json_file: JsonFile = None,
) -> None:
    """Times the kernels' fast forms beside their reference implementations."""
    _report(kernels.run(repeats, size, width), f"median of {repeats}", json_file)


@app.command("clients")
def time_clients(repeats: Repeats = 9, json_file: JsonFile = None) -> None:
    """Times the local steps of every method."""
    _report(clients.run(repeats), f"median of {repeats}", json_file)


@app.command("sweep")
def time_sweeps(
    cells: Annotated[list[int] | None, typer.Argument(min=1, help="Numbers of cells; default 1 to 256.")] = None,
    cores: Cores = True,
    json_file: JsonFile = None,
) -> None:
    """Times a sweep against separate runs."""
    if cores:
        _make_each_core_a_device()
    _report(sweeps.run(cells or []), "once", json_file)


@app.command("profile")
def profile_rounds(chosen: Workloads = None, clients_axis: ClientsAxis = "auto", json_file: JsonFile = None) -> None:
    """Lists the costliest operations of a round."""
    with _misuse():
        rows = profiling.run(chosen or [], {"clients_axis": clients_axis})
    _report(rows, "once", json_file)


@app.command("growth")
def time_growth(
    sizes: Annotated[
        list[int] | None,
        typer.Argument(min=1, max=max(growth.COHORTS), help="Cohort sizes; default 10 to 10,000."),
    ] = None,
    repeats: Repeats = 9,
    json_file: JsonFile = None,
) -> None:
    """Measures time and memory as the cohort grows."""
    _report(growth.run(sizes or [], repeats), f"median of {repeats}", json_file)


@app.command("federation")
def measure_federations(
    sizes: Annotated[
        list[int] | None,
        typer.Argument(min=federation.COHORT, help="Numbers of clients; default 1,000 to 1,000,000."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help=f"One of {', '.join(federation.CONTESTANTS)}; repeatable. Default all."),
    ] = None,
    repeats: Repeats = 3,
    json_file: JsonFile = None,
) -> None:
    """Measures the set-up, the memory and the rounds of large federations."""
    with _misuse():
        rows = federation.run(sizes or [], only or [], repeats)
    _report(rows, f"median of {repeats} pairs of rounds", json_file)


@app.command("start")
def time_start(
    before: Annotated[Path, typer.Option("--against", help="Root of another tree: both are timed in turn.")],
    chosen: Annotated[
        list[str] | None, typer.Argument(metavar="[WHAT]...", help=f"Of {', '.join(start.PROGRAMS)}; default all.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Processes of each tree.", min=1)] = 5,
    json_file: JsonFile = None,
) -> None:
    """Times commands from their start, imports and compilation included."""
    with _misuse():
        rows = start.run(chosen or [], repeats, before)
    _report(rows, f"median of {repeats}", json_file)


@app.command("programs")
def time_programs(
    chosen: Annotated[list[str] | None, typer.Argument(metavar="[ROW]...", help="Rows; default all.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the rows; the same one continues them.")] = Path("runs/programs"),
    minutes: Annotated[float, typer.Option(help="Time of this call.", min=0)] = 9.0,
    profile: Annotated[bool, typer.Option(help="Also list the kernels that take the time.")] = False,
    before: Annotated[
        Path | None, typer.Option("--against", help="Root of another tree, whose rows are named before/ROW.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the rows.")] = False,
) -> None:
    """Times sweeps on a GPU or TPU: their programs compile beside each other, then each is timed by itself."""
    with _misuse():
        if listed:
            print("\n".join(programs.names()))
            return
        print(table(programs.table_rows(programs.run(chosen or [], out, minutes, profile, before))))


@app.command("convolution")
def time_convolutions(
    chosen: Annotated[
        list[str] | None, typer.Argument(metavar="[WORKLOAD]...", help="Default cnn, lenet and cifar10.")
    ] = None,
    repeats: Repeats = 9,
    json_file: JsonFile = None,
) -> None:
    """Times the forms of the convolution."""
    with _misuse():
        rows = convolution.run(chosen or [], repeats)
    _report(rows, f"median of {repeats}", json_file)


@app.command("networks")
def time_networks(
    chosen: Annotated[list[str] | None, typer.Argument(metavar="[NETWORK]...", help="Default all.")] = None,
    repeats: Repeats = 9,
    json_file: JsonFile = None,
) -> None:
    """Times published networks in the ways in which users write them."""
    with _misuse():
        rows = networks.run(chosen or [], repeats)
    _report(rows, f"median of {repeats}", json_file)


@app.command("equality")
def compare_with_cpu(
    chosen: Annotated[
        list[str] | None, typer.Argument(metavar="[WHAT]...", help="Rules, and names of runs; default all.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Compares results of a GPU or TPU with those of the CPU."""
    with _misuse():
        rows = equality.run(chosen or [])
    _report(rows, "relative differences of the parameters", json_file)


def with_command(arguments: Sequence[str]) -> list[str]:
    """The arguments with the subcommand ``rounds`` in front where there is none."""
    names = {command.name for command in app.registered_commands}
    return [*(() if arguments and arguments[0] in {*names, "--help"} else ("rounds",)), *arguments]


def _make_each_core_a_device() -> None:
    jax.config.update("jax_num_cpu_devices", os.cpu_count())


@contextlib.contextmanager
def _misuse() -> Iterator[None]:
    """Reports a wrong argument of the command in one line."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _report(rows: Sequence[Row], how: str, json_file: Path | None) -> None:
    """Prints the table of the rows and writes the file that was asked for."""
    device = jax.devices()[0].device_kind
    print(f"jax {jax.__version__}, {device}, {os.cpu_count()} cores, {how}\n\n{table(rows)}\n")
    print(f"Peak memory of the process: {peak_memory():,.0f} MiB")
    if json_file:
        json_file.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    app(with_command(sys.argv[1:]))
