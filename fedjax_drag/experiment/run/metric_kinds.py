"""The metrics of a history by name: the title of each and its kind, which decides how it is shown."""

import enum
import re
from collections.abc import Mapping
from typing import NamedTuple

from fedjax_drag import metrics


class MetricKind(enum.Enum):
    """What a metric of each evaluation measures."""

    SHARE = "in [0, 1], shown in percent"
    VALUE = "a real number"
    COUNT = "a number of clients or messages"
    COST = "rounds, work and traffic, of which no curve is drawn"


class Metric(NamedTuple):
    """A metric with one number for each evaluation."""

    title: str
    kind: MetricKind


METRICS: Mapping[str, Metric] = {
    "test_accuracy": Metric("test accuracy", MetricKind.SHARE),
    "test_loss": Metric("test loss", MetricKind.VALUE),
    "validation_accuracy": Metric("validation accuracy", MetricKind.SHARE),
    "validation_loss": Metric("validation loss", MetricKind.VALUE),
    "train_loss": Metric("training loss", MetricKind.VALUE),
    "output_accuracy": Metric("test accuracy of the model handed out", MetricKind.SHARE),
    "output_loss": Metric("test loss of the model handed out", MetricKind.VALUE),
    "output_validation_accuracy": Metric("validation accuracy of the model handed out", MetricKind.SHARE),
    "output_validation_loss": Metric("validation loss of the model handed out", MetricKind.VALUE),
    "attack_success_rate": Metric("attack success rate", MetricKind.SHARE),
    "validation_attack_success_rate": Metric("attack success rate on validation examples", MetricKind.SHARE),
    "client_accuracy_mean": Metric("client accuracy, mean", MetricKind.SHARE),
    "client_accuracy_worst_tenth": Metric("client accuracy, worst tenth", MetricKind.SHARE),
    "client_accuracy_std": Metric("client accuracy, standard deviation", MetricKind.SHARE),
    "own_accuracy_mean": Metric("accuracy of own models, mean", MetricKind.SHARE),
    "own_accuracy_worst_tenth": Metric("accuracy of own models, worst tenth", MetricKind.SHARE),
    "own_accuracy_std": Metric("accuracy of own models, standard deviation", MetricKind.SHARE),
    "cosine_to_benign": Metric("cosine of the update with the benign mean", MetricKind.VALUE),
    "malicious_weight": Metric("malicious clients' share of the weights", MetricKind.SHARE),
    "detection_tpr": Metric("malicious clients rejected", MetricKind.SHARE),
    "detection_fpr": Metric("benign clients rejected", MetricKind.SHARE),
    "num_rejected": Metric("messages rejected as not finite or too long", MetricKind.COUNT),
    "epsilon": Metric("epsilon spent", MetricKind.VALUE),
    "num_expelled": Metric("clients expelled", MetricKind.COUNT),
    "num_too_stale": Metric("messages too stale to count", MetricKind.COUNT),
    "round": Metric("communication round", MetricKind.COST),
    "local_steps": Metric("local steps", MetricKind.COST),
    "participants": Metric("participants", MetricKind.COST),
    "drawn": Metric("clients drawn", MetricKind.COST),
    "silent_rounds": Metric("rounds without an answer", MetricKind.COST),
    "slowest_steps": Metric("local steps of the slowest client", MetricKind.COST),
    "seconds": Metric("simulated seconds", MetricKind.COST),
    "client_seconds": Metric("client seconds", MetricKind.COST),
    "gradient_evaluations": Metric("gradient evaluations", MetricKind.COST),
    "vector_operations": Metric("vector operations", MetricKind.COST),
    "bytes_down": Metric("bytes sent to clients", MetricKind.COST),
    "bytes_up": Metric("bytes sent by clients", MetricKind.COST),
}
"""Metrics of the package, in the order in which they are shown; those of a rule's own follow."""

PER_CLIENT: Mapping[str, str] = {
    "divergence": "degree of divergence (DoD)",
    "alpha": "correction coefficient alpha",
    "weight": "weight in the aggregate",
    "cosine": "cosine with the reference",
    "staleness": "updates since the client's start",
}
"""Titles of metrics with one number for each client of the cohort, in the order in which they are shown."""

OF_ALL: Mapping[str, str] = {
    "client_accuracy": "client accuracy",
    "own_accuracy": "accuracy of own models",
    "class_accuracy": "test accuracy by class",
}
"""Titles of metrics with one number for each client of the federation, or for each class, and not of the cohort."""

IDENTITY = ("client_ids", "malicious", "valid")
"""Metrics that say which clients the cohort has, and no quantity of theirs."""


_SHARES = {name for name in metrics.__all__ if getattr(metrics, name).is_share}
_LOWER = {name for name in metrics.__all__ if not getattr(metrics, name).higher_is_better}
_LOWER |= {"loss", "attack_success_rate", "malicious_weight", "detection_fpr", "epsilon"}
_MEASURED = re.compile(
    r"(?:test_|validation_|client_|own_|output_(?:validation_)?)(.+?)(?:_micro)?(?:_mean|_worst_tenth|_std)?"
)


def kind(name: str) -> MetricKind:
    """The kind of a metric; one of a rule's own, or of a user's, is a plain value."""
    if name in METRICS:
        return METRICS[name].kind
    return MetricKind.SHARE if re.sub(r"top_\d+_", "top_k_", _measured(name)) in _SHARES else MetricKind.VALUE


def is_counted(name: str) -> bool:
    """Whether a metric counts since the evaluation before, so that a run's is the sum."""
    return kind(name) is MetricKind.COST and name not in ("round", "client_seconds")


def higher_is_better(name: str) -> bool:
    """Whether more of a metric is better: not of errors, spreads, costs and counts, nor of what attacks gain."""
    lower = name in _LOWER or _measured(name) in _LOWER or name.endswith(("_loss", "_std"))
    return not lower and kind(name) not in (MetricKind.COST, MetricKind.COUNT)


def title(name: str) -> str:
    """The title of a metric; a rule's own metric is called by its name."""
    if name in METRICS:
        return METRICS[name].title
    return {**PER_CLIENT, **OF_ALL}.get(name, name.replace("_", " "))


def _measured(name: str) -> str:
    """The metric of predictions whose values these are, such as ``f1`` of ``test_f1_micro``; empty if there is none."""
    found = _MEASURED.fullmatch(name)
    return found[1] if found else ""
