"""SCAFFOLD: control variates against client drift."""

import typing
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import checks, per_client, tree
from fedjax_drag.algorithms._taco_coefficients import coefficients, initial_alpha, latest
from fedjax_drag.algorithms._two_sided import Contribution, Outcome, SummedMethod, step_between, with_metrics
from fedjax_drag.clients._gradient_at_start import GradientAtStart, no_gradient_yet
from fedjax_drag.per_client import PerClient
from fedjax_drag.types import Aggregator, Batch, Downlink, GradFn, Params, Scalar, State, Sums, Uplink

Variate = Literal["steps", "average", "first"]
"""A client's control variate: the mean gradient of its steps, or one at their start: of all mini-batches or one."""


class ScaffoldState(NamedTuple):
    """State of :func:`scaffold`.

    Attributes:
      aggregator: state of the aggregation rule.
      control: server control variate ``c``, like ``params``.
      client_controls: client control variates ``c_m``, ``[M, *p]``.
      alpha: TACO's coefficient of each client's last participation ``[M]``; ``()`` unless ``tailored``.
    """

    aggregator: State
    control: Params
    client_controls: PerClient
    alpha: Any = ()

    @property
    def metrics(self) -> dict[str, jax.Array]:
        """Those of the aggregation rule."""
        return self.aggregator.metrics


class _OwnVariate(NamedTuple):
    """Of one client, or with a leading axis ``[S]``: ``c_m``, and its strength ``a (1 - alpha_m)`` if tailored."""

    control: Params
    strength: Any = ()


class _ControlVariates(NamedTuple):
    """Of the clients ``[B]`` after a pass: ``c_m'``, and the new ``alpha_m`` or ``()`` if not tailored."""

    control: Params
    alpha: Any


