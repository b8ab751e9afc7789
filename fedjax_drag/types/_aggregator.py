"""The contract of an aggregation rule."""
# Fields of FunctionAggregator stand in the place of methods.
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol, cast, runtime_checkable

import jax

from fedjax_drag.types._guarantee import Guarantee
from fedjax_drag.types._messages import Deltas, Params, State
from fedjax_drag.types._part import Part, undefined

PER_CLIENT_EXTRAS = (
    "client_ids",
    "num_examples",
    "start_loss",
    "selection_weight",
    "staleness",
    "starts",
    "dissimilarity",
    "malicious",
    "valid",
)
"""Extras of a rule that have an entry for each client of the cohort, ``[S]``, those of ``starts`` parameters."""

STATIC_EXTRAS = ("num_byzantine", "reject_nonfinite")
"""Extras of a rule that are Python values, since they decide what is compiled; no other is."""

DISSIMILARITIES = {"dissimilarity": "flattened", "class_histogram_dissimilarity": "class_histogram"}
"""Names in ``needs`` that ask for the extra ``dissimilarity``, and the distance that each stands for."""

EXTRAS = {
    "client_ids": "integers [S]",
    "round": "the index of the round, from 0",
    "key": "a random key, such as jax.random.key(0)",
    "root_delta": "the delta of a local pass over the server's own data, like params",
    "num_examples": "how many examples each client has, [S]",
    "start_loss": "the loss of each client's examples where its local pass starts, [S]",
    "step_size": "the step size of local steps",
    "selection_weight": "weights that make the mean over the cohort unbiased, [S]",
    "staleness": "updates of the parameters since each client has started, integers [S]",
    "starts": "the parameters from which each client has started, like the deltas",
    "predict": "a function (params, x) -> Prediction of the model, a part such as Function(...) where it is traced",
    "example": "one input of the model, of which shape and dtype count",
    "root_data": "the server's own examples, a Batch",
    **dict.fromkeys(DISSIMILARITIES, "how far the clients' data are from the common distribution, [S]"),
    "valid": "who takes part, bool [S]",
    "malicious": "who is malicious, bool [S], which only a simulation knows",
    "num_byzantine": "how many of the cohort may be malicious, an integer",
    "expected_clients": "how many clients answer on the average",
    "exchange": "an Exchange, which only a simulation knows",
}
"""What ``needs`` of a rule or a method can name, and what each is."""


@runtime_checkable
class InitFn(Protocol):
    """``init`` of a rule or a method."""

    def __call__(self, params: Params, /) -> State:
        """The state before the first round.

        Args:
          params: the global parameters.

        Returns:
          The state. Its ``metrics`` have the keys that they have after ``apply``; entries of clients have length 0
          until the first cohort (:func:`fedjax_drag.tree.initial_state` gives them their final shapes).
        """
        ...


@runtime_checkable
class ApplyFn(Protocol):
    """``apply`` of a rule."""

    # With *_ the protocol accepts rules that name extras of their own, which are keyword-only without a default.
    def __call__(self, params: Params, deltas: Deltas, state: State, /, *_: Any, **extras: Any) -> tuple[Params, State]:
        """One round.

        Args:
          params: the global parameters.
          deltas: of the cohort, ``[S, *p]``.
          state: from ``init`` or the round before.
          **extras: see :class:`Aggregator`.

        Returns:
          The parameters after the round, and the state.
        """
        ...


@runtime_checkable
class AccumulateFn(Protocol):
    """``accumulate`` of :class:`Sums`."""

    def __call__(self, params: Params, messages: Any, state: State, /, *_: Any, **extras: Any) -> tuple[Any, Any]:
        """What a chunk of ``B`` clients adds up to.

        Args:
          params: the global parameters.
          messages: of a rule, deltas ``[B, *p]``; of a method, an :class:`Uplink` with a leading axis ``[B]``.
          state: from ``init`` or the round before.
          **extras: as for ``apply``, those of clients ``[B]``; in a first pass also ``first_pass=True``.

        Returns:
          ``total``, a pytree that is summed over the chunks, and ``kept``, a pytree with a leading axis ``[B]`` that
          is concatenated over them.
        """
        ...


