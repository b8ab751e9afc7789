"""The federation as arrays: one copy of the examples, and clients as rows of indices into it."""

import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Int

from fedjax_drag import checks
from fedjax_drag.data import FederatedDataset
from fedjax_drag.types import Batch

ROOT_SOURCES = ("benign", "all", "biased")
"""Whose examples the root data are drawn from."""


DEFAULT_FRACTION = 0.2
"""Share of its examples that a client holds out with ``evaluate_clients=True``."""


class HeldOut(NamedTuple):
    """Held-out examples, client by client.

    Attributes:
      examples: indices ``[H]`` into the training examples or ``client_test``; padded behind the last client's.
      counts: ``[M]`` int32, how many of them are each client's.
    """

    examples: Int[Array, " examples"]
    counts: Int[Array, " federation"]

    def of(self, clients: np.ndarray) -> "HeldOut":
        """Those of the clients that are marked in ``clients`` ``[M]`` bool, on the host."""
        owner = np.repeat(np.arange(len(self.counts)), self.counts)
        return _on_host(np.asarray(self.examples)[clients[owner]], np.where(clients, self.counts, 0))


class ClientSplit(NamedTuple):
    """A data set divided into what the clients train on and what they hold out.

    Attributes:
      training: the data set, with shorter rows where training examples are held out.
      held_out: of every client, as indices; None if nothing is held out.
      examples: of which they are indices.
    """

    training: FederatedDataset
    held_out: HeldOut | None = None
    examples: Batch | None = None


def lists_of(data: FederatedDataset) -> tuple[np.ndarray, np.ndarray]:
    """The lists of examples of all clients and their lengths, ``rows`` and ``counts`` of data that are split."""
    assert data.rows is not None
    assert data.counts is not None
    return data.rows, data.counts


def hold_out(data: FederatedDataset, share: bool | float) -> ClientSplit:
    """Takes a share of each client's examples from the end of its row; rows are in random order.

    A client with n examples holds out ``round(share * n)`` of them, at least one and at most n - 1; a client with a
    single example holds out none. Of clients that have test examples of their own nothing is taken by default.

    Args:
      data: a partitioned data set, which is not changed.
      share: in (0, 1); True for the clients' own test examples, or :data:`DEFAULT_FRACTION` where they have none; False
        for nothing.

    Raises:
      ValueError: an example is in the rows twice, so that what one row holds out could be trained on by another.
    """
    is_default = isinstance(share, bool | np.bool_)
    if not share:
        return ClientSplit(data)
    if data.client_test is not None and is_default:
        examples, indices, counts = data.client_test
        return ClientSplit(data, _on_host(indices, counts), examples)
    rows, counts = lists_of(data)
    place = np.arange(rows.shape[1])
    examples = rows[place < counts[:, None]]
    if len(np.unique(examples)) < len(examples):
        raise ValueError(f"evaluate_clients={share}: an example is in the rows of clients twice; must be there once")
    fraction = DEFAULT_FRACTION if is_default else share
    number = np.minimum(np.maximum(np.rint(fraction * counts), 1), counts - 1).astype(np.int32)
    left = counts - number
    held = rows[(place >= left[:, None]) & (place < counts[:, None])]
    rows = np.where(place < left[:, None], rows, 0)[:, : left.max()]
    return ClientSplit(dataclasses.replace(data, rows=rows, counts=left), _on_host(held, number), data.train)


def _on_host(examples: np.ndarray, counts: np.ndarray) -> HeldOut:
    both: list[Any] = [examples.astype(np.int32), counts.astype(np.int32)]
    return HeldOut(*both)


class Federation(NamedTuple):
    """All data that a compiled round reads.

    Attributes:
      train: every training example, as stored.
      rows: ``[M, L]`` int32, each client's indices into ``train``, in random order, padded.
      counts: ``[M]`` int32, how many entries of a row are real.
      malicious: ``[M]`` bool, clients that are malicious for the whole run.
      root_row: ``[R]`` int32, the server's root data, padded; empty if no rule needs it.
      root_count: how many entries of ``root_row`` are real, int32 scalar.
      malicious_per_cohort: how many clients of each cohort are malicious, drawn anew in every round, int32 scalar;
        None if ``malicious`` holds for the whole run.
      held_out: examples of the benign clients that nobody trains on; None unless clients are evaluated.
      availability: ``[T, M]`` bool or float32, probabilities with which a client can be drawn in round t, t + T, ...;
        None if everybody always can.
      dropout_rate: probability with which a client that was drawn does not answer, float32 scalar; None for 0.
      client_test: examples that ``held_out`` has indices into; None where it has those of ``train``.
    """

    train: Batch
    rows: jax.Array
    counts: jax.Array
    malicious: jax.Array
    root_row: jax.Array
    root_count: jax.Array
    malicious_per_cohort: jax.Array | None = None
    held_out: HeldOut | None = None
    availability: jax.Array | None = None
    dropout_rate: jax.Array | None = None
    client_test: Batch | None = None

    @property
    def evaluated(self) -> tuple[Batch, HeldOut] | None:
        """What the evaluation of clients reads: examples, and which of them are whose."""
        if self.held_out is None:
            return None
        return self.train if self.client_test is None else self.client_test, self.held_out


