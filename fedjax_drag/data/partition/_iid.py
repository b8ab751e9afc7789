"""The split without skew."""

import numpy as np

from fedjax_drag.data.dataset import FederatedDataset
from fedjax_drag.data.partition._assign import check, with_clients


def iid(fed: FederatedDataset, num_clients: int, seed: int = 0) -> FederatedDataset:
    """Splits at random and evenly: sizes differ by at most one.

    Args:
      fed: the data set.
      num_clients: M, at most the number of training examples.
      seed: >= 0.

    Returns:
      The data set with clients.

    Raises:
      ValueError: an argument out of range.
    """
    check(fed, num_clients, seed)
    owner = np.arange(fed.train.num_examples) % num_clients  # the rows are shuffled: which examples these are is random
    rng = np.random.default_rng(seed)
    return with_clients(fed, rng.permutation(owner), num_clients, f"iid(seed={seed})", rng)
