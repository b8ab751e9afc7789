"""Fine-tuning."""

# pyright: reportIncompatibleMethodOverride=false

from fedjax_drag import checks
from fedjax_drag.algorithms.personal._personal import PersonalMethod
from fedjax_drag.types import Adaptation, Aggregator, Scalar


class fine_tune(PersonalMethod):
    """Trains a global model, from which every client takes some steps on its own examples before it uses it.

    ::

        client:  w -= eta grad f_m(w)
        server:  theta += mean g_m                     g_m = w - theta
        own:     theta after ``steps`` steps of SGD on mini-batches of the client's training examples

    The steps are taken at evaluation, and change nothing of the run: FedAvg with fine-tuning, which methods for
    personal models must be better than. Assumes nothing of the local step; those of the fine-tuning are plain.

    Args:
      steps: at least 1; mini-batches are as large as in training.
      step_size: of these, > 0; default that of the run in the evaluated round.
      aggregator: rule that takes the place of the mean of the deltas; default
        :func:`~fedjax_drag.aggregators.fedavg`.

    Notes:
      Metrics: those of ``aggregator``. Clients keep nothing; an evaluation trains every client of the federation.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Yu et al., Salvaging federated learning by local adaptation, 2020 (fine-tuning).
    """

    steps: int = 10
    step_size: Scalar | None = None
    aggregator: Aggregator | None = None

    def check(self) -> None:
        super().check()
        checks.count("steps", self.steps, 1)
        if self.step_size is not None:
            checks.positive("step_size", self.step_size)

    @property
    def adaptation(self) -> Adaptation:
        return Adaptation(self.steps, self.step_size)
