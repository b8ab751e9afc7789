"""Privacy spent by rounds of the Gaussian mechanism, computed by Google's ``dp-accounting``; nothing of it is our own.

What is drawn in a round decides how much less is spent than by asking everybody:

- :class:`Poisson`: accounted by privacy loss distributions, for one client more or less in the federation;
- :class:`FixedSize`: accounted by Rényi divergences, for one client replaced by another, which changes the sum by up to
  two clips; of a large cohort as if nobody were drawn, where that spends less;
- :class:`Local`: every client noises its own messages, for any two inputs of a client; nothing is saved by sampling.
"""

import functools
from typing import Any, NamedTuple

from fedjax_drag import checks

_INTERVAL = 1e-3
"""Of the grid of privacy losses, on which they are rounded up; at the library's 1e-4 a call takes ten times as long."""


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
      An upper bound; 0 after no round, infinite without noise.

    Raises:
      ValueError: if a number is out of range, or dp-accounting is not installed.

    References:
      Doroshenko et al., Connect the dots: Tighter discrete approximations of privacy loss distributions, 2022; Mironov,
      Rényi differential privacy, 2017; Wang et al., Subsampled Rényi differential privacy and analytical moments
      accountant, 2019, Theorem 27 of arXiv:1808.00087 (fixed size).
    """
    checks.in_range("noise_multiplier", noise_multiplier, 0.0)
    checks.in_range("delta", delta, 0.0, 1.0, open_low=True, open_high=True)
    checks.count("rounds", rounds)
    _check(sampling)
    if rounds == 0:
        return 0.0
    events = [_event(noise_multiplier, bound) for bound in _bounds(sampling)]
    return min(float(_accountant(sampling).compose(event, rounds).get_epsilon(delta)) for event in events)


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
    library = _library()

    def calibrated(bound: Sampling) -> float:
        def event(noise_multiplier: float) -> Any:
            return library.SelfComposedDpEvent(_event(noise_multiplier, bound), rounds)

        fresh = functools.partial(_accountant, sampling)
        return float(library.calibrate_dp_mechanism(fresh, event, epsilon, delta, tol=1e-5))

    return min(calibrated(bound) for bound in _bounds(sampling))


def check_installed(name: str) -> None:
    """Raises ValueError, in the name of an argument, unless epsilon can be computed."""
    try:
        _library()
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


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
            raise ValueError(f"sampling={sampling}: must have population and at_most, or neither")
        if sampling.population is not None:
            checks.count("population", sampling.population, 1)
            checks.count("at_most", sampling.at_most, 1, sampling.population)
    elif isinstance(sampling, FixedSize):
        checks.count("population", sampling.population, 1)
        checks.count("cohort_size", sampling.cohort_size, 1, sampling.population)
    elif not isinstance(sampling, Local):
        raise ValueError(f"sampling={checks.shown(sampling)}: must be Poisson(...), FixedSize(...) or Local()")


def _replaces(sampling: Sampling) -> bool:
    """Whether neighbours differ by a client replaced, in the place of one added."""
    return isinstance(sampling, FixedSize) and sampling.cohort_size < sampling.population


def _is_cut(sampling: Sampling) -> bool:
    """Whether a cohort drawn by Poisson sampling may be too large."""
    if not isinstance(sampling, Poisson) or sampling.population is None or sampling.at_most is None:
        return False
    return sampling.at_most < sampling.population


def _bounds(sampling: Sampling) -> tuple[Sampling, ...]:
    """Of which each spends at least as much.

    Where one client may take another's place in the cohort, the sum changes by two clips at most, as it does where a
    client that always takes part has any two inputs. The account of the draw may be the larger one for large cohorts.
    """
    return (sampling, Local()) if _replaces(sampling) or _is_cut(sampling) else (sampling,)


def _accountant(sampling: Sampling) -> Any:
    """A new accountant for what :func:`_event` makes of :func:`_bounds`."""
    library = _library()
    if _replaces(sampling):
        return library.rdp.RdpAccountant(neighboring_relation=library.NeighboringRelation.REPLACE_ONE)
    return library.pld.PLDAccountant(value_discretization_interval=_INTERVAL)


def _event(noise_multiplier: float, sampling: Sampling) -> Any:
    """What a round does, in the library's terms."""
    library = _library()
    if noise_multiplier == 0:
        return library.NonPrivateDpEvent()
    if isinstance(sampling, Poisson):
        probability, population, at_most = sampling
        if _is_cut(sampling):
            return library.TruncatedSubsampledGaussianDpEvent(population, probability, at_most, noise_multiplier)
        return library.PoissonSampledDpEvent(probability, library.GaussianDpEvent(noise_multiplier))
    # Where two clips are the most that changes, the noise is half as long in units of it.
    if isinstance(sampling, Local):
        return library.GaussianDpEvent(noise_multiplier / 2)
    if _replaces(sampling):
        return library.SampledWithoutReplacementDpEvent(*sampling, library.GaussianDpEvent(noise_multiplier / 2))
    return library.GaussianDpEvent(noise_multiplier)
