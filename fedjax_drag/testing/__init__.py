"""Checks of the contracts of parts of one's own: aggregation rules, attacks, client rules, compressors, methods.

Each check calls the part with random input and raises an AssertionError that names every promise that is not kept, one
per line. Formulas are not checked.
"""

from fedjax_drag.testing._aggregator import check_aggregator
from fedjax_drag.testing._algorithm import check_algorithm
from fedjax_drag.testing._attack import check_attack
from fedjax_drag.testing._client_rule import check_client_rule
from fedjax_drag.testing._compressor import check_compressor

__all__ = ["check_aggregator", "check_algorithm", "check_attack", "check_client_rule", "check_compressor"]