def count_malicious(
    num_clients: int, cohort_size: int, fraction: float | None = None, number: int | None = None, of: str = "federation"
) -> int:
    """How many clients are malicious, of the federation or of each cohort.

    Args:
      num_clients: M.
      cohort_size: S.
      fraction: share of malicious clients, rounded to the nearest number of clients, of two to the even one; None for
        none.
      number: of malicious clients; instead of ``fraction``.
      of: ``"federation"`` or ``"cohort"``.

    Raises:
      ValueError: if there are more of them than clients, both are given, or a ``fraction`` above 0 is not one client.
    """
    clients = num_clients if of == "federation" else cohort_size
    if number is None:
        number = round((fraction or 0.0) * clients)
        if fraction and not number:
            who = f"{clients} clients" if of == "federation" else f"a cohort of {clients}"
            raise ValueError(
                f"byzantine_fraction={fraction}: is no client of {who}; must be 0, or more than {0.5 / clients:.4g}"
            )
        return number
    checks.count("num_byzantine", number, 0, clients)
    if fraction:
        raise ValueError(f"num_byzantine={number}, byzantine_fraction={fraction}: must be one of the two")
    return number


def malicious_per_cohort(num_clients: int, cohort_size: int, number: int, of: str = "federation") -> tuple[int, int]:
    """How many malicious clients a cohort has on the average, rounded up, and how many it can have.

    Args:
      num_clients: M.
      cohort_size: S.
      number: of malicious clients, from :func:`count_malicious`.
      of: ``"federation"`` or ``"cohort"``.
    """
    if of == "cohort":
        return number, number
    return -(-number * cohort_size // num_clients), min(number, cohort_size)


def choose_root(
    data: FederatedDataset,
    malicious: np.ndarray,
    root_size: int | None,
    bias: float = 0.0,
    source: str = "benign",
    seed: int = 0,
) -> np.ndarray:
    """Draws the server's root data.

    From benign clients they are drawn in equal parts: rows are in random order, so a prefix of each is a random part
    of it, and what a client with few examples lacks is taken evenly from the others. From all clients they are drawn
    uniformly at random, or so within class 0 and within the other classes.

    Args:
      data: a partitioned data set.
      malicious: ``[M]`` bool.
      root_size: number of examples; default 3,000, or a tenth of the data they are drawn from where that is less.
      bias: least share of them that are of class 0, in [0, 1]; with ``source="biased"`` their share.
      source: ``"benign"``, in equal parts from the clients that are not malicious (Xiao et al.), ``"all"``, from
        the examples of all clients (Zhu et al.), or ``"biased"``, from them too, but with no more of class 0 than
        ``bias`` says (Cao et al., FLTrust, case II). A malicious client's examples are the true ones.
      seed: of the draw from all clients.

    Returns:
      Indices into ``data.train``, ``[root_size]`` int32.

    Raises:
      ValueError: if the source holds fewer examples, or fewer of class 0.
    """
    pools = _pools(data, malicious, source, seed)
    total = len(pools.examples)
    if total == 0:
        raise ValueError(
            "byzantine_fraction: root data come from benign clients, and every client is malicious; "
            "root_source='all' takes them from all clients"
        )
    if root_size is None:
        root_size = max(1, min(3000, total // 10))
    checks.count("root_size", root_size, 1, total)
    uses_class = bias > 0 or source == "biased"
    is_class = data.labels[pools.examples] == 0 if uses_class else np.zeros(total, bool)
    wanted, of_class = round(bias * root_size), pools.only(is_class)
    biased = of_class.take_evenly(wanted)
    rest = pools.only(~is_class if source == "biased" else ~np.isin(pools.examples, biased))
    for part, number, which in ((of_class, wanted, "class 0"), (rest, root_size - wanted, "other classes")):
        if number > (held := len(part.examples)):
            holders = "the benign clients hold" if source == "benign" else "the clients hold"
            raise ValueError(f"root_bias={bias}: needs {number} examples of {which}; {holders} {held}")
    return np.concatenate([biased, rest.take_evenly(root_size - wanted)]).astype(np.int32)


class _Pools(NamedTuple):
    """Lists of examples for root data, each in random order.

    Attributes:
      examples: those of all lists, one list after another.
      sizes: how many of them each list has.
    """

    examples: np.ndarray
    sizes: np.ndarray

    @property
    def owner(self) -> np.ndarray:
        """The list that each example is in."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    def only(self, chosen: np.ndarray) -> "_Pools":
        """The lists of those examples that are marked in ``chosen``."""
        return _Pools(self.examples[chosen], np.bincount(self.owner[chosen], minlength=len(self.sizes)))

    def take_evenly(self, total: int) -> np.ndarray:
        """The beginnings of the lists, ``total`` examples in all: the first of every list, then the second, ..."""
        place = np.arange(len(self.examples)) - np.repeat(np.cumsum(self.sizes) - self.sizes, self.sizes)
        return self.examples[np.sort(np.lexsort((-self.owner, place))[:total])]


def _pools(data: FederatedDataset, malicious: np.ndarray, source: str, seed: int) -> _Pools:
    """One list for each client, empty for malicious ones, or one list of all examples."""
    rows, counts = lists_of(data)
    sizes = np.where(malicious, 0, counts) if source == "benign" else counts
    examples = rows[np.arange(rows.shape[1]) < sizes[:, None]]
    if source == "benign":
        return _Pools(examples, sizes)
    examples = np.random.default_rng([seed, 2]).permutation(np.unique(examples))
    return _Pools(examples, np.array([len(examples)]))
