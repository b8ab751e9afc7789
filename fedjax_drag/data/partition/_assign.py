"""Checks that all partitions need, and rows of indices from the owner of each example."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from fedjax_drag import checks, tree
from fedjax_drag.data.dataset import DATASET, FederatedDataset


def check(fed: FederatedDataset, num_clients: int, seed: int, min_size: int = 1) -> None:
    """Checks the arguments that all partitions have."""
    DATASET.check("fed", fed)
    checks.count("num_clients", num_clients, 1)
    checks.count("seed", seed)
    checks.count("min_size", min_size, 1)
    available = fed.train.num_examples
    if num_clients * min_size > available:
        wanted = f"{min_size} examples each" if min_size > 1 else "an example each"
        raise checks.ArgumentError(
            "num_clients",
            f"cannot have {wanted}: {fed.name} has {available} training examples; "
            f"must be at most {available // min_size}",
            given=num_clients,
        )


def check_separate(part: str, fed: FederatedDataset) -> None:
    """Refuses clients with examples in common, of which ``part`` would make one client's and not the other's."""
    if fed.rows is None or fed.counts is None:
        return
    own = fed.rows[np.arange(fed.rows.shape[1]) < fed.counts[:, None]]
    if len(np.unique(own)) < len(own):
        raise checks.ArgumentError(part, f"must be of clients without common examples, unlike those of {fed.partition}")


def labels_of(fed: FederatedDataset) -> np.ndarray:
    """The class of each training example, ``[N]``; ValueError for other targets, which names the splits without it."""
    if not fed.has_labels:
        targets = tree.described(fed.train.y, "N")
        others = "by_quantile, by_column, natural, iid and quantity_skew split other targets"
        raise ValueError(f"{fed.name}: targets are {targets}; must be labels, one class an example: {others}")
    return fed.labels


def by_class(
    fed: FederatedDataset,
    num_clients: int,
    description: str,
    draw: Callable[[np.random.Generator], np.ndarray],
    *,
    seed: int,
    min_size: int = 1,
    max_tries: int = 1,
    advice: str = "",
) -> FederatedDataset:
    """Assigns examples at random, given the number of examples of each class for each client.

    Args:
      fed: the data set.
      num_clients: M.
      description: of the partition.
      draw: ``(rng) -> [C, M]`` counts, each row adding up to the number of examples of that class.
      seed: of the draws and the assignment.
      min_size: examples that every client must have; counts are drawn until they do.
      max_tries: number of draws at most.
      advice: for the error message after the last draw.
    """
    rng = np.random.default_rng(seed)
    for _ in range(max_tries):
        counts = draw(rng)
        if counts.sum(axis=0).min() >= min_size:
            break
    else:
        raise ValueError(
            f"{description}: none of {max_tries} draws gave each of num_clients={num_clients} clients at least "
            f"{min_size} of the {fed.train.num_examples} examples; {advice}"
        )
    owner, labels = np.empty(fed.train.num_examples, np.int64), labels_of(fed)
    for label, of_class in enumerate(counts):
        owner[rng.permutation(np.flatnonzero(labels == label))] = np.repeat(np.arange(num_clients), of_class)
    return with_clients(fed, owner, num_clients, description, rng)


def with_clients(
    fed: FederatedDataset,
    owner: np.ndarray,
    num_clients: int,
    description: str,
    order: np.random.Generator | np.ndarray,
) -> FederatedDataset:
    """Makes the rows of indices from ``owner`` ``[N]``, the client of each training example, -1 for none.

    They are in the ``order`` of an array ``[N]``, or in one that a generator draws. The clients have no test examples
    of their own.
    """
    if isinstance(order, np.random.Generator):
        order = order.permutation(len(owner))
    order = order[owner[order] >= 0]
    order = order[np.argsort(owner[order], kind="stable")]  # by client, and as it was within
    counts = np.bincount(owner[order], minlength=num_clients).astype(np.int32)
    rows = np.zeros((num_clients, counts.max()), np.int32)
    rows[np.arange(counts.max()) < counts[:, None]] = order
    return replace(fed, rows=rows, counts=counts, partition=description, client_test=None)
