"""TACO: a correction of each client's drift in proportion to its disagreement with the others."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.algorithms._taco_coefficients import coefficients, initial_alpha, latest
from fedjax_drag.algorithms._two_sided import TwoSided, scaled, step_between, with_metrics
from fedjax_drag.ops.screening import screen
from fedjax_drag.types import Aggregator, Batch, Downlink, EligibleFn, GradFn, Params, Scalar, State, Uplink


class WorkDone(NamedTuple):
    """Work of a local pass, as float32 scalars or ``[S]``: ``K`` and ``K eta``."""

    steps: jax.Array
    total_step_size: jax.Array


class TacoState(NamedTuple):
    """State of :func:`taco`.

    Attributes:
      aggregator: state of the aggregation rule.
      gradient: ``D_t``, the last update per unit of step size, like ``params``; it points against the update.
      work: median over the last round's clients; zeros before the first.
      mean_alpha: mean of the last round's coefficients; 0 before the first.
      alpha: ``alpha_m`` of each client's last participation ``[M]``.
      strikes: rounds in which a client was suspected ``[M]`` int32.
    """

    aggregator: State
    gradient: Params
    work: WorkDone
    mean_alpha: jax.Array
    alpha: jax.Array
    strikes: jax.Array

    @property
    def metrics(self) -> dict[str, jax.Array]:
        """Those of the aggregation rule, and TACO's own."""
        return self.aggregator.metrics


