"""Differential privacy of clients: noise at the server, or at each client; what it costs is in ``accountant``.

``central_dp`` and ``adaptive_dp`` make a rule of a rule that is a mean, ``local_dp`` a client rule of a client rule.
``docs/privacy.md`` says what is guaranteed to whom.
"""

from fedjax_drag.privacy._adaptive_dp import adaptive_dp
from fedjax_drag.privacy._central_dp import central_dp
from fedjax_drag.privacy._local_dp import local_dp
from fedjax_drag.privacy.accountant import FixedSize, Local, Poisson, epsilon, noise_multiplier_for

__all__ = [  # noqa: RUF022 - the order of lists
    "central_dp",
    "adaptive_dp",
    "local_dp",
    "FixedSize",
    "Local",
    "Poisson",
    "epsilon",
    "noise_multiplier_for",
]
