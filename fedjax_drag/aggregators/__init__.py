"""Server-side aggregation rules: pure functions ``(params, deltas, state) -> (params, state)``.

Every builder returns an :class:`~fedjax_drag.types.Aggregator`; see there for the contract and the extras.
"""

from fedjax_drag.aggregators._br_drag import br_drag
from fedjax_drag.aggregators._drag import drag
from fedjax_drag.aggregators._fedavg import fedavg
from fedjax_drag.aggregators._fltrust import fltrust
from fedjax_drag.aggregators._geometric_median import geometric_median
from fedjax_drag.aggregators._krum import krum
from fedjax_drag.aggregators._median import median

__all__ = ["br_drag", "drag", "fedavg", "fltrust", "geometric_median", "krum", "median"]
