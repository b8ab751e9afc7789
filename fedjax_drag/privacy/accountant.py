"""Privacy spent by rounds of the Gaussian mechanism, computed by Google's ``dp-accounting``; nothing of it is our own.

What is drawn in a round decides how much less is spent than by asking everybody:

- :class:`Poisson`: accounted by privacy loss distributions, for one client more or less in the federation;
- :class:`FixedSize`: accounted by Rényi divergences, for one client replaced by another, which changes the sum by up to
  two clips;
- :class:`Local`: every client noises its own messages, for any two inputs of a client; nothing is saved by sampling.

Without a draw all rounds together are one Gaussian mechanism, whose epsilon is exact. It bounds that of a draw, the
account of which may exceed it for large cohorts: the smaller one counts. Of noise below a thousandth of a clip it is
the account.
"""

import functools
import math
from typing import Any, NamedTuple, TypeGuard

from fedjax_drag import checks

_TOLERANCE = 1e-5  # of a noise multiplier that is searched for

_INTERVAL = 1e-3
"""Of the grid of privacy losses, on which they are rounded up; at the library's 1e-4 a call takes ten times as long."""

_FINE, _LEAST = 0.1, 1e-3
"""Noise multipliers below which the grid is as much coarser as losses are longer, and below which none holds them."""


class Poisson(NamedTuple):
    """Each client is drawn with the same probability in every round, independently of the others.

    Attributes:
      probability: in [0, 1]; with 1 everybody takes part.
      population: clients of the federation; only where ``at_most`` is given.
      at_most: size to which a cohort that is larger is cut down, uniformly; None for none.
    """

    probability: float
    population: int | None = None
    at_most: int | None = None


class FixedSize(NamedTuple):
    """So many different clients are drawn in every round, all subsets alike.

    Attributes:
      population: clients of the federation.
      cohort_size: how many are drawn; if that is all of them, the same as ``Poisson(1.0)``.
    """

    population: int
    cohort_size: int


class Local(NamedTuple):
    """A client sends a message with noise of its own in every round."""


Sampling = Poisson | FixedSize | Local
"""Who is drawn in a round."""


@functools.lru_cache(maxsize=4096)
def epsilon(noise_multiplier: float, delta: float, rounds: int, sampling: Sampling) -> float:
    """The epsilon of ``(epsilon, delta)`` differential privacy after some rounds.

    Args:
      noise_multiplier: ``z``, standard deviation of the noise on the sum, or on a client's message, in clips, >= 0.
      delta: in (0, 1).
      rounds: of training, >= 0.
      sampling: who is drawn in a round.

    Returns:
      An upper bound, exact where nobody is drawn; 0 after no round, infinite without noise.

    Raises:
      ValueError: if a number is out of range, or dp-accounting is not installed.

    References:
      Doroshenko et al., Connect the dots: Tighter discrete approximations of privacy loss distributions, 2022; Mironov,
      Rényi differential privacy, 2017; Wang et al., Subsampled Rényi differential privacy and analytical moments
      accountant, 2019, Theorem 27 of arXiv:1808.00087 (fixed size); Balle and Wang, Improving the Gaussian mechanism
      for differential privacy, 2018 (without a draw).
    """
    checks.in_range("noise_multiplier", noise_multiplier, 0.0)
    checks.in_range("delta", delta, 0.0, 1.0, open_low=True, open_high=True)
    checks.count("rounds", rounds)
    _check(sampling)
    if rounds == 0:
        return 0.0
    without_draw = _library().get_epsilon_gaussian(noise_multiplier / (_shift(sampling) * math.sqrt(rounds)), delta)
    if not _is_draw(sampling) or 0 < noise_multiplier < _LEAST:
        return float(without_draw)
    accountant = _accountant(noise_multiplier, sampling)
    drawn = accountant.compose(_event(noise_multiplier, sampling), rounds).get_epsilon(delta)
    return float(min(without_draw, drawn))


_spent = epsilon  # where epsilon is a budget


