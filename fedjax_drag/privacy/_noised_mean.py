"""The Gaussian mechanism around a rule that depends on the plain mean of the deltas alone."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from fedjax_drag import checks, kinds, tree
from fedjax_drag.aggregators._norm_clipping import clip_scale
from fedjax_drag.ops.screening import Screening, check_extras, empty_metrics, screen
from fedjax_drag.privacy.gaussian import check_gaussian, with_noise
from fedjax_drag.types import PER_CLIENT_EXTRAS, Aggregator, Deltas, Guarantee, Params, Sums


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


class Kept(NamedTuple):
    """What is kept of each client, ``[S]``.

    Attributes:
      who: which clients count: those that take part with a message that is finite and not too long for sums.
      scale: by which the delta was multiplied; 0 for a client that does not count.
      within: whether the delta is not longer than the clip.
    """

    who: Screening
    scale: Float[Array, " clients"]
    within: Bool[Array, " clients"]


class Size(NamedTuple):
    """Numbers of clients, none of which depends on who answered.

    Attributes:
      divisor: of the sum of the deltas: clients expected in a round.
      noise: for which the noise is meant; the same unless a larger cohort is simulated.
    """

    divisor: Any
    noise: Any


class ClipUpdate(NamedTuple):
    """How the clip goes on.

    Attributes:
      noise_multiplier: ``(size) -> z``, of the noise on the deltas: that of the round without what the update spends.
      next: ``(key, clip, kept, size) -> clip`` of the next round.
      reported: whether the clip is among the metrics.
    """

    noise_multiplier: Callable[[Size], Any]
    next: Callable[[PRNGKeyArray, jax.Array, Kept, Size], Any]
    reported: bool


def noised_mean(aggregator: Aggregator, clip: Any, update: ClipUpdate, guarantee: Guarantee) -> Aggregator:
    """The rule ``aggregator`` of ``(sum_m min(1, C / ||g_m||) g_m + N(0, (z C)^2 I)) / S``, as if one client sent it.

    Args:
      aggregator: a rule that depends on the plain mean alone.
      clip: ``C`` of the first round.
      update: gives ``z`` and the clip of the rounds after it.
      guarantee: for which the noise is calibrated.

    Raises:
      ValueError: for numbers out of range, and one line that says why for any other rule.
    """
    kinds.AGGREGATOR.check("aggregator", aggregator)
    _check_sensitivity(aggregator)
    check_gaussian(clip, guarantee.noise_multiplier, guarantee.delta)
    _check_counts(guarantee)

    def init(params: Params) -> NoisedMeanState:
        inner = aggregator.init(params)
        metrics = empty_metrics("scale", **({"clip": jnp.zeros(())} if update.reported else {}))
        return NoisedMeanState(jnp.asarray(clip, jnp.float32), inner._replace(metrics={}), metrics)

    def accumulate(
        params: Params, deltas: Deltas, state: NoisedMeanState, *, valid: Any = None, **extras: Any
    ) -> tuple[Params, Kept]:
        del extras
        tree.check_cohort(params, deltas)
        who = screen(deltas, valid)
        norm = tree.norms(deltas)
        scale = jnp.where(who.counted, clip_scale(norm, state.clip), 0.0)
        return tree.weighted_sum(scale, deltas), Kept(who, scale, norm <= state.clip)

    def finish(
        params: Params,
        total: Params,
        state: NoisedMeanState,
        kept: Kept,
        *,
        key: PRNGKeyArray,
        expected_clients: Any = None,
        **extras: Any,
    ) -> tuple[Params, NoisedMeanState]:
        size = _size_of(len(kept.scale) if expected_clients is None else expected_clients, guarantee.cohort_size)
        expects = jnp.asarray(size.divisor > 0)  # in a round in which nobody is available, all stays as it was
        noise_key, clip_key, inner_key = jax.random.split(key, 3)
        # In units of the mean: noise for a larger cohort is as much smaller as its sum would be longer.
        deviation = update.noise_multiplier(size) * state.clip / size.noise
        share = tree.inverse(size.divisor)
        mean = with_noise(noise_key, tree.scale(share, total), deviation)
        of_all = {name: value for name, value in extras.items() if name not in PER_CLIENT_EXTRAS}
        of_all["reject_nonfinite"] = False  # a mean that is NaN must show, and not stop the run from learning
        alone = jax.tree.map(lambda x: x[None], mean)
        moved, inner = aggregator.apply(params, alone, state.inner, key=inner_key, valid=expects[None], **of_all)
        metrics = {"weight": share * kept.scale, "cosine": jnp.zeros(0), "scale": kept.scale}
        metrics |= {"num_rejected": kept.who.num_rejected}
        metrics |= {"clip": state.clip} if update.reported else {}
        clip_after = jnp.where(expects, update.next(clip_key, state.clip, kept, size), state.clip).astype(jnp.float32)
        return moved, NoisedMeanState(clip_after, inner._replace(metrics={}), metrics)

    def apply(params: Params, deltas: Deltas, state: NoisedMeanState, **extras: Any) -> tuple[Params, NoisedMeanState]:
        extras = check_extras(extras, {"key"}, params, tree.check_cohort(params, deltas))
        total, kept = accumulate(params, deltas, state, **extras)
        moved, after = finish(params, total, state, kept, **extras)
        return moved, after._replace(metrics=after.metrics | {"cosine": tree.cosines(deltas, total)})

    sums = Sums(accumulate, finish, whole=apply)
    return Aggregator(init, apply, aggregator.needs, "clients", sums, guarantee)


def _check_counts(guarantee: Guarantee) -> None:
    """Refuses a cohort or a federation that is no number of clients."""
    if guarantee.cohort_size is not None:
        checks.count("noise_cohort_size", guarantee.cohort_size, 1, guarantee.population)
    if guarantee.population is not None:
        checks.count("population", guarantee.population, 1)


def _size_of(expected: Any, noise_cohort_size: int | None) -> Size:
    """The numbers of clients of a round in which ``expected`` are.

    Raises:
      ValueError: if the noise is meant for fewer.
    """
    if noise_cohort_size is None:
        return Size(expected, expected)
    if checks.is_concrete(expected) and noise_cohort_size < expected:
        raise ValueError(f"noise_cohort_size={noise_cohort_size}: must be at least the run's own cohort, {expected}")
    return Size(expected, noise_cohort_size)


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
    raise ValueError(
        f"aggregator={aggregator.name}: {reason}; must be a plain mean, such as fedavg with any server optimizer, or "
        "use local_dp, which goes with every rule of the deltas alone"
    )
