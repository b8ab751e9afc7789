"""The contract of a method with a client and a server side."""
# Fields of FunctionAlgorithm stand in the place of methods.
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol, cast, runtime_checkable

import jax

from fedjax_drag.types._aggregator import InitFn, Sums, functions_of
from fedjax_drag.types._client_rule import ClientRule
from fedjax_drag.types._guarantee import Guarantee
from fedjax_drag.types._messages import Downlink, Params, State, Uplink
from fedjax_drag.types._part import Part, Scalar, undefined


@runtime_checkable
class BroadcastFn(Protocol):
    """Prepares what the server sends to the clients of a round."""

    def __call__(self, params: Params, state: State, client_ids: jax.Array, /) -> Downlink:
        """Makes the downlink of a round.

        Args:
          params: the global parameters.
          state: of the method. Its :class:`~fedjax_drag.per_client.PerClient` hold the rows of this cohort, in the
            order of ``client_ids``.
          client_ids: the clients of the round, int32 ``[S]``.

        Returns:
          The downlink, ``own`` with a leading axis ``[S]`` in the order of ``client_ids``.
        """
        ...


@runtime_checkable
class AggregateFn(Protocol):
    """Ends a round: moves the global parameters by what the clients sent."""

    def __call__(self, params: Params, uplink: Uplink, state: State, /, **extras: Any) -> tuple[Params, State]:
        """Computes the parameters and the state after a round; pure and jittable.

        Args:
          params: the global parameters before the round.
          uplink: the messages of the S clients.
          state: of the method before the round.
          **extras: as for :class:`Aggregator`. A method names those that it uses as keyword-only parameters without a
            default, so that a missing one is a TypeError, and ends with ``**extras``.

        Returns:
          The parameters and the state after the round. ``state.metrics`` keeps the keys that it has from ``init`` on.
        """
        ...


@runtime_checkable
class EligibleFn(Protocol):
    """Names the clients that may take part."""

    def __call__(self, state: State, /) -> jax.Array:
        """Computes the mask of the clients that may be drawn for the next round, bool ``[M]``."""
        ...


@runtime_checkable
class OutputFn(Protocol):
    """Computes the model that a method hands out where this is not the global model."""

    def __call__(self, params: Params, state: State, /) -> Params:
        """Computes the model from the parameters and the state after a round, like ``params``."""
        ...


class Clusters(NamedTuple):
    """The models of a method that trains several.

    Attributes:
      models: K of them, ``[K, *p]``.
      of_client: ``[M]`` int32, which of them each client of the federation uses.
    """

    models: Params
    of_client: jax.Array


@runtime_checkable
class ClustersFn(Protocol):
    """Names the model that each client uses, of a method that trains several."""

    def __call__(self, state: State, /) -> Clusters:
        """Reads the models, and who uses which, from the state after a round."""
        ...


class Adaptation(NamedTuple):
    """Steps of plain SGD on a client's training examples, by which it makes its model when that is evaluated.

    Attributes:
      steps: number of mini-batches.
      step_size: of each; None for that of the run.
    """

    steps: int
    step_size: Scalar | None = None


