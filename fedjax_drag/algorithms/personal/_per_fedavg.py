"""Per-FedAvg."""

# pyright: reportIncompatibleMethodOverride=false

from typing import Any, Literal

import jax

from fedjax_drag import checks
from fedjax_drag.algorithms.personal._personal import PersonalMethod
from fedjax_drag.types import Adaptation, Aggregator, Batch, Downlink, GradFn, Params, Scalar


class per_fedavg(PersonalMethod):
    """Trains a global model from which one step of gradient descent leads to a good model of each client.

    ::

        client:  w' = w - alpha grad f_m(w; D)
                 w -= eta (I - alpha hess f_m(w; D)) grad f_m(w'; D')
        server:  theta += mean g_m                     g_m = w - theta
        own:     theta - alpha grad f_m(theta), on a mini-batch of the client's training examples

    D and D' are the halves of a mini-batch, the examples at even and at odd places; where a client has one example left
    for a mini-batch, both are that one. The first-order variant leaves the Hessian out; the Hessian-free one takes
    differences of gradients, ``hess f v = (grad f(w + delta v) - grad f(w - delta v)) / (2 delta)``.

    Assumes that the local steps follow this direction; ``eta`` is the run's step size, the paper's beta.

    Args:
      alpha: step size of the adaptation, >= 0; 0 is the plain rule, on D'.
      variant: ``"first_order"`` or ``"hessian_free"``.
      delta: of the differences, > 0.
      aggregator: rule that takes the place of the mean of the deltas; default
        :func:`~fedjax_drag.aggregators.fedavg`.

    Notes:
      Metrics: those of ``aggregator``. Gradients on half a mini-batch in a local step: two, or four without the
      Hessian. Clients keep nothing.

    Raises:
      ValueError: if an argument is out of range, or ``batch_size`` is 1.

    References:
      Fallah et al., Personalized federated learning with theoretical guarantees: A model-agnostic meta-learning
      approach, NeurIPS 2020, Algorithm 1 and its two approximations. Interpretation: the paper draws a third batch for
      the Hessian; that of D makes the direction the gradient of the loss on D' after a step on D.
    """

    alpha: Scalar = 0.01
    variant: Literal["first_order", "hessian_free"] = "first_order"
    delta: Scalar = 1e-3
    aggregator: Aggregator | None = None

    def check(self) -> None:
        super().check()
        checks.in_range("alpha", self.alpha, 0.0)
        checks.one_of("variant", self.variant, ("first_order", "hessian_free"))
        checks.positive("delta", self.delta)

    @property
    def adaptation(self) -> Adaptation:
        return Adaptation(1, self.alpha)

    def direction(self, grad_fn: GradFn, w: Params, carry: Any, downlink: Downlink, batch: Batch) -> tuple[Params, Any]:
        size = len(jax.tree.leaves(batch.x)[0])
        if size < 2:
            raise ValueError(f"batch_size={size}: must be at least 2 with per_fedavg, which halves mini-batches")
        first, second = (jax.tree.map(lambda x, start=start: x[start::2], batch) for start in (0, 1))
        if second.real is not None:  # the padding repeats the first example
            second = second._replace(real=second.real | ~second.real.any())

        def ahead(size: Any, v: Params) -> Params:
            return jax.tree.map(lambda w, v: (w + size * v).astype(w.dtype), w, v)

        outer = grad_fn(ahead(-self.alpha, grad_fn(w, first)), second)
        if self.variant == "first_order":
            return outer, carry
        right, left = (grad_fn(ahead(size, outer), first) for size in (self.delta, -self.delta))
        curved = jax.tree.map(lambda x, y: (x - y) / (2 * self.delta), right, left)
        return jax.tree.map(lambda g, h: g - self.alpha * h, outer, curved), carry
