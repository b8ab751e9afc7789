"""The split in which groups of clients hold different numbers of labels."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fedjax_drag import checks
from fedjax_drag.data.dataset import FederatedDataset
from fedjax_drag.data.partition._assign import check, labels_of, with_clients

_SWEEPS = 300
"""Of the fit of a table to its margins."""

_MAX_TRIES = 10_000
"""Draws of random labels."""


def label_groups(
    fed: FederatedDataset,
    num_clients: int,
    fractions: Sequence[float] = (0.1, 0.2, 0.5),
    seed: int = 0,
    group_shares: Sequence[float] | None = None,
    sizes: Literal["by_class", "equal"] = "by_class",
    holders: Literal["even", "random"] = "even",
) -> FederatedDataset:
    """Gives groups of clients different shares of the labels, such as one class, a fifth or half of them.

    The clients form as many groups as there are fractions, the first clients being the first group. A client of a group
    with fraction f holds ``max(1, round(f C))`` of the C classes. By default (``holders="even"``) they are drawn at
    random among those that the fewest clients hold so far, so that every class has about as many holders as any other.
    With ``holders="random"`` each client draws its labels from all classes, and all draw again until every class has a
    holder: some classes have two or three times as many holders as others.

    With ``sizes="by_class"``, the holders of a class share its examples evenly: clients with more labels have more
    examples.

    With ``sizes="equal"``, clients have as equal numbers of examples as their labels allow, and all examples are used.
    A client with k labels wants ``N / (M k)`` examples of each. Where holders are even, clients with fewer labels
    choose first, at random among the classes that are wanted least for their size. Examples of a class are divided by
    iterative proportional fitting, which begins with even shares, to clients of ``N / M`` examples each: where that is
    possible it is the result, up to an example for each label; elsewhere sizes come as near to it as they can, in
    relative entropy.

    Args:
      fed: the data set.
      num_clients: M, at least the number of groups.
      fractions: share of the labels that a client of each group holds, in (0, 1].
      seed: >= 0.
      group_shares: share of the clients in each group, in (0, 1], which add up to 1; default equal shares. Group g
        begins with the client of number ``ceil(M s)``, where s is the share of the groups before it.
      sizes: ``"by_class"`` or ``"equal"``.
      holders: ``"even"`` or ``"random"``.

    Returns:
      The data set with clients.

    Raises:
      ValueError: an argument out of range, a group without clients, clients that hold too few labels to cover all
        classes, no draw of random labels that covers them, or a client without examples.

    References:
      Liu et al., TACO: Tackling over-correction in federated learning with tailored adaptive correction, Table II.
      Interpretations: the paper states neither how labels are drawn, nor how the examples of a class are shared, nor
      that every class has a holder.
    """
    check(fed, num_clients, seed)
    checks.one_of("sizes", sizes, ("by_class", "equal"))
    checks.one_of("holders", holders, ("even", "random"))
    group = _groups(num_clients, fractions, group_shares)
    num_classes = fed.num_classes
    classes, per_class = np.unique(labels_of(fed), return_counts=True)  # those without an example have no holder
    labels = np.maximum(1, np.rint(np.asarray(fractions) * num_classes)).astype(np.int64)[group]
    labels = np.minimum(labels, len(classes))
    if labels.sum() < len(classes):
        raise checks.ArgumentError(
            "num_clients",
            f"with fractions={tuple(fractions)} they hold {labels.sum()} labels, which "
            f"cannot cover the {len(classes)} classes of {fed.name}",
            given=num_clients,
        )
    rng = np.random.default_rng(seed)
    random = holders == "random"
    holds = _random_holders(rng, labels, len(classes)) if random else _even_holders(rng, labels, per_class, sizes)
    shares = _shares(holds, per_class) if sizes == "equal" else None
    owner = np.empty(fed.train.num_examples, np.int64)
    for place, (label, held) in enumerate(zip(classes, holds, strict=True)):
        examples = rng.permutation(np.flatnonzero(labels_of(fed) == label))
        if shares is None:
            owner[examples] = np.resize(rng.permutation(np.flatnonzero(held)), len(examples))
        else:
            order = rng.permutation(num_clients)  # so that rounding favours nobody
            cuts = np.rint(np.cumsum(shares[place, order]) * len(examples))
            owner[examples] = order[np.searchsorted(cuts, np.arange(len(examples)), side="right")]
    if np.bincount(owner, minlength=num_clients).min() == 0:
        raise checks.ArgumentError(
            "num_clients", f"some would have no example of {fed.name}; try fewer clients", given=num_clients
        )
    arguments = f"fractions={_listed(fractions)}"
    arguments += "" if group_shares is None else f", group_shares={_listed(group_shares)}"
    arguments += f", seed={seed}" + (", sizes=equal" if sizes == "equal" else "") + (", holders=random" * random)
    return with_clients(fed, owner, num_clients, f"label_groups({arguments})", rng)


def _listed(values: Sequence[float]) -> str:
    return f"({', '.join(f'{value:g}' for value in values)})"


def _groups(num_clients: int, fractions: Sequence[float], group_shares: Sequence[float] | None) -> np.ndarray:
    """The group of each client, ``[M]``."""
    for name, values in (
        ("fractions", fractions),
        ("group_shares", fractions if group_shares is None else group_shares),
    ):
        if np.ndim(values) != 1 or not len(values):
            raise checks.ArgumentError(name, "must be a sequence of numbers, one for each group", given=values)
        for value in values:
            checks.in_range(name, value, 0.0, 1.0, open_low=True)
    checks.count("num_clients", num_clients, len(fractions))
    if group_shares is None:
        return np.arange(num_clients) * len(fractions) // num_clients
    if len(group_shares) != len(fractions) or abs(sum(group_shares) - 1) > 1e-6:
        raise checks.ArgumentError(
            "group_shares",
            f"must be {len(fractions)} numbers, as fractions, that add up to 1",
            given=tuple(group_shares),
        )
    starts = np.ceil(np.cumsum(group_shares)[:-1] * num_clients - 1e-6)  # up to rounding
    group = np.searchsorted(starts, np.arange(num_clients), side="right")
    if len(np.unique(group)) < len(fractions):
        raise checks.ArgumentError(
            "group_shares", f"must give every group one of num_clients={num_clients} clients", given=tuple(group_shares)
        )
    return group


def _even_holders(rng: np.random.Generator, labels: np.ndarray, per_class: np.ndarray, sizes: str) -> np.ndarray:
    """Which client holds which class, ``[C, M]``, given the number of labels ``[M]`` of each client."""
    num_classes, num_clients = len(per_class), len(labels)
    holds = np.zeros((num_classes, num_clients), bool)
    order = rng.permutation(num_clients)
    if sizes == "equal":
        order = order[np.argsort(labels[order], kind="stable")]  # those that want most of a class first
    for client in order:
        wanted = holds @ (1 / labels) / per_class if sizes == "equal" else holds.sum(axis=1)
        holds[np.lexsort((rng.random(num_classes), wanted))[: labels[client]], client] = True
    return holds


def _random_holders(rng: np.random.Generator, labels: np.ndarray, num_classes: int) -> np.ndarray:
    """The same, each client's labels drawn from all classes."""
    for _ in range(_MAX_TRIES):
        rank = rng.permuted(np.tile(np.arange(num_classes), (len(labels), 1)), axis=1)
        holds = (rank < labels[:, None]).T
        if holds.any(axis=1).all():
            return holds
    raise checks.ArgumentError(
        "holders",
        f"none of {_MAX_TRIES} draws gave each of {num_classes} classes a holder; try more clients, "
        f"larger fractions or holders='even'",
        given="random",
    )


def _shares(holds: np.ndarray, per_class: np.ndarray) -> np.ndarray:
    """Shares ``[C, M]`` of each class, which holders divide so that their sizes are nearly equal."""
    size = per_class.sum() / holds.shape[1]
    shares = holds / holds.sum(axis=1, keepdims=True)
    for _ in range(_SWEEPS):
        shares = shares * (size / np.maximum(per_class @ shares, 1e-300))
        shares = shares / np.maximum(shares.sum(axis=1, keepdims=True), 1e-300)
    return shares
