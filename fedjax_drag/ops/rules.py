"""The forms of an aggregation rule, from the plain one to the shortest.

- :class:`PlainAggregator` sees the deltas of the whole cohort and is told who counts.
- :class:`ByzantineAggregator` is a plain one that assumes a number of malicious clients.
- :class:`WrappingAggregator` is a plain one around another rule.
- :class:`SummedAggregator` is a sum over the clients, so that their deltas can come in chunks.

A rule is a subclass of one of them, or of :class:`~fedjax_drag.ops.weighted.WeightedAggregator`, which says only the
weights of the clients.
"""

# Fields of summed_rule stand in the place of methods.
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false

import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_drag import checks, kinds, tree
from fedjax_drag.naming import name_of
from fedjax_drag.ops.screening import (
    MetricsOnly,
    Screening,
    apply_screened,
    concluded,
    empty_metrics,
    screen,
    stateless,
)
from fedjax_drag.types import DISSIMILARITIES, Aggregator, Deltas, InitFn, Params, State, Sums, extras_of
from fedjax_drag.types._part import forwards, undefined

Moved = tuple[Params, State]
"""Parameters and state after a round."""


class PlainAggregator(Aggregator):
    """A rule that compares clients with each other, and so needs the whole stack of their deltas.

    A subclass says by :meth:`combine` how the clients that count move the parameters. A client does not count that is
    absent (the extra ``valid``, ``[S]``) or whose delta is not usable: one with an entry that is not finite is as if it
    had not been sent, and so is one too long for sums in float32 (:func:`fedjax_drag.tree.usable_rows`). With
    ``reject_nonfinite=False``, a Python bool, such a delta makes the parameters NaN, whatever the rule.

    If no client is left, parameters and state stay as they were. ``state.metrics`` has ``num_rejected``, the number of
    clients rejected for what they sent.
    """

    reports = ()  # names of metrics [S] beside weight and cosine

    def init(self, params: Params) -> State:
        """A state without a memory, unless the subclass has another."""
        return stateless(*self.reports)(params)

    def combine(self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, **extras: Any) -> Moved:
        """Parameters and state after a round.

        Args:
          params: the global parameters.
          deltas: of the cohort ``[S, *p]``, unchanged. The statistics in :mod:`fedjax_drag.tree` ignore rows without a
            finite norm.
          state: from ``init`` or the round before.
          valid: ``[S]`` bool, the clients that count; the weights of others are 0.
          **extras: those that the rule names as keywords without a default must be given to ``apply``.

        Returns:
          The parameters, and a state with the metrics of the round.
        """
        raise undefined(self, "combine")

    @property
    def requires(self) -> frozenset[str]:
        return extras_of(self.combine)

    def apply(self, params: Params, deltas: Deltas, state: State, **extras: Any) -> tuple[Params, State]:
        return apply_screened(self.combine, self.requires, self.num_clients, params, deltas, state, **extras)


def moved_along(
    params: Params, deltas: Deltas, update: Params, weight: Float[Array, " clients"], **metrics: jax.Array
) -> Moved:
    """Parameters after an update, and the state of a rule without a memory.

    Args:
      params: the global parameters.
      deltas: of the cohort ``[S, *p]``.
      update: like the parameters.
      weight: of each delta in it, ``[S]``.
      **metrics: others of the rule.
    """
    common = {"weight": weight, "cosine": tree.cosines(deltas, update)}
    return tree.move(params, update), MetricsOnly(common | metrics)


def moved_by_mean(params: Params, deltas: Deltas, selected: Bool[Array, " clients"], **metrics: jax.Array) -> Moved:
    """:func:`moved_along` the mean of the selected clients' deltas, with the metric ``selected``."""
    weight = tree.uniform_weights(selected)
    update = tree.weighted_sum(weight, deltas)
    return moved_along(params, deltas, update, weight, selected=selected.astype(weight.dtype), **metrics)


