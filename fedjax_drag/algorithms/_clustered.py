"""Several models, and clients that choose the one that fits their examples best."""

# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import checks, tree
from fedjax_drag.algorithms._two_sided import TwoSided
from fedjax_drag.ops.screening import screen
from fedjax_drag.types import DISSIMILARITIES, Batch, Clusters, Downlink, GradFn, Params, State, Uplink


class ClusteredState(NamedTuple):
    """State of a method that trains several models.

    Attributes:
      models: ``[K, *p]``.
      aggregators: states of the aggregation rule, one for each model, without their metrics.
      chosen: ``[M]`` int32, the model that each client chose when it last took part, -1 before.
      metrics: those of the aggregation rule that have an entry for each client, as the rule of the client's cluster
        says; ``num_rejected``; and ``cluster`` ``[S]`` int32, the model that each client chose.
    """

    models: Params
    aggregators: tuple[State, ...]
    chosen: jax.Array
    metrics: dict[str, jax.Array]


class Clustered(TwoSided):
    """A method that trains ``num_models`` models, each with the clients that choose it.

    A subclass has the fields ``num_clients``, ``num_models`` and ``aggregator``. The parameters of the run are those of
    the model that most clients chose.
    """

    def check(self) -> None:
        super().check()
        checks.count("num_models", self.num_models, 1, self.num_clients)
        of_global = sorted(self.rule.needs & {"root_delta", "start_loss", "starts", *DISSIMILARITIES})
        if of_global:
            needed = f"needs {', '.join(of_global)}, of the one global model; must be a rule of the clusters' deltas"
            raise checks.ArgumentError(f"aggregator={self.rule.name}", needed)

    def moved(self, theta: Params, aimed: Params, mine: jax.Array, counted: jax.Array) -> Params:
        """A model after a round: by default ``aimed``, where the rule takes ``theta`` by the deltas of its clients.

        ``mine`` ``[S]`` are these clients, ``counted`` ``[S]`` all that count.
        """
        del theta, mine, counted
        return aimed

    @property
    def needs(self) -> frozenset[str]:
        return self.rule.needs | {"client_ids"}

    def init(self, params: Params, models: Params = None) -> ClusteredState:
        if models is None:
            models = jax.tree.map(lambda p: jnp.stack([p] * self.num_models), params)
        inner = [self.rule.init(_model(models, k)) for k in range(self.num_models)]
        metrics = _of_clients(inner[0]) | {"num_rejected": jnp.int32(0), "cluster": jnp.zeros(0, jnp.int32)}
        return ClusteredState(models, tuple(map(_bare, inner)), jnp.full(self.clients, -1, jnp.int32), metrics)

    def broadcast(self, params: Params, state: ClusteredState, client_ids: jax.Array) -> Downlink:
        del client_ids
        return Downlink(start=params, shared=state.models)

    def receive(self, downlink: Downlink, loss: Any) -> Downlink:
        """The model of the lowest loss over the client's examples, of equal ones the first, and its number."""
        losses = jax.lax.map(loss, downlink.shared)
        cluster = jnp.argmin(jnp.where(jnp.isnan(losses), jnp.inf, losses))  # by itself argmin prefers NaN
        return Downlink(start=_model(downlink.shared, cluster), own=cluster)

    def direction(self, grad_fn: GradFn, w: Params, carry: Any, downlink: Downlink, batch: Batch) -> tuple[Params, Any]:
        del downlink
        return grad_fn(w, batch), carry

    def report(self, downlink: Downlink, w_end: Params, carry: Any, total_step_size: jax.Array) -> list[jax.Array]:
        """The choice, K numbers: 1 for the model that was chosen, else 0; no array, which would be compressed."""
        del w_end, carry, total_step_size
        return list(jax.nn.one_hot(downlink.own, self.num_models))

    def aggregate(
        self,
        params: Params,
        uplink: Uplink,
        state: ClusteredState,
        *,
        client_ids: jax.Array,
        valid: Any = None,
        reject_nonfinite: bool = True,
        **extras: Any,
    ) -> tuple[Params, ClusteredState]:
        who = screen(uplink, valid, reject_nonfinite, extras.get("start_loss"))
        cluster = jnp.argmax(jnp.stack(uplink.aux), axis=0).astype(jnp.int32)
        extras |= {"client_ids": client_ids, "reject_nonfinite": reject_nonfinite}
        moved, inner, metrics = [], [], {}
        for k in range(self.num_models):
            mine, theta = who.counted & (cluster == k), _model(state.models, k)
            aimed, after = self.rule.apply(theta, uplink.delta, state.aggregators[k], valid=mine, **extras)
            moved.append(self.moved(theta, aimed, mine, who.counted))
            inner.append(_bare(after))
            for name, value in _of_clients(after).items():
                metrics[name] = jnp.where(mine, value, metrics.get(name, jnp.zeros_like(value)))
        chosen = state.chosen.at[client_ids].set(jnp.where(who.counted, cluster, state.chosen[client_ids]))
        models = jax.tree.map(lambda *each: jnp.stack(each), *moved)
        metrics |= {"num_rejected": who.num_rejected, "cluster": cluster}
        return tree.where(who.counted.any(), _model(models, self._most_chosen(chosen)), params), ClusteredState(
            models, tuple(inner), chosen, metrics
        )

    def clusters(self, state: ClusteredState) -> Clusters:
        """A client uses what it chose when it last took part, before that what most clients chose."""
        return Clusters(state.models, jnp.where(state.chosen < 0, self._most_chosen(state.chosen), state.chosen))

    def _most_chosen(self, chosen: jax.Array) -> jax.Array:
        return jnp.argmax((chosen[:, None] == jnp.arange(self.num_models)).sum(0))


def _model(models: Params, k: Any) -> Params:
    return jax.tree.map(lambda x: x[k], models)


def _bare(inner: State) -> State:
    return inner._replace(metrics={})


def _of_clients(inner: State) -> dict[str, jax.Array]:
    """The metrics of a rule that have an entry for each client."""
    return {name: value for name, value in inner.metrics.items() if jnp.ndim(value) == 1}
