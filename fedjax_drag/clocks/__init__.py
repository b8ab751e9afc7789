"""Clocks: how long a client takes from the server's message to its answer, in simulated seconds.

``fd.simulate(..., clock=fd.clocks.log_normal(sigma=1.0))`` gives every round a duration, which the history has as
``seconds``. A clock is pure, so that it can be read outside of a run as well::

    seconds = clock.seconds(key, work)
"""

from fedjax_drag.clocks._attackers import attackers
from fedjax_drag.clocks._clock import CLOCK as CLOCK
from fedjax_drag.clocks._clock import Clock, Work
from fedjax_drag.clocks._constant import constant
from fedjax_drag.clocks._log_normal import log_normal
from fedjax_drag.clocks._table import table

__all__ = [  # noqa: RUF022 - the order of lists
    "constant",
    "log_normal",
    "table",
    "attackers",
    "Clock",
    "Work",
]
