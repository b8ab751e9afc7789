"""Comparisons of defences: tuned against attacks that are tuned against them, and tested once.

``protocol`` says what is compared, ``trials`` runs it as sweeps and picks settings by validation accuracy, ``play``
does so for all entries, ``standing`` holds the rows, ``scores`` their figures with intervals, ``requirements`` what a
defence asks for; ``tables``, ``figures``, ``page`` and ``changes`` show a standing. The package is ``fd.arena``.
"""

from fedjax_drag.experiment.arena.play import enter, load, run
from fedjax_drag.experiment.arena.protocol import Arena
from fedjax_drag.experiment.arena.standing import Row, Standing, read

__all__ = ["Arena", "Row", "Standing", "enter", "load", "read", "run"]
