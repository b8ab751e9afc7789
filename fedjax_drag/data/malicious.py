"""Which clients are malicious."""

import numpy as np


def choose_malicious(num_clients: int, number: int, seed: int) -> np.ndarray:
    """Marks ``number`` clients as malicious for the whole run, ``[M]`` bool."""
    order = np.random.default_rng([seed, 1]).permutation(num_clients)
    malicious = np.zeros(num_clients, bool)
    malicious[order[:number]] = True
    return malicious
