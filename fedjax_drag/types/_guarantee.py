"""What a differentially private part promises."""

from typing import Any, NamedTuple


class Guarantee(NamedTuple):
    """What a differentially private part does for the data of one client; the privacy spent is computed from it.

    Attributes:
      noise_multiplier: standard deviation of the noise in units of the clip.
      delta: at which epsilon is reported; None to report none.
      cohort_size: clients of a round that the noise is meant for; None for those of the run.
      population: from how many they are drawn; None for those of the run.
      local: whether each client adds the noise to its own message, instead of the server to the sum.
    """

    noise_multiplier: Any
    delta: float | None = None
    cohort_size: int | None = None
    population: int | None = None
    local: bool = False
