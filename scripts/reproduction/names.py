"""Names and numbers as the papers write them."""

from typing import Any

NAMES = {
    "fedavg": "FedAvg",
    "fltrust": "FLTrust",
    "rfa": "RFA",
    "raga": "RAGA",
    "br_drag": "BR-DRAG",
    "root_only": "root data only",
    "from_aggregator": "no correction",
    "scaffold": "SCAFFOLD",
    "fedacg": "FedACG",
    "taco": "TACO",
    "krum": "Krum",
    "trimmed_mean": "trimmed mean",
    "scale_noise": "noise injection",
    "sign_flip": "sign flipping",
    "label_flip": "label flipping",
    "gaussian": "Gaussian noise",
    "none": "no attack",
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
}
"""By label of a sweep; other labels are shown as they are."""

SYMBOLS = {
    "aggregator.alpha": "\N{GREEK SMALL LETTER ALPHA} = {}",
    "aggregator.c": "c = {}",
    "algorithm.gamma": "\N{GREEK SMALL LETTER GAMMA} = {}",
    "algorithm.kappa": "\N{GREEK SMALL LETTER KAPPA} = {}",
    "algorithm.max_strikes": "\N{GREEK SMALL LETTER LAMDA} = {}",
    "partition.beta": "Dirichlet({})",
    "partition.q": "q = {}",
    "cohort_size": "S = {}",
}
"""By axis, the format of its values."""


def written(axis: str, label: Any) -> str:
    """A value of an axis, as text."""
    if axis == "byzantine_fraction":
        return f"{percent(label, 0)} malicious"
    if axis == "root_bias":
        return f"{percent(label, 0)} of the root data of one class" if label else "root data as the clients'"
    return SYMBOLS.get(axis, "{}").format(NAMES.get(label, label))


def percent(share: float, digits: int = 1) -> str:
    """A share between 0 and 1, in percent."""
    return f"{100 * share:.{digits}f} %"