class ByzantineAggregator(PlainAggregator):
    """A plain rule that assumes how many clients of a cohort may be malicious.

    Attributes:
      num_byzantine: f >= 0; None for what the simulation tells by the extra of this name.
    """

    num_byzantine: int | None = None

    def check(self) -> None:
        super().check()
        if self.num_byzantine is not None:
            checks.count("num_byzantine", self.num_byzantine)

    @property
    def needs(self) -> frozenset[str]:
        return super().needs | ({"num_byzantine"} if self.num_byzantine is None else set())

    def assumed(
        self, extras: Mapping[str, Any], size: int, most: int | None = None, bound: str = "", reason: str = ""
    ) -> int:
        """f, from the argument or the extra, a Python integer, as it decides what is compiled.

        Args:
          extras: of ``apply``.
          size: S, of the cohort.
          most: the greatest f that the rule accepts in such a cohort; default a minority, S > 2 f.
          bound: the same in terms of S, for the message.
          reason: why, for the message.

        Raises:
          ValueError: nobody says how many, there are more, or the extra is no count, such as a traced number.
        """
        given, told = self.num_byzantine, extras.get("num_byzantine")
        f = given if told is None else told
        if f is None:
            allowed = f"{self.name} must be given how many of the cohort may be malicious, as f >= 0"
            raise checks.ArgumentError("num_byzantine", allowed, given=None)
        checks.count("num_byzantine", f)
        if given is not None and given < f:
            warnings.warn(
                f"{self.name}: num_byzantine={given}: the simulation has {told} malicious clients in a cohort; leave "
                "it out to take that number",
                stacklevel=2,
            )
        f = int(f) if given is None else given
        if most is None:
            most, reason = (size - 1) // 2, f"{self.name} needs S > 2 f"
        if f > most:
            at_most = f"must be at most {bound and f'{bound} = '}{most} for a cohort of {size}"
            instead = "; where the simulation sets it, lower byzantine_fraction or raise cohort_size"
            raise checks.ArgumentError("num_byzantine", at_most + (reason and f" ({reason})") + instead, given=f)
        return f


class Wrapped(NamedTuple):
    """State of a rule around another.

    Attributes:
      inner: state of the other rule, without its metrics.
      metrics: of the last round.
    """

    inner: State
    metrics: dict[str, jax.Array]


@forwards("aggregator", "split", "num_clients")
class WrappingAggregator(PlainAggregator):
    """A plain rule around another, whose metrics it passes on where they are not of single clients.

    Attributes:
      aggregator: the other rule.
    """

    aggregator: Aggregator

    def check(self) -> None:
        super().check()
        kinds.AGGREGATOR.check("aggregator", self.aggregator)

    @property
    def needs(self) -> frozenset[str]:
        return super().needs | self.aggregator.needs

    def init(self, params: Params) -> Wrapped:
        return wrapped(self.aggregator.init(params), empty_metrics(*self.reports))


def wrapped(inner: State, metrics: dict[str, Any]) -> Wrapped:
    """The state around that of the other rule: with these metrics, and those of the other rule that are scalars.

    The others are not passed on, as the rows of the other rule need not be clients.
    """
    scalars = {name: value for name, value in inner.metrics.items() if jnp.ndim(value) == 0 and name != "num_rejected"}
    return Wrapped(inner._replace(metrics={}), metrics | scalars)


