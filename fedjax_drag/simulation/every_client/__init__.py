"""Evaluation client by client: the examples that clients hold out, predictions on them, and accuracies."""