class Algorithm(Part):
    """A federated method with a client and a server side.

    A method is a subclass whose methods are the equations of its two sides. ``Algorithm(client, init, broadcast,
    aggregate)`` makes one of functions, see :class:`FunctionAlgorithm`.

    Attributes:
      client: the :class:`ClientRule` of the local pass.
      needs: names of extras that the engine must compute.
      split: as for :class:`Aggregator`, of the uplink for ``aggregate``.
      eligible: ``(state) -> [M]`` bool, who may be drawn for the next round; None for all clients. If fewer are
        eligible than a cohort has places, others fill it up with ``valid`` False.
      output: ``(params, state) -> params``, the model that the method hands out where it is not ``params``; the
        engine evaluates both.
      guarantee: of differential privacy; None for none.
      num_clients: M, of the only federation that the state fits; None for any.
      num_models: K, of a method that trains several models: ``init`` then receives them by keyword, ``models``
        ``[K, *p]``, each drawn by itself and the first being ``params``. None for one model.
      clusters: ``(state) -> Clusters``, by which the engine evaluates each client on the model that it uses; None for
        ``params``.
      own_model: ``(params, own) -> params``, the model of a client, from what it has for itself
        (:meth:`ClientRule.own`), ``()`` for nothing; the engine evaluates it with ``evaluate_clients``. None if clients
        have no models of their own.
      num_neighbours: with how many others a client exchanges messages, on the average; None for the server alone.
      adaptation: what clients do with their own models before these are evaluated; None for nothing.
      personal_layers: patterns of the paths of parameters that clients keep and do not send; None for none. ``params``
        has None in their place.
      model_state: what ``model_state="auto"`` stands for; ``"auto"`` for what it is without the method.
      communicates: whether clients and server exchange messages; without, none are counted.
    """

    def __new__(cls, *_: Any, **__: Any) -> Any:
        return object.__new__(FunctionAlgorithm if cls is Algorithm else cls)

    client = cast("Any", None)  # no annotation: a class variable, or a field of a subclass
    split = cast("Any", "coordinates")
    eligible = cast("Any", None)
    output = cast("Any", None)
    num_clients = None
    num_models = cast("Any", None)
    clusters = cast("Any", None)
    own_model = cast("Any", None)
    num_neighbours = cast("float | None", None)
    adaptation = cast("Adaptation | None", None)
    personal_layers = cast("str | Sequence[str] | None", None)
    model_state = cast("str", "auto")
    communicates = cast("bool", True)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()

    @property
    def guarantee(self) -> Guarantee | None:
        return None

    @property
    def streamed(self) -> Sums | None:
        """``aggregate`` for uplinks that come in chunks; None if it needs the whole cohort at once.

        In ``accumulate``, the per-client rows of the state are those of the chunk.
        """
        return None

    def init(self, params: Params) -> State:
        """The state before the first round; see :class:`InitFn`."""
        raise undefined(self, "init")

    def broadcast(self, params: Params, state: State, client_ids: jax.Array) -> Downlink:
        """What the server sends to the clients of a round, by default the parameters; see :class:`BroadcastFn`."""
        del state, client_ids
        return Downlink(start=params)

    def aggregate(self, params: Params, uplink: Uplink, state: State, **extras: Any) -> tuple[Params, State]:
        """Ends a round; see :class:`AggregateFn`."""
        raise undefined(self, "aggregate")

    def owned(self, state: State, kept: Any) -> Any:
        """What ``own_model`` is given of each client, in a :class:`~fedjax_drag.per_client.PerClient`.

        By default ``kept``, what the clients have for themselves. A method whose state has the models returns these.
        """
        del state
        return kept

    def _replace(self, **changes: Any) -> "Algorithm":
        """A method of this one's functions, some of them replaced; arguments as of :class:`FunctionAlgorithm`.

        With another ``aggregate`` it has no ``sums`` but those that are given.
        """
        return FunctionAlgorithm(**functions_of(self, FunctionAlgorithm, "aggregate", changes))


class FunctionAlgorithm(Algorithm):
    """A method of functions, which are compared by identity; ``Algorithm(...)`` makes one.

    Attributes:
      client: the :class:`ClientRule` of the local pass.
      init: ``(params) -> state``; see :class:`InitFn`.
      broadcast: ``(params, state, client_ids) -> Downlink`` for the clients of the round; see :class:`BroadcastFn`.
      aggregate: ``(params, uplink, state, **extras) -> (params, state)``; see :class:`AggregateFn`.
      needs: as of :class:`Algorithm`.
      split: as of :class:`Algorithm`.
      eligible: as of :class:`Algorithm`.
      output: as of :class:`Algorithm`.
      sums: ``aggregate`` for uplinks that come in chunks; None if it needs the whole cohort at once.
      guarantee: as of :class:`Algorithm`.
      num_clients: as of :class:`Algorithm`.
      num_models: as of :class:`Algorithm`.
      clusters: as of :class:`Algorithm`.
    """

    _made_of = ("aggregate",)

    client: ClientRule
    init: InitFn
    broadcast: BroadcastFn
    aggregate: AggregateFn
    needs: frozenset[str] = frozenset()
    split: Literal["clients", "coordinates"] = "coordinates"
    eligible: EligibleFn | None = None
    output: OutputFn | None = None
    sums: Sums | None = None
    guarantee: Guarantee | None = None
    num_clients: int | None = None
    num_models: int | None = None
    clusters: ClustersFn | None = None

    def __repr__(self) -> str:
        client = "" if self.client.name.startswith("_") else f", client={self.client.name}"
        return f"Algorithm({self.name}{client})"

    @property
    def streamed(self) -> Sums | None:
        return self.sums
