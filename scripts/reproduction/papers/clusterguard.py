"""Claims of the paper on ClusterGuardFL (Section V, Tables II and III)."""

from typing import NamedTuple

from reproduction.judging.claims import Claim, method
from reproduction.judging.questions import ahead, every, highest
from reproduction.targets.target import CLUSTERGUARD

OWN = "ClusterGuardFL"
DATA = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
ATTACKS = {"none": "no attack", "label_flip": "flipped labels", "gaussian": "Gaussian noise"}
TARGETS = {"Table II": "clusterguard002_table2", "Table III": "clusterguard002_table3"}


class Entry(NamedTuple):
    """The best method in a column of a table.

    Attributes:
      data: data set.
      attack: attack.
      best: the method.
      accuracy: its accuracy in percent.
      other: accuracy of ClusterGuardFL in percent, or of the next method if ClusterGuardFL is best.
    """

    data: str
    attack: str
    best: str
    accuracy: float
    other: float


TABLES = {
    "Table II": (
        Entry("mnist", "none", "FedAvg", 94.97, 94.84),
        Entry("mnist", "label_flip", OWN, 94.13, 92.02),
        Entry("mnist", "gaussian", OWN, 93.60, 91.22),
        Entry("fashion_mnist", "none", "FedAvg", 91.98, 91.53),
        Entry("fashion_mnist", "label_flip", OWN, 89.71, 86.49),
        Entry("fashion_mnist", "gaussian", OWN, 90.44, 88.23),
        Entry("cifar10", "none", OWN, 65.15, 64.97),
        Entry("cifar10", "label_flip", OWN, 58.93, 51.42),
        Entry("cifar10", "gaussian", OWN, 62.18, 59.14),
    ),
    "Table III": (
        Entry("mnist", "none", "Trimmed Mean", 90.36, 90.28),
        Entry("mnist", "label_flip", OWN, 89.11, 83.44),
        Entry("mnist", "gaussian", OWN, 88.98, 82.98),
        Entry("fashion_mnist", "none", "FedAvg", 87.13, 87.06),
        Entry("fashion_mnist", "label_flip", OWN, 86.83, 86.26),
        Entry("fashion_mnist", "gaussian", "Krum", 86.54, 84.41),
        Entry("cifar10", "none", "FedAvg", 61.79, 61.10),
        Entry("cifar10", "label_flip", OWN, 57.87, 49.85),
        Entry("cifar10", "gaussian", OWN, 57.14, 43.69),
    ),
}


def _column(table: str, entry: Entry) -> Claim:
    """The best method of a column."""
    where = {"data": entry.data, "attack": entry.attack}
    text = f"{entry.best} is first, {DATA[entry.data]}, {ATTACKS[entry.attack]}"
    theirs = f"{entry.accuracy:.1f} %, {OWN if entry.best != OWN else 'the next'} {entry.other:.1f} %"
    return Claim(CLUSTERGUARD, table, text, theirs, TARGETS[table], highest("method", entry.best, where))


def _undisturbed(table: str, theirs: str) -> Claim:
    """The accuracy that ClusterGuardFL loses under the attacks, on MNIST and Fashion-MNIST."""
    losses = [
        ahead(method(OWN, data=data, attack=attack), method(OWN, data=data, attack="none"), by=-0.03)
        for data in ("mnist", "fashion_mnist")
        for attack in ("label_flip", "gaussian")
    ]
    text = f"no attack costs {OWN} more than 3 points, MNIST and Fashion-MNIST"
    return Claim(CLUSTERGUARD, table, text, theirs, TARGETS[table], every(*losses))


CLAIMS = (
    *(_column(table, entry) for table, entries in TABLES.items() for entry in entries),
    _undisturbed("Table II", "-0.7, -1.2, -1.8, -1.1 points"),
    _undisturbed("Table III", "-1.2, -1.3, -0.2, -2.7 points"),
)
