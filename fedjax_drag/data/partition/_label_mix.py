"""Numbers of examples by class and client where every client has a mix of labels of its own."""

import numpy as np

_STEPS = 1 << 32
"""Values of a uniform draw: a client's number plus such a draw is exact in float64 for up to 2^20 clients."""


def log_mixes(rng: np.random.Generator, num_clients: int, num_classes: int, beta: float) -> np.ndarray:
    """Logarithms of ``p_m ~ Dir(beta, ..., beta)``, ``[M, C]``, each up to a constant of its client.

    For a small ``beta`` components are below every floating point number, hence the logarithm: Gamma(beta) is
    distributed as Gamma(beta + 1) U^(1 / beta).
    """
    shape = (num_clients, num_classes)
    return np.log(rng.standard_gamma(beta + 1, shape)) - rng.standard_exponential(shape) / beta


def draw_counts(rng: np.random.Generator, logs: np.ndarray, per_class: np.ndarray, in_turn: bool = False) -> np.ndarray:
    """Draws a label for each place of each client, where places of all clients are filled in random order or in turn.

    The client of a place draws from its mix; a class without examples left is dropped from all mixes, and the rest of
    each is scaled to add up to 1.

    Args:
      rng: of all draws.
      logs: logarithms of the mixes ``[M, C]``, up to a constant of each client.
      per_class: examples ``[C]``; the clients' numbers of places add up to as many and differ by at most one.
      in_turn: whether all places of a client are filled before those of the next one.

    Returns:
      Numbers of examples ``[C, M]``.
    """
    num_clients, num_classes = logs.shape
    client = np.arange(per_class.sum()) % num_clients
    client = np.sort(client) if in_turn else rng.permutation(client)
    left = per_class > 0
    label = _draw(rng, logs, left, client)
    # The first class to run out decides from where on labels must be drawn again. Of those behind it, only its own
    # change: the others are distributed as drawn from the other classes alone.
    while (wanted := np.flatnonzero(np.bincount(label, minlength=num_classes) > per_class)).size:
        ends = [np.flatnonzero(label == k)[per_class[k]] for k in wanted]
        first = int(np.argmin(ends))
        left[wanted[first]] = False
        again = ends[first] + np.flatnonzero(label[ends[first] :] == wanted[first])
        label[again] = _draw(rng, logs, left, client[again])
    cells = np.bincount(label * num_clients + client, minlength=num_classes * num_clients)
    return cells.reshape(num_classes, num_clients)


def _draw(rng: np.random.Generator, logs: np.ndarray, left: np.ndarray, client: np.ndarray) -> np.ndarray:
    """A label for each entry of ``client``, from that client's mix of the classes ``left`` ``[C]``."""
    masked = np.where(left, logs, -np.inf)
    cumulative = np.cumsum(np.exp(masked - masked.max(axis=1, keepdims=True)), axis=1)
    cumulative /= cumulative[:, -1:]
    # One sorted list for all clients: the entries of client m are in [m, m + 1].
    ordered = (cumulative + np.arange(len(logs))[:, None]).ravel()
    uniform = rng.integers(_STEPS, size=len(client)) / _STEPS
    return np.searchsorted(ordered, client + uniform, side="right") - client * logs.shape[1]