def noise_multiplier_for(epsilon: float, delta: float, rounds: int, sampling: Sampling) -> float:
    """The smallest noise multiplier, to 1e-5, with which some rounds spend at most ``(epsilon, delta)``.

    Args:
      epsilon: the budget, > 0.
      delta: in (0, 1).
      rounds: of training, >= 1.
      sampling: who is drawn in a round.

    Raises:
      ValueError: if a number is out of range, or dp-accounting is not installed.

    Examples:
      >>> noise_multiplier_for(epsilon=2.0, delta=1e-6, rounds=1500, sampling=Poisson(1000 / 1_000_000))
      0.616...
    """
    checks.positive("epsilon", epsilon)
    checks.in_range("delta", delta, 0.0, 1.0, open_low=True, open_high=True)
    checks.count("rounds", rounds, 1)
    _check(sampling)
    # With half the tolerance more, rounding spends nothing beyond the budget.
    exact = _shift(sampling) * math.sqrt(rounds) * _library().get_sigma_gaussian(epsilon, delta)
    too_low, enough = 0.0, float(exact + _TOLERANCE / 2)
    while _is_draw(sampling) and enough - too_low > _TOLERANCE:
        middle = (too_low + enough) / 2
        within = _spent(middle, delta, rounds, sampling) <= epsilon
        too_low, enough = (too_low, middle) if within else (middle, enough)
    return enough


def check_installed(name: str) -> None:
    """Raises ValueError, in the name of an argument, unless epsilon can be computed."""
    try:
        _library()
    except ValueError as error:
        raise checks.ArgumentError(name, f"{error}") from None


def _library() -> Any:
    try:
        import dp_accounting  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError("epsilon needs dp-accounting; pip install 'fedjax-drag[privacy]'") from None
    return dp_accounting


def _check(sampling: Sampling) -> None:
    if isinstance(sampling, Poisson):
        checks.in_range("probability", sampling.probability, 0.0, 1.0)
        if (sampling.population is None) != (sampling.at_most is None):
            raise checks.ArgumentError("sampling", "must have population and at_most, or neither", given=sampling)
        if sampling.population is not None:
            checks.count("population", sampling.population, 1)
            checks.count("at_most", sampling.at_most, 1, sampling.population)
    elif isinstance(sampling, FixedSize):
        checks.count("population", sampling.population, 1)
        checks.count("cohort_size", sampling.cohort_size, 1, sampling.population)
    elif not isinstance(sampling, Local):
        raise checks.ArgumentError("sampling", "must be Poisson(...), FixedSize(...) or Local()", given=sampling)


def _replaces(sampling: Sampling) -> bool:
    """Whether neighbours differ by a client replaced, in the place of one added."""
    return isinstance(sampling, FixedSize) and sampling.cohort_size < sampling.population


def _is_cut(sampling: Sampling) -> bool:
    """Whether a cohort drawn by Poisson sampling may be too large."""
    if not isinstance(sampling, Poisson) or sampling.population is None or sampling.at_most is None:
        return False
    return sampling.at_most < sampling.population


def _is_draw(sampling: Sampling) -> TypeGuard[Poisson | FixedSize]:
    """Whether a client takes part in some rounds only."""
    if isinstance(sampling, Poisson):
        return sampling.probability < 1 or _is_cut(sampling)
    return _replaces(sampling)


def _shift(sampling: Sampling) -> int:
    """By how many clips a client that takes part changes a message or a sum at most, whoever else is drawn."""
    return 2 if isinstance(sampling, Local) or _replaces(sampling) or _is_cut(sampling) else 1


def _accountant(noise_multiplier: float, sampling: Sampling) -> Any:
    """A new accountant for what :func:`_event` makes."""
    library = _library()
    if _replaces(sampling):
        return library.rdp.RdpAccountant(neighboring_relation=library.NeighboringRelation.REPLACE_ONE)
    coarser = (_FINE / noise_multiplier) ** 2 if 0 < noise_multiplier < _FINE else 1.0
    return library.pld.PLDAccountant(value_discretization_interval=_INTERVAL * coarser)


def _event(noise_multiplier: float, sampling: Poisson | FixedSize) -> Any:
    """What a draw and its noise do in a round, in the library's terms."""
    library = _library()
    if noise_multiplier == 0:
        return library.NonPrivateDpEvent()
    if isinstance(sampling, FixedSize):  # the library's noise is in units of what changes
        noise = library.GaussianDpEvent(noise_multiplier / _shift(sampling))
        return library.SampledWithoutReplacementDpEvent(*sampling, noise)
    probability, population, at_most = sampling
    if _is_cut(sampling):
        return library.TruncatedSubsampledGaussianDpEvent(population, probability, at_most, noise_multiplier)
    return library.PoissonSampledDpEvent(probability, library.GaussianDpEvent(noise_multiplier))