@runtime_checkable
class FinishFn(Protocol):
    """``finish`` of :class:`Sums`."""

    def __call__(
        self, params: Params, total: Any, state: State, kept: Any, /, *_: Any, **extras: Any
    ) -> tuple[Params, State]:
        """The round, from what the chunks added up to.

        Args:
          params: the global parameters.
          total: sum of all chunks' totals.
          state: from ``init`` or the round before.
          kept: of the cohort, leading axis ``[S]``.
          **extras: as for ``apply``.

        Returns:
          The parameters after the round, and the state. Metrics that cannot be computed from the sums have length 0,
          as before the first round.
        """
        ...


@runtime_checkable
class PrepareFn(Protocol):
    """``prepare`` of :class:`Sums`."""

    def __call__(self, total: Any, state: State, kept: Any, /, *_: Any, **extras: Any) -> State:
        """The state that ``accumulate`` needs, from a first pass over the clients.

        Args:
          total: sum of all chunks' totals.
          state: from ``init`` or the round before.
          kept: of the cohort, leading axis ``[S]``.
          **extras: as for ``apply``.
        """
        ...


def extras_of(apply: Callable[..., Any]) -> frozenset[str]:
    """The extras that a function must be given: keyword-only arguments without a default."""
    parameters = inspect.signature(apply).parameters.values()
    required = {one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.default is one.empty}
    return frozenset(required - {"valid"})


class Sums(NamedTuple):
    """A rule, or the server side of a method, as sums over clients whose messages come in chunks.

    A cohort comes in chunks of any size ``B >= 1``. The totals of the chunks are added up, and nothing of the size of
    the parameters is kept of a client. The results are those of ``apply`` or ``aggregate`` on the whole stack, up to
    the order of the additions.

    Attributes:
      accumulate: ``(params, messages, state, **extras) -> (total, kept)`` of a chunk; see :class:`AccumulateFn`.
      finish: ``(params, total, state, kept, **extras) -> (params, state)`` of the cohort; see :class:`FinishFn`.
      needs_first_pass: ``(state) -> bool``, scalar: whether the clients must be gone through once before the state is
        ready for ``accumulate``. In that first pass ``accumulate`` receives the extra ``first_pass=True``, and its sums
        go to ``prepare``. None if the state is always ready.
      prepare: ``(total, state, kept, **extras) -> state``; see :class:`PrepareFn`. None if
        ``needs_first_pass`` is.
      of_mean: whether parameters and state depend on the messages through the plain mean over the clients that count
        alone: a single client that sends that mean has the same effect.
    """

    accumulate: AccumulateFn
    finish: FinishFn
    needs_first_pass: Callable[[State], jax.Array] | None = None
    prepare: PrepareFn | None = None
    of_mean: bool = False


