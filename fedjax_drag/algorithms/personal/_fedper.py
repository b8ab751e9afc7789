"""FedPer."""

from collections.abc import Sequence

from fedjax_drag.algorithms.personal._layered import LayeredMethod
from fedjax_drag.types import Aggregator


class fedper(LayeredMethod):
    """Averages the lower layers; every client keeps the upper ones, the head, and trains both at once.

    ::

        client:  (w, h_m) -= eta grad f_m(w, h_m)      w from the server, h_m as the client left it
        server:  theta += mean g_m                     g_m = w - theta
        own:     (theta, h_m)

    Assumes nothing of the local step.

    Args:
      layers: patterns of the paths of what clients keep, such as ``"Dense_1"`` or ``["head", "*/bias"]``; ``()`` for
        nothing, which is the plain rule.
      aggregator: rule that takes the place of the mean of the deltas; default
        :func:`~fedjax_drag.aggregators.fedavg`.

    Notes:
      The kept layers are in no message: rules, attacks and ``bytes_up`` know the others only. Metrics: those of
      ``aggregator``. A root update is computed with the kept layers as they began.

    Raises:
      ValueError: if a pattern matches no parameter, or they match all; the message of the simulation names those that
        there are.

    References:
      Arivazhagan et al., Federated learning with personalization layers, 2019, Algorithms 1 and 2. Interpretation:
      all clients begin with the same head.

    Examples:
      >>> fd.simulate(fedper("Dense_1"), model=fd.models.mlp(10), evaluate_clients=True, ...)
    """

    layers: str | Sequence[str]
    aggregator: Aggregator | None = None