class taco(TwoSided):
    """Pulls clients along the last update, more strongly those whose own update agreed less with the mean.

    With K local steps of size eta::

        client:  w -= eta (grad f_m(w) + gamma (1 - alpha_m) D_t)
        server:  alpha_m <- (1 - ||g_m|| / sum_j ||g_j||) max(0, cos(g_m, mean g))
                 D_{t+1} = -sum_m alpha_m g_m / (K eta sum_m alpha_m);   theta -= eta_g D_{t+1}

    ``alpha_m`` starts at 0.1 and is that of the client's last participation; ``D_0 = 0``. A client whose new
    ``alpha_m`` is at least ``kappa`` gets a strike, as a freeloader that sends back the last update agrees best. A
    client with ``max_strikes`` strikes is expelled: from the next round on it is never drawn, and its weight is 0.
    Strikes stay.

    Beside ``theta`` the method has the output ``z_t = theta_t + (1 - mean alpha_m) (theta_t - theta_{t-1})``, which
    the engine reports as ``output_accuracy`` and ``output_loss``.

    Assumes steps of ``eta`` along the corrected gradient. With a ``local_optimizer``, its state kept or not, ``D`` has
    the length of what it makes of gradients, ``1 / (1 - momentum)`` times as much, by which ``gamma`` is stronger.

    Args:
      num_clients: M, clients in the federation; default those of the simulation. The state holds a coefficient and a
        count for each.
      gamma: strength of the correction, >= 0. Default: ``1/K``, the paper's setting with its equations 8 and 9 as
        printed, where ``D_t`` is a mean over K steps: the corrections of a pass add up to one step along ``D_t``. With
        1 they add up to K steps, as if ``D_t`` were the sum: the paper's Lemma 1, ``D_{t+1} = D~ + (1 - alpha) D_t``
        with the clients' own gradients in ``D~``, which holds where all clients have equal weights, too.
      kappa: coefficient in [0, 1] from which on a client is suspected. Paper: 0.6.
      max_strikes: strikes that expel a client, >= 1. Paper: ``lambda``, a fifth of the rounds. Default: no client is
        expelled.
      tailored_correction: False leaves out the correction of the clients' gradients.
      tailored_aggregation: False gives the aggregation rule the plain deltas; with both False, the parameters are
        those of the rule.
      aggregator: rule that takes the place of the mean; default :func:`~fedjax_drag.aggregators.fedavg`. With
        ``tailored_aggregation`` it receives ``g_m alpha_m / mean alpha``, whose mean is the equation's; a rule that
        ignores lengths ignores ``alpha_m``.
      server_step_size: ``eta_g / (K eta)``, > 0; scales the rule's step. Paper: 1.

    Notes:
      Metrics, beside the rule's: ``alpha`` (new; 0 where a client does not count), ``strikes`` ``[S]``,
      ``num_expelled`` (of the federation), and ``weight``, the coefficient of ``g_m`` itself. The message ``aux`` is
      ``(K, K eta)``: neither parameters nor coefficients depend on it, and ``D`` uses its median over the clients that
      count, which a minority cannot move out of the others' range. A client with a non-finite entry in either half is
      rejected whole and keeps its coefficient. Where no coefficient is positive, as in a cohort of one, the weighted
      sum is zero.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Liu et al., TACO: Tackling over-correction in federated learning with tailored adaptive correction, Algorithm 2,
      equations 7 to 10 and 15. Interpretations: the paper's deltas have the opposite sign. Its equations and its Lemma
      1 differ in ``gamma``. It expels after ``lambda`` strikes in Algorithm 2, here ``max_strikes=lambda``, and after
      more in the text, ``max_strikes=lambda + 1``; the strikes need not be in consecutive rounds. Sums, means and the
      mean of ``alpha`` in ``z`` are over the round's clients that count. Without tailored correction there is none
      (Table VI, whose first row is FedAvg). ``D`` is the rule's step, before ``server_step_size``.
    """

    num_clients: int | None = None
    gamma: Scalar | None = None
    kappa: Scalar = 0.6
    max_strikes: Scalar | None = None
    tailored_correction: bool = True
    tailored_aggregation: bool = True
    aggregator: Aggregator | None = None
    server_step_size: Scalar = 1.0

    def check(self) -> None:
        super().check()
        if self.gamma is not None:
            checks.in_range("gamma", self.gamma, 0.0)
        checks.in_range("kappa", self.kappa, 0.0, 1.0)
        if self.max_strikes is not None:
            checks.in_range("max_strikes", self.max_strikes, 1.0)
        checks.positive("server_step_size", self.server_step_size)

    @property
    def needs(self) -> frozenset[str]:
        return self.rule.needs | {"client_ids"}

    @property
    def eligible(self) -> EligibleFn | None:
        return None if self.max_strikes is None else self._allowed

    def _allowed(self, state: TacoState) -> jax.Array:
        return state.strikes < (jnp.inf if self.max_strikes is None else self.max_strikes)

    def init(self, params: Params) -> TacoState:
        own = {"alpha": jnp.zeros(0), "strikes": jnp.zeros(0, jnp.int32), "num_expelled": jnp.zeros((), jnp.int32)}
        return TacoState(
            aggregator=with_metrics(self.rule.init(params), **own),
            gradient=tree.zeros_like(params),
            work=WorkDone(jnp.zeros(()), jnp.zeros(())),
            mean_alpha=jnp.zeros(()),
            alpha=initial_alpha(self.clients),
            strikes=jnp.zeros(self.clients, jnp.int32),
        )

    def broadcast(self, params: Params, state: TacoState, client_ids: jax.Array) -> Downlink:
        if not self.tailored_correction:
            return Downlink(start=params)
        # No client has reported K before the first round, but then D_t = 0.
        strength = tree.inverse(state.work.steps) if self.gamma is None else self.gamma
        pull = jax.tree.map(lambda d: (strength * d).astype(d.dtype), state.gradient)  # gamma D_t
        return Downlink(start=params, shared=pull, own=1 - state.alpha[client_ids])

    def begin(self, downlink: Downlink) -> jax.Array:
        del downlink
        return jnp.zeros(())

    def direction(
        self, grad_fn: GradFn, w: Params, carry: jax.Array, downlink: Downlink, batch: Batch
    ) -> tuple[Params, jax.Array]:
        gradient = grad_fn(w, batch)
        if self.tailored_correction:  # grad f_m(w) + gamma (1 - alpha_m) D_t
            # A factor, not its product with the pull: that would be one more model for every client.
            gradient = jax.tree.map(lambda g, p: (g + downlink.own * p).astype(g.dtype), gradient, downlink.shared)
        return gradient, carry + 1

    def report(self, downlink: Downlink, w_end: Params, carry: jax.Array, total_step_size: jax.Array) -> WorkDone:
        del downlink, w_end
        return WorkDone(carry, jnp.asarray(total_step_size, jnp.float32))

    def aggregate(
        self,
        params: Params,
        uplink: Uplink,
        state: TacoState,
        *,
        client_ids: jax.Array,
        valid: Any = None,
        reject_nonfinite: bool = True,
        **extras: Any,
    ) -> tuple[Params, TacoState]:
        allowed = self._allowed(state)[client_ids]
        present = allowed if valid is None else allowed & valid
        who = screen(uplink, present, reject_nonfinite, extras.get("start_loss"))
        counted = who.counted
        extras |= {"client_ids": client_ids, "valid": counted, "reject_nonfinite": reject_nonfinite}

        alpha = coefficients(uplink.delta, counted)
        mean_alpha = alpha.sum() * tree.inverse(counted.sum().astype(jnp.float32))
        factor = alpha * tree.inverse(mean_alpha) if self.tailored_aggregation else jnp.ones_like(alpha)
        deltas = scaled(factor, uplink.delta) if self.tailored_aggregation else uplink.delta
        moved, inner = self.rule.apply(params, deltas, state.aggregator, **extras)
        work = _typical(uplink.aux, counted)

        now, before = (_gradient(params, moved, work), work, mean_alpha), (state.gradient, state.work, state.mean_alpha)
        gradient, work, mean_alpha = tree.where(counted.any(), now, before)
        strikes = state.strikes.at[client_ids].add((counted & (alpha >= self.kappa)).astype(jnp.int32))
        after = TacoState(
            aggregator=inner,
            gradient=gradient,
            work=work,
            mean_alpha=mean_alpha,
            alpha=latest(state.alpha, client_ids, alpha, counted),
            strikes=strikes,
        )
        inner = with_metrics(
            inner,
            weight=inner.metrics["weight"] * factor,
            num_rejected=who.num_rejected,
            alpha=alpha,
            strikes=strikes[client_ids],
            num_expelled=(~self._allowed(after)).sum().astype(jnp.int32),
        )
        return step_between(params, moved, self.server_step_size), after._replace(aggregator=inner)

    def output(self, params: Params, state: TacoState) -> Params:
        """``z_t``."""
        ahead = (1 - state.mean_alpha) * self.server_step_size * state.work.total_step_size
        return jax.tree.map(lambda p, d: (p - ahead * d).astype(p.dtype), params, state.gradient)


def _gradient(params: Params, moved: Params, work: WorkDone) -> Params:
    """``D_{t+1} = -sum_m alpha_m g_m / (K eta sum_m alpha_m)``: against the rule's step, per unit of step size."""
    per_unit = tree.inverse(work.total_step_size)
    return jax.tree.map(lambda p, q: ((p - q) * per_unit).astype(p.dtype), params, moved)


def _typical(work: WorkDone, counted: jax.Array) -> WorkDone:
    """The work of a pass: the lower median over the clients that count; 0 if there are none."""
    return jax.tree.map(lambda x: _median(jnp.abs(x), counted), work)


def _median(values: jax.Array, counted: jax.Array) -> jax.Array:
    """The lower median of those that count; 0 if there are none."""
    middle = jnp.sort(jnp.where(counted, values, jnp.inf))[jnp.maximum(counted.sum() - 1, 0) // 2]
    return jnp.where(counted.any(), middle, 0.0)
