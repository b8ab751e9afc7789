"""RFA: a few steps towards the geometric median."""

from jaxtyping import Array, Float

from fedjax_drag import checks
from fedjax_drag.aggregators._geometric_median import MedianAggregator
from fedjax_drag.kernels.geometric_median import Median, weiszfeld
from fedjax_drag.types import Deltas, Scalar


class rfa(MedianAggregator):
    """Robust federated averaging: a few smoothed Weiszfeld steps towards the geometric median.

    ``z <- sum_m w_m g_m`` with ``w_m`` proportional to ``p_m / max(nu, ||z - g_m||)``, then ``theta += z``. All clients
    start from the same parameters, so this is the median of their models, as the paper has it. There every step
    is one more secure average, hence so few; with enough of them this is :func:`geometric_median`.

    Args:
      smoothing: lower bound nu on a distance, > 0, in the units of the deltas.
      tolerance: stops after a step shorter than this share of the median distance to the deltas, >= 0.
      max_iterations: number of steps, >= 1.
      weighting: ``"uniform"`` (``p_m = 1/S``) or ``"examples"`` (as in the paper, ``p_m`` proportional to the client's
        number of training examples; needs the extra ``num_examples``).
      start: where the steps begin: ``"mean"``, of weights ``p_m``; or ``"zero"``, from where short deltas are near and
        weigh most in the first step.

    Returns:
      An :class:`~fedjax_drag.types.Aggregator`. Metrics: ``weight`` (coefficient of ``g_m``), ``cosine`` to the
      result, ``iterations`` used, ``residual`` (length of the last step as a share of the median distance). The
      gradient is that of the steps.

    Raises:
      ValueError: if an argument is out of range.

    Breakdown point:
      1/2 once converged; after three steps a huge delta still leaves a share of its length

    Cost:
      2 passes over the deltas a step, and 3

    References:
      Pillutla et al., Robust aggregation for federated learning, 2022, Algorithm 2, with its nu = 1e-6 and
      three steps. From zero start the codes of Karimireddy, He and Jaggi (bucketing, 2022) and of ByzFL (2025).
    """

    tolerance: Scalar = 0.0
    max_iterations: int = 3
    weighting: str = "uniform"
    start: str = "mean"
    split = "clients"

    def check(self) -> None:
        super().check()
        checks.one_of("start", self.start, ("mean", "zero"))

    def solve(self, deltas: Deltas, mass: Float[Array, " clients"]) -> Median:
        from_zero = self.start == "zero"
        return weiszfeld(deltas, mass, self.smoothing, self.tolerance, self.max_iterations, from_zero)
