"""Selections: who of the clients that can be drawn takes part in a round.

``fd.simulate(..., selection=fd.selection.power_of_choice(d=20))`` draws cohorts by one of them; the default is
:class:`uniform`. Each is pure, so that it can be called outside of a run as well::

    memory = selection.init(num_clients)
    cohort = selection.select(key, memory, candidates, cohort_size)
    memory = selection.observe(memory, observed)
"""

from fedjax_drag.selection._asynchronous import asynchronous
from fedjax_drag.selection._oort import oort
from fedjax_drag.selection._power_of_choice import power_of_choice
from fedjax_drag.selection._round_robin import round_robin
from fedjax_drag.selection._selection import SELECTION as SELECTION
from fedjax_drag.selection._selection import Arrivals, Candidates, Observed, Selected, Selection, StartLoss
from fedjax_drag.selection._uniform import uniform
from fedjax_drag.selection._weighted import weighted

__all__ = [  # noqa: RUF022 - the order of lists
    "uniform",
    "weighted",
    "round_robin",
    "power_of_choice",
    "oort",
    "asynchronous",
    "Selection",
    "Candidates",
    "Selected",
    "Arrivals",
    "Observed",
    "StartLoss",
]
