"""IFCA: the iterative federated clustering algorithm."""

import jax
import jax.numpy as jnp

from fedjax_drag import checks
from fedjax_drag.algorithms._clustered import Clustered
from fedjax_drag.algorithms._two_sided import step_between
from fedjax_drag.types import Aggregator, Params


class ifca(Clustered):
    """Trains a model for each of several clusters of clients, which the clients find by themselves.

    ::

        client:  k_m = argmin_k f_m(theta_k);   w starts at theta_{k_m};   w -= eta grad f_m(w)
        server:  theta_k += mean of g_m over the clients with k_m = k,   for each k

    ``f_m(theta_k)`` is the mean loss of model ``k`` over all examples of the client, in evaluation; of equal ones the
    first counts, and NaN is above all others. A model that nobody chooses stays as it is. The models are drawn as the
    run's model is, each by itself. A round costs ``num_models`` predictions of each example of the cohort more, and as
    many times the downlink.

    Args:
      num_clients: M, clients in the federation; default those of the simulation. The state holds the number of the
        model that each chose last.
      num_models: K, models, at most M; 1 is the plain aggregation rule.
      averaging: of ``"models"``, or of ``"gradients"``: a step of model ``k`` is then shorter by the share of the
        cohort that chose it, as where the clients send gradients (``local_steps=1``) and the server divides their sum
        by the size of the cohort.
      aggregator: rule that takes the place of the mean of the deltas, for each model by itself, with a state for each;
        default :func:`~fedjax_drag.aggregators.fedavg`.

    Notes:
      The message ``aux`` is the client's choice, K numbers that are sent as they are where messages are compressed. A
      malicious client may choose any model, and all may choose the same one: ``aggregator`` meets fewer clients for
      each model, and perhaps all malicious ones among them.
      Metrics: those of ``aggregator`` that have an entry for each client, as the rule of its own model reports it, and
      ``cluster``, which model each client chose.
      The parameters of the run, on which the test set is evaluated, are those of the model that most clients chose when
      they last took part. With ``evaluate_clients`` each client is evaluated on the model that it chose last; before it
      has taken part, on that which most chose. Statistics of a model, such as BatchNorm's, are the same for all K.

    Raises:
      ValueError: if an argument is out of range, or ``aggregator`` needs the one global model; when a run starts, if it
        has ``initial_params``, from which all models would be the same, or ``downlink_compression``.

    References:
      Ghosh et al., An efficient framework for clustered federated learning, NeurIPS 2020, Algorithm 1. ``"models"``
      is its option II, ``"gradients"`` option I.
    """

    num_clients: int | None = None
    num_models: int = 2
    averaging: str = "models"
    aggregator: Aggregator | None = None

    def check(self) -> None:
        super().check()
        checks.one_of("averaging", self.averaging, ("models", "gradients"))

    def moved(self, theta: Params, aimed: Params, mine: jax.Array, counted: jax.Array) -> Params:
        if self.averaging == "models":
            return aimed
        return step_between(theta, aimed, mine.sum() / jnp.maximum(counted.sum(), 1))
