"""Methods that give every client a model of its own.

:class:`PersonalMethod` is what they have in common, :class:`LayeredMethod` those that keep some layers at home.
"""

from fedjax_drag.algorithms.personal._apfl import apfl
from fedjax_drag.algorithms.personal._ditto import ditto
from fedjax_drag.algorithms.personal._fedbn import fedbn
from fedjax_drag.algorithms.personal._fedper import fedper
from fedjax_drag.algorithms.personal._fedrep import fedrep
from fedjax_drag.algorithms.personal._fine_tune import fine_tune
from fedjax_drag.algorithms.personal._lg_fedavg import lg_fedavg
from fedjax_drag.algorithms.personal._local_only import local_only
from fedjax_drag.algorithms.personal._per_fedavg import per_fedavg
from fedjax_drag.algorithms.personal._personal import PersonalMethod as PersonalMethod
from fedjax_drag.algorithms.personal._pfedme import pfedme

__all__ = [  # noqa: RUF022 - the order of lists
    "ditto",
    "fedper",
    "fedrep",
    "lg_fedavg",
    "fedbn",
    "pfedme",
    "per_fedavg",
    "apfl",
    "fine_tune",
    "local_only",
]
