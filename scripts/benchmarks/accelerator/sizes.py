"""How large the measurements are: on an accelerator, on a CPU, and in tests."""

import dataclasses
from collections.abc import Mapping

import fedjax_drag as fd
from benchmarks.workloads import NUM_CLASSES, WORKLOADS, Workload


@dataclasses.dataclass(frozen=True)
class Sizes:
    """One size of the whole benchmark.

    Attributes:
      name: of this size.
      repeats: timed turns of each comparison.
      side: of the square matrices whose product is timed.
      copied_bytes: of the array whose copy is timed.
      workloads: rounds that are timed, by name.
      crowd: a round of the paper's CNN with a large cohort.
      equal: rounds of a dense and of a convolutional model, of which runs on the device and on the CPU are compared.
      runs: names of those runs; none for all.
      cohort: S of the rules.
      dimensions: d of the rules, those of the two parts.
      rules: names of rules, of :func:`benchmarks.aggregators.rules`; none for all.
      forms: workloads whose local steps are timed with each form of the convolution.
      cohorts: cohort sizes of a growing round, and how many clients the federation has.
      widths: of sweeps, by the name of their workload.
      sweep_rounds: of every cell.
      benchmark: the setting of pfl-research's CIFAR-10 benchmark.
      benchmark_rounds: that are run of it.
      models: programs whose compilation is timed.
      tests: folders and files of ``tests/`` that run on the device.
    """

    name: str
    repeats: int
    side: int
    copied_bytes: int
    workloads: Mapping[str, Workload]
    crowd: Workload
    equal: Mapping[str, Workload]
    runs: tuple[str, ...]
    cohort: int
    dimensions: tuple[int, int]
    rules: tuple[str, ...]
    forms: tuple[str, ...]
    cohorts: tuple[int, ...]
    widths: Mapping[str, tuple[int, ...]]
    sweep_rounds: int
    benchmark: Workload
    benchmark_rounds: int
    models: tuple[str, ...]
    tests: tuple[str, ...]


def _smaller(work: Workload, cohort_size: int, local_steps: int, batch_size: int) -> Workload:
    title = f"{work.title.split(',')[0]}, S={cohort_size} U={local_steps} B={batch_size}"
    sizes = {"cohort_size": cohort_size, "local_steps": local_steps, "batch_size": batch_size}
    return dataclasses.replace(work, title=title, num_clients=2 * cohort_size, examples=20, epochs=False, **sizes)


_CROWD = dataclasses.replace(WORKLOADS["cnn"], title="CNN, S=100 U=5 B=10", num_clients=200, cohort_size=100)
_BENCHMARK = dataclasses.replace(
    WORKLOADS["cifar10"],
    model=lambda: fd.models.cnn(NUM_CLASSES, "pooled_once", dropout=(0.25, 0.5)),
    test_examples=10_000,
)
_TINY = Workload("MLP 64-8-10, S=4 U=2 B=5", lambda: fd.models.mlp(NUM_CLASSES, hidden=(8,)), (8, 8, 1), 8, 10, 4, 2, 5)
_TINY_CNN = dataclasses.replace(
    _TINY, title="CNN 8x8, S=4 U=2 B=5", model=lambda: fd.models.cnn(NUM_CLASSES, "small"), image_shape=(8, 8, 1)
)

FULL = Sizes(
    name="full",
    repeats=5,
    side=8192,
    copied_bytes=2**31,
    workloads=WORKLOADS,
    crowd=_CROWD,
    equal={"dense": WORKLOADS["mlp"], "convolutional": WORKLOADS["cnn"]},
    runs=(),
    cohort=100,
    dimensions=(10**6, 10**7),
    rules=(),
    forms=("cnn", "lenet", "cifar10"),
    cohorts=(10, 100, 1000, 10_000),
    widths={"mlp": (1, 4, 16, 64, 256, 1024), "cnn": (1, 4, 16, 64)},
    sweep_rounds=20,
    benchmark=_BENCHMARK,
    benchmark_rounds=30,
    models=("mlp", "lenet", "cnn", "cifar10", "resnet18"),
    tests=(
        "kernels",
        "aggregators",
        "contracts",
        "attacks",
        "clients",
        "algorithms",
        "models",
        "numerics",
        "simulation",
    ),
)

SMALL = Sizes(
    name="small",
    repeats=3,
    side=1024,
    copied_bytes=2**26,
    workloads={"mlp": _smaller(WORKLOADS["mlp"], 10, 5, 10)},
    crowd=_TINY_CNN,
    equal={"dense": _TINY, "convolutional": _TINY_CNN},
    runs=("krum, ipm",),
    cohort=20,
    dimensions=(10**4, 10**5),
    rules=("fedavg", "drag", "median", "krum"),
    forms=(),
    cohorts=(10, 1000),
    widths={"mlp": (2,)},
    sweep_rounds=2,
    benchmark=dataclasses.replace(
        _BENCHMARK, title="CIFAR-10 CNN, 20 users x 50, S=2", num_clients=20, cohort_size=2, test_examples=100
    ),
    benchmark_rounds=2,
    models=("mlp",),
    tests=("kernels/test_distances.py",),
)

TINY = Sizes(
    name="tiny",
    repeats=1,
    side=32,
    copied_bytes=2**12,
    workloads={"mlp": _TINY},
    crowd=_TINY_CNN,
    equal={"dense": _TINY, "convolutional": _TINY_CNN},
    runs=("fedavg",),
    cohort=10,
    dimensions=(50, 60),
    rules=("fedavg",),
    forms=(),
    cohorts=(4, 8),
    widths={"mlp": (1, 2)},
    sweep_rounds=2,
    benchmark=_TINY,
    benchmark_rounds=2,
    models=("mlp",),
    tests=("kernels/test_distances.py",),
)

SIZES = {one.name: one for one in (FULL, SMALL, TINY)}
