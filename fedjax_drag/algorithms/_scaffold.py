"""SCAFFOLD: control variates against client drift."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.aggregators import fedavg
from fedjax_drag.aggregators._screen import screen
from fedjax_drag.types import Aggregator, Algorithm, ClientRule, Downlink, Params, State


class ScaffoldState(NamedTuple):
    """State of :func:`scaffold`.

    Attributes:
      aggregator: state of the aggregation rule.
      control: server control variate ``c``, like ``params``.
      client_controls: client control variates ``c_m``, ``[M, *p]``.
    """

    aggregator: State
    control: Params
    client_controls: Any

    @property
    def metrics(self) -> dict[str, jax.Array]:
        """Those of the aggregation rule."""
        return self.aggregator.metrics


def scaffold(
    num_clients: int, a: Any = 1.0, aggregator: Aggregator | None = None, server_step_size: Any = 1.0
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

    Returns:
      An :class:`~fedjax_drag.types.Algorithm`. The message ``aux`` is ``c_m' - c_m``. The server averages it over
      the clients that are not rejected: only ``aggregator`` is robust, and a malicious client can
      still move ``c`` by its ``aux``. A client with a non-finite entry in either half is rejected whole.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Karimireddy et al., SCAFFOLD: Stochastic controlled averaging for federated learning, 2020,
      Algorithm 1, option II.
    """
    checks.count("num_clients", num_clients, 1)
    checks.in_range("a", a, 0.0)
    checks.positive("server_step_size", server_step_size)
    rule = aggregator or fedavg()

    def init(params):
        controls = jax.tree.map(lambda p: jnp.zeros((num_clients, *p.shape), p.dtype), params)
        return ScaffoldState(rule.init(params), tree.zeros_like(params), controls)

    def broadcast(params, state, client_ids):
        return Downlink(start=params, shared=state.control, own=tree.take(state.client_controls, client_ids))

    def direction(grad_fn, w, carry, downlink, batch):
        gradient = grad_fn(w, batch)
        corrected = jax.tree.map(lambda g, c, c_m: g + a * (c - c_m), gradient, downlink.shared, downlink.own)
        return corrected, carry

    def report(downlink, w_end, carry, total_step_size):
        del carry
        return jax.tree.map(
            lambda c, w, start: (-c - (w - start) / total_step_size).astype(c.dtype),
            downlink.shared,
            w_end,
            downlink.start,
        )

    def aggregate(params, uplink, state, *, client_ids, valid=None, reject_nonfinite=True, **extras):
        counted, num_rejected = screen(uplink, valid, reject_nonfinite)
        moved, inner = rule.apply(
            params,
            uplink.delta,
            state.aggregator,
            client_ids=client_ids,
            valid=counted,
            reject_nonfinite=reject_nonfinite,
            **extras,
        )
        moved = jax.tree.map(lambda p, q: (p + server_step_size * (q - p)).astype(p.dtype), params, moved)
        inner = inner._replace(metrics={**inner.metrics, "num_rejected": num_rejected})
        change = tree.weighted_sum(counted.astype(jnp.float32) / num_clients, uplink.aux)

        def updated(controls, changes):
            kept = jnp.where(counted.reshape(-1, *[1] * (changes.ndim - 1)), changes, 0)
            return controls.at[client_ids].add(kept.astype(controls.dtype))

        controls = jax.tree.map(updated, state.client_controls, uplink.aux)
        return moved, ScaffoldState(inner, tree.move(state.control, change), controls)

    client = ClientRule(begin=lambda downlink: (), direction=direction, report=report)
    return Algorithm(client, init, broadcast, aggregate, rule.needs | {"client_ids"}, rule.split)
