"""Federated methods with a client and a server side: builders of :class:`~fedjax_drag.types.Algorithm`."""

from fedjax_drag.algorithms._adabest import adabest
from fedjax_drag.algorithms._decentralised import decentralised
from fedjax_drag.algorithms._fedacg import fedacg
from fedjax_drag.algorithms._fedadmm import fedadmm
from fedjax_drag.algorithms._feddc import feddc
from fedjax_drag.algorithms._feddyn import feddyn
from fedjax_drag.algorithms._fednova import fednova
from fedjax_drag.algorithms._from_aggregator import from_aggregator
from fedjax_drag.algorithms._hypcluster import hypcluster
from fedjax_drag.algorithms._ifca import ifca
from fedjax_drag.algorithms._mime import mime
from fedjax_drag.algorithms._scaffold import scaffold
from fedjax_drag.algorithms._stem import stem
from fedjax_drag.algorithms._taco import taco
from fedjax_drag.algorithms._tailored_fedprox import tailored_fedprox

# For methods of your own, see CONTRIBUTING.md.
from fedjax_drag.algorithms._two_sided import Contribution as Contribution
from fedjax_drag.algorithms._two_sided import Outcome as Outcome
from fedjax_drag.algorithms._two_sided import SummedMethod as SummedMethod
from fedjax_drag.algorithms._two_sided import TwoSided as TwoSided
from fedjax_drag.algorithms.personal import PersonalMethod as PersonalMethod
from fedjax_drag.algorithms.personal import (
    apfl,
    ditto,
    fedbn,
    fedper,
    fedrep,
    fine_tune,
    lg_fedavg,
    local_only,
    per_fedavg,
    pfedme,
)

__all__ = [  # noqa: RUF022 - the order of lists
    "from_aggregator",
    "scaffold",
    "adabest",
    "feddyn",
    "feddc",
    "fedadmm",
    "fedacg",
    "stem",
    "taco",
    "tailored_fedprox",
    "fednova",
    "mime",
    "ifca",
    "hypcluster",
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
    "decentralised",
]
