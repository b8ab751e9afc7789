"""Rules for messages of clients that have started from earlier parameters."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_drag import checks, tree
from fedjax_drag.aggregators._clipping import clip
from fedjax_drag.aggregators._fedavg import fedavg
from fedjax_drag.ops.rules import Moved, WrappingAggregator, wrapped
from fedjax_drag.types import Aggregator, Deltas, Params, Scalar, State

Weighting = Literal["polynomial", "hinge", "constant"]
"""How a message loses weight with its staleness."""


class StaleAggregator(WrappingAggregator):
    """A rule around another that gets each message times ``s(tau_m)``, where ``tau_m`` is its staleness.

    A subclass has the fields ``staleness``, ``exponent``, ``slope`` and ``grace``.
    """

    aggregator: Aggregator | None = None  # pyright: ignore[reportIncompatibleVariableOverride, reportGeneralTypeIssues]

    staleness: Weighting = "polynomial"
    exponent: Scalar = 0.5
    slope: Scalar = 10.0
    grace: Scalar = 4.0

    def __post_init__(self) -> None:
        if self.aggregator is None:
            object.__setattr__(self, "aggregator", fedavg())
        super().__post_init__()

    def check(self) -> None:
        super().check()
        checks.one_of("staleness", self.staleness, ("polynomial", "hinge", "constant"))
        for name in ("exponent", "slope", "grace"):
            checks.in_range(name, getattr(self, name), 0.0)

    def discount(self, staleness: Int[Array, " clients"]) -> Float[Array, " clients"]:
        """``s(tau_m)`` ``[S]``."""
        if self.staleness == "polynomial":
            return (1.0 + staleness) ** -self.exponent
        if self.staleness == "hinge":
            return 1.0 / (1.0 + self.slope * jnp.maximum(staleness - self.grace, 0.0))
        return jnp.ones(staleness.shape)

    def applied(
        self,
        params: Params,
        messages: Deltas,
        state: State,
        step: Scalar,
        *,
        valid: Bool[Array, " clients"],
        staleness: Int[Array, " clients"],
        **extras: Any,
    ) -> Moved:
        """``step`` times the step that the wrapped rule takes by the discounted messages ``[S, *p]``."""
        assert self.aggregator is not None
        discount = self.discount(staleness)
        discounted = clip(messages, discount, valid)
        extras |= {"valid": valid, "staleness": staleness}
        moved, inner = self.aggregator.apply(params, discounted, state.inner, **extras)
        moved = jax.tree.map(lambda p, q: (p + step * (tree.accurate(q) - p)).astype(p.dtype), params, moved)
        update = tree.subtract(jax.tree.map(tree.accurate, moved), params)
        weight = jnp.where(valid, discount, 0.0) * inner.metrics["weight"]
        return moved, wrapped(inner, {"weight": weight, "cosine": tree.cosines(messages, update)})
