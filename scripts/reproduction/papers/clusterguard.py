"""Claims of the paper on ClusterGuardFL (Section V, Tables II and III)."""

from typing import NamedTuple

from reproduction.judging.claims import Claim, method
from reproduction.judging.questions import ahead, every, highest
from reproduction.targets.target import CLUSTERGUARD, WORST

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
      other: ClusterGuardFL, or the next method if ClusterGuardFL is best.
      other_accuracy: its accuracy in percent.
    """

    data: str
    attack: str
    best: str
    accuracy: float
    other: str
    other_accuracy: float


TABLES = {
    "Table II": (
        Entry("mnist", "none", "FedAvg", 94.97, OWN, 94.84),
        Entry("mnist", "label_flip", OWN, 94.13, "Trimmed Mean", 92.02),
        Entry("mnist", "gaussian", OWN, 93.60, "Median", 91.22),
        Entry("fashion_mnist", "none", "FedAvg", 91.98, OWN, 91.53),
        Entry("fashion_mnist", "label_flip", OWN, 89.71, "Clustering", 86.49),
        Entry("fashion_mnist", "gaussian", OWN, 90.44, "Median", 88.23),
        Entry("cifar10", "none", OWN, 65.15, "FedAvg", 64.97),
        Entry("cifar10", "label_flip", OWN, 58.93, "FedAvg", 51.42),
        Entry("cifar10", "gaussian", OWN, 62.18, "Median", 59.14),
    ),
    "Table III": (
        Entry("mnist", "none", "Trimmed Mean", 90.36, OWN, 90.28),
        Entry("mnist", "label_flip", OWN, 89.11, "Clustering", 83.44),
        Entry("mnist", "gaussian", OWN, 88.98, "Trimmed Mean", 82.98),
        Entry("fashion_mnist", "none", "FedAvg", 87.13, OWN, 87.06),
        Entry("fashion_mnist", "label_flip", OWN, 86.83, "FedAvg", 86.26),
        Entry("fashion_mnist", "gaussian", "Krum", 86.54, OWN, 84.41),
        Entry("cifar10", "none", "FedAvg", 61.79, OWN, 61.10),
        Entry("cifar10", "label_flip", OWN, 57.87, "FedAvg", 49.85),
        Entry("cifar10", "gaussian", OWN, 57.14, "FedAvg", 43.69),
    ),
}


def _column(table: str, entry: Entry) -> Claim:
    """The best method of a column."""
    where = {"data": entry.data, "attack": entry.attack}
    text = f"{entry.best} is first, {DATA[entry.data]}, {ATTACKS[entry.attack]}"
    theirs = f"{entry.accuracy:.1f} %, {entry.other} {entry.other_accuracy:.1f} %"
    return Claim(CLUSTERGUARD, table, text, theirs, TARGETS[table], highest("method", entry.best, where))


def _lead(table: str, entry: Entry) -> Claim:
    """How far ClusterGuardFL is above the method that the paper has next to it."""
    where = {"data": entry.data, "attack": entry.attack}
    lead = round(entry.accuracy - entry.other_accuracy, 2)
    question = ahead(method(entry.best, **where), method(entry.other, **where), lead=lead / 100)
    text = f"{entry.best} is that far above {entry.other}, {DATA[entry.data]}, {ATTACKS[entry.attack]}"
    return Claim(CLUSTERGUARD, table, text, f"{lead:+.2f} points", TARGETS[table], question)


def _undisturbed(table: str, theirs: str) -> Claim:
    """The accuracy that ClusterGuardFL loses under the attacks, on MNIST and Fashion-MNIST."""
    losses = [
        ahead(method(OWN, data=data, attack=attack), method(OWN, data=data, attack="none"), by=-0.03)
        for data in ("mnist", "fashion_mnist")
        for attack in ("label_flip", "gaussian")
    ]
    text = f"no attack costs {OWN} more than 3 points, MNIST and Fashion-MNIST"
    return Claim(CLUSTERGUARD, table, text, theirs, TARGETS[table], every(*losses))


FAIRNESS = Claim(
    CLUSTERGUARD,
    "Table I",
    f"{OWN} is the fairest: its worst clients do best",
    "high, others at most moderate",
    "clusterguard002_table1",
    highest("method", OWN, {}, metric=WORST),
)

CLAIMS = (
    FAIRNESS,
    *(_column(table, entry) for table, entries in TABLES.items() for entry in entries),
    *(_lead(table, entry) for table, entries in TABLES.items() for entry in entries if entry.best == OWN),
    _undisturbed("Table II", "-0.7, -1.2, -1.8, -1.1 points"),
    _undisturbed("Table III", "-1.2, -1.3, -0.2, -2.7 points"),
)
