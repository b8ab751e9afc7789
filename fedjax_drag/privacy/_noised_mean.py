"""The Gaussian mechanism around a rule that depends on the plain mean of the deltas alone."""

# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from fedjax_drag import checks, kinds, tree
from fedjax_drag.aggregators._norm_clipping import clip_scale
from fedjax_drag.ops.screening import Screening, check_extras, empty_metrics, screen
from fedjax_drag.privacy.gaussian import check_gaussian, with_noise
from fedjax_drag.types import PER_CLIENT_EXTRAS, Aggregator, Deltas, Guarantee, Params, Scalar, Sums


class NoisedMeanState(NamedTuple):
    """State of :func:`~fedjax_drag.privacy.central_dp` and :func:`~fedjax_drag.privacy.adaptive_dp`.

    Attributes:
      clip: ``C`` of the next round.
      inner: state of the wrapped rule, without its metrics.
      metrics: of the last round.
    """

    clip: jax.Array
    inner: Any
    metrics: dict[str, jax.Array]


class KeptNorms(NamedTuple):
    """What is kept of each client, ``[S]``.

    Attributes:
      who: which clients count: those that take part with a message that is finite and not too long for sums.
      scale: by which the delta was multiplied; 0 for a client that does not count.
      within: whether the delta is not longer than the clip.
    """

    who: Screening
    scale: Float[Array, " clients"]
    within: Bool[Array, " clients"]


class NoisedMean(Aggregator):
    """A rule of ``(sum_m min(1, C / ||g_m||) g_m + N(0, (z C)^2 I)) / S``, as if one client sent it.

    Attributes:
      aggregator: a rule that depends on the plain mean alone.
      clip: ``C`` of the first round.
      noise_multiplier: ``z``.
      delta: at which epsilon is reported.
      noise_cohort_size: the cohort that the noise is meant for.
      population: from how many it is drawn.

    Raises:
      ValueError: for numbers out of range, and one line that says why for any other rule.
    """

    aggregator: Aggregator
    clip: Scalar
    noise_multiplier: Scalar
    delta: float | None = None
    noise_cohort_size: int | None = None
    population: int | None = None

    split = "clients"
    reports_clip = False  # whether the clip is among the metrics

    def check(self) -> None:
        kinds.AGGREGATOR.check("aggregator", self.aggregator)
        _check_sensitivity(self.aggregator)
        check_gaussian(self.clip, self.noise_multiplier, self.delta)
        if self.noise_cohort_size is not None:
            checks.count("noise_cohort_size", self.noise_cohort_size, 1, self.population)
        if self.population is not None:
            checks.count("population", self.population, 1)

    def noise_on_deltas(self, cohort: Any) -> Any:
        """The noise multiplier of the sum of the deltas: that of the round without what the next clip spends.

        Args:
          cohort: number of clients that the noise is meant for.
        """
        del cohort
        return self.noise_multiplier

    def next_clip(self, key: PRNGKeyArray, clip: jax.Array, kept: KeptNorms, expected: Any) -> Any:
        """The clip of the next round, where so many clients are expected in this one."""
        del key, kept, expected
        return clip

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee(self.noise_multiplier, self.delta, self.noise_cohort_size, self.population)

    @property
    def needs(self) -> frozenset[str]:
        return self.aggregator.needs

    @property
    def requires(self) -> frozenset[str]:
        return frozenset({"key"})

    @property
    def streamed(self) -> Sums:
        return Sums(self._accumulate, self._finish)

    def init(self, params: Params) -> NoisedMeanState:
        inner = self.aggregator.init(params)
        metrics = empty_metrics("scale", **({"clip": jnp.zeros(())} if self.reports_clip else {}))
        return NoisedMeanState(jnp.asarray(self.clip, jnp.float32), inner._replace(metrics={}), metrics)

    def apply(
        self, params: Params, deltas: Deltas, state: NoisedMeanState, **extras: Any
    ) -> tuple[Params, NoisedMeanState]:
        extras = check_extras(extras, self.requires, params, tree.check_cohort(params, deltas))
        total, kept = self._accumulate(params, deltas, state, **extras)
        moved, after = self._finish(params, total, state, kept, **extras)
        return moved, after._replace(metrics=after.metrics | {"cosine": tree.cosines(deltas, total)})

    def _accumulate(
        self, params: Params, deltas: Deltas, state: NoisedMeanState, *, valid: Any = None, **extras: Any
    ) -> tuple[Params, KeptNorms]:
        del extras
        tree.check_cohort(params, deltas)
        who = screen(deltas, valid)
        norm = tree.norms(deltas)
        scale = jnp.where(who.counted, clip_scale(norm, state.clip), 0.0)
        return tree.weighted_sum(scale, deltas), KeptNorms(who, scale, norm <= state.clip)

    def _finish(
        self,
        params: Params,
        total: Params,
        state: NoisedMeanState,
        kept: KeptNorms,
        *,
        key: PRNGKeyArray,
        expected_clients: Any = None,
        **extras: Any,
    ) -> tuple[Params, NoisedMeanState]:
        # Neither number depends on who answered; they are equal unless a larger cohort is simulated.
        expected = len(kept.scale) if expected_clients is None else expected_clients
        cohort = expected if self.noise_cohort_size is None else self.noise_cohort_size
        if checks.is_concrete(expected) and cohort < expected:
            said = f"must be at least the run's own cohort, {expected}"
            raise checks.ArgumentError("noise_cohort_size", said, given=cohort)
        expects = jnp.asarray(expected > 0)  # in a round in which nobody is available, all stays as it was
        noise_key, clip_key, inner_key = jax.random.split(key, 3)
        # In units of the mean: noise for a larger cohort is as much smaller as its sum would be longer.
        deviation = self.noise_on_deltas(cohort) * state.clip / cohort
        share = tree.inverse(expected)
        mean = with_noise(noise_key, tree.scale(share, total), deviation)
        of_all = {name: value for name, value in extras.items() if name not in PER_CLIENT_EXTRAS}
        of_all["reject_nonfinite"] = False  # a mean that is NaN must show, and not stop the run from learning
        alone = jax.tree.map(lambda x: x[None], mean)
        moved, inner = self.aggregator.apply(params, alone, state.inner, key=inner_key, valid=expects[None], **of_all)
        metrics = {"weight": share * kept.scale, "cosine": jnp.zeros(0), "scale": kept.scale}
        metrics |= {"num_rejected": kept.who.num_rejected}
        metrics |= {"clip": state.clip} if self.reports_clip else {}
        clip = jnp.where(expects, self.next_clip(clip_key, state.clip, kept, expected), state.clip)
        return moved, NoisedMeanState(clip.astype(jnp.float32), inner._replace(metrics={}), metrics)


def _check_sensitivity(aggregator: Aggregator) -> None:
    """Refuses a rule for which noise on the sum of clipped deltas says nothing about privacy."""
    sums = aggregator.streamed
    if sums is not None and sums.of_mean:
        return
    if aggregator.guarantee is not None:
        reason = "adds noise already"
    elif sums is None:
        reason = "is no sum over clients, so that one of them may change what becomes of the others' deltas"
    elif "num_examples" in aggregator.needs:
        reason = "weighs clients by their numbers of examples, which are private and which clip does not bound"
    else:
        reason = "sums more than the deltas, such as weights by their length or direction, which clip does not bound"
    raise checks.ArgumentError(
        f"aggregator={aggregator.name}",
        f"{reason}; must be a plain mean, such as fedavg with any server optimizer, or "
        "use local_dp, which goes with every rule of the deltas alone",
    )
