"""The federation as arrays: examples once, clients as rows of indices."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from fedjax_drag import checks
from fedjax_drag.data import FederatedDataset
from fedjax_drag.types import Batch


class Federation(NamedTuple):
    """All data that a compiled round reads.

    Attributes:
      train: every training example, as stored.
      rows: ``[M, L]`` int32, each client's indices into ``train``, in random order, padded.
      counts: ``[M]`` int32, how many entries of a row are real.
      malicious: ``[M]`` bool, who is malicious for the whole run.
      root_row: ``[R]`` int32, the server's root data, padded; empty if no rule needs it.
      root_count: how many entries of ``root_row`` are real, int32 scalar.
      malicious_per_cohort: how many clients of each cohort are malicious, drawn anew in every round, int32 scalar;
        None if ``malicious`` says who is.
    """

    train: Batch
    rows: jax.Array
    counts: jax.Array
    malicious: jax.Array
    root_row: jax.Array
    root_count: jax.Array
    malicious_per_cohort: jax.Array | None = None


def count_malicious(
    num_clients: int, cohort_size: int, fraction: float = 0.0, number: int | None = None, of: str = "federation"
) -> int:
    """How many clients are malicious, of the federation or of each cohort.

    Args:
      num_clients: M.
      cohort_size: S.
      fraction: of them all, rounded to the nearest number of clients.
      number: how many they are; instead of ``fraction``.
      of: ``"federation"`` or ``"cohort"``.

    Raises:
      ValueError: if an argument is out of range, or both are given.
    """
    checks.one_of("byzantine_of", of, ("federation", "cohort"))
    checks.in_range("byzantine_fraction", fraction, 0.0, 1.0)
    everybody = num_clients if of == "federation" else cohort_size
    if number is None:
        return round(fraction * everybody)
    checks.count("num_byzantine", number, 0, everybody)
    if fraction:
        raise ValueError(f"num_byzantine={number}, byzantine_fraction={fraction}: must be one of the two")
    return number


def choose_malicious(num_clients: int, number: int, seed: int) -> np.ndarray:
    """Marks ``number`` clients as malicious for the whole run, ``[M]`` bool."""
    order = np.random.default_rng([seed, 1]).permutation(num_clients)
    malicious = np.zeros(num_clients, bool)
    malicious[order[:number]] = True
    return malicious


def choose_root(data: FederatedDataset, malicious: np.ndarray, root_size: int | None, bias: float = 0.0) -> np.ndarray:
    """Draws the root data in equal parts from the benign clients.

    Rows are in random order, so a prefix of each is a random part of it. What a small client cannot
    give is taken evenly from the others.

    Args:
      data: a partitioned data set.
      malicious: ``[M]`` bool.
      root_size: number of examples; default 3,000, or a tenth of the benign clients' data where that is less.
      bias: share of them that are of class 0, in [0, 1], besides those that are among the others by chance.

    Returns:
      Indices into ``data.train``, ``[root_size]`` int32.

    Raises:
      ValueError: if the benign clients hold fewer examples, or fewer of class 0.
    """
    assert data.rows is not None
    assert data.counts is not None
    shelves = [row[:count] for row, count in zip(data.rows, np.where(malicious, 0, data.counts), strict=True)]
    total = sum(map(len, shelves))
    if total == 0:
        raise ValueError("byzantine_fraction: root data come from benign clients, and every client is malicious")
    if root_size is None:
        root_size = max(1, min(3000, total // 10))
    checks.count("root_size", root_size, 1, total)
    checks.in_range("root_bias", bias, 0.0, 1.0)
    of_class = [row[np.asarray(data.train.y)[row] == 0] for row in shelves]
    wanted, held = round(bias * root_size), sum(map(len, of_class))
    if wanted > held:
        raise ValueError(f"root_bias={bias}: needs {wanted} examples of class 0; the benign clients hold {held}")
    biased = _taken_evenly(of_class, wanted)
    rest = [row[~np.isin(row, biased)] for row in shelves]
    return np.concatenate([biased, _taken_evenly(rest, root_size - wanted)]).astype(np.int32)


def _taken_evenly(rows: Sequence[np.ndarray], total: int) -> np.ndarray:
    """The beginnings of rows, ``total`` entries in all."""
    quota = _even_quotas(np.array([len(row) for row in rows]), total)
    return np.concatenate([row[:take] for row, take in zip(rows, quota, strict=True)])


def _even_quotas(available: np.ndarray, total: int) -> np.ndarray:
    """Splits ``total`` as evenly as ``available`` allows: everybody gives ``min(available, level)``."""
    low, high = 0, int(available.max())
    while low < high:  # smallest level that yields enough
        level = (low + high) // 2
        if np.minimum(available, level).sum() >= total:
            high = level
        else:
            low = level + 1
    quota = np.minimum(available, low)
    givers = np.flatnonzero(quota == low)
    quota[givers[: quota.sum() - total]] -= 1
    return quota
