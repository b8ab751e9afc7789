"""MimeLite: the server's momentum inside the clients' steps."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.aggregators import fedavg
from fedjax_drag.algorithms._inner import server_side, with_metrics
from fedjax_drag.ops.sums import average
from fedjax_drag.types import Aggregator, Algorithm, ClientRule, Downlink, Params, State


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


def mime(b: Any = 0.9, gradient: str = "average", aggregator: Aggregator | None = None) -> Algorithm:
    """MimeLite with momentum: clients imitate centralised momentum, which stays fixed while they work.

    ::

        client:  w -= eta ((1 - b) grad f_m(w) + b m)
        server:  theta += mean g_m;   m = (1 - b) mean grad f_m(theta) + b m

    The momentum starts at zero and moves by gradients at ``theta``, where no client has drifted yet. With ``b = 0``
    it is the plain aggregation rule.

    Args:
      b: weight of the momentum, in [0, 1). Paper: 0.9.
      gradient: what stands for a client's ``grad f_m(theta)``: ``"average"`` over all mini-batches of its pass, which
        costs a second gradient in every step, or ``"first"``, that of its first mini-batch, which costs nothing.
      aggregator: rule that takes the place of the mean of the deltas; default
        :func:`~fedjax_drag.aggregators.fedavg`.

    Returns:
      An :class:`~fedjax_drag.types.Algorithm`. The message ``aux`` is ``grad f_m(theta)``. The round's parameters do
      not depend on it, but ``m`` is moved by its plain mean over the clients that are not rejected: a malicious
      client can move ``m`` without bound, and by it, from the next round on, all clients' steps alike, which
      ``aggregator`` cannot tell. A client with a non-finite entry in either half is rejected whole. Further metric:
      ``momentum_norm``, ``||m||``. It sums as messages come if ``aggregator`` can.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Karimireddy et al., Breaking the centralized barrier for cross-device federated learning (Mime), 2021,
      Algorithm 1, MimeLite, with momentum SGD. Reading: the paper's full-batch gradient at ``theta`` is that of the
      mini-batches of the pass, ``gradient``, since a pass need not go through all of a client's data.
    """
    checks.in_range("b", b, 0.0, 1.0, open_high=True)
    checks.one_of("gradient", gradient, ("average", "first"))
    rule = aggregator or fedavg()

    def init(params):
        return MimeState(with_metrics(rule.init(params), momentum_norm=jnp.zeros(())), tree.zeros_like(params))

    def broadcast(params, state, client_ids):
        del client_ids
        return Downlink(start=params, shared=state.momentum)

    def begin(downlink):
        return jax.tree.map(lambda x: tree.accurate(jnp.zeros_like(x)), downlink.start), jnp.zeros((), jnp.int32)

    def direction(grad_fn, w, carry, downlink, batch):
        at_start, steps = carry
        here = grad_fn(w, batch)
        # The first step's gradient is one at theta. Later ones count by their share of the average so far.
        there = here if gradient == "first" else grad_fn(downlink.start, batch)
        share = jnp.where(steps == 0, 1.0, 0.0) if gradient == "first" else 1 / (steps + 1.0)
        at_start = jax.tree.map(lambda old, new: (old + share * (new - old)).astype(old.dtype), at_start, there)
        mixed = jax.tree.map(lambda g, m: ((1 - b) * g + b * m).astype(g.dtype), here, downlink.shared)
        return mixed, (at_start, steps + 1)

    def report(downlink, w_end, carry, total_step_size):
        del w_end, total_step_size
        return jax.tree.map(lambda g, start: g.astype(start.dtype), carry[0], downlink.start)

    def own(uplink, state, counted, **_):
        del state
        return tree.weighted_sum(counted.astype(jnp.float32), uplink.aux), ()

    def close(params, state, outcome, **_):
        mean = average(outcome.total, outcome.counted)
        updated = jax.tree.map(lambda m, g: ((1 - b) * g + b * m).astype(m.dtype), state.momentum, mean)
        momentum = tree.where(outcome.counted.any(), updated, state.momentum)
        inner = with_metrics(outcome.inner, momentum_norm=tree.norm(momentum))
        return outcome.moved, MimeState(inner, momentum)

    aggregate, sums = server_side(rule, own, close)
    client = ClientRule(begin, direction, report)
    return Algorithm(client, init, broadcast, aggregate, rule.needs, rule.split, sums=sums)
