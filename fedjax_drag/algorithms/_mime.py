"""MimeLite: the server's momentum inside the clients' steps."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.algorithms._two_sided import Contribution, Outcome, SummedMethod, with_metrics
from fedjax_drag.clients._gradient_at_start import GradientAtStart, no_gradient_yet
from fedjax_drag.ops.rules import average
from fedjax_drag.types import Aggregator, Batch, Downlink, GradFn, Params, Scalar, State, Uplink


class MimeState(NamedTuple):
    """State of :func:`mime`.

    Attributes:
      aggregator: state of the aggregation rule.
      momentum: the server's momentum ``m``, like ``params``, in gradient units.
    """

    aggregator: State
    momentum: Params

    @property
    def metrics(self) -> dict[str, jax.Array]:
        """Those of the aggregation rule, and ``momentum_norm``."""
        return self.aggregator.metrics


class mime(SummedMethod):
    """MimeLite with momentum: local steps imitate centralised momentum, which stays fixed during a pass.

    ::

        client:  w -= eta ((1 - b) grad f_m(w) + b m)
        server:  theta += mean g_m;   m = (1 - b) mean grad f_m(theta) + b m

    The momentum starts at zero and moves by gradients at ``theta``, where no client has drifted yet. With ``b = 0``
    it is the plain aggregation rule.

    Assumes that ``m``, fixed during a pass, is the only momentum. A ``local_optimizer`` adds another to these steps,
    and one whose state is kept holds gradients of earlier rounds at other points.

    Args:
      b: weight of the momentum, in [0, 1). Paper: 0.9.
      gradient: estimate of a client's ``grad f_m(theta)``: ``"average"`` over all mini-batches of its pass, which
        costs a second gradient in every step, or ``"first"``, that of its first mini-batch, which costs nothing.
      aggregator: rule that takes the place of the mean of the deltas; default
        :func:`~fedjax_drag.aggregators.fedavg`.

    Notes:
      The message ``aux`` is ``grad f_m(theta)``. The round's parameters do not depend on it, but its plain mean over
      the clients that are not rejected moves ``m``: a malicious client can move ``m`` without bound, and by it the
      steps of all clients from the next round on, in a direction common to all, which ``aggregator`` cannot detect. A
      client with a non-finite entry in either half is rejected whole. Further metric: ``momentum_norm``, ``||m||``.
      Messages can be summed in chunks if ``aggregator`` can.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Karimireddy et al., Breaking the centralized barrier for cross-device federated learning (Mime), 2021,
      Algorithm 1, MimeLite, with momentum SGD. Interpretation: the paper takes a full-batch gradient at ``theta``; here
      it is that of the mini-batches of the pass, since a pass need not go through all of a client's data.
    """

    b: Scalar = 0.9
    gradient: str = "average"
    aggregator: Aggregator | None = None

    def check(self) -> None:
        super().check()
        checks.in_range("b", self.b, 0.0, 1.0, open_high=True)
        checks.one_of("gradient", self.gradient, ("average", "first"))

    def init(self, params: Params) -> MimeState:
        return MimeState(with_metrics(self.rule.init(params), momentum_norm=jnp.zeros(())), tree.zeros_like(params))

    def broadcast(self, params: Params, state: MimeState, client_ids: jax.Array) -> Downlink:
        del client_ids
        return Downlink(start=params, shared=state.momentum)

    def begin(self, downlink: Downlink) -> GradientAtStart:
        return no_gradient_yet(downlink.start)

    def direction(
        self, grad_fn: GradFn, w: Params, carry: GradientAtStart, downlink: Downlink, batch: Batch
    ) -> tuple[Params, GradientAtStart]:
        here = grad_fn(w, batch)
        carry = carry.after(here, grad_fn, downlink.start, batch, first=self.gradient == "first")
        return jax.tree.map(self._mixed, here, downlink.shared), carry

    def report(self, downlink: Downlink, w_end: Params, carry: GradientAtStart, total_step_size: jax.Array) -> Params:
        del w_end, total_step_size
        return carry.like(downlink.start)

    def contribute(self, uplink: Uplink, state: MimeState, counted: jax.Array, **_: Any) -> Contribution:
        del state
        return Contribution(tree.weighted_sum(counted.astype(jnp.float32), uplink.aux))

    def close(self, params: Params, state: MimeState, outcome: Outcome, **_: Any) -> tuple[Params, MimeState]:
        del params
        m = jax.tree.map(self._mixed, average(outcome.total, outcome.counted), state.momentum)
        m = jax.tree.map(lambda new, old: new.astype(old.dtype), m, state.momentum)
        m = tree.where(outcome.counted.any(), m, state.momentum)
        return outcome.moved, MimeState(with_metrics(outcome.inner, momentum_norm=tree.norm(m)), m)

    def _mixed(self, g: jax.Array, m: jax.Array) -> jax.Array:
        return ((1 - self.b) * g + self.b * m).astype(g.dtype)
