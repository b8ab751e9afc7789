"""FedNova: deltas normalised by the work that is in them."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.aggregators import fedavg
from fedjax_drag.algorithms._inner import with_metrics
from fedjax_drag.ops.screening import screen
from fedjax_drag.types import Aggregator, Algorithm, ClientRule, Downlink


def fednova(
    rho: Any = 0.0, mu: Any = 0.0, weighting: str = "uniform", aggregator: Aggregator | None = None
) -> Algorithm:
    r"""Averages what a unit of local work achieved, so that clients that do more do not count for more.

    ::

        client:  u = rho u + grad f_m(w);   w -= eta (u + mu (w - theta));   g_m = -eta sum_k a_{m,k} grad f_m(w_k)
        server:  theta += tau mean g_m / ||a_m||_1,   tau = mean ||a_m||_1

    A client's delta is a weighted sum of its gradients; ``||a_m||_1`` is the sum of the weights, counted during the
    pass: the number of steps without momentum and proximal term, and in general the pass's response to gradients
    that are all 1. Clients that all take the same number of steps make it the plain aggregation rule.

    Args:
      rho: local momentum, in [0, 1); the buffer ``u`` starts at zero in every pass. Paper: 0.9.
      mu: strength of the proximal term, >= 0, with ``eta mu <= 1``: beyond, a step overshoots ``theta``.
      weighting: of both means, ``"uniform"`` or ``"examples"`` (in proportion to the client's number of training
        examples, as in the paper; needs the extra ``num_examples``).
      aggregator: rule that takes the place of the mean of the normalised deltas ``tau g_m / ||a_m||_1``; default
        :func:`~fedjax_drag.aggregators.fedavg` with ``weighting``, which still holds for ``tau``.

    Returns:
      An :class:`~fedjax_drag.types.Algorithm`. The message ``aux`` is ``||a_m||_1`` (scalar). ``aggregator`` sees it
      in the normalised deltas, but nothing protects ``tau``: a malicious client that claims much work makes the
      server's step longer, without bound, in the direction that ``aggregator`` found. One that claims less than none
      counts as idle; one so great that the others' normalised deltas overflow makes ``aggregator`` reject these. A
      client with a non-finite entry in either half is rejected whole. Further metrics: ``work``, ``||a_m||_1`` of each
      client, and ``effective_work``, ``tau``.

    Raises:
      ValueError: if an argument is out of range.

    References:
      Wang et al., Tackling the objective inconsistency problem in heterogeneous federated optimization, 2020,
      Sections 4 and 5. Readings: ``tau`` is the mean of ``||a_m||_1`` for every local solver (the paper leaves it
      free); with ``mu > 0`` its authors' code takes the mean number of steps instead. Momentum and proximal term
      together, which the paper does not treat, follow the same definition of ``a_m``; the authors' code then adds a
      step to ``||a_m||_1`` for each of the two.
    """
    checks.in_range("rho", rho, 0.0, 1.0, open_high=True)
    checks.in_range("mu", mu, 0.0)
    checks.one_of("weighting", weighting, ("uniform", "examples"))
    rule = aggregator or fedavg(weighting)

    def init(params):
        state = rule.init(params)
        return with_metrics(state, work=jnp.zeros(0), effective_work=jnp.zeros(()))

    def broadcast(params, state, client_ids):
        del state, client_ids
        return Downlink(start=params)

    def begin(downlink):
        return tree.zeros_like(downlink.start), jnp.zeros((), jnp.int32)

    def direction(grad_fn, w, carry, downlink, batch):
        buffer, steps = carry
        buffer = jax.tree.map(lambda u, g: (rho * u + g).astype(u.dtype), buffer, grad_fn(w, batch))
        pulled = jax.tree.map(lambda u, x, x0: u + mu * (x - x0), buffer, w, downlink.start)
        return pulled, (buffer, steps + 1)

    def report(downlink, w_end, carry, total_step_size):
        del downlink, w_end
        _, steps = carry
        shrink = 1 - mu * total_step_size * tree.inverse(steps.astype(jnp.float32))

        def step(_, pair):  # the local step, of a single parameter whose gradient is -1
            w, buffer = pair
            buffer = rho * buffer + 1
            return shrink * w + buffer, buffer

        zero = jnp.zeros_like(shrink)
        return jax.lax.fori_loop(0, steps, step, (zero, zero))[0]

    def weigh(counted, num_examples=None, **_):
        shares = counted * tree.accurate(num_examples) if weighting == "examples" else counted.astype(jnp.float32)
        return shares * tree.inverse(shares.sum())

    def aggregate(params, uplink, state, *, valid=None, reject_nonfinite=True, **extras):
        who = screen(uplink, valid, reject_nonfinite)
        counted = who.counted
        work = jnp.maximum(jnp.where(counted, uplink.aux, 0), 0)
        effective = weigh(counted, **extras) @ work
        ratio = effective * tree.inverse(work)
        normalized = jax.tree.map(lambda d: (d * tree.expand(ratio, d)).astype(d.dtype), uplink.delta)
        moved, after = rule.apply(params, normalized, state, valid=counted, reject_nonfinite=reject_nonfinite, **extras)
        own = {"num_rejected": who.num_rejected, "work": work, "effective_work": effective}
        return moved, with_metrics(after, **own)

    client = ClientRule(begin, direction, report)
    needs = rule.needs | ({"num_examples"} if weighting == "examples" else frozenset())
    return Algorithm(client, init, broadcast, aggregate, needs, rule.split)
