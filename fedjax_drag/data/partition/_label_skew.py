"""Splits that give clients different labels; their sizes follow from that.

Random numbers of examples by class and client are drawn before any example is assigned, so that repeated draws are
cheap.
"""

from typing import Literal

import numpy as np

from fedjax_drag import checks
from fedjax_drag.data.dataset import FederatedDataset
from fedjax_drag.data.partition._assign import by_class, check, labels_of, with_clients

_STEPS = 1 << 32
"""Values of a uniform draw: a client's number plus such a draw is exact in float64 for up to 2^20 clients."""


def dirichlet(
    fed: FederatedDataset,
    num_clients: int,
    beta: float,
    seed: int = 0,
    min_size: int = 1,
    max_tries: int = 10_000,
    balanced: bool = False,
    over: Literal["clients", "labels", "labels_in_turn"] = "clients",
) -> FederatedDataset:
    """Splits each class in proportions drawn from a Dirichlet distribution (Yurochkin et al., 2019).

    Over clients (default): for every class independently, the clients' shares of it are ``p ~ Dir(beta, ..., beta)``;
    its examples, in random order, are cut at the rounded cumulative shares. The whole partition is drawn until every
    client has ``min_size`` examples: the result is distributed as under that condition.

    With ``balanced``, classes are assigned in the order of their labels, and a client that already has ``N / M`` of
    the N examples or more gets none of the classes that follow: its share is 0, and those of the others are scaled to
    add up to 1. The standard deviation of the sizes is then 20 to 30 % lower, and late classes are concentrated on
    fewer clients than without.

    Over labels: every client has a mix of labels ``p ~ Dir(beta, ..., beta)`` and an equal number of examples, to
    within one. Clients' places are filled in random order, each with a label drawn from its client's mix. A class
    that is exhausted is dropped from the mixes, and the rest of each is scaled to add up to 1: what is drawn late
    differs from the mixes, the more so the smaller ``beta``. Over labels in turn: the same, but all places of a client
    are filled before those of the next one, so that the first clients have their mixes and the last ones share what is
    left of few classes.

    Args:
      fed: the data set.
      num_clients: M.
      beta: concentration, in [1e-6, 1e6]: a small one gives few classes per client and unequal sizes, a large one
        is close to iid.
      seed: >= 0.
      min_size: examples that every client must have, >= 1.
      max_tries: number of draws at most, >= 1.
      balanced: whether clients that have their even share of the examples get no more; not over labels, where all
        have it.
      over: ``"clients"``, the shares of each class over clients are drawn; ``"labels"``, the mix of labels of each
        client, with places filled in random order; or ``"labels_in_turn"``, client by client.

    Returns:
      The data set with clients.

    Raises:
      ValueError: an argument out of range, ``num_clients * min_size`` above the number of training
        examples, no draw that gave every client enough, or ``balanced`` over labels.

    References:
      Yurochkin et al., Bayesian nonparametric federated learning of neural networks, 2019. The text does not
      balance; its authors' code, NIID-Bench (Li et al., 2022) and, by default, Flower Datasets do. Over labels
      is the scheme of Hsu et al., Measuring the effects of non-identical data distribution for federated visual
      classification, 2019; with random order and exhausted classes as in the released code of FedDyn (Acar et al.,
      2021), which leaves the remainder of N / M out. In turn is the order of the released code of FedACG (Kim et al.,
      2024), which weighs every example that is left, and not every class, by its label's share.
    """
    check(fed, num_clients, seed, min_size)
    checks.in_range("beta", beta, 1e-6, 1e6)
    checks.count("max_tries", max_tries, 1)
    checks.flag("balanced", balanced)
    checks.one_of("over", over, ("clients", "labels", "labels_in_turn"))
    if balanced and over != "clients":
        raise checks.ArgumentError(
            "balanced", f"must be False with over={over!r}, where all clients have an equal number", given=True
        )
    per_class = np.bincount(labels_of(fed), minlength=fed.num_classes)

    def draw_over_clients(rng: np.random.Generator) -> np.ndarray:
        shares = rng.dirichlet(np.full(num_clients, beta), size=fed.num_classes)
        return _cut(shares, per_class[:, None])

    def draw_balanced(rng: np.random.Generator) -> np.ndarray:
        counts = np.zeros((fed.num_classes, num_clients), np.int64)
        for label, available in enumerate(per_class):
            below = np.flatnonzero(counts.sum(axis=0) * num_clients < per_class.sum())
            if available:  # some client is then below its even share
                # Some components of a Dirichlet draw, scaled to add up to 1, are a Dirichlet draw too.
                counts[label, below] = _cut(rng.dirichlet(np.full(len(below), beta)), available)
        return counts

    def draw_over_labels(rng: np.random.Generator) -> np.ndarray:
        logs = log_mixes(rng, num_clients, fed.num_classes, beta)
        return draw_counts(rng, logs, per_class, in_turn=over == "labels_in_turn")

    arguments = f"beta={beta}, seed={seed}" + (f", min_size={min_size}" if min_size != 1 else "")
    arguments += ", balanced" if balanced else "" if over == "clients" else f", over {over.replace('_', ' ')}"
    draw = draw_balanced if balanced else draw_over_clients if over == "clients" else draw_over_labels
    options = {"seed": seed, "min_size": min_size, "max_tries": max_tries}
    advice = "try a larger beta, fewer clients or a smaller min_size"
    return by_class(fed, num_clients, f"dirichlet({arguments})", draw, **options, advice=advice)


