"""Clients whose inputs are the noisier the higher their number."""

from dataclasses import replace
from typing import Any

import numpy as np

from fedjax_drag import checks, tree
from fedjax_drag.data.dataset import DATASET, FederatedDataset
from fedjax_drag.data.normalization import TOKENS
from fedjax_drag.data.partition._assign import check_separate
from fedjax_drag.data.partition._iid import iid
from fedjax_drag.types import Batch

_STREAM = 4
"""Of the seed: the draw is not that of a partition with the same seed."""


def noise_skew(
    fed: FederatedDataset, num_clients: int | None = None, level: float = 0.1, seed: int = 0
) -> FederatedDataset:
    """Adds Gaussian noise to the inputs, of a standard deviation that grows with the number of the client.

    The inputs of client i, counted from 1, get ``N(0, (level i / M)^2)`` in the units of what a model sees, such as
    pixels in [0, 1] with ``normalize="unit"``. The noise of an example is drawn once; validation and test inputs have
    none. Inputs become float32, four times as large as bytes.

    Args:
      fed: the data set.
      num_clients: M, for a split by :func:`iid` first; default the clients that it has, from any other partition.
      level: standard deviation of the last client's noise, >= 0.
      seed: of the noise and of the split, >= 0.

    Returns:
      The data set with noise and clients.

    Raises:
      ValueError: an argument out of range, inputs that are tokens, no clients and no ``num_clients``, or clients with
        examples in common.

    References:
      Li et al., Federated learning on non-IID data silos: An experimental study, 2022 (NIID-Bench), "noise-based
      feature imbalance". Interpretations: the paper calls ``level i / M`` a variance; its code takes it for a standard
      deviation, as here, and draws noise anew for each batch, from 0 for the first client to ``level`` for the last.
    """
    DATASET.check("fed", fed)
    checks.in_range("level", level, 0.0)
    checks.count("seed", seed)
    if getattr(fed.train.x, "dtype", TOKENS[0]) in TOKENS:
        inputs = tree.described(fed.train.x, "N")
        raise checks.ArgumentError(
            "noise_skew", f"needs one array of numbers as inputs, not the {inputs} of {fed.name}"
        )
    fed = fed if num_clients is None else iid(fed, num_clients, seed)
    if fed.rows is None or fed.counts is None:
        raise checks.ArgumentError("num_clients", f"must be given, or {fed.name} split among clients before")
    check_separate("noise_skew", fed)
    spread = np.zeros(fed.train.num_examples, np.float32)  # of each example; 0 where it belongs to nobody
    real = np.arange(fed.rows.shape[1]) < fed.counts[:, None]
    spread[fed.rows[real]] = np.repeat(level * np.arange(1, fed.num_clients + 1) / fed.num_clients, fed.counts)
    noise = np.random.default_rng([seed, _STREAM]).standard_normal(fed.train.x.shape, np.float32)
    noise *= spread.reshape(-1, *[1] * len(fed.input_shape)) * np.asarray(fed.std, np.float32)

    def noisy(batch: Batch, noise: Any = 0) -> Batch:
        scale = np.float32(255 if batch.x.dtype == np.uint8 else 1)
        return batch._replace(x=batch.x / scale + noise)

    return replace(
        fed,
        train=noisy(fed.train, noise),
        test=noisy(fed.test),
        client_test=fed.client_test and fed.client_test._replace(examples=noisy(fed.client_test.examples)),
        validation=fed.validation and noisy(fed.validation),
        partition=f"{fed.partition}, noise_skew(level={level:g}, seed={seed})",
    )
