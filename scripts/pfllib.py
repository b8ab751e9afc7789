"""Runs five methods in the setting of PFLlib's benchmark on Fashion-MNIST, and sets them beside its figures.

    python scripts/pfllib.py run FedAvg --rounds 20 --data-dir DATA      # goes on where it stopped, or further
    python scripts/pfllib.py table runs/pfllib --figure pfllib.png       # as in docs/results/pfllib.md

Training and test examples are split together; each client then keeps a quarter of its own for testing (TsingZ0/PFLlib,
dataset/utils/dataset_utils.py). The accuracy is that on all clients' test examples, which is the mean over the clients
weighted by their numbers: of the global model for FedAvg and FedProx, of the clients' own for the others.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

import fedjax_drag as fd
from fedjax_drag import checks
from fedjax_drag.experiment.config.config import Config
from fedjax_drag.experiment.intervals import estimate
from fedjax_drag.experiment.run import results
from fedjax_drag.experiment.sweep.summary_page import markdown

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=__doc__)

TRAINED = 0.75
LEAST = 40
"""Examples of a client at least: a batch of ten in the quarter that it tests on."""

METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {},
    "FedProx": {"client": {"name": "fedprox", "mu": 0.1}},
    "Ditto": {"algorithm": {"name": "ditto", "lam": 0.1}},
    "FedRep": {"algorithm": {"name": "fedrep", "layers": "Dense_1", "head_steps": 0.5}, "local_epochs": 2},
    "FedPer": {"algorithm": {"name": "fedper", "layers": "Dense_1"}},
}


def dirichlet(fed: Any, num_clients: int, beta: float = 0.1, seed: int = 0) -> Any:
    """Their practical label skew: each class in Dirichlet proportions over clients below their even share."""
    fed = _together(fed)
    split: Any = fd.data.partition.dirichlet(fed, num_clients, beta, seed, min_size=LEAST, balanced=True)
    return _tested(split, [row[:count] for row, count in zip(split.rows, split.counts, strict=True)])


def two_labels(fed: Any, num_clients: int, seed: int = 0) -> Any:
    """Their pathological label skew: two classes for every group of clients, in shares of random size."""
    fed, rng = _together(fed), np.random.default_rng(seed)
    group = 2 * num_clients // fed.num_classes
    own: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    for label in range(fed.num_classes):
        examples = rng.permutation(np.flatnonzero(fed.labels == label))
        even = len(examples) / group
        sizes = rng.integers(int(max(even / 10, LEAST / fed.num_classes)), int(even), group - 1)
        for client, part in enumerate(np.split(examples, np.cumsum(sizes)), label // 2 * group):
            own[client].append(part)
    return _tested(fed, [rng.permutation(np.concatenate(parts)) for parts in own])


def _together(fed: Any) -> Any:
    """All examples as training examples."""
    x, y = (np.concatenate([a, b]) for a, b in zip(fed.train[:2], fed.test[:2], strict=True))
    return fd.data.from_arrays(x, y, x[:1], y[:1], num_classes=fed.num_classes, name=fed.name)


def _tested(fed: Any, own: list[np.ndarray]) -> Any:
    """Clients with examples ``own``, in random order, of which they train on the first three quarters."""
    parts = [np.split(examples, [int(TRAINED * len(examples))]) for examples in own]
    of = lambda examples: (fed.train.x[examples], fed.train.y[examples])
    options = {"num_classes": fed.num_classes, "name": fed.name, "mean": (0.5,), "std": (0.5,)}
    tested = [of(test) for _, test in parts]
    return fd.data.from_clients([of(train) for train, _ in parts], client_test=tested, **options)


class Split(NamedTuple):
    """How the examples are split, and their figures of docs/benchmark.html.

    Attributes:
      clients: ``(data, number of clients) -> data`` with clients.
      published: by method in %, best over 2,000 rounds, mean of three trials.
    """

    clients: Callable[..., Any]
    published: dict[str, float]


def _by_method(*published: float) -> dict[str, float]:
    return dict(zip(METHODS, published, strict=True))


SPLITS = {
    "dirichlet": Split(dirichlet, _by_method(85.85, 85.63, 97.47, 97.56, 97.44)),
    "two_labels": Split(two_labels, _by_method(80.41, 78.08, 99.44, 99.56, 99.47)),
}


def setting(method: str, split: str, seed: int, rounds: int, data_dir: Path | None) -> dict[str, Any]:
    """The configuration of a run."""
    checks.one_of("method", method, METHODS)
    checks.one_of("split", split, SPLITS)
    return {
        "name": "pfllib",
        "data": {"name": "fashion_mnist", "data_dir": data_dir and str(data_dir)},
        "partition": {"name": SPLITS[split].clients, "num_clients": 20, "seed": 0},
        "model": {"name": "cnn", "variant": "pfllib", "init": "torch"},
        "aggregator": {"name": "fedavg", "weighting": "examples"},
        "rounds": rounds,
        "cohort_size": 20,
        "local_epochs": 1,
        "batch_size": 10,
        "step_size": 0.005,
        "eval_every": 1,
        "evaluate_clients": True,
        "seed": seed,
    } | METHODS[method]


@app.command()
def run(
    method: Annotated[str, typer.Argument(help=f"One of {', '.join(METHODS)}.")],
    split: Annotated[str, typer.Option(help=f"One of {', '.join(SPLITS)}.")] = "dirichlet",
    rounds: Annotated[int, typer.Option(help="Of theirs there are 2,000.")] = 2000,
    seed: int = 0,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the data.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of all runs.")] = Path("runs/pfllib"),
) -> None:
    """Train one method; a run that is there already goes on."""
    folder = out / f"{split}-{method}-{seed}"
    try:
        fd.run(setting(method, split, seed, rounds, data_dir), out=folder, resume=True)
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from error


def curves(out: Path, split: str, method: str) -> dict[int, np.ndarray]:
    """The accuracy after each round in %, by seed; of clients' own models weighted by test examples."""
    found = {}
    for folder in sorted(out.glob(f"{split}-{method}-*")):
        (run,) = results.read(folder)
        name = next((name for name in ("own_accuracy", "test_accuracy") if name in run.history), None)
        if name is not None:
            shares = 100 * np.array(run.history[name], float)
            found[run.config.seed] = shares @ _weights(split, run.config) if shares.ndim > 1 else shares
    return found


