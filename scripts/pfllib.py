"""The splits of PFLlib's benchmark (TsingZ0/PFLlib, dataset/utils/dataset_utils.py), for configurations beside it.

Training and test examples are split together; each client then keeps a quarter of its own for testing. The test
accuracy is over all clients' test examples, which is their mean over the clients weighted by test examples.
"""

import numpy as np

import fedjax_drag as fd

TRAINED = 0.75
LEAST = 40  # examples of a client: a batch of ten among those that it tests on


def dirichlet(fed, num_clients, beta=0.1, seed=0):
    """Their practical label skew: each class in Dirichlet proportions over clients below their even share."""
    fed = _together(fed)
    split = fd.data.partition.dirichlet(fed, num_clients, beta, seed, min_size=LEAST, balanced=True)
    return _tested(split, [row[:count] for row, count in zip(split.rows, split.counts, strict=True)])


def two_labels(fed, num_clients, seed=0):
    """Their pathological label skew: two classes for every group of clients, in shares of random size."""
    fed, rng = _together(fed), np.random.default_rng(seed)
    group = 2 * num_clients // fed.num_classes
    own = [[] for _ in range(num_clients)]
    for label in range(fed.num_classes):
        examples = np.flatnonzero(fed.labels == label)
        even = len(examples) / group
        sizes = rng.integers(int(max(even / 10, LEAST / fed.num_classes)), int(even), group - 1)
        first = label // 2 * group
        for client, part in enumerate(np.split(examples, np.cumsum(sizes)), first):
            own[client].append(part)
    return _tested(fed, [rng.permutation(np.concatenate(parts)) for parts in own])


def _together(fed):
    """All examples as training examples."""
    x, y = (np.concatenate([a, b]) for a, b in zip(fed.train[:2], fed.test[:2], strict=True))
    return fd.data.from_arrays(x, y, x[:1], y[:1], num_classes=fed.num_classes, name=fed.name)


def _tested(fed, own):
    """Clients with examples ``own``, in random order, of which they train on the first three quarters."""
    cuts = [int(TRAINED * len(examples)) for examples in own]
    of = lambda examples: (fed.train.x[examples], fed.train.y[examples])
    return fd.data.from_clients(
        [of(examples[:cut]) for examples, cut in zip(own, cuts, strict=True)],
        client_test=[of(examples[cut:]) for examples, cut in zip(own, cuts, strict=True)],
        num_classes=fed.num_classes,
        name=fed.name,
        mean=(0.5,),
        std=(0.5,),
    )
