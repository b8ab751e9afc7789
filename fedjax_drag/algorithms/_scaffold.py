"""SCAFFOLD: control variates against client drift."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import checks, per_client, tree
from fedjax_drag.aggregators import fedavg
from fedjax_drag.algorithms._inner import server_side, with_metrics
from fedjax_drag.algorithms._taco_coefficients import coefficients, initial_alpha, remember
from fedjax_drag.per_client import PerClient
from fedjax_drag.types import Aggregator, Algorithm, ClientRule, Downlink, Params, State


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


def scaffold(
    num_clients: int,
    a: Any = 1.0,
    aggregator: Aggregator | None = None,
    server_step_size: Any = 1.0,
    tailored: bool = False,
) -> Algorithm:
    """Corrects every local step by the difference of the server's and the client's control variate.

    ::

        client:  w -= eta (grad f_m(w) + a (c - c_m));   c_m' = c_m - c - g_m / (U eta)   (option II)
        server:  theta += eta_g mean g_m;   c += (S/M) mean (c_m' - c_m)

    All control variates start at zero. With ``a = 0`` the parameters are those of the plain
    aggregation rule.

    Args:
      num_clients: M, clients in the federation; the state holds one control variate for each.
      a: strength of the correction, >= 0.
      aggregator: rule that takes the place of the mean of the deltas; default
        :func:`~fedjax_drag.aggregators.fedavg`.
      server_step_size: ``eta_g``, > 0; scales the rule's step.
      tailored: whether a client's ``a`` is multiplied by ``1 - alpha_m``, its coefficient in
        :func:`~fedjax_drag.algorithms.taco`: 0.1 at first, then that of its last participation.

    Returns:
      An :class:`~fedjax_drag.types.Algorithm`. The message ``aux`` is ``c_m' - c_m``. The round's parameters do not
      depend on it, but ``c`` is moved by ``1/M`` of it for each client that is not rejected: a malicious client can
      move ``c`` without bound, and by it, from the next round on, all clients' steps alike, which ``aggregator``
      cannot tell. A client with a non-finite entry in either half is rejected whole.
      Unless ``tailored``, the method sums as messages come if ``aggregator`` can, and all that it then keeps of each
      client is the new ``c_m``.
      Metrics are the rule's, and with ``tailored`` also ``alpha`` (new; 0 where a client does not count).

    Raises:
      ValueError: if an argument is out of range.

    References:
      Karimireddy et al., SCAFFOLD: Stochastic controlled averaging for federated learning, 2020,
      Algorithm 1, option II. Reading: Xiao et al., Divergence-based adaptive aggregation for Byzantine robust
      federated learning, Section VI, set ``c_m'`` to the gradient of the first mini-batch at ``theta``, a form of
      option I; here it is option II, in which all mini-batches of the pass count. Liu et al., TACO: Tackling
      over-correction in federated learning with tailored adaptive correction, Fig. 6, for ``tailored``. Reading: ``a``
      is multiplied by ``1 - alpha_m``, not replaced by it.
    """
    checks.count("num_clients", num_clients, 1)
    checks.in_range("a", a, 0.0)
    checks.positive("server_step_size", server_step_size)
    rule = aggregator or fedavg()

    def init(params):
        controls = per_client.zeros(params, num_clients)
        state = ScaffoldState(rule.init(params), tree.zeros_like(params), controls)
        if not tailored:
            return state
        inner = with_metrics(state.aggregator, alpha=jnp.zeros(0))
        return state._replace(aggregator=inner, alpha=initial_alpha(num_clients))

    def broadcast(params, state, client_ids):
        strength = a * (1 - state.alpha[client_ids]) if tailored else ()
        own = (state.client_controls.take(client_ids), strength)
        return Downlink(start=params, shared=state.control, own=own)

    def direction(grad_fn, w, carry, downlink, batch):
        control, strength = downlink.own[0], downlink.own[1] if tailored else a

        def corrected(g, c, c_m):
            return (g + strength * (c - c_m)).astype(g.dtype)

        return jax.tree.map(corrected, grad_fn(w, batch), downlink.shared, control), carry

    def report(downlink, w_end, carry, total_step_size):
        del carry
        return jax.tree.map(
            lambda c, w, start: (-c - (w - start) / total_step_size).astype(c.dtype),
            downlink.shared,
            w_end,
            downlink.start,
        )

    def own(uplink, state, counted, *, client_ids, **_):
        change = tree.weighted_sum(counted.astype(jnp.float32) / num_clients, uplink.aux)
        controls = tree.add(state.client_controls.take(client_ids), uplink.aux)
        return change, (controls, coefficients(uplink.delta, counted) if tailored else ())

    def close(params, state, outcome, *, client_ids, **_):
        moved = jax.tree.map(lambda p, q: (p + server_step_size * (q - p)).astype(p.dtype), params, outcome.moved)
        rows, newest = outcome.rows
        controls = state.client_controls.put(client_ids, rows, outcome.counted)
        after = ScaffoldState(outcome.inner, tree.move(state.control, outcome.total), controls)
        if not tailored:
            return moved, after
        alpha = remember(state.alpha, client_ids, newest, outcome.counted)
        return moved, after._replace(aggregator=with_metrics(outcome.inner, alpha=newest), alpha=alpha)

    aggregate, sums = server_side(rule, own, close)
    client = ClientRule(begin=lambda downlink: (), direction=direction, report=report)
    needs = rule.needs | {"client_ids"}
    # TACO's coefficients compare a client with all the others.
    return Algorithm(client, init, broadcast, aggregate, needs, rule.split, sums=None if tailored else sums)
