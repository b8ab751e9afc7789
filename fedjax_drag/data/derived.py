"""Data sets for other tasks, made of ones with a label for each example."""

from dataclasses import replace
from typing import Any

import numpy as np

from fedjax_drag import checks
from fedjax_drag.data.dataset import DATASET, FederatedDataset
from fedjax_drag.data.normalization import TOKENS
from fedjax_drag.data.partition._assign import check_separate
from fedjax_drag.types import Batch


def pairs(fed: FederatedDataset, seed: int = 0) -> FederatedDataset:
    """Puts two images side by side; the targets say which classes are in the picture.

    Each image is on the left once and on the right once, beside partners at random. Of data that are split among
    clients, both images are the same client's, and the split stays: label skew of the images is skew of the several
    labels.

    Args:
      fed: images with one label each.
      seed: of the partners, >= 0.

    Returns:
      As many examples, images ``[H, 2 W, C]`` and several labels ``[N, num_classes]`` int32, of which one or two are 1;
      without natural users.

    Raises:
      ValueError: inputs are no images, targets no labels, ``seed`` is out of range, or clients have examples in common.

    Examples:
      >>> fed = pairs(fedjax_drag.data.load("digits"))
      >>> fed.train.x.shape, fed.train.y.shape
      ((1442, 8, 16, 1), (1442, 10))
    """
    DATASET.check("fed", fed)
    checks.count("seed", seed)
    if not hasattr(fed.train.x, "dtype") or len(fed.input_shape) != 3 or not fed.has_labels:
        raise checks.ArgumentError("fed", "must be images [H, W, C] with one label each", given=fed)
    check_separate("pairs", fed)
    rng = np.random.default_rng(seed)

    def paired(batch: Batch, groups: list[np.ndarray]) -> Batch:
        partner = np.arange(len(batch.y))
        for group in groups:
            partner[group] = rng.permutation(group)
        labels: Any = np.eye(fed.num_classes, dtype=np.int32)[np.asarray(batch.y)]
        x: Any = np.concatenate([batch.x, batch.x[partner]], axis=2)
        return Batch(x, labels | labels[partner])

    whole = lambda batch: [np.arange(len(batch.y))]
    clients = whole(fed.train)
    if fed.rows is not None and fed.counts is not None:
        clients = [row[:count] for row, count in zip(fed.rows, fed.counts, strict=True)]
    client_test = fed.client_test
    if client_test is not None:
        own = np.split(client_test.indices, np.cumsum(client_test.counts)[:-1])
        client_test = client_test._replace(examples=paired(client_test.examples, own))
    height, width, channels = fed.input_shape
    return replace(
        fed,
        client_test=client_test,
        name=f"{fed.name}_pairs",
        train=paired(fed.train, clients),
        test=paired(fed.test, whole(fed.test)),
        validation=fed.validation and paired(fed.validation, whole(fed.validation)),
        num_classes=0,
        input_shape=(height, 2 * width, channels),
        users=None,
        user_names=(),
        test_users=None,
    )


def next_tokens(fed: FederatedDataset) -> FederatedDataset:
    """Gives every token of a text the one after it as its target, where only the last one had that.

    Args:
      fed: texts ``[N, L]`` and the token that follows each, ``[N]``, such as ``load("shakespeare")``.

    Returns:
      The same texts and clients with targets ``[N, L]`` int32, for a model with outputs ``[B, L, C]``.

    Raises:
      ValueError: inputs are no texts, or targets not one token each.
    """
    DATASET.check("fed", fed)
    if getattr(fed.train.x, "dtype", None) not in TOKENS or len(fed.input_shape) != 1 or not fed.has_labels:
        raise checks.ArgumentError("fed", "must be tokens [N, L] with the next token [N] of each text", given=fed)

    def shifted(batch: Batch) -> Batch:
        y: Any = np.concatenate([batch.x[:, 1:], batch.y[:, None]], axis=1, dtype=np.int32)
        return Batch(batch.x, y)

    train, test = shifted(fed.train), shifted(fed.test)
    validation = fed.validation and shifted(fed.validation)
    client_test = fed.client_test and fed.client_test._replace(examples=shifted(fed.client_test.examples))
    return replace(
        fed, name=f"{fed.name}_tokens", train=train, test=test, validation=validation, client_test=client_test
    )
