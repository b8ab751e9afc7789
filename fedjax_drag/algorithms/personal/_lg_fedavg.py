"""LG-FedAvg."""

from collections.abc import Sequence

from fedjax_drag.algorithms.personal._layered import LayeredMethod
from fedjax_drag.types import Aggregator


class lg_fedavg(LayeredMethod):
    """Averages the upper layers; every client keeps the lower ones, a representation of its own data.

    ::

        client:  (l_m, w) -= eta grad f_m(l_m, w)      w from the server, l_m as the client left it
        server:  theta += mean g_m                     g_m = w - theta
        own:     (l_m, theta)

    The same steps as :func:`fedper`, with the other layers at home. Assumes nothing of the local step.

    Args:
      layers: patterns of the paths of what clients keep, such as ``["Conv_0", "Conv_1"]``; ``()`` for nothing, which
        is the plain rule.
      aggregator: rule that takes the place of the mean of the deltas; default
        :func:`~fedjax_drag.aggregators.fedavg`.

    Notes:
      As of :func:`fedper`.

    Raises:
      ValueError: as of :func:`fedper`.

    References:
      Liang et al., Think locally, act globally: Federated learning with local and global representations, 2020,
      Algorithm 1. Interpretation: clients have no further parameters of auxiliary tasks.
    """

    layers: str | Sequence[str]
    aggregator: Aggregator | None = None
