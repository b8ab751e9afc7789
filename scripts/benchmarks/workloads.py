"""The federated settings that ``scripts/benchmark.py`` measures, those of papers and of other simulators."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

import fedjax_drag as fd

NUM_CLASSES = 10


@dataclasses.dataclass(frozen=True)
class Workload:
    """One federated setting.

    Attributes:
      title: for the table.
      model: builds the model.
      image_shape: of an example.
      num_clients: M.
      examples: of each client.
      cohort_size: S.
      local_steps: U.
      batch_size: B.
      epochs: whether the local steps are an epoch of the client's examples, without replacement.
    """

    title: str
    model: Callable[[], Any]
    image_shape: tuple[int, ...]
    num_clients: int
    examples: int
    cohort_size: int
    local_steps: int
    batch_size: int
    epochs: bool = False

    @property
    def steps(self) -> int:
        """Local steps of a round."""
        return self.cohort_size * self.local_steps

    @property
    def rounds(self) -> int:
        """Rounds of a timed call: several, as between evaluations, where memory is laid out once; long ones singly."""
        return max(1, min(3, 600 // self.steps))

    def data(self) -> Any:
        """Random images, divided among the clients: the arithmetic does not depend on what they show."""
        number = self.num_clients * self.examples
        rng = np.random.default_rng(0)
        x = rng.integers(0, 256, (number, *self.image_shape), dtype=np.uint8)
        y = rng.integers(0, NUM_CLASSES, number).astype(np.int32)
        data = fd.data.from_arrays(x, y, x[:100], y[:100], num_classes=NUM_CLASSES, name="random")
        return fd.data.partition.iid(data, num_clients=self.num_clients)

    def settings(self) -> dict[str, Any]:
        """Keyword arguments of a run without its data."""
        length = {"local_epochs": 1.0} if self.epochs else {"local_steps": self.local_steps}
        sizes = {"cohort_size": self.cohort_size, "batch_size": self.batch_size}
        return {"model": self.model(), "num_rounds": 10**6, "step_size": 0.01} | sizes | length


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


def growing(cohort_size: int) -> Workload:
    """A cohort of any size up to 10,000 on always the same data and model."""
    small = lambda: fd.models.mlp(NUM_CLASSES, hidden=(64,))
    return Workload(f"MLP 784-64-10, S={cohort_size} U=5 B=10", small, GREY, 10_000, 6, cohort_size, 5, 10)
