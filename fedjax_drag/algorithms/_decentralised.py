"""Decentralised learning: clients on a graph, without a server."""

# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_drag import checks, kinds, per_client, tree
from fedjax_drag.clients import sgd
from fedjax_drag.graphs import GRAPH, Graph, Neighbours
from fedjax_drag.graphs._graph import num_edges
from fedjax_drag.graphs.mixing import MIXING, Mixing, gossip
from fedjax_drag.ops.screening import empty_metrics, screen
from fedjax_drag.per_client import PerClient
from fedjax_drag.types import Algorithm, ClientRule, Downlink, Exchange, Params, Uplink, WrappedClientRule


class DecentralisedState(NamedTuple):
    """State of :class:`decentralised`.

    Attributes:
      models: of every client.
      metrics: ``weight`` ``[S]``, how much each client's message counts for the honest ones, on the average;
        ``cosine`` ``[S]``; ``num_rejected``; and ``consensus_distance``, the mean over the honest clients that took
        part of ``||x_i - mean||^2``.
    """

    models: PerClient
    metrics: dict[str, jax.Array]


class decentralised(Algorithm):
    """Every client trains a model of its own, and mixes it with those of its neighbours on a graph.

    ::

        client:  x_i -= eta grad f_i(x_i),  as many steps as in any run
        client:  x_i <- mix of x_i and the x_j that the neighbours j send

    There is no server. What a run calls its parameters is the mean over the honest clients that took part of their
    models after the round; the test set is evaluated on it. With ``evaluate_clients``, ``own_accuracy`` is that of each
    client's own model.
    A message is the difference of a model from the mean, so that attacks forge models as they forge deltas elsewhere:
    ``sign_flip`` sends the mean minus what it would honestly add to it. A malicious client keeps for itself the model
    that it would have if it was honest. :func:`~fedjax_drag.attacks.dissensus` sends another model to each neighbour.

    A client that is not in the cohort, is missing, or whose message is not finite keeps its model. Its neighbours do
    without it, and what it weighs for them goes to their own models.

    Args:
      graph: who exchanges models, of :mod:`fedjax_drag.graphs`.
      mixing: what a client makes of them, of :mod:`fedjax_drag.graphs.mixing`; default the weighted mean.
      client: the clients' rule; default :func:`~fedjax_drag.clients.sgd`. It must send what it computes.
      num_clients: M, clients in the federation; default those of the simulation.

    Notes:
      Take ``cohort_size`` as large as the federation; of a smaller cohort, those who are in it mix. Metrics: see
      :class:`DecentralisedState`. A model is kept for every client. ``bytes_up`` and ``bytes_down`` are a model for
      each neighbour. ``model_state="auto"`` is ``"local"``.

    Raises:
      ValueError: if an argument is of another kind; when a run starts, if messages are compressed.

    References:
      Lian et al., Can decentralized algorithms outperform centralized algorithms?, NeurIPS 2017, in the order of
      adapt-then-combine: local steps, then mixing, as in He, Karimireddy and Jaggi, 2022.
    """

    graph: Graph
    mixing: Mixing = gossip()
    client: ClientRule = sgd()
    num_clients: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.client, NodeRule):
            kinds.CLIENT_RULE.check("client", self.client)
            object.__setattr__(self, "client", NodeRule(self.client))
        super().__post_init__()

    def check(self) -> None:
        GRAPH.check("graph", self.graph)
        MIXING.check("mixing", self.mixing)
        if self.client.sends:
            raise checks.ArgumentError("client", "changes what it sends; must send what it computes", given=self.client)
        if self.num_clients is not None:
            checks.count("num_clients", self.num_clients, 1)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"client_ids", "key", "malicious", "exchange"})

    @property
    def num_neighbours(self) -> float:
        return 2 * num_edges(self.graph, self.clients) / self.clients

    @property
    def model_state(self) -> str:
        return "local"

    @property
    def clients(self) -> int:
        """M, clients in the federation."""
        return checks.known("num_clients", self.num_clients, self.name)

    def own_model(self, params: Params, own: Params) -> Params:
        del params
        return own

    def owned(self, state: DecentralisedState, kept: Any) -> PerClient:
        del kept
        return state.models

    def init(self, params: Params) -> DecentralisedState:
        metrics = empty_metrics(consensus_distance=jnp.zeros(()))
        return DecentralisedState(per_client.repeat(params, self.clients), metrics)

    def broadcast(self, params: Params, state: DecentralisedState, client_ids: jax.Array) -> Downlink:
        return Downlink(start=params, own=state.models.take(client_ids))

    def aggregate(
        self,
        params: Params,
        uplink: Uplink,
        state: DecentralisedState,
        *,
        client_ids: jax.Array,
        key: jax.Array,
        malicious: jax.Array,
        exchange: Exchange | None = None,
        valid: Any = None,
        reject_nonfinite: bool = True,
        **_: Any,
    ) -> tuple[Params, DecentralisedState]:
        who = screen(uplink, valid, reject_nonfinite)
        deltas = jax.tree.map(lambda d: jnp.where(tree.expand(who.counted, d), d, 0), uplink.delta)
        honest = deltas if exchange is None else exchange.honest
        own, sent = (jax.tree.map(lambda p, d: (p + d).astype(p.dtype), params, x) for x in (honest, deltas))
        near = _among(self.graph.at(self.clients, key), client_ids, who.counted)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, client_ids)
        mixed, weight = self.mixing.everywhere(own, sent, near, keys, exchange and exchange.forge)
        models = state.models.put(client_ids, mixed, who.counted)
        # Nobody in the graph knows what follows: it is what a run shows.
        share = tree.uniform_weights(who.counted & ~malicious)
        rows, some = models.take(client_ids), share.any()
        mean = tree.weighted_sum(share, rows)
        moved = jax.tree.map(lambda p, m: jnp.where(some, m, p).astype(p.dtype), params, mean)
        apart = tree.norms(jax.tree.map(lambda x, m: x - m, rows, moved))
        received = (share * (1 - weight.sum(1))).at[near.nodes].add(share[:, None] * weight)
        metrics = {
            "weight": received,
            "cosine": tree.cosines(deltas, tree.subtract(moved, params)),
            "num_rejected": who.num_rejected,
            "consensus_distance": jnp.where(share > 0, share * apart**2, 0.0).sum(),
        }
        return moved, DecentralisedState(models, metrics)


class NodeRule(WrappedClientRule):
    """A client rule that begins at the client's own model; the message is the difference from the parameters."""

    def __repr__(self) -> str:
        return repr(self.client)

    @property
    def name(self) -> str:
        return self.client.name

    def receive(self, downlink: Downlink, loss: Any) -> Downlink:
        return self.client.receive(Downlink(start=downlink.own, shared=downlink.start), loss)

    def origin(self, downlink: Downlink) -> Params:
        return downlink.shared


def _among(near: Neighbours, client_ids: jax.Array, counted: jax.Array) -> Neighbours:
    """The neighbours of a cohort's clients among those of it that count, by their places in the cohort."""
    nodes, size = len(near.nodes), len(client_ids)
    place = jnp.zeros(nodes, jnp.int32).at[client_ids].set(jnp.arange(size, dtype=jnp.int32))
    here = jnp.zeros(nodes, bool).at[client_ids].set(counted)
    index = near.nodes[client_ids]
    return Neighbours(place[index], jnp.where(here[index], near.weight[client_ids], 0.0))