def _cut(shares: np.ndarray, available: np.ndarray) -> np.ndarray:
    """Integers that add up to ``available`` along the last axis, nearly in the proportions ``shares``."""
    cuts = np.rint(np.minimum(np.cumsum(shares, axis=-1), 1.0) * available).astype(np.int64)
    cuts[..., -1:] = available  # also if rounding makes the shares add up to less than 1
    return np.diff(cuts, axis=-1, prepend=0)


def log_mixes(rng: np.random.Generator, num_clients: int, num_classes: int, beta: float) -> np.ndarray:
    """Logarithms of ``p_m ~ Dir(beta, ..., beta)``, ``[M, C]``, each up to a constant of its client.

    For a small ``beta`` components are below every floating point number, hence the logarithm: Gamma(beta) is
    distributed as Gamma(beta + 1) U^(1 / beta).
    """
    shape = (num_clients, num_classes)
    return np.log(rng.standard_gamma(beta + 1, shape)) - rng.standard_exponential(shape) / beta


def draw_counts(rng: np.random.Generator, logs: np.ndarray, per_class: np.ndarray, in_turn: bool = False) -> np.ndarray:
    """Draws a label for each place of each client, where places of all clients are filled in random order or in turn.

    The client of a place draws from its mix; a class without examples left is dropped from all mixes, and the rest of
    each is scaled to add up to 1.

    Args:
      rng: of all draws.
      logs: logarithms of the mixes ``[M, C]``, up to a constant of each client.
      per_class: examples ``[C]``; the clients' numbers of places add up to as many and differ by at most one.
      in_turn: whether all places of a client are filled before those of the next one.

    Returns:
      Numbers of examples ``[C, M]``.
    """
    num_clients, num_classes = logs.shape
    client = np.arange(per_class.sum()) % num_clients
    client = np.sort(client) if in_turn else rng.permutation(client)
    left = per_class > 0
    label = _draw(rng, logs, left, client)
    # The first class to run out decides from where on labels must be drawn again. Of those behind it, only its own
    # change: the others are distributed as drawn from the other classes alone.
    while (wanted := np.flatnonzero(np.bincount(label, minlength=num_classes) > per_class)).size:
        ends = [np.flatnonzero(label == k)[per_class[k]] for k in wanted]
        first = int(np.argmin(ends))
        left[wanted[first]] = False
        again = ends[first] + np.flatnonzero(label[ends[first] :] == wanted[first])
        label[again] = _draw(rng, logs, left, client[again])
    cells = np.bincount(label * num_clients + client, minlength=num_classes * num_clients)
    return cells.reshape(num_classes, num_clients)


