"""Figures of finished and running experiments, and the labels in them."""
