"""Accuracies of clients and of classes, from counts of correct predictions."""

from collections.abc import Mapping
from typing import Any

import numpy as np

WORST = 10
"""The worst tenth: one in so many clients, rounded up."""


def by_client_and_class(evaluated: Mapping[str, Any], per_client: bool) -> dict[str, Any]:
    """An evaluation with accuracies in the place of the counts that they are made of.

    Args:
      evaluated: of one evaluation, on the host; it has counts only if clients are evaluated.
      per_client: whether to keep the accuracy of each client.

    Returns:
      The entries of ``evaluated`` that are no counts; ``class_accuracy`` ``[C]``, NaN for classes without an example;
      the figures of :func:`over_clients`; and ``client_accuracy`` ``[M]``, NaN for clients that do not count.
    """
    metrics = dict(evaluated)
    if "class_correct" in metrics:
        metrics["class_accuracy"] = _shares(metrics.pop("class_correct"), metrics.pop("class_examples"))
    if "client_correct" in metrics:
        of_clients = _shares(metrics.pop("client_correct"), metrics.pop("client_examples"))
        metrics |= over_clients(of_clients)
        if per_client:
            metrics["client_accuracy"] = of_clients
    return metrics


def over_clients(accuracy: np.ndarray) -> dict[str, np.floating]:
    """The spread of an accuracy over the clients, all of which weigh the same.

    Args:
      accuracy: ``[M]``; NaN for clients that do not count, of which there is one at least.

    Returns:
      ``client_accuracy_mean``; ``client_accuracy_worst_tenth``, the mean over the tenth of the clients, rounded up,
      whose accuracy is lowest; ``client_accuracy_std``, the standard deviation over the clients (divided by their
      number).

    References:
      Li, Sanjabi, Beirami and Smith, Fair resource allocation in federated learning, ICLR 2020: its Table 1 reports the
      average, the worst 10 %, the best 10 % and the variance over the clients.
    """
    rising = np.sort(np.asarray(accuracy, np.float64)[~np.isnan(accuracy)])
    figures = {
        "client_accuracy_mean": rising.mean(),
        "client_accuracy_worst_tenth": rising[: -(-len(rising) // WORST)].mean(),
        "client_accuracy_std": rising.std(),
    }
    return {name: np.float32(figure) for name, figure in figures.items()}


def _shares(correct: Any, number: Any) -> np.ndarray:
    """``correct / number`` as float32; NaN where there is nothing."""
    number = np.asarray(number, np.float64)
    return np.where(number > 0, np.asarray(correct) / np.maximum(number, 1), np.nan).astype(np.float32)