def _draw(rng: np.random.Generator, logs: np.ndarray, left: np.ndarray, client: np.ndarray) -> np.ndarray:
    """A label for each entry of ``client``, from that client's mix of the classes ``left`` ``[C]``."""
    masked = np.where(left, logs, -np.inf)
    cumulative = np.cumsum(np.exp(masked - masked.max(axis=1, keepdims=True)), axis=1)
    cumulative /= cumulative[:, -1:]
    # One sorted list for all clients: the entries of client m are in [m, m + 1].
    ordered = (cumulative + np.arange(len(logs))[:, None]).ravel()
    uniform = rng.integers(_STEPS, size=len(client)) / _STEPS
    return np.searchsorted(ordered, client + uniform, side="right") - client * logs.shape[1]


def label_affinity(fed: FederatedDataset, num_clients: int, q: float, seed: int = 0) -> FederatedDataset:
    """Gives an example of label l to client ``l mod M`` with probability q, else to another one.

    With C classes there are ``G = min(M, C)`` groups of clients, group g being the clients m with
    ``m mod G = g``. An example of label l goes to group ``l mod G`` with probability q, to each other
    group with probability ``(1 - q) / (G - 1)``, and then to a member of the group uniformly. For
    ``M <= C`` a group is one client. **[reading]** for ``M > C`` the groups are those of Cao et al.
    (FLTrust, 2021): with groups of one client, all but C clients would belong to no label and, with q = 1, have no
    example.

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
    check(fed, num_clients, seed)
    checks.in_range("q", q, 0.0, 1.0)
    per_class = np.bincount(labels_of(fed), minlength=fed.num_classes)
    num_groups = min(num_clients, fed.num_classes)
    group = np.arange(num_clients) % num_groups
    own = group == (np.arange(fed.num_classes) % num_groups)[:, None]
    probability = np.where(own, q, (1 - q) / (num_groups - 1)) if num_groups > 1 else np.ones(own.shape)
    probability = probability / np.bincount(group)[group]

    def draw(rng: np.random.Generator) -> np.ndarray:
        return rng.multinomial(per_class, probability)

    advice = "try fewer clients or a q further from 0 and 1"
    description = f"label_affinity(q={q}, seed={seed})"
    return by_class(fed, num_clients, description, draw, seed=seed, max_tries=1000, advice=advice)


def shards(
    fed: FederatedDataset, num_clients: int, per_client: int = 2, seed: int = 0, shuffled: bool = True
) -> FederatedDataset:
    """Sorts the examples by label, cuts them into shards and gives each client a few (McMahan et al., 2017).

    There are ``num_clients * per_client`` shards, of sizes that differ by at most one; examples of one label are in
    random order. If no shard crosses a label, as for a balanced data set whose shards are a multiple of its classes, a
    client has at most ``per_client`` labels.

    Args:
      fed: the data set.
      num_clients: M.
      per_client: shards of each client, >= 1; there must be an example for every shard.
      seed: >= 0.
      shuffled: whether a client's list is in random order; else it has one shard after the other, each by label, which
        matters where every epoch is in that order (``epoch_order="fixed"``). What takes a part of a list, such as
        held-out examples of clients, root data and attacks on a fraction, then takes one end of the classes.

    Returns:
      The data set with clients, whose sizes differ by at most ``per_client``.

    Raises:
      ValueError: an argument out of range.
    """
    check(fed, num_clients, seed)
    available = fed.train.num_examples
    checks.count("per_client", per_client, 1, available // num_clients)
    checks.flag("shuffled", shuffled)
    rng = np.random.default_rng(seed)
    order = rng.permutation(available)
    order = order[np.argsort(labels_of(fed)[order], kind="stable")]  # by label, and random within
    num_shards = num_clients * per_client
    place = rng.permutation(num_shards)[np.arange(available) * num_shards // available]  # of each example's shard
    owner = np.empty(available, np.int64)
    owner[order] = place // per_client
    arguments = f"per_client={per_client}, seed={seed}" + ("" if shuffled else ", shuffled=False")
    rows = rng if shuffled else order[np.argsort(place, kind="stable")]
    return with_clients(fed, owner, num_clients, f"shards({arguments})", rows)
