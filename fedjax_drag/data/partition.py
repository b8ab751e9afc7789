"""Splitting the training examples among clients.

Every partition gives each example to exactly one client, depends on nothing but its arguments and the
seed, and shuffles each client's row, so that the beginning of a row is a random subset of that client's
examples. An earlier partition is replaced. The label-skewed ones draw how many examples of each class a
client gets before any example is assigned, so that drawing again is cheap.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from fedjax_drag import checks
from fedjax_drag.data.dataset import FederatedDataset


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
    _check(fed, num_clients, seed)
    owner = np.arange(len(fed.train.y)) % num_clients  # the rows are shuffled: which examples these are is random
    rng = np.random.default_rng(seed)
    return _with_clients(fed, rng.permutation(owner), num_clients, f"iid(seed={seed})", rng)


def dirichlet(
    fed: FederatedDataset, num_clients: int, beta: float, seed: int = 0, min_size: int = 1, max_tries: int = 10_000
) -> FederatedDataset:
    """Splits each class in proportions drawn from a Dirichlet distribution (Hsu et al., 2019).

    For every class independently, the clients' shares of it are ``p ~ Dir(beta, ..., beta)``; its
    examples, in random order, are cut at the rounded cumulative shares. The whole partition is drawn
    again until every client has ``min_size`` examples, so that what is used is the distribution given
    that they do.

    Args:
      fed: the data set.
      num_clients: M.
      beta: concentration, in [1e-6, 1e6]: small means few classes per client and unequal sizes,
        large means like iid.
      seed: >= 0.
      min_size: examples that every client must have, >= 1.
      max_tries: draws before giving up, >= 1.

    Returns:
      The data set with clients.

    Raises:
      ValueError: an argument out of range, ``num_clients * min_size`` above the number of training
        examples, or no draw that gave every client enough.
    """
    _check(fed, num_clients, seed, min_size)
    checks.in_range("beta", beta, 1e-6, 1e6)
    checks.count("max_tries", max_tries, 1)
    per_class = np.bincount(fed.train.y, minlength=fed.num_classes)

    def draw(rng: np.random.Generator) -> np.ndarray:
        shares = rng.dirichlet(np.full(num_clients, beta), size=fed.num_classes)
        cuts = np.rint(np.minimum(np.cumsum(shares, axis=1), 1.0) * per_class[:, None]).astype(np.int64)
        cuts[:, -1] = per_class  # whatever rounding the sum of the shares suffered
        return np.diff(cuts, axis=1, prepend=0)

    arguments = f"beta={beta}, seed={seed}" + (f", min_size={min_size}" if min_size != 1 else "")
    advice = "try a larger beta, fewer clients or a smaller min_size"
    return _by_class(fed, num_clients, f"dirichlet({arguments})", draw, seed, min_size, max_tries, advice)


def label_affinity(fed: FederatedDataset, num_clients: int, q: float, seed: int = 0) -> FederatedDataset:
    """Gives an example of label l to client ``l mod M`` with probability q, else to another one.

    With C classes there are ``G = min(M, C)`` groups of clients, group g being the clients m with
    ``m mod G = g``. An example of label l goes to group ``l mod G`` with probability q, to each other
    group with probability ``(1 - q) / (G - 1)``, and then to a member of the group uniformly. For
    ``M <= C`` a group is one client. **[reading]** for ``M > C`` the groups are those of Cao et al.
    (FLTrust, 2021): of single clients, all but C would be no label's own, and with q = 1 have nothing.

    Args:
      fed: the data set.
      num_clients: M.
      q: in [0, 1]; ``1 / G`` is independent of the label, 1 gives a group only its own labels.
      seed: >= 0.

    Returns:
      The data set with clients.

    Raises:
      ValueError: an argument out of range, or no draw that gave every client an example.
    """
    _check(fed, num_clients, seed)
    checks.in_range("q", q, 0.0, 1.0)
    num_groups = min(num_clients, fed.num_classes)
    group = np.arange(num_clients) % num_groups
    own = group == (np.arange(fed.num_classes) % num_groups)[:, None]
    probability = np.where(own, q, (1 - q) / (num_groups - 1)) if num_groups > 1 else np.ones(own.shape)
    probability = probability / np.bincount(group)[group]
    per_class = np.bincount(fed.train.y, minlength=fed.num_classes)

    def draw(rng: np.random.Generator) -> np.ndarray:
        return rng.multinomial(per_class, probability)

    advice = "try fewer clients or a q further from 0 and 1"
    return _by_class(fed, num_clients, f"label_affinity(q={q}, seed={seed})", draw, seed, 1, 1000, advice)


def label_groups(
    fed: FederatedDataset, num_clients: int, fractions: Sequence[float] = (0.1, 0.2, 0.5), seed: int = 0
) -> FederatedDataset:
    """Gives groups of clients different shares of the labels: some see one class, others half of them.

    The clients form as many groups of nearly equal size as there are fractions, the first clients being the first
    group. A client of a group with fraction f holds ``max(1, round(f C))`` of the C classes, drawn at random among
    those that the fewest clients hold so far, so that every class has holders and about as many as any other. The
    holders of a class share its examples evenly.

    Args:
      fed: the data set.
      num_clients: M, at least the number of groups.
      fractions: share of the labels that a client of each group holds, in (0, 1].
      seed: >= 0.

    Returns:
      The data set with clients.

    Raises:
      ValueError: an argument out of range, or clients that hold too few labels to cover all classes.

    References:
      Liu et al., TACO: Tackling over-correction in federated learning with tailored adaptive correction, Table II.
      Readings: the paper says neither how examples of a class are shared nor that every class is held.
    """
    _check(fed, num_clients, seed)
    if not len(fractions):
        raise ValueError(f"fractions={fractions!r}: must name at least one group")
    for fraction in fractions:
        checks.in_range("fractions", fraction, 0.0, 1.0, open_low=True)
    checks.count("num_clients", num_clients, max(1, len(fractions)))
    num_classes = fed.num_classes
    group = np.arange(num_clients) * len(fractions) // num_clients
    labels = np.maximum(1, np.rint(np.asarray(fractions) * num_classes)).astype(np.int64)[group]
    if labels.sum() < num_classes:
        raise ValueError(
            f"num_clients={num_clients}: with fractions={tuple(fractions)} they hold {labels.sum()} labels, which "
            f"cannot cover the {num_classes} classes of {fed.name}"
        )
    rng = np.random.default_rng(seed)
    holds = np.zeros((num_classes, num_clients), bool)
    for client in rng.permutation(num_clients):
        rarest = np.lexsort((rng.random(num_classes), holds.sum(axis=1)))
        holds[rarest[: labels[client]], client] = True
    owner = np.empty(len(fed.train.y), np.int64)
    for label, held in enumerate(holds):
        examples = rng.permutation(np.flatnonzero(fed.train.y == label))
        owner[examples] = np.resize(rng.permutation(np.flatnonzero(held)), len(examples))
    if np.bincount(owner, minlength=num_clients).min() == 0:
        raise ValueError(f"num_clients={num_clients}: some would have no example of {fed.name}; try fewer clients")
    shares = ", ".join(f"{fraction:g}" for fraction in fractions)
    return _with_clients(fed, owner, num_clients, f"label_groups(fractions=({shares}), seed={seed})", rng)


def _check(fed: FederatedDataset, num_clients: int, seed: int, min_size: int = 1) -> None:
    """Checks what all partitions have in common."""
    checks.count("num_clients", num_clients, 1)
    checks.count("seed", seed)
    checks.count("min_size", min_size, 1)
    available = len(fed.train.y)
    if num_clients * min_size > available:
        wanted = f"{min_size} examples each" if min_size > 1 else "an example each"
        raise ValueError(
            f"num_clients={num_clients}: cannot have {wanted}: {fed.name} has {available} training examples; "
            f"must be at most {available // min_size}"
        )


def _by_class(
    fed: FederatedDataset,
    num_clients: int,
    description: str,
    draw: Callable[[np.random.Generator], np.ndarray],
    seed: int,
    min_size: int,
    max_tries: int,
    advice: str,
) -> FederatedDataset:
    """Assigns examples at random, given how many of each class a client gets.

    Args:
      fed: the data set.
      num_clients: M.
      description: of the partition.
      draw: ``(rng) -> [C, M]`` counts, each row adding up to the number of examples of that class.
      seed: of the draws and the assignment.
      min_size: drawn again until every client has as many examples.
      max_tries: draws at most.
      advice: what to do if that is not enough.
    """
    rng = np.random.default_rng(seed)
    for _ in range(max_tries):
        counts = draw(rng)
        if counts.sum(axis=0).min() >= min_size:
            break
    else:
        raise ValueError(
            f"{description}: none of {max_tries} draws gave each of num_clients={num_clients} clients at least "
            f"{min_size} of the {len(fed.train.y)} examples; {advice}"
        )
    owner = np.empty(len(fed.train.y), np.int64)
    for label, of_class in enumerate(counts):
        owner[rng.permutation(np.flatnonzero(fed.train.y == label))] = np.repeat(np.arange(num_clients), of_class)
    return _with_clients(fed, owner, num_clients, description, rng)


def _with_clients(
    fed: FederatedDataset, owner: np.ndarray, num_clients: int, description: str, rng: np.random.Generator
) -> FederatedDataset:
    """Makes the rows of shuffled indices from ``owner`` ``[N]``, the client of each training example."""
    order = rng.permutation(len(owner))
    order = order[np.argsort(owner[order], kind="stable")]  # by client, and random within
    counts = np.bincount(owner, minlength=num_clients).astype(np.int32)
    rows = np.zeros((num_clients, counts.max()), np.int32)
    rows[np.arange(counts.max()) < counts[:, None]] = order
    return replace(fed, rows=rows, counts=counts, partition=description)
