"""A standing comparison of defences: tuned against attacks that are tuned against them, and tested once.

``protocol`` says what is compared, ``trials`` runs it as sweeps, ``choice`` picks settings by validation accuracy,
``scores`` has the figures with their intervals, ``requirements`` what a defence asks for, ``standing`` keeps the rows,
``tables``, ``figures``, ``page`` and ``changes`` show them, ``api`` is what Python calls. The package is
``fd.arena``.
"""

from fedjax_drag.experiment.arena.api import enter, load, run
from fedjax_drag.experiment.arena.protocol import Arena
from fedjax_drag.experiment.arena.standing import Row, Standing, read

__all__ = ["Arena", "Row", "Standing", "enter", "load", "read", "run"]
