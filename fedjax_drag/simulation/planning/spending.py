"""What a run spends of its privacy, by the guarantee of its method and by how its clients are drawn."""

from collections.abc import Callable, Mapping

import jax

from fedjax_drag.privacy import accountant
from fedjax_drag.privacy.accountant import FixedSize, Local, Poisson, Sampling
from fedjax_drag.selection import uniform
from fedjax_drag.simulation.model.model import Statistics
from fedjax_drag.simulation.settings import Settings
from fedjax_drag.types import Guarantee

Spent = Callable[[int], Mapping[str, float]]
"""``(rounds) -> {"epsilon": ...}``, entries of the history after so many rounds; ``{}`` where none is reported."""


def spent_by(settings: Settings) -> Spent:
    """What a run spends.

    Raises:
      ValueError: noise is meant for a smaller cohort; or what is spent is to be reported, and dp-accounting is missing
        or cannot account for how clients are drawn, or they are drawn from fewer than a cohort.
    """
    guarantee = settings.algorithm.guarantee
    if guarantee is None:
        return lambda rounds: {}
    meant, own = guarantee.cohort_size, settings.cohort_size
    if meant is not None and meant < own:
        raise ValueError(f"noise_cohort_size={meant}: must be at least the run's own cohort, cohort_size={own}")
    if guarantee.delta is None:
        return lambda rounds: {}
    if not isinstance(settings.selected_by, uniform) and not guarantee.local:
        raise ValueError(
            f"delta={guarantee.delta:g}: epsilon is known where clients are drawn uniformly; must have no selection, "
            f"or no delta, with selection={settings.selected_by.name}"
        )
    accountant.check_installed(f"delta={guarantee.delta:g}")
    delta, sampling = guarantee.delta, _sampling(settings, guarantee)
    noise_multiplier = float(guarantee.noise_multiplier)
    return lambda rounds: {"epsilon": accountant.epsilon(noise_multiplier, delta, rounds, sampling)}


def check_statistics(guarantee: Guarantee | None, how: str, statistics: Statistics) -> None:
    """Refuses clients that would send statistics of their data beside a message that is private."""
    if guarantee is not None and how != "frozen" and jax.tree.leaves(statistics):
        raise ValueError(
            f"model_state={how!r}: clients would send the model's statistics without noise; must be 'frozen' under "
            "differential privacy"
        )


def _sampling(settings: Settings, guarantee: Guarantee) -> Sampling:
    """How the clients of a round are drawn, as far as it keeps them private: by the run, or from the population meant.

    Clients that drop out or are late are counted as if they answered, which spends no less.
    """
    if guarantee.local:
        return Local()
    cohort_size, population = settings.cohort_size, settings.data.num_clients
    if guarantee.population is not None:
        meant = guarantee.cohort_size or cohort_size
        if meant > guarantee.population:
            raise ValueError(f"population={guarantee.population}: must be at least cohort_size={meant}, drawn from it")
        return Poisson(meant / guarantee.population)
    if guarantee.cohort_size is not None:
        raise ValueError(
            f"noise_cohort_size={guarantee.cohort_size}, delta={guarantee.delta:g}: must be given with population, the "
            "number of clients from which so many are drawn"
        )
    trace = settings.availability_trace
    if trace is None:
        return FixedSize(population, cohort_size)
    probability = float(trace.max())
    if cohort_size == population:
        return Poisson(probability)
    if trace.min() < trace.max():
        raise ValueError(
            f"delta={guarantee.delta:g}: epsilon of a cohort cut down to cohort_size={cohort_size} is known where all "
            f"clients are as often available; must have cohort_size={population}, all clients, or no delta"
        )
    return Poisson(probability, population, cohort_size)
