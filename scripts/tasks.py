"""Measures methods on tasks other than classification, without attack and under two attacks.

    python scripts/tasks.py run adult_hours --data-dir DATA --out tasks.jsonl    # one line for each run that it adds
    python scripts/tasks.py table tasks.jsonl                                    # as in docs/results/tasks.md

Of 20 clients 10 take part in a round, each with 5 local steps, and 4 of the 20 are malicious; without attack these are
honest.
"""

import dataclasses
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
import typer

import fedjax_drag as fd
from fedjax_drag import checks
from fedjax_drag.types import Batch

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=__doc__)

RULES: dict[str, Callable[[], Any]] = {
    "FedAvg": fd.aggregators.fedavg,
    "SCAFFOLD": fd.algorithms.scaffold,
    "DRAG": lambda: fd.aggregators.drag(c=0.25, alpha=0.25),
    "Krum": fd.aggregators.krum,
    "BR-DRAG": lambda: fd.aggregators.br_drag(c=0.5),
}
ATTACKS = {
    "none": fd.attacks.label_flip(fraction=0.0),
    "label flip": fd.attacks.label_flip(fraction=1.0),
    "sign flip": fd.attacks.sign_flip(),
}
_CLIENTS, _MALICIOUS = 20, 4
_MOST_TESTED = 1_000  # texts


class Pixels(nn.Module):
    """A class for each pixel, from its neighbourhood of 9 x 9 pixels."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """``[B, H, W, 1]`` to ``[B, H, W, 3]``."""
        for _ in range(3):
            x = nn.relu(nn.Conv(8, (3, 3))(x))
        return nn.Conv(3, (3, 3))(x)


class Task(NamedTuple):
    """What is trained on what.

    Attributes:
      data: ``(folder) -> data set``, split among the clients.
      model: of the task.
      loss: of the task.
      metric: that is reported.
      step_size: of the local steps.
      num_rounds: of a run.
      batch_size: of the local steps.
    """

    data: Callable[[Path | None], Any]
    model: Any
    loss: Any
    metric: Any
    step_size: float
    num_rounds: int
    batch_size: int


def texts(folder: Path | None) -> Any:
    """Roles with many lines, and some of the test texts."""
    fed = fd.data.partition.natural(fd.data.load("shakespeare_tokens", data_dir=folder), _CLIENTS, min_size=500)
    chosen = np.random.default_rng(0).choice(len(fed.test.y), _MOST_TESTED, replace=False)
    assert fed.test_users is not None
    test = Batch(fed.test.x[chosen], fed.test.y[chosen])
    return dataclasses.replace(fed, test=test, test_users=fed.test_users[chosen])


def hours(folder: Path | None) -> Any:
    """Clients whose people work more and more hours."""
    fed = fd.data.load("adult_hours", data_dir=folder)
    return fd.data.partition.by_quantile(fed, _CLIENTS, strictness=0.5)


def characters(folder: Path | None) -> Any:
    """Pairs of characters, of clients with few of the 47 classes."""
    fed = fd.data.load("emnist_bymerge_test", data_dir=folder)
    return fd.data.pairs(fd.data.partition.dirichlet(fed, _CLIENTS, beta=0.5))


def pictures(_: Path | None) -> Any:
    """Clients with few and with many pictures."""
    return fd.data.partition.quantity_skew(fd.data.load("shapes"), _CLIENTS, power=1)


NATS, PERPLEXITY = fd.losses.token_cross_entropy(), fd.metrics.perplexity(padding=-1)
LSTM = fd.models.lstm(80, hidden=64, layers=1, return_sequences=True)
TRANSFORMER = fd.models.transformer(80, layers=1, heads=2, width=32, return_sequences=True)
TASKS = {
    "adult_hours": Task(hours, fd.models.mlp(1, (64,)), fd.losses.mse(), fd.metrics.r2(), 0.02, 200, 32),
    "shapes": Task(pictures, Pixels(), fd.losses.cross_entropy(), fd.metrics.f1(), 0.5, 60, 10),
    "emnist_pairs": Task(
        characters, fd.models.mlp(47, (128,)), fd.losses.binary_cross_entropy(), fd.metrics.f1(), 4.0, 100, 32
    ),
    "shakespeare, LSTM": Task(texts, LSTM, NATS, PERPLEXITY, 1.0, 40, 8),
    "shakespeare, transformer": Task(texts, TRANSFORMER, NATS, PERPLEXITY, 0.5, 40, 4),
}


@app.command()
def run(
    task: Annotated[str, typer.Argument(help=", ".join(TASKS))],
    out: Annotated[Path, typer.Option(help="file to which the lines are added")] = Path("tasks.jsonl"),
    data_dir: Annotated[Path | None, typer.Option(help="folder of the data")] = None,
    seed: int = 0,
    rounds: Annotated[int | None, typer.Option(help="of each run; default those of the task")] = None,
) -> None:
    """Trains with every rule under every attack."""
    try:
        checks.one_of("TASK", task, TASKS)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    data, model, loss, metric, step_size, num_rounds, batch_size = TASKS[task]
    num_rounds = rounds or num_rounds
    fed = data(data_dir)
    for rule, build in RULES.items():
        for attack, adversary in ATTACKS.items():
            result = fd.simulate(
                build(),
                model=model,
                data=fed,
                loss=loss,
                metrics=[metric],
                num_rounds=num_rounds,
                eval_every=num_rounds,
                cohort_size=_CLIENTS // 2,
                local_steps=5,
                batch_size=batch_size,
                step_size=step_size,
                seed=seed,
                progress=False,
                attack=adversary,
                num_byzantine=_MALICIOUS,
            )
            value = float(result.history[f"test_{metric.name}"][-1])
            line = {"task": task, "metric": metric.name, "rounds": num_rounds, "attack": attack, "rule": rule}
            line |= {"seed": seed, "value": value}
            typer.echo(json.dumps(line))
            with out.open("a") as stream:
                stream.write(json.dumps(line) + "\n")


@app.command()
def table(file: Annotated[Path, typer.Argument(exists=True, dir_okay=False)]) -> None:
    """Prints the mean over the seeds at the end of the runs, as a table of Markdown; of a run made twice, the last."""
    values: dict[tuple[str, str], dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for line in map(json.loads, file.read_text().splitlines()):
        own = TASKS[line["task"]].num_rounds
        rounds = line.get("rounds", own)
        title = f"{line['task']}: {line['metric']}" + (f" after {rounds} rounds" if rounds != own else "")
        values[title, line["attack"]][line["rule"]][line["seed"]] = line["value"]
    typer.echo(f"| task: metric | attack | {' | '.join(RULES)} |\n| --- | --- |{' --- |' * len(RULES)}")
    for (title, attack), of_rules in values.items():
        cells = (_cell(list(of_rules[rule].values())) for rule in RULES)
        typer.echo(f"| {title} | {attack} | {' | '.join(cells)} |")


def _cell(values: list[float]) -> str:
    if not values:
        return ""
    return f"{np.mean(values):.3g}" if np.abs(values).max() < 1e4 else "diverged"


if __name__ == "__main__":
    app()
