"""Federated learning under data heterogeneity and Byzantine attack, as one compiled JAX program."""

from fedjax_drag import aggregators, algorithms, attacks, clients, data, models, simulation
from fedjax_drag.experiment.run import run
from fedjax_drag.simulation import simulate

__version__ = "0.1.0"

__all__ = ["aggregators", "algorithms", "attacks", "clients", "data", "models", "run", "simulate", "simulation"]
