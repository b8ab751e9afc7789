"""A results folder as one HTML page that needs nothing else."""

from fedjax_drag.experiment.report.page import write

__all__ = ["write"]
