"""Splitting the training examples among clients.

Every partition gives each example to exactly one client (:func:`natural` may leave users out, and the malicious clients
of :func:`gamma_similarity` have examples of benign ones), depends only on its arguments and the seed, and shuffles each
client's row, so that the beginning of a row is a random subset of that client's examples. It replaces an earlier
partition (:func:`noise_skew` may keep it, and changes the inputs).
"""

from fedjax_drag.data.partition._by_value import by_column, by_quantile
from fedjax_drag.data.partition._gamma_similarity import gamma_similarity
from fedjax_drag.data.partition._iid import iid
from fedjax_drag.data.partition._label_groups import label_groups
from fedjax_drag.data.partition._label_skew import dirichlet, label_affinity, shards
from fedjax_drag.data.partition._natural import natural
from fedjax_drag.data.partition._noise_skew import noise_skew
from fedjax_drag.data.partition._quantity_skew import dirichlet_quantity, quantity_skew

__all__ = [  # noqa: RUF022 - the order of lists
    "iid",
    "dirichlet",
    "label_affinity",
    "label_groups",
    "shards",
    "gamma_similarity",
    "quantity_skew",
    "dirichlet_quantity",
    "natural",
    "by_column",
    "by_quantile",
    "noise_skew",
]
