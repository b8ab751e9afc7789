"""Federated methods with a client and a server side: builders of :class:`~fedjax_drag.types.Algorithm`."""

from fedjax_drag.algorithms._lift import from_aggregator
from fedjax_drag.algorithms._scaffold import scaffold

__all__ = ["from_aggregator", "scaffold"]