class scaffold(SummedMethod):
    """Corrects every local step by the difference of the server's and the client's control variate.

    ::

        client:  w -= eta (grad f_m(w) + a (c - c_m));   c_m' = c_m - c - g_m / (U eta)   (option II)
        server:  theta += eta_g mean g_m;   c += (S/M) mean (c_m' - c_m)

    All control variates start at zero. With ``a = 0`` the parameters are those of the plain
    aggregation rule. With ``variate="average"`` or ``"first"``, ``c_m'`` is a gradient at ``theta`` instead; with one
    local step and ``a = 1``, all three are the same.

    Assumes steps of ``eta`` along the corrected gradient. With a ``local_optimizer`` and ``variate="steps"``, ``c_m'``
    is the mean direction that it has made of gradients, longer by ``1 / (1 - momentum)``; a kept state adds those of
    earlier rounds.

    Args:
      num_clients: M, clients in the federation; default those of the simulation. The state holds one control variate
        for each.
      a: strength of the correction, >= 0.
      aggregator: rule that takes the place of the mean of the deltas; default
        :func:`~fedjax_drag.aggregators.fedavg`.
      server_step_size: ``eta_g``, > 0; scales the rule's step.
      tailored: whether a client's ``a`` is multiplied by ``1 - alpha_m``, its coefficient in
        :func:`~fedjax_drag.algorithms.taco`: 0.1 at first, then that of its last participation.
      variate: what a client's new control variate ``c_m'`` is. ``"steps"``: the mean of the gradients at the points of
        its pass, as found from ``g_m``, option II. ``"average"``: the gradient at ``theta``, option I, averaged over
        the mini-batches of the pass, which costs a second gradient in every step. ``"first"``: the gradient of its
        first mini-batch at ``theta``, which costs nothing; the form in the paper of BR-DRAG.

    Notes:
      The message ``aux`` is ``c_m' - c_m``. The round's parameters do not depend on it, but it moves ``c``, by ``1/M``
      of it for each client that is not rejected: a malicious client can move ``c`` without bound, and by it the steps
      of all clients from the next round on, in a direction common to all, which ``aggregator`` cannot detect. A client
      with a non-finite entry in either half is rejected whole. Unless ``tailored``, messages can be summed in chunks if
      ``aggregator`` can; then only the new ``c_m`` is kept of each client. Metrics are the rule's, and with
      ``tailored`` also ``alpha`` (new; 0 where a client does not count).

    Raises:
      ValueError: if an argument is out of range.

    References:
      Karimireddy et al., SCAFFOLD: Stochastic controlled averaging for federated learning, 2020, Algorithm 1. Readings:
      its authors use option II, and so do Liu et al., TACO: Tackling over-correction in federated learning with
      tailored adaptive correction; Xiao et al., Divergence-based adaptive aggregation for Byzantine robust federated
      learning, Section VI, print ``"first"``. Option I takes the gradient over all of a client's data; here it is that
      of the mini-batches of the pass. ``tailored`` is of TACO's Fig. 6: ``a`` is multiplied by ``1 - alpha_m``, not
      replaced by it.
    """

    num_clients: int | None = None
    a: Scalar = 1.0
    aggregator: Aggregator | None = None
    server_step_size: Scalar = 1.0
    tailored: bool = False
    variate: Variate = "steps"

    def check(self) -> None:
        super().check()
        checks.in_range("a", self.a, 0.0)
        checks.positive("server_step_size", self.server_step_size)
        checks.one_of("variate", self.variate, typing.get_args(Variate))

    @property
    def needs(self) -> frozenset[str]:
        return self.rule.needs | {"client_ids"}

    @property
    def streamed(self) -> Sums | None:
        return None if self.tailored else super().streamed

    def init(self, params: Params) -> ScaffoldState:
        inner, alpha = self.rule.init(params), ()
        if self.tailored:
            inner, alpha = with_metrics(inner, alpha=jnp.zeros(0)), initial_alpha(self.clients)
        return ScaffoldState(inner, tree.zeros_like(params), per_client.zeros(params, self.clients), alpha)

    def broadcast(self, params: Params, state: ScaffoldState, client_ids: jax.Array) -> Downlink:
        strength = self.a * (1 - state.alpha[client_ids]) if self.tailored else ()
        return Downlink(params, state.control, _OwnVariate(state.client_controls.take(client_ids), strength))

    def begin(self, downlink: Downlink) -> Any:
        return () if self.variate == "steps" else no_gradient_yet(downlink.start)

    def direction(self, grad_fn: GradFn, w: Params, carry: Any, downlink: Downlink, batch: Batch) -> tuple[Params, Any]:
        own: _OwnVariate = downlink.own
        strength = own.strength if self.tailored else self.a

        def corrected(g: jax.Array, c: jax.Array, c_m: jax.Array) -> jax.Array:
            return (g + strength * (c - c_m)).astype(g.dtype)

        gradient = grad_fn(w, batch)
        if self.variate != "steps":
            carry = carry.after(gradient, grad_fn, downlink.start, batch, first=self.variate == "first")
        return jax.tree.map(corrected, gradient, downlink.shared, own.control), carry

    def report(self, downlink: Downlink, w_end: Params, carry: Any, total_step_size: jax.Array) -> Params:
        """``c_m' - c_m``."""
        if self.variate == "steps":
            return control_change(downlink, w_end, total_step_size)
        at_start: GradientAtStart = carry
        return tree.subtract(at_start.like(downlink.own.control), downlink.own.control)

    def contribute(
        self, uplink: Uplink, state: ScaffoldState, counted: jax.Array, *, client_ids: jax.Array, **_: Any
    ) -> Contribution:
        change = tree.weighted_sum(counted.astype(jnp.float32) / self.clients, uplink.aux)  # (S/M) mean (c_m' - c_m)
        control = tree.add(state.client_controls.take(client_ids), uplink.aux)
        return Contribution(
            change, _ControlVariates(control, coefficients(uplink.delta, counted) if self.tailored else ())
        )

    def close(
        self, params: Params, state: ScaffoldState, outcome: Outcome, *, client_ids: jax.Array, **_: Any
    ) -> tuple[Params, ScaffoldState]:
        theta = step_between(params, outcome.moved, self.server_step_size)
        rows: _ControlVariates = outcome.rows
        controls = state.client_controls.put(client_ids, rows.control, outcome.counted)
        after = ScaffoldState(outcome.inner, tree.move(state.control, outcome.total), controls)
        if not self.tailored:
            return theta, after
        alpha = latest(state.alpha, client_ids, rows.alpha, outcome.counted)
        return theta, after._replace(aggregator=with_metrics(outcome.inner, alpha=rows.alpha), alpha=alpha)


def control_change(downlink: Downlink, w_end: Params, total_step_size: jax.Array) -> Params:
    """``c_m' - c_m = -c - g_m / (U eta)`` (option II), with ``c`` in ``downlink.shared``."""
    return jax.tree.map(
        lambda c, w, start: (-c - (w - start) / total_step_size).astype(c.dtype),
        downlink.shared,
        w_end,
        downlink.start,
    )
