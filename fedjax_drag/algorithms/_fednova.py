"""FedNova: deltas normalised by the amount of local work behind them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.aggregators import fedavg
from fedjax_drag.algorithms._two_sided import TwoSided, scaled, with_metrics
from fedjax_drag.ops.screening import screen
from fedjax_drag.types import Aggregator, Batch, Downlink, GradFn, Params, Scalar, State, Uplink


class _Carry(NamedTuple):
    """The momentum buffer ``u``, like the parameters, and the number of steps so far, int32."""

    buffer: Params
    steps: jax.Array


class fednova(TwoSided):
    r"""Averages deltas per unit of local work, so that clients that do more work do not weigh more.

    ::

        client:  u = rho u + grad f_m(w);   w -= eta (u + mu (w - theta));   g_m = -eta sum_k a_{m,k} grad f_m(w_k)
        server:  theta += tau mean g_m / ||a_m||_1,   tau = mean ||a_m||_1

    A client's delta is a weighted sum of its gradients; ``||a_m||_1`` is the sum of the weights, counted during the
    pass: the number of steps without momentum and proximal term, and in general the pass's response to gradients
    that are all 1. If all clients take the same number of steps, this is the plain aggregation rule.

    Assumes that ``rho`` and ``mu`` are all that changes a step. ``a_m`` does not count what a ``local_optimizer`` does,
    nor the gradients of earlier rounds in a state that is kept: local momentum is ``rho``.

    Args:
      rho: local momentum, in [0, 1); the buffer ``u`` starts at zero in every pass. Paper: 0.9.
      mu: strength of the proximal term, >= 0, with ``eta mu <= 1``: beyond, a step overshoots ``theta``.
      weighting: of both means, ``"uniform"`` or ``"examples"`` (in proportion to the client's number of training
        examples, as in the paper; needs the extra ``num_examples``).
      aggregator: rule that takes the place of the mean of the normalised deltas ``tau g_m / ||a_m||_1``; default
        :func:`~fedjax_drag.aggregators.fedavg` with ``weighting``. ``tau`` always uses ``weighting``.

    Notes:
      The message ``aux`` is ``||a_m||_1`` (scalar). ``aggregator`` sees it in the normalised deltas, but nothing
      protects ``tau``: a malicious client that claims much work lengthens the server's step without bound, in the
      direction of ``aggregator``'s update. A claim below 0 counts as 0; one so large that the others' normalised deltas
      overflow makes ``aggregator`` reject these. A client with a non-finite entry in either half is rejected whole.
      Further metrics: ``work``, ``||a_m||_1`` of each client, and ``effective_work``, ``tau``.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Wang et al., Tackling the objective inconsistency problem in heterogeneous federated optimization, 2020,
      Sections 4 and 5. Interpretations: ``tau`` is the mean of ``||a_m||_1`` for every local solver (the paper leaves
      it free); with ``mu > 0`` its authors' code takes the mean number of steps instead. The combination of momentum
      and proximal term, which the paper does not treat, follows the same definition of ``a_m``; the authors' code then
      adds a step to ``||a_m||_1`` for each of the two.
    """

    rho: Scalar = 0.0
    mu: Scalar = 0.0
    weighting: str = "uniform"
    aggregator: Aggregator | None = None

    def check(self) -> None:
        super().check()
        checks.in_range("rho", self.rho, 0.0, 1.0, open_high=True)
        checks.in_range("mu", self.mu, 0.0)
        checks.one_of("weighting", self.weighting, ("uniform", "examples"))

    @property
    def rule(self) -> Aggregator:
        return fedavg(self.weighting) if self.aggregator is None else self.aggregator

    @property
    def needs(self) -> frozenset[str]:
        return self.rule.needs | ({"num_examples"} if self.weighting == "examples" else frozenset())

    def init(self, params: Params) -> State:
        return with_metrics(self.rule.init(params), work=jnp.zeros(0), effective_work=jnp.zeros(()))

    def begin(self, downlink: Downlink) -> _Carry:
        return _Carry(tree.zeros_like(downlink.start), jnp.zeros((), jnp.int32))

    def direction(
        self, grad_fn: GradFn, w: Params, carry: _Carry, downlink: Downlink, batch: Batch
    ) -> tuple[Params, _Carry]:
        buffer = jax.tree.map(lambda u, g: (self.rho * u + g).astype(u.dtype), carry.buffer, grad_fn(w, batch))
        pulled = jax.tree.map(lambda u, w, theta: u + self.mu * (w - theta), buffer, w, downlink.start)
        return pulled, _Carry(buffer, carry.steps + 1)

    def report(self, downlink: Downlink, w_end: Params, carry: _Carry, total_step_size: jax.Array) -> jax.Array:
        """``||a_m||_1``: the pass of a single parameter whose gradient is always -1."""
        del downlink, w_end
        shrink = 1 - self.mu * total_step_size * tree.inverse(carry.steps.astype(jnp.float32))

        def step(_: Any, pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            w, u = pair
            u = self.rho * u + 1
            return shrink * w + u, u

        zero = jnp.zeros_like(shrink)
        return jax.lax.fori_loop(0, carry.steps, step, (zero, zero))[0]

    def aggregate(
        self,
        params: Params,
        uplink: Uplink,
        state: State,
        *,
        valid: Any = None,
        reject_nonfinite: bool = True,
        **extras: Any,
    ) -> tuple[Params, State]:
        who = screen(uplink, valid, reject_nonfinite, extras.get("start_loss"))
        work = jnp.maximum(jnp.where(who.counted, uplink.aux, 0), 0)  # ||a_m||_1
        tau = tree.product(self._shares(who.counted, **extras), work)
        extras |= {"valid": who.counted, "reject_nonfinite": reject_nonfinite}
        moved, after = self.rule.apply(params, scaled(tau * tree.inverse(work), uplink.delta), state, **extras)
        return moved, with_metrics(after, num_rejected=who.num_rejected, work=work, effective_work=tau)

    def _shares(self, counted: jax.Array, num_examples: Any = None, **_: Any) -> jax.Array:
        """The clients' weights in means, which sum to 1."""
        by_examples = self.weighting == "examples"
        shares = counted * tree.accurate(num_examples) if by_examples else counted.astype(jnp.float32)
        return shares * tree.inverse(shares.sum())
