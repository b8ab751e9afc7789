"""Client rules: what a client computes in its local pass when the server side is plain."""

from fedjax_drag.clients._dp_sgd import dp_sgd
from fedjax_drag.clients._fedlc import fedlc
from fedjax_drag.clients._fedntd import fedntd
from fedjax_drag.clients._fedprox import fedprox
from fedjax_drag.clients._fedsam import fedsam
from fedjax_drag.clients._momentum_sgd import momentum_sgd
from fedjax_drag.clients._moon import moon
from fedjax_drag.clients._robust_sgd import robust_sgd
from fedjax_drag.clients._sgd import sgd

__all__ = [  # noqa: RUF022 - the order of lists
    "sgd",
    "fedprox",
    "fedsam",
    "moon",
    "fedlc",
    "fedntd",
    "momentum_sgd",
    "robust_sgd",
    "dp_sgd",
]
