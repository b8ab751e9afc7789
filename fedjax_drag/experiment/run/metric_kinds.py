"""The metrics of a history by name: the title of each and its kind, which decides how it is shown."""

import enum
from collections.abc import Mapping
from typing import NamedTuple


class Kind(enum.Enum):
    """What a metric of each evaluation measures."""

    SHARE = "in [0, 1], shown in percent"
    VALUE = "a real number"
    COUNT = "a number of clients or messages"
    COST = "rounds, work and traffic, of which no curve is drawn"


class Metric(NamedTuple):
    """A metric with one number for each evaluation."""

    title: str
    kind: Kind


METRICS: Mapping[str, Metric] = {
    "test_accuracy": Metric("test accuracy", Kind.SHARE),
    "test_loss": Metric("test loss", Kind.VALUE),
    "validation_accuracy": Metric("validation accuracy", Kind.SHARE),
    "validation_loss": Metric("validation loss", Kind.VALUE),
    "train_loss": Metric("training loss", Kind.VALUE),
    "output_accuracy": Metric("test accuracy of the model handed out", Kind.SHARE),
    "output_loss": Metric("test loss of the model handed out", Kind.VALUE),
    "output_validation_accuracy": Metric("validation accuracy of the model handed out", Kind.SHARE),
    "output_validation_loss": Metric("validation loss of the model handed out", Kind.VALUE),
    "attack_success_rate": Metric("attack success rate", Kind.SHARE),
    "client_accuracy_mean": Metric("client accuracy, mean", Kind.SHARE),
    "client_accuracy_worst_tenth": Metric("client accuracy, worst tenth", Kind.SHARE),
    "client_accuracy_std": Metric("client accuracy, standard deviation", Kind.SHARE),
    "cosine_to_benign": Metric("cosine of the update with the benign mean", Kind.VALUE),
    "malicious_weight": Metric("malicious clients' share of the weights", Kind.SHARE),
    "detection_tpr": Metric("malicious clients rejected", Kind.SHARE),
    "detection_fpr": Metric("benign clients rejected", Kind.SHARE),
    "num_rejected": Metric("messages rejected as not finite or too long", Kind.COUNT),
    "epsilon": Metric("epsilon spent", Kind.VALUE),
    "num_expelled": Metric("clients expelled", Kind.COUNT),
    "round": Metric("communication round", Kind.COST),
    "local_steps": Metric("local steps", Kind.COST),
    "participants": Metric("participants", Kind.COST),
    "drawn": Metric("clients drawn", Kind.COST),
    "silent_rounds": Metric("rounds without an answer", Kind.COST),
    "slowest_steps": Metric("local steps of the slowest client", Kind.COST),
    "gradient_evaluations": Metric("gradient evaluations", Kind.COST),
    "vector_operations": Metric("vector operations", Kind.COST),
    "bytes_down": Metric("bytes sent to clients", Kind.COST),
    "bytes_up": Metric("bytes sent by clients", Kind.COST),
}
"""Metrics of the package, in the order in which they are shown; those of a rule's own follow."""

PER_CLIENT: Mapping[str, str] = {
    "divergence": "degree of divergence (DoD)",
    "alpha": "correction coefficient alpha",
    "weight": "weight in the aggregate",
    "cosine": "cosine with the reference",
}
"""Titles of metrics with one number for each client of the cohort, in the order in which they are shown."""

OF_ALL: Mapping[str, str] = {
    "client_accuracy": "client accuracy",
    "class_accuracy": "test accuracy by class",
}
"""Titles of metrics with one number for each client of the federation, or for each class, and not of the cohort."""

IDENTITY = ("client_ids", "malicious", "valid")
"""Metrics that say which clients the cohort has, and no quantity of theirs."""


def kind(name: str) -> Kind:
    """The kind of a metric; a rule's own metric is a plain value."""
    return METRICS[name].kind if name in METRICS else Kind.VALUE


def title(name: str) -> str:
    """The title of a metric; a rule's own metric is called by its name."""
    if name in METRICS:
        return METRICS[name].title
    return {**PER_CLIENT, **OF_ALL}.get(name, name.replace("_", " "))
