"""The validation split: training examples on which rounds and settings are compared, and that no client trains on."""

import dataclasses
from numbers import Integral

import jax
import numpy as np

from fedjax_drag import checks
from fedjax_drag.data.dataset import DATASET, FederatedDataset

_STREAM = 3
"""Of the seed: the draw is not that of a partition with the same seed."""


def hold_out(
    fed: FederatedDataset, validation_fraction: float | int | None, validation_seed: int = 0
) -> FederatedDataset:
    """Moves training examples into a validation split, before the others are split among clients.

    They leave ``train``, so that neither a client nor the server's root data can hold one. Each class gives its share
    of them to within one example and keeps an example for training; which ones is random. The split depends on nothing
    but the arguments: it is the same for every method, partition and seed of a run. Test examples, ``mean`` and ``std``
    stay as they are.

    For a validation split of your own, ``dataclasses.replace(fed, validation=fd.types.Batch(x, y))``.

    Args:
      fed: a data set, not yet split among clients.
      validation_fraction: share of the training examples, in (0, 1), or, as an integer, their number, of which a few
        are missing where classes would lose their last example; None for no validation split.
      validation_seed: of the draw, >= 0; it is not the seed of a run.

    Returns:
      The data set with ``validation``, and the training examples that are left, in their order.

    Raises:
      ValueError: an argument out of range, or a data set that has clients or a validation split already.

    Examples:
      >>> fed = hold_out(fedjax_drag.data.load("digits"), 0.1)
      >>> len(fed.train.y), len(fed.validation.y)
      (1298, 144)
    """
    DATASET.check("fed", fed)
    checks.count("validation_seed", validation_seed)
    if validation_fraction is None:
        return fed
    if fed.validation is not None:
        raise ValueError(f"{fed.name}: already has a validation split of {fed.validation.num_examples} examples")
    if fed.rows is not None:
        raise ValueError(f"{fed.name}: already split among clients; hold_out must come before the partition")
    labels = fed.labels if fed.has_labels else np.zeros(fed.train.num_examples, np.int32)  # else as if of one class
    chosen = _chosen(labels, validation_fraction, validation_seed)
    return dataclasses.replace(
        fed,
        train=jax.tree.map(lambda x: x[~chosen], fed.train),
        validation=jax.tree.map(lambda x: x[chosen], fed.train),
        users=None if fed.users is None else fed.users[~chosen],
    )


def _chosen(labels: np.ndarray, fraction: float | int, seed: int) -> np.ndarray:
    """Which examples are held out, ``[N]`` bool."""
    sizes = np.bincount(labels)
    numbers = _of_each_class(sizes, _number(fraction, len(labels)))
    if not numbers.any():
        raise checks.ArgumentError(
            "validation_fraction", "every class has one training example, which it keeps", given=fraction
        )
    order = np.random.default_rng([seed, _STREAM]).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]  # by class, and random within
    place = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # of each within its class
    chosen = np.zeros(len(labels), bool)
    chosen[order[place < np.repeat(numbers, sizes)]] = True
    return chosen


def _number(fraction: float | int, available: int) -> int:
    """How many of ``available`` examples are asked for, at least one."""
    if isinstance(fraction, Integral) and not isinstance(fraction, bool):
        checks.count("validation_fraction", int(fraction), 1, available - 1)
        return int(fraction)
    checks.in_range("validation_fraction", fraction, 0.0, 1.0, open_low=True, open_high=True)
    number = max(1, round(fraction * available))
    if number == available:
        said = f"all {available} training examples; must leave one, so be at most {available - 1} of them"
        raise checks.ArgumentError("validation_fraction", said, given=fraction)
    return number


def _of_each_class(sizes: np.ndarray, total: int) -> np.ndarray:
    """Splits ``total`` in proportion to ``sizes``, the largest remainders rounded up; a class keeps one example."""
    numbers, remainders = np.divmod(total * sizes, sizes.sum())
    order = np.argsort(-remainders, kind="stable")
    order = order[(numbers[order] + 1 < sizes[order]) & (remainders[order] > 0)]
    numbers[order[: total - numbers.sum()]] += 1
    return numbers
