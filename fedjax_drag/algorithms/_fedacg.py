"""FedACG: clients start at the point to which the server's momentum leads."""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.algorithms._two_sided import Outcome, SummedMethod, apart
from fedjax_drag.types import Aggregator, Batch, Downlink, GradFn, Params, Scalar, State


class FedACGState(NamedTuple):
    """State of :func:`fedacg`.

    Attributes:
      aggregator: state of the aggregation rule, without its metrics.
      momentum: the server's momentum ``m``, like ``params``.
      metrics: those of the aggregation rule, and the norm of the momentum.
    """

    aggregator: State
    momentum: Params
    metrics: dict[str, jax.Array]


class fedacg(SummedMethod):
    """Starts clients at the point to which the server's momentum leads, and holds them near it.

    ::

        client:  from phi = theta + lam m:   w -= eta (grad f_m(w) + beta (w - phi));   g_m = w - phi
        server:  m <- lam m + mean g_m;   theta += m

    With ``start="global"`` the same steps go from ``theta``, and ``g_m = w - theta``: the look-ahead only pulls. With
    ``moves_server=False`` the momentum only makes the look-ahead: ``theta += mean g_m``.

    The momentum starts at zero. With ``lam = 0`` this is :func:`~fedjax_drag.clients.fedprox` under the plain
    aggregation rule, with ``beta = 0`` as well the plain rule; with ``beta = 0`` and ``start="global"`` it is server
    momentum, :func:`~fedjax_drag.server_optimizers.fedavgm`.

    Assumes nothing of the local step: a ``local_optimizer``, its state kept or not, changes the deltas alone.

    Args:
      lam: share of the momentum that is kept, in [0, 1). Paper of BR-DRAG: 0.85.
      beta: strength of the proximal term, >= 0. Papers: 0.2 (BR-DRAG), 0.001 (TACO).
      aggregator: rule that takes the place of the mean of the deltas; default
        :func:`~fedjax_drag.aggregators.fedavg`. It is applied at ``phi``, whatever ``start``.
      start: where local passes start: ``"lookahead"``, at ``phi``, as in the paper of the method, or ``"global"``, at
        ``theta``, as in Algorithm 1 of TACO.
      moves_server: whether the server moves along its momentum, as in the paper of the method (default), or by the mean
        of the deltas alone, as the paper of BR-DRAG prints it with ``start="global"``.

    Notes:
      Metrics: those of ``aggregator``, and the scalar ``momentum_norm`` ``||m||``. There is no message ``aux``: what
      clients send reaches the parameters and the momentum through ``aggregator`` only, but an error that passes it
      stays in the momentum for about ``1 / (1 - lam)`` rounds. Deltas can be summed in chunks if ``aggregator`` can.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Kim, Kim and Han, Communication-efficient federated learning with accelerated client gradient, 2024; as
      given by Xiao et al., Divergence-based adaptive aggregation for Byzantine robust federated learning, Section
      VI. **[reading]** The latter prints a norm, a number, in the client's step in place of the vector ``w - phi``, and
      ``theta^{t-1}`` beside ``m^{t-1}`` in ``phi``, taken for the newest model, as in the method's paper; it defines
      ``m`` and says of the server's step only that it is that of all methods (``moves_server=False``).
      **[reading]** Liu et al., TACO: Tackling over-correction in federated learning with tailored adaptive correction,
      Algorithm 1, start clients at ``theta`` and weigh them by their numbers of examples (``start="global"``,
      ``aggregator=fedavg("examples")``); their ``m_t``, which they do not define, is taken for ``lam m``, though their
      server subtracts what their loss adds to ``theta``. In the loss the term is ``beta/2 ||w - phi||^2``; the code of
      the method's authors has no 1/2, so that a weight there is a ``beta`` of twice as much here.
    """

    lam: Scalar = 0.85
    beta: Scalar = 0.2
    aggregator: Aggregator | None = None
    start: Literal["lookahead", "global"] = "lookahead"
    moves_server: bool = True

    def check(self) -> None:
        super().check()
        checks.in_range("lam", self.lam, 0.0, 1.0, open_high=True)
        checks.in_range("beta", self.beta, 0.0)
        checks.one_of("start", self.start, ("lookahead", "global"))

    def init(self, params: Params) -> FedACGState:
        inner, metrics = apart(self.rule.init(params), momentum_norm=jnp.zeros(()))
        return FedACGState(inner, tree.zeros_like(params), metrics)

    def broadcast(self, params: Params, state: FedACGState, client_ids: jax.Array) -> Downlink:
        del client_ids
        phi = self.origin(params, state)
        return Downlink(start=phi) if self.start == "lookahead" else Downlink(start=params, shared=phi)

    def direction(self, grad_fn: GradFn, w: Params, carry: Any, downlink: Downlink, batch: Batch) -> tuple[Params, Any]:
        def pulled(g: jax.Array, w: jax.Array, phi: jax.Array) -> jax.Array:
            return (g + self.beta * (w - phi)).astype(g.dtype)

        phi = downlink.start if self.start == "lookahead" else downlink.shared
        return jax.tree.map(pulled, grad_fn(w, batch), w, phi), carry

    def origin(self, params: Params, state: FedACGState) -> Params:
        """``phi = theta + lam m``; with deltas from ``theta`` as well: ``theta + lam m + mean g_m``."""
        return tree.move(params, tree.scale(self.lam, state.momentum))

    def close(self, params: Params, state: FedACGState, outcome: Outcome, **_: Any) -> tuple[Params, FedACGState]:
        # The rule has moved theta + lam m by the mean: what it moved theta by is the new momentum.
        m = tree.subtract(outcome.moved, params)
        moved = outcome.moved if self.moves_server else tree.move(outcome.moved, tree.scale(-self.lam, state.momentum))
        theta, m = tree.where(outcome.counted.any(), (moved, m), (params, state.momentum))
        inner, metrics = apart(outcome.inner, momentum_norm=tree.norm(m))
        return theta, FedACGState(inner, m, metrics)