class Aggregator(Part):
    """A server-side rule: how a round's deltas move the global parameters.

    A round of federated learning is: the server sends its parameters to a cohort of S clients, each of them trains on
    its own data, and the server moves its parameters by what came back. A rule is the last step, as a pair of pure
    functions. ``init`` makes a state from the parameters; ``apply`` takes parameters, the stacked deltas of the cohort
    and the state, and returns new parameters and a new state. A rule knows neither models nor data nor devices, and
    what it decided about each client is in ``state.metrics``.

    All else is built on that. :func:`~fedjax_drag.algorithms.from_aggregator` combines a rule with what the clients run
    into an :class:`Algorithm`; an :class:`Attack` changes the messages in between; a simulation scans over rounds in
    one compiled program. Rules that wrap others (:func:`~fedjax_drag.aggregators.nnm`,
    :func:`~fedjax_drag.aggregators.bucketing`) are rules. Because the functions are pure and numbers such as a step
    size may be traced, one ``vmap`` runs a whole sweep of them.

    A rule is a subclass with ``init`` and ``apply``, or :class:`~fedjax_drag.ops.rules.PlainAggregator` and others with
    less to write. ``Aggregator(init, apply)`` makes one of functions, see :class:`FunctionAggregator`.

    Attributes:
      needs: names of extras that a caller computes on request only, from :data:`EXTRAS`. For ``dissimilarity`` it is
        one of :data:`DISSIMILARITIES`, which says which distance to compute.
      split: along which axis several devices may divide the deltas for ``apply``: ``"clients"`` if the rule takes
        norms, cosines and weighted sums of them only, so that they stay where they were computed; ``"coordinates"``
        if it compares the clients' values, as order statistics do, and needs whole columns.
      guarantee: of differential privacy; None for none.
      num_clients: M, of the only federation that the state fits; None for any.
    """

    def __new__(cls, *_: Any, **__: Any) -> Any:
        return object.__new__(FunctionAggregator if cls is Aggregator else cls)

    split = cast("Any", "coordinates")  # no annotation: a class variable, or a field of a subclass
    num_clients = None  # a field of the rules that keep something of every client

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()

    @property
    def requires(self) -> frozenset[str]:
        """Names of the extras that ``apply`` must be given."""
        return extras_of(self.apply)

    @property
    def guarantee(self) -> Guarantee | None:
        return None

    @property
    def streamed(self) -> Sums | None:
        """The same rule for deltas that come in chunks; None if it needs the whole stack."""
        return None

    def init(self, params: Params) -> State:
        """The state before the first round; see :class:`InitFn`."""
        raise undefined(self, "init")

    def apply(self, params: Params, deltas: Deltas, state: State, **extras: Any) -> tuple[Params, State]:
        """One round: ``(params, deltas, state, **extras) -> (params, state)``, pure and jittable.

        Args:
          params: the global parameters.
          deltas: of the cohort, ``[S, *p]``.
          state: from ``init`` or the round before.
          **extras: ``client_ids`` ``[S]``, ``round`` (scalar, from 0), ``key``, ``root_delta`` (like ``params``),
            ``num_examples`` ``[S]``, ``start_loss`` ``[S]`` (of each client's examples where its local pass starts),
            ``step_size`` (of local steps, scalar), ``selection_weight`` ``[S]`` (see
            :class:`~fedjax_drag.selection.Selected`), ``staleness`` ``[S]`` (updates of the parameters since each
            client has started, int32) and ``starts`` (the parameters from which each has started, like ``deltas``),
            ``dissimilarity`` ``[S]``, ``valid`` ``[S]``, ``predict`` (``(params, x) -> Prediction``, what the model
            makes of inputs with any parameters), ``example`` (one of its inputs, of which shape and dtype count),
            ``root_data`` (the server's examples, a :class:`Batch` of such inputs), and what only a simulation knows,
            ``malicious`` ``[S]`` and ``num_byzantine``, how many malicious clients a cohort has on the average, rounded
            up (a Python integer). A rule with a ``guarantee`` also receives ``expected_clients`` (scalar) where clients
            may be absent: how many answer on the average. A rule names the extras it uses and ignores the rest.

        Returns:
          The parameters after the round, and the state.
        """
        raise undefined(self, "apply")

    def _replace(self, **changes: Any) -> "Aggregator":
        """A rule of this one's functions, some of them replaced; arguments as of :class:`FunctionAggregator`.

        With another ``apply`` it has no ``sums`` but those that are given.
        """
        return FunctionAggregator(**functions_of(self, FunctionAggregator, "apply", changes))


class FunctionAggregator(Aggregator):
    """A rule of functions, which are compared by identity; ``Aggregator(...)`` makes one.

    Attributes:
      init: see :class:`InitFn`.
      apply: see :class:`ApplyFn`.
      needs: as of :class:`Aggregator`.
      split: as of :class:`Aggregator`.
      sums: the same rule for deltas that come in chunks; None if it needs the whole stack.
      guarantee: as of :class:`Aggregator`.
      num_clients: as of :class:`Aggregator`.
    """

    _made_of = ("apply",)

    init: InitFn
    apply: ApplyFn
    needs: frozenset[str] = frozenset()
    split: Literal["clients", "coordinates"] = "coordinates"
    sums: Sums | None = None
    guarantee: Guarantee | None = None
    num_clients: int | None = None

    @property
    def streamed(self) -> Sums | None:
        return self.sums


def functions_of(part: Any, form: type, whole: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a part of functions that has those of ``part``, but for ``changes``.

    Args:
      part: a rule or a method.
      form: the class of the parts of functions.
      whole: the function whose sums it may have; not those of another one.
      changes: by name.
    """
    own = {name: getattr(part, "streamed" if name == "sums" else name) for name in form.__match_args__}
    return own | ({"sums": None} if whole in changes else {}) | dict(changes)
