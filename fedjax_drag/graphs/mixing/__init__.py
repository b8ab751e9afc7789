"""Mixing: what a client makes of its own model and those of its neighbours."""

from fedjax_drag.graphs.mixing._clippedgossip import clippedgossip
from fedjax_drag.graphs.mixing._from_rule import from_rule
from fedjax_drag.graphs.mixing._gossip import gossip
from fedjax_drag.graphs.mixing._mixing import MIXING as MIXING
from fedjax_drag.graphs.mixing._mixing import Mixing

__all__ = ["gossip", "clippedgossip", "from_rule", "Mixing"]  # noqa: RUF022 - the order of lists
