"""Graphs: which clients exchange models, and how much each counts for its neighbours.

``fd.simulate(fd.algorithms.decentralised(fd.graphs.ring()), ...)`` trains on one of them. What a client makes of its
neighbours' models is in :mod:`fedjax_drag.graphs.mixing`.
"""

from fedjax_drag.graphs import mixing
from fedjax_drag.graphs._changing import changing
from fedjax_drag.graphs._fixed import complete, ring, torus
from fedjax_drag.graphs._from_edges import from_edges
from fedjax_drag.graphs._graph import GRAPH as GRAPH
from fedjax_drag.graphs._graph import Graph, Neighbours, spectral_gap
from fedjax_drag.graphs._random import erdos_renyi, random_regular

__all__ = [  # noqa: RUF022 - the order of lists
    "ring",
    "torus",
    "complete",
    "random_regular",
    "erdos_renyi",
    "from_edges",
    "changing",
    "spectral_gap",
    "mixing",
    "Graph",
    "Neighbours",
]
