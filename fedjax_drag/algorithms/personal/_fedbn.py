"""FedBN."""

from collections.abc import Sequence

from fedjax_drag.algorithms.personal._layered import LayeredMethod
from fedjax_drag.types import Aggregator


class fedbn(LayeredMethod):
    """Averages all layers but BatchNorm's: every client keeps their parameters and their statistics.

    ::

        client:  (w, b_m) -= eta grad f_m(w, b_m)      b_m: scales and shifts, with the client's own statistics
        server:  theta += mean g_m                     g_m = w - theta
        own:     (theta, b_m)

    Assumes nothing of the local step.

    Args:
      layers: patterns of the paths of the normalising layers; default Flax's own name for them.
      aggregator: rule that takes the place of the mean of the deltas; default
        :func:`~fedjax_drag.aggregators.fedavg`.

    Notes:
      ``model_state="auto"`` is ``"local"`` with this method. Else as of :func:`fedper`.

    Raises:
      ValueError: as of :func:`fedper`, so for a model that has no such layers.

    References:
      Li et al., FedBN: Federated learning on non-IID features via local batch normalization, ICLR 2021, Algorithm 1.
    """

    layers: str | Sequence[str] = "*BatchNorm*"
    aggregator: Aggregator | None = None

    @property
    def model_state(self) -> str:
        return "local"
