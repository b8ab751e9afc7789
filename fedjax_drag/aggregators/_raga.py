"""RAGA: the geometric median of the local updates."""

from fedjax_drag.aggregators._geometric_median import MedianAggregator


class raga(MedianAggregator):
    """Robust average gradient algorithm: moves by the geometric median of what the clients' local passes added up to.

    ``theta += argmin_z sum_m p_m ||z - g_m||``, run to convergence as by :func:`geometric_median`, which it equals
    for equal weights.

    Args:
      smoothing: lower bound nu on a distance, > 0, in the units of the deltas.
      tolerance: how far the result may be from the median, as a share of the median distance to the deltas, >= 0.
      max_iterations: bound on the number of iterations, >= 1.
      weighting: ``"uniform"`` (``p_m = 1/S``) or ``"examples"`` (``p_m`` proportional to the client's number of
        training examples; needs the extra ``num_examples``).

    Returns:
      An :class:`~fedjax_drag.types.Aggregator`. Metrics as for :func:`geometric_median`, and so is the gradient.

    Raises:
      ValueError: if an argument is out of range.

    Breakdown point:
      1/2 of the weight

    Cost:
      a Gram product (S^2 d operations) and 4 passes over the deltas, in hard cases 2 passes an iteration more

    References:
      Zuo et al., Byzantine-resilient federated learning with adaptivity to data heterogeneity, 2024.
    """

    weighting: str = "uniform"