class SummedAggregator(PlainAggregator):
    """A rule that is a sum over the clients: written once, for a whole stack of deltas and for chunks of it.

    A subclass says by :meth:`accumulate` what a chunk of clients adds up to, and by :meth:`finish` how the parameters
    move by the sum of all chunks. Both receive ``valid``, the clients that count, as of :class:`PlainAggregator`.
    """

    split = "clients"
    compared = ()  # names of metrics of compare
    has_first_pass = False

    @property
    def of_mean(self) -> bool:
        """As of :class:`~fedjax_drag.types.Sums`."""
        return False

    def accumulate(
        self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, **extras: Any
    ) -> tuple[Any, Any]:
        """The total of a chunk ``[B, *p]``, and what is kept of each client; see ``Sums.accumulate``."""
        raise undefined(self, "accumulate")

    def finish(
        self, params: Params, total: Any, state: State, kept: Any, *, valid: jax.Array, **extras: Any
    ) -> tuple[Params, State]:
        """Parameters and state after the round, from the sum of the totals; see ``Sums.finish``."""
        raise undefined(self, "finish")

    def needs_first_pass(self, state: State) -> jax.Array:
        """Whether the clients must be gone through once before; see ``Sums``. Only with ``has_first_pass``."""
        raise undefined(self, "needs_first_pass")

    def prepare(self, total: Any, state: State, kept: Any, *, valid: jax.Array, **extras: Any) -> State:
        """The state that ``accumulate`` needs, from a first pass; see ``Sums``. Only with ``has_first_pass``."""
        raise undefined(self, "prepare")

    def compare(self, deltas: Deltas, total: Any, valid: jax.Array) -> dict[str, jax.Array]:
        """Metrics ``[S]`` named in ``compared``, of each client's delta beside the sum over all of them.

        They have length 0 where deltas come in chunks and are not kept.
        """
        del deltas, total, valid
        return {}

    def combine(self, params: Params, deltas: Deltas, state: State, *, valid: jax.Array, **extras: Any) -> Moved:
        def prepared() -> State:
            total, kept = self.accumulate(params, deltas, state, valid=valid, first_pass=True, **extras)
            return self.prepare(total, state, kept, valid=valid, **extras)

        if self.has_first_pass:
            state = jax.lax.cond(self.needs_first_pass(state), prepared, lambda: state)
        total, kept = self.accumulate(params, deltas, state, valid=valid, **extras)
        moved, after = self.finish(params, total, state, kept, valid=valid, **extras)
        return moved, after._replace(metrics=after.metrics | self.compare(deltas, total, valid))

    @property
    def requires(self) -> frozenset[str]:
        needed = {"dissimilarity" if name in DISSIMILARITIES else name for name in self.needs}
        return extras_of(self.accumulate) | needed

    @property
    def streamed(self) -> Sums:
        first_pass = (self.needs_first_pass, self._prepared) if self.has_first_pass else (None, None)
        return Sums(self._accumulated, self._finished, *first_pass, of_mean=self.of_mean)

    # As of Sums, of the clients that count; beside what the rule keeps of each client, who they are is kept.

    def _accumulated(
        self,
        params: Params,
        deltas: Deltas,
        state: State,
        *,
        valid: Any = None,
        reject_nonfinite: bool = True,
        **extras: Any,
    ) -> tuple[Any, tuple[Screening, Any]]:
        tree.check_cohort(params, deltas)
        who = screen(deltas, valid, reject_nonfinite, extras.get("start_loss"))
        total, kept = self.accumulate(params, deltas, state, valid=who.counted, **extras)
        return total, (who, kept)

    def _prepared(self, total: Any, state: State, kept: tuple[Screening, Any], **extras: Any) -> State:
        who, kept_by_rule = kept
        ready = self.prepare(total, state, kept_by_rule, **_without_screening(extras), valid=who.counted)
        return tree.where(who.counted.any(), ready, state)

    def _finished(
        self, params: Params, total: Any, state: State, kept: tuple[Screening, Any], **extras: Any
    ) -> tuple[Params, State]:
        who, kept_by_rule = kept
        after = self.finish(params, total, state, kept_by_rule, **_without_screening(extras), valid=who.counted)
        moved, after = concluded((params, state), after, who, extras.get("reject_nonfinite", True))
        unknown = {name: jnp.zeros(0) for name in self.compared}
        return moved, after._replace(metrics=unknown | after.metrics)


def _without_screening(extras: Mapping[str, Any]) -> dict[str, Any]:
    """The extras but those that decide who counts."""
    return {name: value for name, value in extras.items() if name not in ("valid", "reject_nonfinite")}


@forwards("rule", "accumulate", "finish", "needs_first_pass", "prepare", "of_mean")
class summed_rule(SummedAggregator):
    """The rule that a pair of sums describes, by functions.

    Args:
      init: as of :class:`~fedjax_drag.types.Aggregator`.
      rule: the sums of the clients that count; see :class:`SummedAggregator`.
      needs: as of :class:`~fedjax_drag.types.Aggregator`.
      metrics_after_sum: metrics ``[S]`` that compare a client's delta with the sum over all of them, each as
        ``(deltas, total, valid) -> [S]``. They have length 0 where deltas come in chunks and are not kept.
    """

    init: InitFn
    rule: Sums
    needs: frozenset[str] = frozenset()
    metrics_after_sum: Mapping[str, Callable[..., jax.Array]] | None = None

    def __repr__(self) -> str:
        return f"Aggregator({self.name})"

    @property
    def name(self) -> str:
        """The name of the function that made it."""
        return name_of(self.rule.accumulate)

    @property
    def compared(self) -> tuple[str, ...]:
        return tuple(self.metrics_after_sum or ())

    @property
    def has_first_pass(self) -> bool:
        return self.rule.needs_first_pass is not None

    def compare(self, deltas: Deltas, total: Any, valid: jax.Array) -> dict[str, jax.Array]:
        return {name: figure(deltas, total, valid) for name, figure in (self.metrics_after_sum or {}).items()}


def average(total: Any, valid: Bool[Array, " clients"]) -> Any:
    """A sum over the valid clients divided by their number; zero if there are none."""
    return tree.scale(tree.inverse(valid.sum().astype(jnp.float32)), total)


def cosine_to_sum(deltas: Any, total: Any, valid: Bool[Array, " clients"]) -> Float[Array, " clients"]:
    """Cosine of each client's delta to the sum, ``[S]``: metrics_after_sum of a rule whose update points along it."""
    del valid
    return tree.cosines(deltas, total)
