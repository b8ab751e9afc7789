"""The split that is partly even and partly sorted by label."""

from dataclasses import replace

import numpy as np

from fedjax_drag import checks
from fedjax_drag.data.dataset import FederatedDataset
from fedjax_drag.data.malicious import choose_malicious
from fedjax_drag.data.partition._assign import check, labels_of, with_clients


def gamma_similarity(
    fed: FederatedDataset,
    num_clients: int,
    gamma: float,
    num_byzantine: int = 0,
    seed: int = 0,
    byzantine_data: str = "benign",
) -> FederatedDataset:
    """Deals a share ``gamma`` of the examples evenly; the rest is sorted by label and cut into one block per client.

    The ``floor(gamma N)`` examples that are dealt are drawn at random from all N. Of the sorted rest, in random order
    within a label, the first client has the first block, the second client the second, and so on: with ``gamma=0``
    clients that are neighbours have the same or neighbouring labels. ``gamma=1`` is :func:`iid`, with the same seed bit
    for bit.

    Args:
      fed: the data set.
      num_clients: M, at most the number of training examples.
      gamma: share of the examples that is alike on all clients, in [0, 1].
      num_byzantine: so many clients have no examples of their own, fewer than M: those that are malicious in a run with
        the same seed and as many malicious clients. With the default 0 all clients have a part.
      seed: >= 0.
      byzantine_data: what these have: ``"benign"`` (default), the examples of a benign client too, with which an honest
        one in its place could work; or ``"iid"``, as many that are drawn from all.

    Returns:
      The data set with clients, whose sizes differ by at most one.

    Raises:
      ValueError: an argument out of range.

    References:
      Karimireddy et al., SCAFFOLD: Stochastic controlled averaging for federated learning, ICML 2020, Section 7, where
      the share is ``s`` percent; after Hsu et al., 2019. In ByzFL (González et al., 2025) it is the distribution
      ``gamma_similarity_niid``, with the malicious clients beside those among whom it divides the examples, as with
      ``num_byzantine``. Deviation: the share is drawn at random, there it is the beginning of the file. With
      ``byzantine_data="iid"`` and ``gamma=0`` it is the split of Karimireddy, He and Jaggi, Byzantine-robust learning
      on heterogeneous datasets via bucketing, 2022.
    """
    check(fed, num_clients, seed)
    checks.in_range("gamma", gamma, 0.0, 1.0)
    checks.count("num_byzantine", num_byzantine, 0, num_clients - 1)
    checks.one_of("byzantine_data", byzantine_data, ("benign", "iid"))
    available, owners = fed.train.num_examples, num_clients - num_byzantine
    rng = np.random.default_rng(seed)
    place = rng.permutation(available)  # of each example in a random order
    owner = place % owners
    num_dealt = int(gamma * available + 1e-6)  # 0.29 * 100 is just below 29
    rest = np.argsort(place)[num_dealt:]
    rest = rest[np.argsort(labels_of(fed)[rest], kind="stable")]  # by label, and random within
    owner[rest] = np.sort(owner[rest])
    described = f"gamma={gamma}, seed={seed}" + (f", num_byzantine={num_byzantine}" if num_byzantine else "")
    split = with_clients(fed, owner, owners, f"gamma_similarity({described})", rng)
    if split.rows is None or split.counts is None or not num_byzantine:
        return split
    # The clients of the split as the benign ones among all; a malicious one has the row of a benign one.
    malicious = choose_malicious(num_clients, num_byzantine, seed)
    row = np.where(malicious, np.cumsum(malicious) - 1, np.cumsum(~malicious) - 1) % owners
    rows = split.rows[row]
    if byzantine_data == "iid":
        rows[malicious] = [rng.choice(available, rows.shape[1], replace=False) for _ in range(num_byzantine)]
    return replace(split, rows=rows, counts=split.counts[row])
