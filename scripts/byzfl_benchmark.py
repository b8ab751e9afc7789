"""Runs of ByzFL's benchmark by its own classes.

    python scripts/byzfl_benchmark.py time --attack optimal_ipm --steps 20
    python scripts/byzfl_benchmark.py train --attack ipm --gamma 0.33

``configs/peers/byzfl.yaml`` repeats it here. The packages byzfl and torch have to be installed.
"""

import enum
import time
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

import fedjax_drag as fd
from fedjax_drag.types import Batch

_LINES_KEPT = "\n\n\b\n    python"  # Click keeps the lines of a paragraph after a backspace
app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help=(__doc__ or "").replace("\n\n    python", _LINES_KEPT)
)


class Attack(enum.StrEnum):
    """Attacks of the benchmark, by their names here."""

    IPM = "ipm"
    OPTIMAL_IPM = "optimal_ipm"
    OPTIMAL_ALIE = "optimal_alie"


class Rule(enum.StrEnum):
    """Rules of the benchmark, by their names here."""

    TRIMMED_MEAN = "trimmed_mean"
    RFA = "rfa"


_THEIR_ATTACK = {
    "ipm": "SignFlipping",
    "optimal_ipm": "Optimal_InnerProductManipulation",
    "optimal_alie": "Optimal_ALittleIsEnough",
}

AttackOption = Annotated[Attack, typer.Option(help="What the malicious clients do.")]
RuleOption = Annotated[Rule, typer.Option(help="Behind clipping and mixing.")]
ByzantineOption = Annotated[int, typer.Option(min=1, help="Malicious clients beside the ten honest ones.")]
GammaOption = Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of the data that all clients have alike.")]
ThreadsOption = Annotated[int, typer.Option(min=1, help="Threads of PyTorch.")]
DataOption = Annotated[str | None, typer.Option(help="Folder of the MNIST files.")]


@app.command(name="time")
def timed(
    attack: AttackOption = Attack.OPTIMAL_IPM,
    rule: RuleOption = Rule.TRIMMED_MEAN,
    num_byzantine: ByzantineOption = 4,
    gamma: GammaOption = 0.0,
    steps: Annotated[int, typer.Option(min=1, help="Steps that are timed; one more goes before.")] = 20,
    threads: ThreadsOption = 2,
    data_dir: DataOption = None,
) -> None:
    """Time steps of one run of the benchmark by ByzFL's own classes."""
    run = theirs(attack, rule, num_byzantine, gamma, threads, data_dir)
    run.step()
    started, of_cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        run.step()
    seconds, of_cpu = (time.perf_counter() - started) / steps, (time.process_time() - of_cpu) / steps
    typer.echo(
        f"byzfl, {rule}, {attack}, f={num_byzantine}: {seconds:.3f} s a step ({of_cpu:.3f} s of CPU), "
        f"{800 * seconds / 60:.1f} min a run of 800"
    )


@app.command()
def train(
    attack: AttackOption = Attack.OPTIMAL_ALIE,
    rule: RuleOption = Rule.TRIMMED_MEAN,
    num_byzantine: ByzantineOption = 4,
    gamma: GammaOption = 0.0,
    steps: Annotated[int, typer.Option(min=1, help="Of the run; the benchmark has 800.")] = 800,
    every: Annotated[int, typer.Option(min=1, help="Steps between evaluations.")] = 50,
    seed: Annotated[int, typer.Option(help="Of PyTorch: initial model and mini-batches.")] = 0,
    threads: ThreadsOption = 2,
    data_dir: DataOption = None,
) -> None:
    """Train one run of the benchmark by ByzFL's own classes and print its test accuracy."""
    run = theirs(attack, rule, num_byzantine, gamma, threads, data_dir, seed)
    for step in range(1, steps + 1):
        run.step()
        if step % every == 0 or step == steps:
            typer.echo(f"step {step}: {run.server.compute_test_accuracy():.3f}")


class Theirs(NamedTuple):
    """A run of the benchmark by ByzFL's own classes.

    Attributes:
      honest: its ``Client`` objects.
      server: its ``Server``.
      malicious: its ``ByzantineClient``.
    """

    honest: list[Any]
    server: Any
    malicious: Any

    def step(self) -> None:
        """One gradient of every client, and the server's step."""
        for one in self.honest:
            one.set_model_state(self.server.get_dict_parameters())
            one.compute_gradients()
        sent = [one.get_flat_gradients_with_momentum() for one in self.honest]
        self.server.update_model_with_gradients(sent + self.malicious.apply_attack(sent))


def theirs(
    attack: Attack, rule: Rule, num_byzantine: int, gamma: float, threads: int, data_dir: str | None, seed: int = 0
) -> Theirs:
    """A run of the benchmark at its start, on the data as they are split here.

    Raises:
      typer.BadParameter: byzfl or torch is not installed.
    """
    try:
        import torch  # pyright: ignore[reportMissingImports]
        from byzfl import fed_framework  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise typer.BadParameter(f"{error.name}: is not installed; pip install byzfl torch") from None
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    loaders, test = _loaders(torch, gamma, data_dir)
    optimiser = {"learning_rate": 0.1, "weight_decay": 1e-4, "milestones": [], "learning_rate_decay": 1.0}
    shared: dict[str, Any] = {"model_name": "cnn_mnist", "device": "cpu", "optimizer_name": "SGD", **optimiser}
    name, own = (
        ("TrMean", {"f": num_byzantine}) if rule is Rule.TRIMMED_MEAN else ("GeometricMedian", {"nu": 0.1, "T": 3})
    )
    defence = {
        "aggregator_info": {"name": name, "parameters": own},
        "pre_agg_list": [
            {"name": "Clipping", "parameters": {"c": 2.0}},
            {"name": "NNM", "parameters": {"f": num_byzantine}},
        ],
    }
    client = {"loss_name": "NLLLoss", "LabelFlipping": False, "nb_labels": 10, "momentum": 0.9}
    honest = [
        fed_framework.Client({**shared, **client, "training_dataloader": loader, "store_per_client_metrics": False})
        for loader in loaders
    ]
    server = fed_framework.Server({**shared, **defence, "test_loader": test})
    lying = {"name": _THEIR_ATTACK[attack], "f": num_byzantine, "parameters": {**defence, "f": num_byzantine}}
    return Theirs(honest, server, fed_framework.ByzantineClient(lying))


def _loaders(torch: Any, gamma: float, data_dir: str | None) -> tuple[list[Any], Any]:
    """The data of ten honest clients as their loaders, and the test examples."""
    fed = fd.data.hold_out(fd.data.load("mnist", data_dir=data_dir), 0.2)  # as in the configuration
    data = fd.data.partition.gamma_similarity(fed, 10, gamma)
    assert data.rows is not None
    assert data.counts is not None

    def loader(batch: Batch, size: int, shuffle: bool) -> Any:
        x = (np.asarray(batch.x) / np.float32(255) - np.float32(0.1307)) / np.float32(0.3081)
        images, labels = torch.from_numpy(x.transpose(0, 3, 1, 2)), torch.from_numpy(np.asarray(batch.y)).long()
        examples = torch.utils.data.TensorDataset(images, labels)
        return torch.utils.data.DataLoader(examples, batch_size=size, shuffle=shuffle)

    rows = [row[:count] for row, count in zip(data.rows, data.counts, strict=True)]
    clients = [loader(Batch(data.train.x[row], data.train.y[row]), 25, True) for row in rows]
    return clients, loader(data.test, 100, False)


if __name__ == "__main__":
    app()
