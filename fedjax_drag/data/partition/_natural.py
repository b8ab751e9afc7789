"""The split by natural users of the data."""

from dataclasses import replace

import numpy as np

from fedjax_drag.data.client_test import of_owners
from fedjax_drag.data.dataset import FederatedDataset
from fedjax_drag.data.partition._assign import check, with_clients


def natural(
    fed: FederatedDataset, num_clients: int | None = None, min_size: int = 1, seed: int = 0
) -> FederatedDataset:
    """Makes a client of each natural user, such as the writer of an image or the role that speaks a line.

    Users with fewer than ``min_size`` examples, and those not drawn if ``num_clients`` asks for fewer, are left out;
    **their training examples belong to no client**. All test examples stay; where it is known whose they are, those of
    a client's user are its own (``client_test``).

    Args:
      fed: a data set with ``users``.
      num_clients: M, users drawn at random without replacement; default all users that are large enough.
      min_size: examples that a user must have, >= 1.
      seed: of the draw and of the order of a client's examples, >= 0.

    Returns:
      The data set with clients, in the order of the users.

    Raises:
      ValueError: an argument out of range, a data set without users, or fewer users than ``num_clients``.
    """
    check(fed, 1 if num_clients is None else num_clients, seed, min_size)
    if fed.users is None:
        raise ValueError(f"{fed.name}: has no natural users to make clients of; use dirichlet or another partition")
    users, index, sizes = np.unique(fed.users, return_inverse=True, return_counts=True)
    large = np.flatnonzero(sizes >= min_size)
    if len(large) < (num_clients or 1):
        asked = f"min_size={min_size}" if num_clients is None else f"num_clients={num_clients}"
        raise ValueError(
            f"{asked}: {fed.name} has {len(large)} users with at least {min_size} of its training examples; "
            "try fewer clients or a smaller min_size"
        )
    rng = np.random.default_rng(seed)
    chosen = large if num_clients is None else np.sort(rng.choice(large, num_clients, replace=False))
    client = np.full(len(users), -1)
    client[chosen] = np.arange(len(chosen))
    limits = {"num_clients": num_clients or 0, "min_size": min_size if min_size > 1 else 0, "seed": seed}
    given = ", ".join(f"{name}={value}" for name, value in limits.items() if value or name == "seed")
    fed = with_clients(fed, client[index], len(chosen), f"natural({given})", rng)
    if fed.test_users is None:
        return fed
    place = np.minimum(np.searchsorted(users, fed.test_users), len(users) - 1)
    owner = np.where(users[place] == fed.test_users, client[place], -1)
    return fed if (owner < 0).all() else replace(fed, client_test=of_owners(fed.test, owner, len(chosen)))
