"""The split that is partly even and partly sorted by label."""

import numpy as np

from fedjax_drag import checks
from fedjax_drag.data.dataset import FederatedDataset
from fedjax_drag.data.partition._assign import check, with_clients


def gamma_similarity(fed: FederatedDataset, num_clients: int, gamma: float, seed: int = 0) -> FederatedDataset:
    """Deals a share ``gamma`` of the examples evenly; the rest is sorted by label and cut into one block per client.

    The ``floor(gamma N)`` examples that are dealt are drawn at random from all N. Of the sorted rest, in random order
    within a label, client 0 has the first block, client 1 the second, and so on: with ``gamma=0`` clients that are
    neighbours have the same or neighbouring labels. ``gamma=1`` is :func:`iid`, with the same seed bit for bit.

    Args:
      fed: the data set.
      num_clients: M, at most the number of training examples.
      gamma: share of the examples that is alike on all clients, in [0, 1].
      seed: >= 0.

    Returns:
      The data set with clients, whose sizes differ by at most one.

    Raises:
      ValueError: an argument out of range.

    References:
      Karimireddy et al., SCAFFOLD: Stochastic controlled averaging for federated learning, ICML 2020, Section 7, where
      the share is ``s`` percent; after Hsu et al., 2019. In ByzFL (González et al., 2025) it is the distribution
      ``gamma_similarity_niid``. Deviations from ByzFL: the share is drawn at random, there it is the beginning of the
      file; and malicious clients have a part of the data, as in all partitions here, where there they have none.
    """
    check(fed, num_clients, seed)
    checks.in_range("gamma", gamma, 0.0, 1.0)
    available = len(fed.train.y)
    rng = np.random.default_rng(seed)
    place = rng.permutation(available)  # of each example in a random order
    owner = place % num_clients
    num_dealt = int(gamma * available + 1e-6)  # 0.29 * 100 is just below 29
    rest = np.argsort(place)[num_dealt:]
    rest = rest[np.argsort(fed.train.y[rest], kind="stable")]  # by label, and random within
    owner[rest] = np.sort(owner[rest])
    return with_clients(fed, owner, num_clients, f"gamma_similarity(gamma={gamma}, seed={seed})", rng)
