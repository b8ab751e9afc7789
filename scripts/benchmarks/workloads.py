"""The federated settings that are timed, taken from papers and from other simulators."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import numpy as np

import fedjax_drag as fd
from benchmarks.timing import check_names

NUM_CLASSES = 10


@dataclasses.dataclass(frozen=True)
class Workload:
    """One federated setting.

    Attributes:
      title: name in the table.
      model: builds the Flax module.
      image_shape: shape of an example.
      num_clients: M, clients in the federation.
      examples: examples of each client.
      cohort_size: S, clients in a round.
      local_steps: U.
      batch_size: B.
      epochs: whether the local steps are one epoch over the client's examples, drawn without replacement.
      test_examples: images of an evaluation.
    """

    title: str
    model: Callable[[], nn.Module]
    image_shape: tuple[int, ...]
    num_clients: int
    examples: int
    cohort_size: int
    local_steps: int
    batch_size: int
    epochs: bool = False
    test_examples: int = 100

    @property
    def steps(self) -> int:
        """Local steps of all clients in a round."""
        return self.cohort_size * self.local_steps

    @property
    def rounds(self) -> int:
        """Rounds in a timed call: one if it is long, else up to three, as between two evaluations of a run."""
        return max(1, min(3, 600 // self.steps))

    def data(self) -> fd.data.FederatedDataset:
        """Random images divided among the clients; the pixels do not change the cost of the arithmetic."""
        number = self.num_clients * self.examples
        rng = np.random.default_rng(0)
        x = rng.integers(0, 256, (number, *self.image_shape), dtype=np.uint8)
        y = rng.integers(0, NUM_CLASSES, number).astype(np.int32)
        scale = ((0.5,), (0.25,))  # given, because measuring them would set the peak memory
        test = slice(self.test_examples)
        data = fd.data.from_arrays(x, y, x[test], y[test], NUM_CLASSES, "random", *scale)
        return fd.data.partition.iid(data, num_clients=self.num_clients)

    def settings(self) -> dict[str, Any]:
        """Keyword arguments of :func:`fedjax_drag.simulation.prepare`, without the data."""
        length = {"local_epochs": 1.0} if self.epochs else {"local_steps": self.local_steps}
        sizes = {"cohort_size": self.cohort_size, "batch_size": self.batch_size}
        return {"model": self.model(), "num_rounds": 10**6, "step_size": 0.01, "mesh": None} | sizes | length


GREY, COLOUR = (28, 28, 1), (32, 32, 3)

WORKLOADS = {
    "cnn": Workload("CNN, S=10 U=5 B=10", lambda: fd.models.cnn(NUM_CLASSES), GREY, 40, 150, 10, 5, 10),
    "lenet": Workload("LeNet, S=20 U=100 B=64", lambda: fd.models.lenet(NUM_CLASSES), GREY, 40, 150, 20, 100, 64),
    "mlp": Workload("MLP 784-500-10, S=40 U=5 B=10", lambda: fd.models.mlp(NUM_CLASSES), GREY, 40, 150, 40, 5, 10),
    "cifar10": Workload(
        "CIFAR-10 CNN, 1000 users x 50, S=50, one epoch, B=10",
        lambda: fd.models.cnn(NUM_CLASSES, "pooled_once"),
        *(COLOUR, 1000, 50, 50, 5, 10),
        epochs=True,
    ),
}

DEFAULT = ("cnn", "mlp")


def select(names: Sequence[str]) -> list[Workload]:
    """The workloads with these names; ``cnn`` and ``mlp`` if there are none.

    Raises:
      ValueError: a name is unknown.
    """
    check_names(names, WORKLOADS)
    return [WORKLOADS[name] for name in names or DEFAULT]


def growing(cohort_size: int) -> Workload:
    """A cohort of up to 10,000 clients; data, model and federation are the same for every size."""
    model = lambda: fd.models.mlp(NUM_CLASSES, hidden=(64,))
    return Workload(f"MLP 784-64-10, S={cohort_size} U=5 B=10", model, GREY, 10_000, 10, cohort_size, 5, 10)