def _weights(split: str, config: Config) -> np.ndarray:
    """Each client's share of the test examples."""
    data = fd.data.load("fashion_mnist", data_dir=config.data.arguments.get("data_dir"))
    counts = SPLITS[split].clients(data, 20).client_test.counts
    return counts / counts.sum()


@app.command()
def table(
    out: Annotated[Path, typer.Argument(help="Folder of all runs.")],
    figure: Annotated[Path | None, typer.Option(help="Image of the curves.")] = None,
) -> None:
    """Print their figures beside the best of the rounds that all seeds of ours have, and draw the curves."""
    lines = [["split", "method", "theirs", "ours", "seeds", "rounds"]]
    drawn: dict[str, dict[str, dict[int, np.ndarray]]] = defaultdict(dict)
    for split, method in itertools.product(SPLITS, METHODS):
        if found := curves(out, split, method):
            drawn[split][method] = found
            rounds = min(map(len, found.values()))
            best = estimate(np.array([curve[:rounds].max() / 100 for curve in found.values()]))
            lines.append([split, method, str(SPLITS[split].published[method]), str(best), str(len(found)), str(rounds)])
    if not drawn:
        raise typer.BadParameter(f"{out}: must be a folder with runs of this script")
    typer.echo(markdown(lines))
    if figure is not None:
        _draw(drawn, figure)


def _draw(drawn: dict[str, dict[str, dict[int, np.ndarray]]], file: Path) -> None:
    """A panel for each split: the mean over the seeds, up to the last round that all have; dashed their figures."""
    from matplotlib.figure import Figure

    shown = Figure(figsize=(6 * len(drawn), 4), layout="constrained")
    for (split, methods), axes in zip(drawn.items(), shown.subplots(1, len(drawn), squeeze=False).flat, strict=True):
        for index, (method, found) in enumerate(methods.items()):
            length = min(map(len, found.values()))
            mean = np.mean([curve[:length] for curve in found.values()], 0)
            axes.plot(np.arange(1, length + 1), mean, f"C{index}.-", label=method)
            axes.axhline(SPLITS[split].published[method], color=f"C{index}", linestyle="--", linewidth=0.8)
        axes.set(title=split.replace("_", " "), xlabel="rounds", ylabel="accuracy, %")
        axes.locator_params("x", integer=True)
        axes.legend()
        axes.grid(alpha=0.3)
    shown.savefig(file, dpi=110)


if __name__ == "__main__":
    app()
