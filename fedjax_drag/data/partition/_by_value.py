"""Splits by a value of each example: a column of the inputs, a target that is a number, or values of one's own."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedjax_drag import checks, tree
from fedjax_drag.data.dataset import FederatedDataset
from fedjax_drag.data.partition._assign import check, with_clients


def by_column(
    fed: FederatedDataset, column: int | Sequence[int] | np.ndarray, num_clients: int | None = None, seed: int = 0
) -> FederatedDataset:
    """Makes a client of each distinct value of a column, or groups of clients or of values.

    With fewer clients than values, client m has the values ``v`` with ``floor(v M / V) = m`` of all V in their order:
    neighbouring values are together. With more clients than values, the clients ``m`` with ``floor(m V / M) = v`` share
    the examples of value ``v`` at random and evenly.

    Args:
      fed: the data set.
      column: place of the column in inputs ``[N, F]``; several places for their combinations, such as the entries of 0
        and 1 that stand for the words of one column; or an array of a value for each training example, ``[N]`` or
        ``[N, K]``, of any type that can be ordered.
      num_clients: M; default the number of distinct values.
      seed: of the order of a client's examples, and of who has which where clients share a value; >= 0.

    Returns:
      The data set with clients, in the order of the values.

    Raises:
      ValueError: an argument out of range, inputs without columns, or a value with fewer examples than clients.

    References:
      ``NaturalIdPartitioner`` of Flower Datasets (a client for each value) and ``GroupedNaturalIdPartitioner`` (fewer
      clients), whose sizes these are where M divides V.
    """
    check(fed, 1 if num_clients is None else num_clients, seed)
    values, value = np.unique(_values(fed, column), return_inverse=True, axis=0)
    value, num_values = value.reshape(-1), len(values)
    num_clients = num_values if num_clients is None else num_clients
    rng = np.random.default_rng(seed)
    owner = value * num_clients // num_values
    for shared in range(num_values if num_clients > num_values else 0):
        clients = np.flatnonzero(np.arange(num_clients) * num_values // num_clients == shared)
        own = np.flatnonzero(value == shared)
        if len(own) < len(clients):
            said = f"{len(clients)} clients would share the {len(own)} examples of one value; try fewer clients"
            raise checks.ArgumentError("num_clients", said, given=num_clients)
        owner[rng.permutation(own)] = np.resize(clients, len(own))
    shown = "" if hasattr(column, "__array__") else f"column={column}, "
    return with_clients(fed, owner, num_clients, f"by_column({shown}seed={seed})", rng)


def by_quantile(
    fed: FederatedDataset,
    num_clients: int,
    column: int | np.ndarray | None = None,
    strictness: float = 1.0,
    seed: int = 0,
) -> FederatedDataset:
    """Sorts the examples by a number, such as the target of a regression, and cuts them into blocks of equal size.

    With ``strictness`` s they are sorted by ``s z + (1 - s) e``, where z is the number minus its mean, divided by its
    standard deviation, and e a standard normal draw.

    Args:
      fed: the data set.
      num_clients: M, at most the number of training examples.
      column: what is sorted by: default the target, ``[N]``; or as of :func:`by_column`, one column.
      strictness: s in [0, 1]: 1 gives each client an interval of the numbers, 0 is as even as :func:`iid`.
      seed: of the draws, and of the order of equal numbers; >= 0.

    Returns:
      The data set with clients, from the smallest numbers to the largest; sizes differ by at most one.

    Raises:
      ValueError: an argument out of range, a target that is not one number, or inputs without columns.

    References:
      ``ContinuousPartitioner`` of Flower Datasets, whose clients these are with ``strictness=1``.
    """
    check(fed, num_clients, seed)
    checks.in_range("strictness", strictness, 0.0, 1.0)
    numbers: Any = fed.train.y if column is None else _values(fed, column)
    single = hasattr(numbers, "dtype") and numbers.ndim == 1 and numbers.dtype.kind in "biuf"
    if not single or not np.isfinite(numbers).all():
        what, instead = ("targets", ", or column be given") if column is None else ("column", "")
        said = f"{tree.described(numbers, 'N')}; must be a finite number for each example{instead}"
        raise checks.ArgumentError(what, said)
    rng = np.random.default_rng(seed)
    centred = numbers.astype(np.float64) - numbers.mean(dtype=np.float64)
    score = strictness * centred / (centred.std() or 1.0) + (1 - strictness) * rng.standard_normal(len(numbers))
    order = np.lexsort((rng.random(len(score)), score))
    blocks = np.array_split(order, num_clients)
    owner = np.empty(len(order), np.int64)
    owner[order] = np.repeat(np.arange(num_clients), [len(block) for block in blocks])
    shown = f"column={column}, " if isinstance(column, int) else ""
    description = f"by_quantile({shown}strictness={strictness:g}, seed={seed})"
    return with_clients(fed, owner, num_clients, description, rng)


def _values(fed: FederatedDataset, column: int | Sequence[int] | np.ndarray) -> np.ndarray:
    """A value of each example, ``[N]`` or ``[N, K]``."""
    if hasattr(column, "__array__") and np.ndim(column):
        values = np.asarray(column)
        if values.dtype == object:
            values = np.asarray(values.tolist())
            values = values.astype(str) if values.dtype == object else values
        if values.ndim > 2 or len(values) != fed.train.num_examples:
            allowed = f"must have a value for each of the {fed.train.num_examples} training examples of {fed.name}"
            raise checks.ArgumentError("column", allowed, given=column)
        return values
    if np.size(column) == 0:
        raise checks.ArgumentError("column", "must name one column at least", given=column)
    if not hasattr(fed.train.x, "dtype") or len(fed.input_shape) != 1:
        said = f"inputs {list(fed.input_shape)} of {fed.name} have no columns; must be an array, a value an example"
        raise checks.ArgumentError("column", said, given=column)
    for place in np.ravel(np.asarray(column, object)).tolist():
        checks.count("column", place, 0, fed.input_shape[0] - 1)
    return np.asarray(fed.train.x)[:, column]
