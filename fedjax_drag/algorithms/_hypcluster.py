"""HypCluster: clusters of clients by hypotheses."""

from fedjax_drag.aggregators import fedavg
from fedjax_drag.algorithms._clustered import Clustered
from fedjax_drag.types import Aggregator


class hypcluster(Clustered):
    """Trains several models, each on the clients that it fits best, weighted by their numbers of examples.

    ::

        client:  k_m = argmin_k f_m(theta_k);   w starts at theta_{k_m};   w -= eta grad f_m(w)
        server:  theta_k += sum n_m g_m / sum n_m over the clients with k_m = k,   for each k

    This is :func:`~fedjax_drag.algorithms.ifca` with other weights, whose page says what is evaluated, what a malicious
    client can do and what is refused.

    Args:
      num_clients: M, clients in the federation; default those of the simulation.
      num_models: K, models, at most M; 1 is the plain aggregation rule.
      aggregator: rule that takes the place of the weighted mean, for each model by itself; default
        :func:`~fedjax_drag.aggregators.fedavg` with ``weighting="examples"``.

    Notes:
      The message ``aux`` is the client's choice, K numbers. Metrics: those of ``aggregator`` that have an entry for
      each client, and ``cluster``, which model each client chose.

    Raises:
      ValueError: as of :func:`~fedjax_drag.algorithms.ifca`.

    References:
      Mansour et al., Three approaches for personalization with applications to federated learning, 2020, Section 3,
      algorithm HypCluster, in the stochastic form of its authors' code. Interpretation: the models begin at random, as
      the algorithm says; that code also has a start by k-means++ over models of single clients.
    """

    num_clients: int | None = None
    num_models: int = 2
    aggregator: Aggregator | None = None

    @property
    def rule(self) -> Aggregator:
        return fedavg("examples") if self.aggregator is None else self.aggregator
